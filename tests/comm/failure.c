// Worlds that fail: who is late, who posted something else, who said so; and that all ends come to
// an end.
#include "base/log.h"
#include "ranks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_for_failure(struct rank_case *rank) {
    while (comm_check(rank->comm, NULL) == 0) usleep(1000);
}

static void check_message(struct rank_case *rank, const char *const *parts) {
    struct err err = {0};
    CHECK_EQ_INT(comm_check(rank->comm, &err), -1);
    for (; *parts; parts++) CHECK_CONTAINS(err.text, *parts);
    CHECK(err.kind != ERR_NONE);
}

// ---- the watchdog -------------------------------------------------------------------------------

// Rank 2 of four leaves out the third all-gather; its thread stands still. In a ring rank 0 sees
// only that rank 3's message is missing.
static void late_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    unsigned char own[16] = {0}, all[64];
    for (int i = 0; i < 2; i++) comm_wait(comm_all_gather(s, own, all, 16), NULL);
    if (rank->rank == 2)
        wait_for_failure(rank);
    else
        comm_wait(comm_all_gather(s, own, all, 16), NULL);
    check_message(rank, (const char *[]){"all_gather number 3 of stream dp (4 ranks, 16 bytes)",
                                         "rank 2 (",
                                         "has not posted it (it has posted 2; the last of all: "
                                         "all_gather number 2 of stream dp at failure.c:28)",
                                         NULL});
    struct err err = {0};
    comm_check(rank->comm, &err);
    CHECK(!strstr(err.text, "rank 3 (host-1) has not posted"));
    CHECK(!strstr(err.text, "rank 1 (host-0) has not posted"));
    // later operations end at once
    comm_wait(comm_barrier(s), NULL);
    comm_wait(comm_all_gather(s, own, all, 16), NULL);
    comm_stream_close(s);
}

TEST(comm_watchdog_names_the_late_rank) {
    ranks_run(4, &(struct comm_options){.watchdog_seconds = 0.8}, late_body, NULL);
    struct comm_options ring = {.watchdog_seconds = 0.8, .ranks_per_host = 2};
    ranks_run(4, &ring, late_body, NULL);
}

// Rank 1 is busy for longer than the watchdog allows, and says so: nothing fails. In a receive,
// too.
static void busy_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    char data[10] = {0};
    if (rank->rank == 1) {
        comm_busy(rank->comm, "builds the index");
        usleep(1100000);
        comm_wait(comm_barrier(s), NULL);
        usleep(1100000);
        for (int r = 0; r < 3; r += 2) comm_wait(comm_send(rank->comm, r, 5, data, 10), NULL);
        comm_busy(rank->comm, NULL);
    } else {
        comm_wait(comm_barrier(s), NULL);
        comm_wait(comm_receive(rank->comm, 1, 5, data, 10), NULL);
    }
    ranks_check(rank);
    comm_wait(comm_barrier(s), NULL); // before its busy time is over for all
    if (rank->rank == 1)
        while (comm_check(rank->comm, NULL) == 0) usleep(1000); // now it says nothing
    else
        comm_wait(comm_barrier(s), NULL);
    check_message(rank, (const char *[]){"barrier number 3 of stream dp", "rank 1 (",
                                         "has not posted it", NULL});
    CHECK(comm_failed_elsewhere(rank->comm) || rank->rank != 1);
    comm_stream_close(s);
}

static int busy_lines;
static void count_busy_lines(enum log_level level, const char *line, void *context) {
    (void)level, (void)context;
    printf("%s\n", line);
    if (strstr(line, "for rank 1 (") && strstr(line, "busy: builds the index"))
        __atomic_add_fetch(&busy_lines, 1, __ATOMIC_SEQ_CST);
}

TEST(comm_watchdog_waits_for_a_busy_rank) {
    log_to(count_busy_lines, NULL, LOG_DEBUG);
    ranks_run(3, &(struct comm_options){.watchdog_seconds = 0.8}, busy_body, NULL);
    CHECK(busy_lines >= 4); // two ranks, in the barrier and in the receive
    log_to(NULL, NULL, LOG_INFO);
}

