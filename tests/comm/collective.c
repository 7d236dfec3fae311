// Every collective at several group sizes and lengths, with messages cut into small pieces.
#include "ranks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int sizes[] = {1, 2, 3, 4, 5, 8, 17};
static const int64_t lengths[] = {0, 1, 7, 333, 20011};
enum { SIZES = 7, LENGTHS = 5 };

static void over_all(rank_body *body, const struct comm_options *options) {
    for (int n = 0; n < SIZES; n++)
        for (int l = 0; l < LENGTHS; l++) {
            int64_t length = lengths[l];
            printf("%d ranks, length %lld\n", sizes[n], (long long)length);
            ranks_run(sizes[n], options, body, &length);
        }
}

static void *block(uint64_t bytes) {
    void *p = malloc(bytes + 1);
    CHECK(p != NULL);
    memset(p, 0xee, bytes + 1);
    return p;
}

// ---- gathers ------------------------------------------------------------------------------------

static unsigned char byte_of(int rank, int64_t i) {
    return (unsigned char)(rank * 31 + i * 7 + i / 256);
}

static void check_gathered(const unsigned char *all, int size, const uint64_t *bytes) {
    for (int r = 0; r < size; r++)
        for (uint64_t i = 0; i < bytes[r]; i++)
            if (*all++ != byte_of(r, (int64_t)i))
                test_fail(__FILE__, __LINE__, "byte %llu of rank %d differs", (unsigned long long)i,
                          r);
    CHECK_EQ_INT(*all, 0xee); // nothing behind the end
}

static void gather_body(struct rank_case *rank) {
    int64_t length = *(int64_t *)rank->context;
    struct comm_stream *s = ranks_stream(rank, "all");
    uint64_t each[64];
    for (int r = 0; r < rank->size; r++) each[r] = (uint64_t)length;
    unsigned char *own = block((uint64_t)length), *all = block((uint64_t)(length * rank->size)),
                  *other = block((uint64_t)(length * rank->size));
    for (int64_t i = 0; i < length; i++) own[i] = byte_of(rank->rank, i);
    struct comm_event one = comm_all_gather(s, own, all, (uint64_t)length);
    struct comm_event two = comm_all_gather(s, own, other, (uint64_t)length);
    comm_wait(two, NULL);
    CHECK(comm_done(one)); // a stream is in order
    check_gathered(all, rank->size, each);
    check_gathered(other, rank->size, each);
    // in place
    memset(all, 0, (size_t)(length * rank->size));
    unsigned char *place = all + length * rank->rank;
    memcpy(place, own, (size_t)length);
    comm_wait(comm_all_gather(s, place, all, (uint64_t)length), NULL);
    check_gathered(all, rank->size, each);
    ranks_check(rank);
    comm_stream_close(s);
    free(own);
    free(all);
    free(other);
}

TEST(comm_all_gather) {
    over_all(gather_body, &(struct comm_options){.chunk_bytes = 1000});
}

TEST(comm_all_gather_in_a_ring) { // four ranks on each of two hosts
    struct comm_options options = {.chunk_bytes = 1000, .ranks_per_host = 4};
    for (int l = 0; l < LENGTHS; l++) {
        int64_t length = lengths[l];
        ranks_run(8, &options, gather_body, &length);
    }
}

// ---- sums ---------------------------------------------------------------------------------------

static bool same_bits(const void *a, const void *b) { // of floats
    return memcmp(a, b, 4) == 0;
}

static float serial_sum(int size, int64_t i) {
    float sum = ranks_value(0, i);
    for (int r = 1; r < size; r++) sum += ranks_value(r, i);
    return sum;
}

