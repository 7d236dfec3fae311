// Streams beside each other, messages between two ranks, progress without a wait, figures and
// spans.
#include "base/clock.h"
#include "ranks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// ---- two streams --------------------------------------------------------------------------------

// Rank 0 uses "b" first, the others "a": streams do not wait for each other.
static void two_streams_body(struct rank_case *rank) {
    struct comm_stream *a = ranks_stream(rank, "a"), *b = ranks_stream(rank, "b");
    int64_t x[3] = {rank->rank, 1, 2};
    unsigned char all[3][8];
    unsigned char own[8];
    memset(own, 10 + rank->rank, sizeof own);
    struct comm_event event;
    if (rank->rank == 0) {
        event = comm_all_gather(b, own, all, 8);
        comm_wait(event, NULL);
        comm_sum_integers(a, x, 3);
    } else {
        event = comm_all_gather(b, own, all, 8);
        comm_sum_integers(a, x, 3);
        comm_wait(event, NULL);
    }
    CHECK_EQ_INT(x[0], 3);
    CHECK_EQ_INT(x[1], 3);
    for (int r = 0; r < 3; r++) CHECK_EQ_INT(all[r][7], 10 + r);
    struct err err = {0};
    int members[3] = {0, 1, 2};
    CHECK(comm_stream_open(rank->comm, "a", members, 3, &err) == NULL); // it is open
    CHECK_CONTAINS(err.text, "same members");
    comm_stream_close(a);
    a = ranks_stream(rank, "a"); // closed, so it may be opened again
    comm_sum_integers(a, x, 3);
    CHECK_EQ_INT(x[0], 9);
    ranks_check(rank);
    comm_stream_close(a);
    comm_stream_close(b);
}

TEST(comm_two_streams) {
    ranks_run(3, &(struct comm_options){0}, two_streams_body, NULL);
}

// Groups of two on a grid: the same name with other members is another stream.
static void grid_body(struct rank_case *rank) {
    int r = rank->rank;
    int row[2] = {r / 2 * 2, r / 2 * 2 + 1}, column[2] = {r % 2, r % 2 + 2};
    struct err err = {0};
    struct comm_stream *tp = comm_stream_open(rank->comm, "tp", row, 2, &err);
    struct comm_stream *dp = comm_stream_open(rank->comm, "dp", column, 2, &err);
    CHECK(tp && dp);
    CHECK_EQ_INT(comm_stream_size(dp), 2);
    for (int i = 0; i < 100; i++) {
        int64_t x = r, y = r;
        comm_sum_integers(tp, &x, 1);
        comm_sum_integers(dp, &y, 1);
        CHECK_EQ_INT(x, row[0] + row[1]);
        CHECK_EQ_INT(y, column[0] + column[1]);
    }
    ranks_check(rank);
    comm_stream_close(tp);
    comm_stream_close(dp);
}

TEST(comm_groups_of_a_grid) {
    ranks_run(4, &(struct comm_options){0}, grid_body, NULL);
}

TEST(comm_stream_refusals) {
    struct comm *comm;
    struct err err = {0};
    CHECK_OK(comm_open_self(&comm, &(struct comm_options){0}, &err), err);
    CHECK(!comm_stream_open(comm, "x", (int[]){1}, 1, &err));
    CHECK_CONTAINS(err.text, "rank 1");
    err = (struct err){0};
    CHECK(!comm_stream_open(comm, "x", (int[]){0, 0}, 2, &err));
    CHECK_CONTAINS(err.text, "twice");
    err = (struct err){0};
    CHECK(!comm_stream_open(comm, "a name that is much too long", (int[]){0}, 1, &err));
    CHECK_CONTAINS(err.text, "longer");
    err = (struct err){0};
    CHECK(!comm_stream_open(comm, "x", NULL, 0, &err));
    CHECK_CONTAINS(err.text, "not among");
    comm_close(comm);
    err = (struct err){0};
    CHECK_EQ_INT(comm_open_threads(&comm, 0, &(struct comm_options){0}, &err), -1);
    CHECK_CONTAINS(err.text, "0 ranks");
}

// More operations than a stream holds: posting waits for the oldest.
static void many_body(struct rank_case *rank) {
    enum { N = 5 * COMM_STREAM_DEPTH };
    static unsigned char all[3][N][3];
    struct comm_stream *s = ranks_stream(rank, "all");
    unsigned char own[N];
    struct comm_event events[N];
    for (int i = 0; i < N; i++) {
        own[i] = (unsigned char)(i * 3 + rank->rank);
        events[i] = comm_all_gather(s, &own[i], all[rank->rank][i], 1);
    }
    comm_wait(events[N - 1], NULL);
    for (int i = 0; i < N; i++) {
        CHECK(comm_done(events[i]));
        comm_wait(events[i], NULL);
        for (int r = 0; r < 3; r++) CHECK_EQ_INT(all[rank->rank][i][r], (unsigned char)(i * 3 + r));
    }
    comm_stream_close(s);
}

