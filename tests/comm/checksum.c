// Checksums behind messages: everything works as without them, a bit that flips on the way is found
// and named, and what a rank does to its own messages on purpose.
#include "base/clock.h"
#include "ranks.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void everything_body(struct rank_case *rank) {
    collectives_on(rank);
    points_on(rank);
}

TEST(comm_collectives_with_checksums) {
    for (int n = 1; n <= 5; n++)
        ranks_run(n, &(struct comm_options){.checksums = true, .chunk_bytes = 1000},
                  everything_body, NULL);
    ranks_run(3, &(struct comm_options){.checksums = true}, everything_body, NULL);
}

TEST(comm_checksums_over_a_simulated_link) {
    struct comm_options options = {.link_latency_seconds = 1e-4,
                                   .link_bytes_per_second = 1e9,
                                   .ranks_per_host = 2,
                                   .chunk_bytes = 8192,
                                   .check_order = true,
                                   .checksums = true};
    ranks_run(4, &options, everything_body, NULL);
}

// Messages longer than a slice of the checksum, and of several pieces.
static void long_body(struct rank_case *rank) {
    enum { BYTES = 3000001 };
    unsigned char *out = malloc(BYTES), *in = calloc(1, BYTES);
    CHECK(out && in);
    for (int i = 0; i < BYTES; i++) out[i] = (unsigned char)((unsigned)i * 2654435761u >> 24);
    struct comm_event send = comm_send(rank->comm, 1 - rank->rank, 3, out, BYTES);
    comm_wait(comm_receive(rank->comm, 1 - rank->rank, 3, in, BYTES), NULL);
    comm_wait(send, NULL);
    ranks_check(rank);
    CHECK(memcmp(out, in, BYTES) == 0);
    struct comm_counts counts;
    comm_point_counts(rank->comm, COMM_SEND, &counts);
    CHECK_EQ_INT(counts.bytes, BYTES); // the payload's
    free(out), free(in);
}

TEST(comm_checksums_of_long_messages) {
    ranks_run(2, &(struct comm_options){.checksums = true}, long_body, NULL);
    ranks_run(2, &(struct comm_options){.checksums = true, .chunk_bytes = 1 << 20}, long_body,
              NULL);
}

// ---- a bit that flips ---------------------------------------------------------------------------

struct flip_case {
    enum comm_kind kind;
    int64_t elements; // floats of a piece
    int bit;
    atomic_int finders; // ranks whose own message says it
};

static void perform(struct rank_case *rank, struct comm_stream *s, const struct flip_case *c,
                    float *own, float *all, float *scratch) {
    int64_t n = c->elements;
    uint64_t bytes = (uint64_t)n * sizeof(float), offset[4], size[4];
    struct comm_reduction sum = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    for (int i = 0; i < 4; i++) {
        offset[i] = bytes * (uint64_t)i;
        size[i] = bytes;
    }
    switch (c->kind) {
    case COMM_ALL_GATHER:
        comm_wait(comm_all_gather(s, own, all, bytes), NULL);
        break;
    case COMM_REDUCE_SCATTER:
        comm_wait(comm_reduce_scatter(s, all, scratch, own, n, &sum), NULL);
        break;
    case COMM_ALL_REDUCE:
        comm_wait(comm_all_reduce(s, own, scratch, n, &sum), NULL);
        break;
    case COMM_ALL_TO_ALL:
        comm_wait(comm_all_to_all(s, all, offset, size, scratch, offset, size), NULL);
        break;
    case COMM_BROADCAST:
        comm_wait(comm_broadcast(s, 0, own, bytes), NULL);
        break;
    default:
        if (rank->rank == 0)
            comm_wait(comm_send(rank->comm, 1, 9, own, bytes), NULL);
        else if (rank->rank == 1)
            comm_wait(comm_receive(rank->comm, 0, 9, own, bytes), NULL);
    }
}

static void flip_body(struct rank_case *rank) {
    struct flip_case *c = rank->context;
    struct comm_stream *s = ranks_stream(rank, "dp");
    size_t count = (size_t)(c->elements * 4);
    float *own = calloc(count, sizeof *own), *all = calloc(count, sizeof *all),
          *scratch = calloc(count, sizeof *scratch);
    CHECK(own && all && scratch);
    for (int i = 0; i < 3; i++) perform(rank, s, c, own, all, scratch);
    ranks_check(rank);
    comm_wait(comm_barrier(s), NULL);
    if (rank->rank == 1)
        comm_inject(rank->comm,
                    &(struct comm_fault){
                        .peer = -1, .flip_in = 1, .flip_bit = c->bit, .flip_word = 1234567});
    comm_wait(comm_barrier(s), NULL);
    for (int i = 0; i < 3; i++) perform(rank, s, c, own, all, scratch);
    while (comm_check(rank->comm, NULL) == 0) usleep(1000);
    struct err err = {0};
    char expected[80], number[40] = "";
    comm_check(rank->comm, &err);
    if (rank->rank == 1) printf("%s\n", err.text);
    if (!comm_failed_elsewhere(rank->comm)) atomic_fetch_add(&c->finders, 1);
    CHECK_EQ_INT(err.kind, ERR_RETRY);
    if (c->kind == COMM_SEND)
        snprintf(expected, sizeof expected, "receive number ");
    else
        snprintf(expected, sizeof expected, "%s number ", comm_kind_name(c->kind));
    CHECK_CONTAINS(err.text, expected);
    if (c->kind != COMM_SEND) CHECK_CONTAINS(err.text, "of stream dp");
    snprintf(number, sizeof number, "to rank 1 (");
    CHECK_CONTAINS(err.text, number);
    CHECK_CONTAINS(err.text, " bytes from rank ");
    if (rank->rank == 1) CHECK_EQ_INT(comm_injected(rank->comm), 1);
    comm_stream_close(s);
    free(own), free(all), free(scratch);
}