static void sum_body(struct rank_case *rank) {
    int64_t length = *(int64_t *)rank->context, whole = length * rank->size;
    struct comm_stream *s = ranks_stream(rank, "all");
    struct comm_reduction plain = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    float *parts = block((uint64_t)whole * 4), *out = block((uint64_t)length * 4),
          *data = block((uint64_t)whole * 4);
    void *scratch = block(comm_reduce_scatter_scratch(s, length, &plain)),
         *more = block(comm_all_reduce_scratch(s, whole, &plain)),
         *less = block(comm_all_reduce_scratch(s, length, &plain));
    for (int64_t i = 0; i < whole; i++) parts[i] = data[i] = ranks_value(rank->rank, i);
    comm_reduce_scatter(s, parts, scratch, out, length, &plain);
    comm_wait(comm_all_reduce(s, data, more, whole, &plain), NULL);
    for (int64_t i = 0; i < length; i++) {
        float expected = serial_sum(rank->size, i + length * rank->rank);
        CHECK(same_bits(&out[i], &expected));
    }
    for (int64_t i = 0; i < whole; i++) {
        float expected = serial_sum(rank->size, i);
        CHECK(same_bits(&data[i], &expected));
    }
    // Another length takes other ways and gives the same bits.
    for (int64_t i = 0; i < length; i++) parts[i] = ranks_value(rank->rank, i);
    comm_wait(comm_all_reduce(s, parts, less, length, &plain), NULL);
    CHECK_BYTES(parts, data, (size_t)length * 4);
    ranks_check(rank);
    comm_stream_close(s);
    free(parts), free(out), free(data), free(scratch), free(more), free(less);
}

TEST(comm_sums_in_group_order) {
    over_all(sum_body, &(struct comm_options){.chunk_bytes = 1000});
}

TEST(comm_sums_on_hosts) {
    struct comm_options options = {.chunk_bytes = 1000, .ranks_per_host = 2};
    int64_t length = 20011;
    ranks_run(5, &options, sum_body, &length);
}

// The control: at three ranks another order gives other bits, so the test above could fail.
TEST(comm_sums_depend_on_order) {
    int differ = 0;
    for (int64_t i = 0; i < 1000; i++) {
        float other = ranks_value(2, i) + ranks_value(1, i) + ranks_value(0, i);
        float sum = serial_sum(3, i);
        differ += !same_bits(&other, &sum);
    }
    CHECK(differ > 100);
}

// Members in another order than that of their ranks: the group's order counts.
static void reversed_body(struct rank_case *rank) {
    int members[3] = {2, 1, 0};
    struct err err = {0};
    struct comm_stream *s = comm_stream_open(rank->comm, "reversed", members, 3, &err);
    CHECK(s != NULL);
    CHECK_EQ_INT(comm_stream_index(s), 2 - rank->rank);
    struct comm_reduction plain = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    float data[100], scratch[400];
    CHECK(comm_all_reduce_scratch(s, 100, &plain) <= sizeof scratch);
    for (int i = 0; i < 100; i++) data[i] = ranks_value(rank->rank, i);
    comm_wait(comm_all_reduce(s, data, scratch, 100, &plain), NULL);
    for (int i = 0; i < 100; i++) {
        float expected = ranks_value(2, i) + ranks_value(1, i);
        expected += ranks_value(0, i);
        CHECK(same_bits(&data[i], &expected));
    }
    comm_stream_close(s);
}

TEST(comm_sums_in_the_order_of_members) {
    ranks_run(3, &(struct comm_options){0}, reversed_body, NULL);
}

static void bf16_body(struct rank_case *rank) {
    enum { N = 777 };
    struct comm_stream *s = ranks_stream(rank, "all");
    struct comm_reduction to_float = comm_reduction_plain(DTYPE_BF16, DTYPE_F32),
                          to_bf16 = comm_reduction_plain(DTYPE_BF16, DTYPE_BF16);
    bf16 *parts = block(2 * N * (uint64_t)rank->size), data[N];
    void *scratch = block(comm_reduce_scatter_scratch(s, N, &to_float)),
         *more = block(comm_all_reduce_scratch(s, N, &to_bf16));
    float out[N];
    for (int i = 0; i < N * rank->size; i++) parts[i] = bf16_from_float(ranks_value(rank->rank, i));
    for (int i = 0; i < N; i++) data[i] = parts[i];
    comm_reduce_scatter(s, parts, scratch, out, N, &to_float);
    comm_wait(comm_all_reduce(s, data, more, N, &to_bf16), NULL);
    for (int i = 0; i < N; i++) {
        float sum = 0, small = 0;
        for (int r = 0; r < rank->size; r++) {
            sum += bf16_to_float(bf16_from_float(ranks_value(r, i + N * rank->rank)));
            small += bf16_to_float(bf16_from_float(ranks_value(r, i)));
        }
        CHECK(out[i] == sum);
        CHECK_EQ_INT(data[i], bf16_from_float(small));
    }
    ranks_check(rank);
    comm_stream_close(s);
    free(parts), free(scratch), free(more);
}