TEST(comm_more_posts_than_room) {
    ranks_run(3, &(struct comm_options){0}, many_body, NULL);
}

// ---- messages between two ranks -----------------------------------------------------------------

// Every rank to every rank, itself too, three tags, posted in opposite orders; two messages with
// one tag arrive in the order of posting.
void points_on(struct rank_case *rank) {
    enum { TAGS = 3, MOST = 2500 };
    int n = rank->size, me = rank->rank;
    unsigned char *out = malloc((size_t)(n * TAGS) * MOST), *in = malloc((size_t)(n * TAGS) * MOST);
    struct comm_event events[64 * TAGS * 2];
    int count = 0;
    CHECK(out && in && n <= 64);
    for (int r = 0; r < n; r++)
        for (int t = 0; t < TAGS; t++) {
            unsigned char *from = out + (size_t)(r * TAGS + t) * MOST;
            memset(from, me * 16 + r + t * 5, MOST);
            // tags 0 and 1 are one tag with two messages
            events[count++] = comm_send(rank->comm, r, t / 2 * COMM_TAG_MOST, from,
                                        (uint64_t)t * 1200); // 0, 1200, 2400 bytes
        }
    for (int r = n - 1; r >= 0; r--)
        for (int k = 0; k < TAGS; k++) {
            int t = (k + 2) % TAGS; // 2, 0, 1
            unsigned char *to = in + (size_t)(r * TAGS + t) * MOST;
            memset(to, 0xee, MOST);
            events[count++] =
                comm_receive(rank->comm, r, t / 2 * COMM_TAG_MOST, to, (uint64_t)t * 1200);
        }
    for (int i = 0; i < count; i++) comm_wait(events[i], NULL);
    for (int r = 0; r < n; r++)
        for (int t = 0; t < TAGS; t++)
            for (int i = 0; i < MOST; i++)
                CHECK_EQ_INT(in[(size_t)(r * TAGS + t) * MOST + (size_t)i],
                             i < t * 1200 ? (unsigned char)(r * 16 + me + t * 5) : 0xee);
    ranks_check(rank);
    free(out), free(in);
}

TEST(comm_messages_in_any_order) {
    for (int n = 1; n <= 5; n += 2)
        ranks_run(n, &(struct comm_options){.chunk_bytes = 1000}, points_on, NULL);
}

static void long_queue_body(struct rank_case *rank) { // more than COMM_POINT_DEPTH
    enum { N = 3000 };
    static int values[N], got[N];
    if (rank->rank == 0) {
        for (int i = 0; i < N; i++) {
            values[i] = i * 7;
            comm_send(rank->comm, 1, 5, &values[i], 4);
        }
        int done = 0;
        comm_wait(comm_receive(rank->comm, 1, 6, &done, 4), NULL);
        CHECK_EQ_INT(done, 1);
    } else {
        struct comm_event last = {0};
        for (int i = 0; i < N; i++) last = comm_receive(rank->comm, 0, 5, &got[i], 4);
        comm_wait(last, NULL);
        for (int i = 0; i < N; i++) CHECK_EQ_INT(got[i], i * 7);
        int done = 1;
        comm_wait(comm_send(rank->comm, 0, 6, &done, 4), NULL);
    }
}

TEST(comm_more_messages_than_room) {
    ranks_run(2, &(struct comm_options){0}, long_queue_body, NULL);
}

// ---- progress -----------------------------------------------------------------------------------

// What was posted completes while this thread never waits.
static void progress_body(struct rank_case *rank) {
    enum { N = 1000000 };
    struct comm_stream *s = ranks_stream(rank, "dp");
    struct comm_reduction plain = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    float *data = malloc(4 * N), *scratch = malloc(comm_all_reduce_scratch(s, N, &plain));
    CHECK(data && scratch);
    for (int i = 0; i < N; i++) data[i] = (float)rank->rank + 1;
    struct comm_event event = comm_all_reduce(s, data, scratch, N, &plain);
    volatile double work = 0;
    while (!comm_done(event))
        for (int i = 0; i < 10000; i++) work = work + i;
    for (int i = 0; i < N; i += 999) CHECK(data[i] == 6);
    struct comm_counts counts;
    comm_stream_counts(s, COMM_ALL_REDUCE, &counts);
    CHECK_EQ_INT(counts.operations, 1);
    CHECK(counts.in_flight_seconds > 0);
    CHECK(counts.exposed_seconds == 0);
    // parts of others to them, then the own part to both: 333344, 333344 and 333312 elements
    uint64_t own = rank->rank == 2 ? 333312 : 333344;
    CHECK_EQ_INT(counts.bytes, 4 * (N - own + 2 * own));
    comm_stream_close(s);
    free(data), free(scratch);
}

