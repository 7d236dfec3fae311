// Attention over a sequence that is spread over ranks (threads of this process) against one device
// that has it all.
#include "engine/context.h"
#include "comm/comm.h"
#include "data/batch_share.h"
#include "test.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 4 };

struct problem {
    int rows, context, heads, kv_heads, head_dim;
    int longest, padding; // documents of up to so many positions (0: one a row), filled up
    int32_t window;
    enum dtype type;
    enum batch_balance balance;
    enum context_kind kind;
    bool serial; // no overlap
    int device_threads;
};

// Values of the whole micro-batch, and what came out.
struct tensors {
    struct batch batch;
    float *qkv, *dout; // [tokens, (heads + 2 kv_heads) head_dim], [tokens, heads head_dim]
    float *out, *lse, *dqkv;
};

static uint64_t seed;
static double draw(void) {
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(seed >> 33) / 2147483648.0 - 0.5;
    }
    return 1.7 * sum;
}
static int below(int n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

static int64_t width_of(const struct problem *p) {
    return (int64_t)p->heads * p->head_dim;
}
static int64_t row_of(const struct problem *p) {
    return (int64_t)(p->heads + 2 * p->kv_heads) * p->head_dim;
}

static float rounded(enum dtype type, double x) {
    return type == DTYPE_BF16 ? bf16_to_float(bf16_from_float((float)x)) : (float)x;
}

static void make_batch(const struct problem *p, struct batch *b) {
    batch_place(b, calloc(1, batch_bytes(p->rows * p->context)), p->rows, p->context);
    for (int r = 0; r < p->rows; r++) {
        int end = p->context - p->padding, length;
        for (int at = 0; at < p->context; at += length) {
            length = at >= end ? 1 : p->longest ? 1 + below(p->longest) : end;
            if (at < end && length > end - at) length = end - at;
            for (int j = 0; j < length; j++) {
                int i = r * p->context + at + j;
                b->position[i] = j;
                b->attend_from[i] = r * p->context + at;
                b->attend_to[i] = i + 1;
            }
        }
    }
}

static struct tensors make(const struct problem *p) {
    seed = 77;
    struct tensors t;
    make_batch(p, &t.batch);
    int64_t tokens = t.batch.tokens, qkv = tokens * row_of(p), width = tokens * width_of(p);
    t.qkv = malloc((size_t)qkv * 4);
    t.dqkv = malloc((size_t)qkv * 4);
    t.dout = malloc((size_t)width * 4);
    t.out = malloc((size_t)width * 4);
    t.lse = malloc((size_t)(tokens * p->heads) * 4);
    for (int64_t i = 0; i < qkv; i++) t.qkv[i] = rounded(p->type, draw());
    for (int64_t i = 0; i < width; i++) t.dout[i] = rounded(p->type, draw());
    return t;
}

static void tensors_free(struct tensors *t) {
    void *all[] = {t->batch.input, t->qkv, t->dqkv, t->dout, t->out, t->lse};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

// ---- a rank ------------------------------------------------------------------------------------

struct rank {
    const struct problem *problem;
    struct tensors *tensors;
    struct comm *comm; // NULL: alone
    int cp, index;
    struct comm_counts sent; // by this rank
};

static void *buffer(int64_t elements, enum dtype type) {
    size_t bytes = (size_t)elements * dtype_bytes(type) + 64;
    void *p = NULL;
    CHECK(posix_memalign(&p, 64, bytes) == 0);
    memset(p, 0xff, bytes); // NaN for whoever reads what he did not write
    return p;
}

// Rows of the whole to rows of this rank, or back.
static void take(const struct rank *r, const int32_t *position, int64_t tokens, const float *whole,
                 int64_t row, void *own) {
    enum dtype type = r->problem->type;
    for (int64_t i = 0; i < tokens; i++)
        dtype_convert((char *)own + (size_t)(i * row) * dtype_bytes(type), type,
                      whole + position[i] * row, DTYPE_F32, (size_t)row);
}
static void give(const struct rank *r, const int32_t *position, int64_t tokens, float *whole,
                 int64_t row, const void *own) {
    enum dtype type = r->problem->type;
    for (int64_t i = 0; i < tokens; i++)
        dtype_convert(whole + position[i] * row, DTYPE_F32,
                      (const char *)own + (size_t)(i * row) * dtype_bytes(type), type, (size_t)row);
}

struct memory { // of a rank
    struct batch_share share;
    struct batch local;
    void *share_memory, *qkv, *dqkv, *dout, *out, *workspace;
    float *lse;
    uint64_t workspace_bytes;
};

static struct memory rank_memory(const struct rank *r, struct device *device,
                                 const struct context_shape *shape) {
    const struct problem *p = r->problem;
    const struct batch *full = &r->tensors->batch;
    struct err err = {0};
    struct memory m;
    m.share_memory = malloc(batch_share_bytes(full->tokens, r->cp));
    CHECK_OK(batch_share_make(&m.share, full, r->cp, r->index, p->balance, m.share_memory, &err),
             err);
    batch_place(&m.local, malloc(batch_bytes(m.share.each)), p->rows, p->context / r->cp);
    batch_share_take(&m.share, full, &m.local);
    int64_t tokens = shape->tokens;
    m.qkv = buffer(tokens * row_of(p), p->type);
    m.dqkv = buffer(tokens * row_of(p), p->type);
    m.dout = buffer(tokens * width_of(p), p->type);
    m.out = buffer(tokens * width_of(p), p->type);
    m.lse = buffer(tokens * p->heads, DTYPE_F32);
    uint64_t forward = context_workspace_bytes(device, shape, false),
             backward = context_workspace_bytes(device, shape, true);
    m.workspace_bytes = forward > backward ? forward : backward;
    m.workspace = buffer((int64_t)m.workspace_bytes, DTYPE_U8);
    const int32_t *position = m.share.position + r->index * tokens;
    take(r, position, tokens, r->tensors->qkv, row_of(p), m.qkv);
    take(r, position, tokens, r->tensors->dout, width_of(p), m.dout);
    return m;
}

static void memory_free(struct memory *m) {
    void *all[] = {m->share_memory, m->local.input, m->qkv, m->dqkv,
                   m->dout,         m->out,         m->lse, m->workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static void compute(struct rank *r, struct device *device, struct comm_stream *stream) {
    const struct problem *p = r->problem;
    int64_t tokens = r->tensors->batch.tokens / r->cp, kv = (int64_t)p->kv_heads * p->head_dim;
    size_t size = dtype_bytes(p->type);
    struct context_shape shape = {.kind = p->kind,
                                  .type = p->type,
                                  .cp = r->cp,
                                  .tokens = tokens,
                                  .heads = p->heads,
                                  .kv_heads = p->kv_heads,
                                  .head_dim = p->head_dim};
    struct memory m = rank_memory(r, device, &shape);
    char *q = m.qkv, *dq = m.dqkv;
    struct context_attention_backward b = {
        .forward = {.shape = shape,
                    .device = device,
                    .comm = r->comm,
                    .stream = stream,
                    .previous_rank = (r->index + r->cp - 1) % r->cp,
                    .next_rank = (r->index + 1) % r->cp,
                    .overlap = !p->serial,
                    .positions = m.share.position,
                    .attend_from = m.local.attend_from,
                    .attend_to = m.local.attend_to,
                    .scale = 1 / sqrt(p->head_dim),
                    .window = p->window,
                    .q = q,
                    .k = q + (size_t)width_of(p) * size,
                    .v = q + (size_t)(width_of(p) + kv) * size,
                    .q_stride = row_of(p),
                    .kv_stride = row_of(p),
                    .out = m.out,
                    .lse = m.lse,
                    .workspace = m.workspace},
        .dout = m.dout,
        .dq = dq,
        .dk = dq + (size_t)width_of(p) * size,
        .dv = dq + (size_t)(width_of(p) + kv) * size};
    context_forward(&b.forward);
    context_backward(&b);
    for (int i = 0; i < 64; i++)
        CHECK_EQ_INT(((unsigned char *)m.workspace)[m.workspace_bytes + (uint64_t)i], 0xff);
    const int32_t *position = m.share.position + r->index * tokens;
    give(r, position, tokens, r->tensors->out, width_of(p), m.out);
    give(r, position, tokens, r->tensors->dqkv, row_of(p), m.dqkv);
    for (int64_t h = 0; h < p->heads; h++)
        for (int64_t i = 0; i < tokens; i++)
            r->tensors->lse[h * r->tensors->batch.tokens + position[i]] = m.lse[h * tokens + i];
    memory_free(&m);
}

static void *run_rank(void *argument) {
    struct rank *r = argument;
    struct err err = {0};
    struct device device;
    int members[MOST_RANKS];
    for (int i = 0; i < r->cp; i++) members[i] = i;
    CHECK_OK(device_cpu_open(&device,
                             &(struct device_cpu_options){.threads = r->problem->device_threads},
                             &err),
             err);
    struct comm_stream *stream = NULL;
    if (r->comm) {
        stream = comm_stream_open(r->comm, "context", members, r->cp, &err);
        if (!stream) test_fail(__FILE__, __LINE__, "stream: %s", err.text);
    }
    compute(r, &device, stream);
    if (r->comm) {
        CHECK_OK(comm_check(r->comm, &err), err);
        comm_point_counts(r->comm, COMM_SEND, &r->sent);
        comm_stream_close(stream);
        comm_close(r->comm);
    }
    device.close(&device);
    return NULL;
}

// Runs the problem on cp ranks. `sent`: what each rank sent point to point, or NULL.
static void solve(const struct problem *p, struct tensors *t, int cp, struct comm_counts *sent) {
    struct err err = {0};
    struct comm *ends[MOST_RANKS] = {NULL};
    struct rank ranks[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    if (cp > 1)
        CHECK_OK(comm_open_threads(ends, cp, &(struct comm_options){.watchdog_seconds = 30}, &err),
                 err);
    for (int i = 0; i < cp; i++) {
        ranks[i] = (struct rank){p, t, ends[i], cp, i, {0}};
        CHECK(pthread_create(&threads[i], NULL, run_rank, &ranks[i]) == 0);
    }
    for (int i = 0; i < cp; i++) {
        pthread_join(threads[i], NULL);
        if (sent) sent[i] = ranks[i].sent;
    }
}

// ---- comparison --------------------------------------------------------------------------------

static void compare(const char *what, const float *found, const float *expected, int64_t count,
                    double tolerance) {
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < count; i++) {
        if (expected[i] == -INFINITY) {
            CHECK(found[i] == -INFINITY);
            continue;
        }
        if (!(fabs(found[i]) < 1e30))
            test_fail(__FILE__, __LINE__, "%s[%lld] is %g", what, (long long)i, found[i]);
        worst = fmax(worst, fabs((double)found[i] - expected[i]));
        scale = fmax(scale, fabs(expected[i]));
    }
    if (worst > tolerance * fmax(1, scale))
        test_fail(__FILE__, __LINE__, "%s: error %.3g above %.3g (largest value %.3g)", what, worst,
                  tolerance, scale);
}

static void close_to_one_rank(struct problem p, int most) {
    p.device_threads = 1;
    struct tensors one = make(&p);
    double tolerance = p.type == DTYPE_BF16 ? 1.0 / 128 : 1e-5;
    int64_t tokens = one.batch.tokens;
    solve(&p, &one, 1, NULL);
    for (int cp = 2; cp <= most; cp++)
        for (int kind = 0; kind < 2; kind++)
            for (int balance = 0; balance < 2; balance++) {
                p.kind = (enum context_kind)kind;
                p.balance = (enum batch_balance)balance;
                struct tensors t = make(&p);
                solve(&p, &t, cp, NULL);
                compare("out", t.out, one.out, tokens * width_of(&p), tolerance);
                compare("lse", t.lse, one.lse, tokens * p.heads, 1e-5);
                compare("gradient", t.dqkv, one.dqkv, tokens * row_of(&p), tolerance);
                tensors_free(&t);
            }
    tensors_free(&one);
}

TEST(context_one_document) {
    close_to_one_rank(
        (struct problem){.rows = 1, .context = 24 * 16, .heads = 2, .kv_heads = 2, .head_dim = 16},
        4);
}

TEST(context_grouped_heads_and_rows) {
    close_to_one_rank(
        (struct problem){.rows = 3, .context = 24 * 6, .heads = 6, .kv_heads = 2, .head_dim = 20},
        4);
}

TEST(context_packed_documents_with_padding) {
    for (int longest = 3; longest < 200; longest *= 4)
        close_to_one_rank((struct problem){.rows = 2,
                                           .context = 24 * 8,
                                           .heads = 4,
                                           .kv_heads = 1,
                                           .head_dim = 8,
                                           .longest = longest,
                                           .padding = longest % 29},
                          4);
}

TEST(context_windows) {
    for (int32_t window = 1; window < 400; window *= 7)
        close_to_one_rank((struct problem){.rows = 2,
                                           .context = 24 * 8,
                                           .heads = 2,
                                           .kv_heads = 1,
                                           .head_dim = 8,
                                           .longest = window == 7 ? 100 : 0,
                                           .window = window},
                          4);
}

TEST(context_in_bf16) {
    close_to_one_rank((struct problem){.rows = 2,
                                       .context = 24 * 8,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = 32,
                                       .longest = 90,
                                       .padding = 5,
                                       .type = DTYPE_BF16},
                      4);
}

// Nothing but filling: every position sees itself, so the output is its value, on every rank.
TEST(context_of_padding_alone) {
    struct problem p = {.rows = 1,
                        .context = 16,
                        .heads = 2,
                        .kv_heads = 1,
                        .head_dim = 8,
                        .padding = 16,
                        .device_threads = 1};
    for (int kind = 0; kind < 2; kind++) {
        p.kind = (enum context_kind)kind;
        struct tensors t = make(&p);
        solve(&p, &t, 2, NULL);
        for (int i = 0; i < 16; i++)
            for (int c = 0; c < 16; c++)
                CHECK_CLOSE(t.out[i * 16 + c], t.qkv[i * 32 + 24 + c % 8], 1e-6);
        tensors_free(&t);
    }
}

// The sums are in the same order whatever runs beside them.
TEST(context_threads_and_overlap_change_no_bit) {
    for (int kind = 0; kind < 2; kind++)
        for (int type = 0; type < 2; type++) {
            struct problem p = {.rows = 2,
                                .context = 24 * 12,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .longest = 200,
                                .type = type ? DTYPE_BF16 : DTYPE_F32,
                                .kind = (enum context_kind)kind,
                                .device_threads = 1};
            struct tensors first = make(&p);
            int64_t tokens = first.batch.tokens;
            solve(&p, &first, 3, NULL);
            for (int other = 1; other < 4; other++) {
                p.device_threads = 1 + (other & 1);
                p.serial = other >> 1;
                struct tensors t = make(&p);
                solve(&p, &t, 3, NULL);
                CHECK_BYTES(t.out, first.out, (size_t)(tokens * width_of(&p)) * 4);
                CHECK_BYTES(t.lse, first.lse, (size_t)(tokens * p.heads) * 4);
                CHECK_BYTES(t.dqkv, first.dqkv, (size_t)(tokens * row_of(&p)) * 4);
                tensors_free(&t);
            }
            tensors_free(&first);
        }
}

// Against differences of the output itself, in every place of a small case.
TEST(context_gradients_follow_finite_differences) {
    struct problem p = {.rows = 1,
                        .context = 8,
                        .heads = 2,
                        .kv_heads = 1,
                        .head_dim = 4,
                        .longest = 6,
                        .device_threads = 1};
    for (int kind = 0; kind < 2; kind++) {
        p.kind = (enum context_kind)kind;
        struct tensors t = make(&p);
        solve(&p, &t, 2, NULL);
        int64_t elements = 8 * row_of(&p);
        for (int64_t i = kind; i < elements; i += 5) {
            float *gradient = t.dqkv, step = 1.0f / 32;
            double sum[2] = {0, 0};
            for (int side = 0; side < 2; side++) {
                struct tensors moved = make(&p);
                moved.qkv[i] += side ? step : -step;
                solve(&p, &moved, 2, NULL);
                for (int64_t j = 0; j < 8 * width_of(&p); j++)
                    sum[side] += (double)moved.out[j] * t.dout[j];
                tensors_free(&moved);
            }
            CHECK_CLOSE(gradient[i], (sum[1] - sum[0]) / (2 * (double)step), 2e-3);
        }
        tensors_free(&t);
    }
}

// ---- long sequences ----------------------------------------------------------------------------

static uint64_t bytes_of(enum context_kind kind, int cp, int64_t tokens, bool backward) {
    struct err err = {0};
    struct device device;
    struct context_shape shape = {kind, DTYPE_BF16, cp, tokens, 4, 2, 64};
    CHECK_OK(device_cpu_open(&device, &(struct device_cpu_options){.threads = 1}, &err), err);
    uint64_t bytes = context_workspace_bytes(&device, &shape, backward);
    device.close(&device);
    return bytes;
}

// The ring's memory follows a rank's positions, not the sequence: nothing is quadratic, and more
// ranks with as many positions each take no more.
TEST(context_ring_memory_follows_the_positions_of_a_rank) {
    for (int backward = 0; backward < 2; backward++) {
        uint64_t bytes = bytes_of(CONTEXT_RING, 4, 32768, backward),
                 twice = bytes_of(CONTEXT_RING, 4, 65536, backward);
        CHECK(twice < 2 * bytes + 4096);
        CHECK_EQ_INT(bytes_of(CONTEXT_RING, 16, 32768, backward), bytes);
        // all keys in one place take more
        CHECK(bytes_of(CONTEXT_GATHER, 16, 32768, backward) > bytes);
    }
}

// 128K positions on four ranks with a window, forward and backward.
TEST(context_of_128k_positions) {
    struct problem p = {.rows = 1,
                        .context = 131072,
                        .heads = 1,
                        .kv_heads = 1,
                        .head_dim = 8,
                        .window = 300,
                        .device_threads = 1};
    struct tensors one = make(&p);
    solve(&p, &one, 1, NULL);
    struct tensors t = make(&p);
    struct comm_counts sent[4];
    solve(&p, &t, 4, sent);
    compare("out", t.out, one.out, one.batch.tokens * width_of(&p), 1e-5);
    compare("gradient", t.dqkv, one.dqkv, one.batch.tokens * row_of(&p), 1e-5);
    // Keys and values three times forward and three times backward; their gradients, four times.
    uint64_t block = 131072 / 4 * 2 * 8 * 4;
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(sent[i].bytes, 10 * block);
    tensors_free(&one);
    tensors_free(&t);
}