// Rank 1 dies within its long work: others wait no longer than the watchdog allows.
static void dies_busy_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    if (rank->rank == 1) {
        comm_busy(rank->comm, "builds the index");
        usleep(1100000);
        CHECK_EQ_INT(comm_check(rank->comm, NULL), 0);
        comm_inject(rank->comm, &(struct comm_fault){.peer = -1, .drop = true});
        wait_for_failure(rank);
    } else {
        comm_wait(comm_barrier(s), NULL);
        check_message(rank, (const char *[]){"barrier number 1 of stream dp", "rank 1 (",
                                             "does not answer", NULL});
    }
    comm_stream_close(s);
}

TEST(comm_watchdog_ends_when_a_busy_rank_dies) {
    ranks_run(3, &(struct comm_options){.watchdog_seconds = 0.8}, dies_busy_body, NULL);
}

static void no_sender_body(struct rank_case *rank) {
    char data[10];
    if (rank->rank == 0)
        comm_wait(comm_receive(rank->comm, 1, 77, data, 10), NULL);
    else
        wait_for_failure(rank);
    check_message(rank,
                  (const char *[]){"receive number 1 (tag 77, 10 bytes)", "rank 1 (",
                                   "has not sent it", rank->rank ? "rank 0 (" : "rank 0", NULL});
}

TEST(comm_watchdog_names_the_missing_sender) {
    ranks_run(2, &(struct comm_options){.watchdog_seconds = 0.3}, no_sender_body, NULL);
}

static void no_receiver_body(struct rank_case *rank) {
    char data[10] = {0};
    if (rank->rank == 0) comm_send(rank->comm, 1, 78, data, 10);
    wait_for_failure(rank); // without a wait for the send
    check_message(rank, (const char *[]){"send number 1 (tag 78", "has not received it", NULL});
}

TEST(comm_watchdog_names_the_missing_receiver) {
    ranks_run(2, &(struct comm_options){.watchdog_seconds = 0.3}, no_receiver_body, NULL);
}

// ---- orders -------------------------------------------------------------------------------------

static void other_kind_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    struct comm_reduction plain = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    float own[16] = {0}, all[64], scratch[64];
    comm_wait(comm_all_gather(s, own, all, 64), NULL);
    if (rank->rank == 1)
        comm_wait(comm_all_gather(s, own, all, 64), NULL);
    else
        comm_wait(comm_reduce_scatter(s, all, scratch, own, 16, &plain), NULL);
    check_message(rank,
                  (const char *[]){"orders differ", "all_gather number 2 of stream dp, 64 bytes",
                                   "reduce_scatter number 2 of stream dp, 64 bytes", NULL});
    comm_stream_close(s);
}

TEST(comm_order_check_names_both_operations) {
    ranks_run(2, &(struct comm_options){.check_order = true}, other_kind_body, NULL);
}

// Two streams with blocking operations in opposite orders: each waits for the other.
static void crossed_body(struct rank_case *rank) {
    struct comm_stream *tp = ranks_stream(rank, "tp"), *dp = ranks_stream(rank, "dp");
    int64_t x = 1;
    comm_sum_integers(rank->rank == 0 ? tp : dp, &x, 1);
    comm_sum_integers(rank->rank == 0 ? dp : tp, &x, 1);
    check_message(rank,
                  (const char *[]){"orders differ", "all_gather number 1 of stream tp",
                                   "all_gather number 1 of stream dp", "at failure.c:", NULL});
    comm_stream_close(tp);
    comm_stream_close(dp);
}

TEST(comm_order_check_finds_crossed_streams) {
    ranks_run(2, &(struct comm_options){.check_order = true}, crossed_body, NULL);
}