TEST(comm_sums_of_bf16_messages) { // added in FP32, rounded once
    ranks_run(5, &(struct comm_options){.chunk_bytes = 1000}, bf16_body, NULL);
}

// A sum of the caller's: adds into what is there, piece by piece.
static void add_into(void *context, const void *const *parts, int count, int64_t elements,
                     void *out) {
    ++*(int *)context;
    for (int64_t i = 0; i < elements; i++)
        for (int p = 0; p < count; p++) ((double *)out)[i] += ((const float *)parts[p])[i];
}

static void own_sum_body(struct rank_case *rank) {
    enum { N = 600000 };
    int calls = 0;
    struct comm_stream *s = ranks_stream(rank, "all");
    struct comm_reduction own = {add_into, &calls, 4, 8};
    float *parts = block(4 * N * (uint64_t)rank->size);
    double *out = block(8 * N);
    void *scratch = block(comm_reduce_scatter_scratch(s, N, &own));
    for (int64_t i = 0; i < (int64_t)N * rank->size; i++) parts[i] = ranks_value(rank->rank, i);
    for (int64_t i = 0; i < N; i++) out[i] = 1;
    comm_wait(comm_reduce_scatter(s, parts, scratch, out, N, &own), NULL);
    CHECK(calls >= 1);
    for (int64_t i = 0; i < N; i++) {
        double expected = 1;
        for (int r = 0; r < rank->size; r++)
            expected += ranks_value(r, i + (int64_t)N * rank->rank);
        if (out[i] != expected) test_fail(__FILE__, __LINE__, "element %lld", (long long)i);
    }
    comm_stream_close(s);
    free(parts), free(out), free(scratch);
}

TEST(comm_sum_of_the_caller) {
    for (int n = 1; n <= 3; n++) ranks_run(n, &(struct comm_options){0}, own_sum_body, NULL);
}

static void small_body(struct rank_case *rank) {
    enum { N = 150 };
    struct comm_stream *s = ranks_stream(rank, "all");
    int64_t sums[N], most[N];
    double doubles[N];
    for (int i = 0; i < N; i++) {
        sums[i] = (1LL << 60) / (i + 1) + rank->rank;
        most[i] = (i + rank->rank) % rank->size - 5;
        doubles[i] = ranks_value(rank->rank, i) * 1e-3;
    }
    comm_sum_integers(s, sums, N);
    comm_max_integers(s, most, N);
    comm_sum_doubles(s, doubles, N);
    for (int i = 0; i < N; i++) {
        int n = rank->size;
        double expected = ranks_value(0, i) * 1e-3;
        for (int r = 1; r < n; r++) expected += ranks_value(r, i) * 1e-3;
        CHECK_EQ_INT(sums[i], (1LL << 60) / (i + 1) * n + n * (n - 1) / 2);
        CHECK_EQ_INT(most[i], n - 1 - 5);
        CHECK(doubles[i] == expected);
    }
    ranks_check(rank);
    comm_stream_close(s);
}

TEST(comm_sums_of_a_few_values) {
    for (int n = 0; n < 5; n++) ranks_run(sizes[n], &(struct comm_options){0}, small_body, NULL);
}

// Whoever waits in them for a late rank is seen to wait, where the stream has a lane.
static void small_wait_body(struct rank_case *rank) {
    struct record_lane lane = {0};
    struct comm_stream *s = ranks_stream(rank, "all");
    int64_t value = 1;
    for (int turn = 0; turn < 2; turn++) {
        if (rank->rank == 1) usleep(200000);
        if (turn == 1) comm_stream_lane(s, &lane);
        comm_sum_integers(s, &value, 1);
        double waited = lane.seconds[RECORD_COMM_WAIT];
        if (turn == 0) CHECK(waited == 0);
        if (turn == 1 && rank->rank == 0) CHECK(waited > 0.1);
    }
    ranks_check(rank);
    comm_stream_close(s);
}