TEST(comm_proceeds_without_waiting) {
    ranks_run(3, &(struct comm_options){0}, progress_body, NULL);
}

// ---- figures and spans --------------------------------------------------------------------------

static void spans_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    struct record_lane lane;
    CHECK_EQ_INT(record_lane_open(&lane, "compute", 10), 0);
    unsigned char own[100] = {1}, all[200];
    if (rank->rank == 1) usleep(20000);
    comm_wait(comm_all_gather(s, own, all, 100), &lane);
    if (rank->rank == 0) {
        struct comm_counts counts;
        comm_stream_counts(s, COMM_ALL_GATHER, &counts);
        CHECK_EQ_INT(counts.operations, 1);
        CHECK_EQ_INT(counts.bytes, 100);
        CHECK(counts.exposed_seconds > 0.001);
        CHECK(counts.in_flight_seconds > 0.001);
        CHECK(counts.queued_seconds >= 0);
        CHECK_EQ_INT(lane.events[RECORD_COMM_WAIT], 1);
        CHECK_STR(lane.spans[0].name, "all_gather dp@0");
        CHECK_EQ_INT(lane.spans[0].argument, 1);
        const struct record_lane *other = comm_lane(rank->comm);
        CHECK_EQ_INT(other->span_count, 1);
        CHECK_STR(other->spans[0].name, "all_gather dp@0");
        CHECK_EQ_INT(other->spans[0].kind, RECORD_COMM);
        comm_stream_counts(s, COMM_ALL_REDUCE, &counts);
        CHECK_EQ_INT(counts.operations, 0);
    }
    comm_stream_close(s);
    record_lane_close(&lane);
    int peer = 1 - rank->rank;
    struct comm_event in = comm_receive(rank->comm, peer, 3, all, 50);
    comm_wait(comm_send(rank->comm, peer, 3, own, 50), NULL);
    comm_wait(in, NULL);
    struct comm_counts counts;
    comm_point_counts(rank->comm, COMM_SEND, &counts);
    CHECK_EQ_INT(counts.operations, 1);
    CHECK_EQ_INT(counts.bytes, 50);
    comm_point_counts(rank->comm, COMM_RECEIVE, &counts);
    CHECK_EQ_INT(counts.bytes, 0);
}

TEST(comm_figures_and_spans) {
    ranks_run(2, &(struct comm_options){.trace_spans = 10}, spans_body, NULL);
}

TEST(comm_algorithms_by_size_and_hosts) {
    struct comm *ends[20];
    struct err err = {0};
    int members[20];
    for (int i = 0; i < 20; i++) members[i] = i;
    CHECK_OK(comm_open_threads(ends, 20, &(struct comm_options){.ranks_per_host = 4}, &err), err);
    struct comm_stream *one = comm_stream_open(ends[0], "1", members, 1, &err),
                       *two = comm_stream_open(ends[0], "2", members, 2, &err),
                       *host = comm_stream_open(ends[0], "4", members, 4, &err),
                       *hosts = comm_stream_open(ends[0], "8", members, 8, &err),
                       *many = comm_stream_open(ends[0], "20", members, 20, &err);
    CHECK_STR(comm_algorithm(one, COMM_ALL_REDUCE, 100), "local");
    CHECK_STR(comm_algorithm(two, COMM_ALL_REDUCE, 100000), "exchange of the whole");
    CHECK_STR(comm_algorithm(host, COMM_ALL_REDUCE, 100000), "exchange in parts");
    CHECK_STR(comm_algorithm(hosts, COMM_ALL_REDUCE, 100000), "exchange, then ring");
    CHECK_STR(comm_algorithm(host, COMM_ALL_GATHER, 100000), "exchange");
    CHECK_STR(comm_algorithm(hosts, COMM_ALL_GATHER, 100000), "ring");
    CHECK_STR(comm_algorithm(many, COMM_ALL_GATHER, 100000), "ring");
    CHECK_STR(comm_algorithm(many, COMM_REDUCE_SCATTER, 100000), "exchange");
    CHECK_STR(comm_algorithm(many, COMM_BROADCAST, 8), "tree");
    CHECK_STR(comm_algorithm(many, COMM_BARRIER, 0), "dissemination");
    CHECK_STR(comm_kind_name(COMM_REDUCE_SCATTER), "reduce_scatter");
    comm_stream_close(one), comm_stream_close(two), comm_stream_close(host);
    comm_stream_close(hosts), comm_stream_close(many);
    for (int i = 0; i < 20; i++) comm_close(ends[i]);
}