// Sums over tp pairs and over all ranks; rank 3 has those of its step 5 the other way round. Found
// within the step, with both places in the program.
static void swapped_body(struct rank_case *rank) {
    static const int pairs[2][2] = {{0, 1}, {2, 3}};
    struct err err = {0};
    struct comm_stream *all = ranks_stream(rank, "all");
    struct comm_stream *tp = comm_stream_open(rank->comm, "tp", pairs[rank->rank / 2], 2, &err);
    CHECK(tp);
    struct comm_reduction sum = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    float a[4] = {0}, b[4] = {0}, scratch[12];
    for (int step = 1; step <= 5; step++) {
        bool swaps = rank->rank == 3 && step == 5;
        if (!swaps) comm_wait(comm_all_reduce(tp, a, scratch, 4, &sum), NULL);
        comm_wait(comm_all_reduce(all, b, scratch, 4, &sum), NULL);
        if (swaps) comm_wait(comm_all_reduce(tp, a, scratch, 4, &sum), NULL);
    }
    int line = __LINE__ - 3; // of the sum over all ranks
    char first[100], second[100];
    while (comm_check(rank->comm, &err) == 0) usleep(1000);
    snprintf(first, sizeof first, "number 5 of stream all, 16 bytes, at failure.c:%d", line);
    snprintf(second, sizeof second, "number 5 of stream tp, 16 bytes, at failure.c:%d", line - 1);
    CHECK_CONTAINS(err.text, "orders differ: rank ");
    CHECK_CONTAINS(err.text, first);
    CHECK_CONTAINS(err.text, second);
    comm_stream_close(tp);
    comm_stream_close(all);
}

TEST(comm_order_check_finds_swapped_sums_of_two_groups) {
    struct comm_options options = {.check_order = true, .watchdog_seconds = 20};
    ranks_run(4, &options, swapped_body, NULL);
}

static void other_size_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    unsigned char all[64] = {0};
    comm_wait(comm_broadcast(s, 0, all, rank->rank == 0 ? 12 : 13), NULL);
    check_message(rank, (const char *[]){"orders differ", "12 bytes", "13 bytes", NULL});
    comm_stream_close(s);
}

TEST(comm_sizes_that_differ) {
    ranks_run(2, &(struct comm_options){.check_order = true}, other_size_body, NULL);
}

static void other_message_size_body(struct rank_case *rank) {
    unsigned char data[64] = {0};
    if (rank->rank == 0)
        comm_wait(comm_send(rank->comm, 1, 5, data, 12), NULL);
    else
        comm_wait(comm_receive(rank->comm, 0, 5, data, 13), NULL);
    wait_for_failure(rank);
    check_message(rank, (const char *[]){"tag 5", "expected 13 bytes, found 12", NULL});
}

TEST(comm_message_sizes_that_differ) {
    ranks_run(2, &(struct comm_options){0}, other_message_size_body, NULL);
}

// Right orders pass, also with more operations than the journal holds.
static void right_order_body(struct rank_case *rank) {
    int r = rank->rank;
    int row[2] = {r / 2 * 2, r / 2 * 2 + 1}, column[2] = {r % 2, r % 2 + 2};
    struct err err = {0};
    struct comm_stream *tp = comm_stream_open(rank->comm, "tp", row, 2, &err),
                       *dp = comm_stream_open(rank->comm, "dp", column, 2, &err);
    CHECK(tp && dp);
    for (int i = 0; i < 700; i++) {
        int64_t x = 1;
        comm_barrier(tp);
        comm_sum_integers(dp, &x, 1);
        if (i % 7 == 0) comm_sum_integers(tp, &x, 1);
        CHECK_EQ_INT(x, i % 7 == 0 ? 4 : 2);
    }
    ranks_check(rank);
    comm_stream_close(tp);
    comm_stream_close(dp);
}

TEST(comm_order_check_lets_right_orders_pass) {
    ranks_run(4, &(struct comm_options){.check_order = true}, right_order_body, NULL);
}

TEST(comm_collectives_with_order_check) {
    ranks_run(3, &(struct comm_options){.check_order = true, .chunk_bytes = 4096}, collectives_on,
              NULL);
}