TEST(comm_waits_of_small_sums) {
    ranks_run(2, &(struct comm_options){0}, small_wait_body, NULL);
}

// ---- the others ---------------------------------------------------------------------------------

static uint64_t pair_bytes(int from, int to, int64_t length) {
    return (uint64_t)((from * 5 + to * 3) % 4 == 0 ? 0 : length * (from + 1) / (to + 1));
}

static void all_to_all_body(struct rank_case *rank) {
    int64_t length = *(int64_t *)rank->context;
    int n = rank->size;
    struct comm_stream *s = ranks_stream(rank, "all");
    uint64_t from_offset[64], from_bytes[64], to_offset[64], to_bytes[64], out = 0, in = 0;
    for (int r = 0; r < n; r++) { // the pieces lie in descending order, with gaps
        int other = n - 1 - r;
        from_offset[other] = out;
        to_offset[other] = in;
        out += (from_bytes[other] = pair_bytes(rank->rank, other, length)) + 3;
        in += (to_bytes[other] = pair_bytes(other, rank->rank, length)) + 3;
    }
    unsigned char *from = block(out), *to = block(in);
    for (int r = 0; r < n; r++)
        for (uint64_t i = 0; i < from_bytes[r]; i++)
            from[from_offset[r] + i] = byte_of(rank->rank * 64 + r, (int64_t)i);
    comm_wait(comm_all_to_all(s, from, from_offset, from_bytes, to, to_offset, to_bytes), NULL);
    for (int r = 0; r < n; r++) {
        for (uint64_t i = 0; i < to_bytes[r]; i++)
            CHECK_EQ_INT(to[to_offset[r] + i], byte_of(r * 64 + rank->rank, (int64_t)i));
        for (int k = 0; k < 3; k++)
            CHECK_EQ_INT(to[to_offset[r] + to_bytes[r] + (uint64_t)k], 0xee);
    }
    ranks_check(rank);
    comm_stream_close(s);
    free(from), free(to);
}

TEST(comm_all_to_all) {
    over_all(all_to_all_body, &(struct comm_options){.chunk_bytes = 1000});
}

static void broadcast_body(struct rank_case *rank) {
    int64_t length = *(int64_t *)rank->context;
    struct comm_stream *s = ranks_stream(rank, "all");
    unsigned char *data = block((uint64_t)length);
    for (int root = 0; root < rank->size; root++) {
        for (int64_t i = 0; i < length; i++) data[i] = rank->rank == root ? byte_of(root, i) : 0;
        comm_wait(comm_broadcast(s, root, data, (uint64_t)length), NULL);
        for (int64_t i = 0; i < length; i++) CHECK_EQ_INT(data[i], byte_of(root, i));
    }
    ranks_check(rank);
    comm_stream_close(s);
    free(data);
}

TEST(comm_broadcast) {
    over_all(broadcast_body, &(struct comm_options){.chunk_bytes = 1000});
}

static void barrier_body(struct rank_case *rank) {
    int *arrived = rank->context;
    struct comm_stream *s = ranks_stream(rank, "all");
    for (int round = 0; round < 5; round++) {
        __atomic_add_fetch(arrived, 1, __ATOMIC_SEQ_CST);
        comm_wait(comm_barrier(s), NULL);
        CHECK(__atomic_load_n(arrived, __ATOMIC_SEQ_CST) >= (round + 1) * rank->size);
        comm_wait(comm_barrier(s), NULL);
    }
    comm_stream_close(s);
}

TEST(comm_barrier) {
    for (int n = 0; n < SIZES; n++) {
        int arrived = 0;
        ranks_run(sizes[n], &(struct comm_options){0}, barrier_body, &arrived);
    }
}

void collectives_on(struct rank_case *rank) {
    rank_body *const bodies[] = {gather_body, sum_body, all_to_all_body, broadcast_body};
    for (int l = 0; l < LENGTHS; l++)
        for (int b = 0; b < 4; b++) {
            int64_t length = lengths[l];
            struct rank_case one = *rank;
            one.context = &length;
            bodies[b](&one);
        }
    bf16_body(rank);
    own_sum_body(rank);
    small_body(rank);
}