TEST(comm_a_flipped_bit_is_found_and_named) {
    static const enum comm_kind kinds[] = {COMM_SEND,       COMM_ALL_GATHER, COMM_REDUCE_SCATTER,
                                           COMM_ALL_REDUCE, COMM_ALL_TO_ALL, COMM_BROADCAST};
    static const int64_t sizes[] = {1, 64, 65, 100000};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct flip_case c = {
                .kind = kinds[k], .elements = sizes[i], .bit = (int)(31 - 9 * i % 32)};
            ranks_run(4, &(struct comm_options){.checksums = true, .chunk_bytes = 1 << 16},
                      flip_body, &c);
            CHECK_EQ_INT(atomic_load(&c.finders), 1);
        }
}

// Without checksums the same flip arrives as any other value: the control of the above.
static void unseen_body(struct rank_case *rank) {
    float value = 1;
    if (rank->rank == 0) {
        comm_wait(comm_send(rank->comm, 1, 9, &value, 4), NULL);
    } else {
        comm_inject(rank->comm, &(struct comm_fault){.peer = -1, .flip_in = 1, .flip_bit = 31});
        comm_wait(comm_receive(rank->comm, 0, 9, &value, 4), NULL);
        CHECK(value == -1);
        CHECK_EQ_INT(comm_injected(rank->comm), 1);
    }
    ranks_check(rank);
}

TEST(comm_without_checksums_a_flipped_bit_arrives) {
    ranks_run(2, &(struct comm_options){0}, unseen_body, NULL);
}

// The n-th payload from now on, and no other one.
static void third_body(struct rank_case *rank) {
    float values[5] = {1, 1, 1, 1, 1};
    if (rank->rank == 1)
        comm_inject(rank->comm, &(struct comm_fault){.peer = -1, .flip_in = 3, .flip_bit = 31});
    for (int i = 0; i < 5; i++)
        comm_wait(rank->rank == 0 ? comm_send(rank->comm, 1, 9, &values[i], 4)
                                  : comm_receive(rank->comm, 0, 9, &values[i], 4),
                  NULL);
    for (int i = 0; i < 5; i++) CHECK(values[i] == (rank->rank == 1 && i == 2 ? -1 : 1));
    ranks_check(rank);
}

TEST(comm_a_chosen_message_flips) {
    ranks_run(2, &(struct comm_options){0}, third_body, NULL);
}

// ---- links that are cut or flap -----------------------------------------------------------------

// Rank 1 sends nothing to rank 2 any more: not messages, not answers.
static void cut_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    comm_wait(comm_barrier(s), NULL);
    if (rank->rank == 1) comm_inject(rank->comm, &(struct comm_fault){.peer = 2, .drop = true});
    float own[4] = {0}, all[12];
    comm_wait(comm_barrier(s), NULL);
    comm_wait(comm_all_gather(s, own, all, sizeof own), NULL);
    struct err err = {0};
    while (comm_check(rank->comm, &err) == 0) usleep(1000);
    CHECK_CONTAINS(err.text, "of stream dp");
    if (!comm_failed_elsewhere(rank->comm) && rank->rank == 2) CHECK_CONTAINS(err.text, "rank 1 (");
    comm_stream_close(s);
}

TEST(comm_a_cut_link_ends_the_run) {
    ranks_run(3, &(struct comm_options){.watchdog_seconds = 0.6, .checksums = true}, cut_body,
              NULL);
}

// Whatever stands still goes on: results are those of a healthy link, later.
static void flap_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    if (rank->rank == 1)
        comm_inject(rank->comm, &(struct comm_fault){.peer = -1, .flap_seconds = 0.05});
    double begin = clock_seconds(), longest = 0;
    for (int64_t i = 0;; i++) {
        int64_t values[2] = {rank->rank + 1, i}, go_on = clock_seconds() - begin < 0.4;
        double before = clock_seconds();
        comm_sum_integers(s, values, 2);
        comm_max_integers(s, &go_on, 1);
        double took = clock_seconds() - before;
        CHECK_EQ_INT(values[0], 3);
        CHECK_EQ_INT(values[1], 2 * i);
        if (took > longest) longest = took;
        if (!go_on) break; // agreed
    }
    ranks_check(rank);
    CHECK(longest > 0.02);
    if (rank->rank == 1) comm_inject(rank->comm, &(struct comm_fault){.peer = -1}); // healed
    for (int i = 0; i < 50; i++) comm_wait(comm_barrier(s), NULL);
    comm_stream_close(s);
}

TEST(comm_a_flapping_link_delays_and_changes_nothing) {
    ranks_run(2, &(struct comm_options){.checksums = true}, flap_body, NULL);
}