// ---- a rank that says so ------------------------------------------------------------------------

static void failing_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    size_t bytes = 3000000; // being copied when the failure comes
    unsigned char *own = calloc(1, bytes), *all = calloc(3, bytes);
    CHECK(own && all);
    for (int i = 0; i < 20; i++) {
        if (rank->rank == 1 && i == 11) {
            struct err why = {.kind = ERR_DATA, .text = "shard 7 is torn"};
            comm_fail(rank->comm, &why);
        }
        comm_wait(comm_all_gather(s, own, all, bytes), NULL);
    }
    struct err err = {0};
    CHECK_EQ_INT(comm_check(rank->comm, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_DATA);
    CHECK_CONTAINS(err.text, "shard 7 is torn");
    if (rank->rank != 1) CHECK_CONTAINS(err.text, "rank 1 (");
    comm_stream_close(s);
    free(own), free(all); // nobody reads them any more
}

TEST(comm_failure_ends_all_ranks) {
    for (int i = 0; i < 5; i++) ranks_run(3, &(struct comm_options){0}, failing_body, NULL);
}

static void bad_tag_body(struct rank_case *rank) {
    char data[4] = {0};
    comm_wait(comm_send(rank->comm, 0, COMM_TAG_MOST + 1, data, 4), NULL);
    check_message(rank, (const char *[]){"tag 1048577", NULL});
}

TEST(comm_bad_tag) {
    ranks_run(1, &(struct comm_options){0}, bad_tag_body, NULL);
}

// ---- the simulated link -------------------------------------------------------------------------

// 4 MB over a link of 40 MB/s last at least 0.1 s; two messages share it; inside a host it is not
// used.
static void link_body(struct rank_case *rank) {
    size_t bytes = 2000000;
    char *out = calloc(1, bytes), *in = calloc(1, bytes);
    CHECK(out && in);
    struct comm_event events[2] = {{0}};
    int me = rank->rank, far = (me + 2) % 4, near = me ^ 1;
    events[0] = comm_send(rank->comm, near, 1, out, bytes);
    events[1] = comm_receive(rank->comm, near, 1, in, bytes);
    comm_wait(events[0], NULL), comm_wait(events[1], NULL);
    struct comm_counts inside, counts;
    comm_point_counts(rank->comm, COMM_SEND, &inside);
    events[0] = comm_send(rank->comm, far, 1, out, bytes);
    events[1] = comm_receive(rank->comm, far, 1, in, bytes);
    comm_wait(events[0], NULL), comm_wait(events[1], NULL);
    comm_point_counts(rank->comm, COMM_SEND, &counts);
    double sent = counts.in_flight_seconds - inside.in_flight_seconds;
    printf("rank %d: %.4f s inside, %.4f s across\n", me, inside.in_flight_seconds, sent);
    CHECK(sent >= 0.05 + 0.01); // alone on the link, and its latency
    // The two ranks of a host share the link: the slower one sees both messages.
    double *slowest = rank->context;
    slowest[me] = sent;
    free(out), free(in);
}

TEST(comm_simulated_link) {
    double seconds[4];
    struct comm_options options = {
        .link_latency_seconds = 0.01, .link_bytes_per_second = 40e6, .ranks_per_host = 2};
    ranks_run(4, &options, link_body, seconds);
    for (int host = 0; host < 4; host += 2) {
        double slower = seconds[host] > seconds[host + 1] ? seconds[host] : seconds[host + 1];
        CHECK(slower >= 0.08); // both at once: 0.1 s, less by what one was ahead of the other
    }
}

TEST(comm_collectives_over_a_simulated_link) {
    struct comm_options options = {.link_latency_seconds = 1e-4,
                                   .link_bytes_per_second = 1e9,
                                   .ranks_per_host = 2,
                                   .chunk_bytes = 8192};
    ranks_run(4, &options, collectives_on, NULL);
}
