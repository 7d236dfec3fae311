// weft bench attention: the tiled attention of the device, forward and backward, against the best
// product rate of this process, and beside the version that writes its scores to memory.
#include "base/arena.h"
#include "base/clock.h"
#include "base/random.h"
#include "cli/bench.h"
#include "cli/bench_attention_plain.h"
#include "cli/cli.h"
#include "cli/options.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: weft bench attention [--tokens N] [--rows N] [--heads N] [--kv-heads N] [--head-dim N] "
    "[--type bf16|f32]\n"
    "                            [--threads N] [--seconds S] [--plain] [--json]\n"
    "\n"
    "Causal attention over --rows sequences of --tokens positions (1 x 4096, 12 heads of 64). "
    "Useful FLOPs are those of\n"
    "attended pairs only: 2 products forward and 4 backward of 2 x pairs x head_dim; `ratio` sets "
    "them against the best\n"
    "product rate (GEMM) measured in between. Bytes are those that must pass through memory: "
    "operands and results once\n"
    "and, with --plain (one row), the whole score matrices of the version that stores them; "
    "`bandwidth` is their share\n"
    "of what copying a large buffer reaches.\n";

struct settings {
    int64_t tokens, rows, heads, kv_heads, head_dim, threads;
    enum dtype type;
    double seconds;
    bool plain, json;
};

struct figures {
    double gemm_rate, gemm_f32_rate, copy_rate; // FLOP/s, bytes/s
    double forward_seconds, backward_seconds, forward_bytes, backward_bytes, forward_flops,
        backward_flops;
    uint64_t workspace_bytes;
    struct plain_times plain;
};

// Bytes read and written per second of a parallel copy far beyond the caches.
static int measure_copy(int threads, double *rate, struct err *err) {
    enum { PIECES = 64 };
    const size_t piece = (size_t)4 << 20;
    struct arena arena;
    if (arena_open(&arena, 2 * PIECES * piece, 1, err)) return -1;
    for (int pass = 0; pass < 4; pass++) {
        double begin = clock_seconds();
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int i = 0; i < PIECES; i++)
            memcpy(arena.base + (size_t)(PIECES + i) * piece, arena.base + (size_t)i * piece,
                   piece);
        double found = 2.0 * PIECES * (double)piece / (clock_seconds() - begin);
        if (found > *rate) *rate = found;
    }
    arena_close(&arena);
    return 0;
}

static void fill_random(void *to, enum dtype type, size_t count, const char *name) {
    uint64_t key = random_key(1, name);
    for (size_t i = 0; i < count; i++) {
        float x = (float)((random_uniform(key, i) - 0.5) * 3.46); // variance 1
        if (type == DTYPE_BF16) {
            ((bf16 *)to)[i] = bf16_from_float(x);
        } else {
            ((float *)to)[i] = x;
        }
    }
}

// Operands as the engine holds them: q, k and v side by side in one row.
static int operands_new(struct device *device, const struct settings *s, struct arena *arena,
                        struct device_attention_backward *b, struct figures *f, struct err *err) {
    size_t size = dtype_bytes(s->type), n = (size_t)(s->rows * s->tokens);
    size_t q = (size_t)(s->heads * s->head_dim), kv = (size_t)(s->kv_heads * s->head_dim),
           row = q + 2 * kv;
    b->forward = (struct device_attention){.type = s->type,
                                           .queries = (int64_t)n,
                                           .keys = (int64_t)n,
                                           .heads = (int)s->heads,
                                           .kv_heads = (int)s->kv_heads,
                                           .head_dim = (int)s->head_dim,
                                           .scale = 1 / sqrt((double)s->head_dim),
                                           .q_stride = (int64_t)row,
                                           .kv_stride = (int64_t)row,
                                           .out_stride = (int64_t)q};
    uint64_t forward = device->attention_workspace_bytes(device, &b->forward, false);
    uint64_t backward = device->attention_workspace_bytes(device, &b->forward, true);
    f->workspace_bytes = forward > backward ? forward : backward;
    size_t bytes = 2 * arena_round(n * row * size) + 2 * arena_round(n * q * size) +
                   2 * arena_round(n * 4) + arena_round(n * (size_t)s->heads * 4) +
                   arena_round(f->workspace_bytes);
    if (arena_open(arena, bytes, 1, err)) return -1;
    char *qkv = arena_take(arena, n * row * size), *dqkv = arena_take(arena, n * row * size);
    void *out = arena_take(arena, n * q * size), *dout = arena_take(arena, n * q * size);
    int32_t *from = arena_take(arena, n * 4), *to = arena_take(arena, n * 4);
    fill_random(qkv, s->type, n * row, "qkv");
    fill_random(dout, s->type, n * q, "dout");
    for (size_t i = 0; i < n; i++) {
        from[i] = (int32_t)(i - i % (size_t)s->tokens);
        to[i] = (int32_t)i + 1;
    }
    b->forward.q = qkv;
    b->forward.k = qkv + q * size;
    b->forward.v = qkv + (q + kv) * size;
    b->forward.attend_from = from;
    b->forward.attend_to = to;
    b->forward.out = out;
    b->forward.lse = arena_take(arena, n * (size_t)s->heads * 4);
    b->dout = dout;
    b->dq = dqkv;
    b->dk = dqkv + q * size;
    b->dv = dqkv + (q + kv) * size;
    b->workspace = b->forward.workspace = arena_take(arena, f->workspace_bytes);
    double once = (double)(n * size);
    f->forward_bytes = once * (double)(row + q);
    f->backward_bytes = once * (double)(2 * row + 2 * q);
    double pairs = (double)s->rows * (double)s->tokens * (double)(s->tokens + 1) / 2;
    f->forward_flops = 2 * 2 * pairs * (double)q;
    f->backward_flops = 2 * f->forward_flops;
    return 0;
}

// The fastest of many runs, products in between: other load on the machine hits both alike.
static void measure(struct device *device, const struct settings *s,
                    const struct device_attention_backward *b, struct figures *f) {
    double end = clock_seconds() + s->seconds;
    f->forward_seconds = f->backward_seconds = INFINITY;
    for (int pass = 0; pass < 3 || clock_seconds() < end; pass++) {
        double begin = clock_seconds();
        device->attention_forward(device, &b->forward);
        double middle = clock_seconds();
        device->attention_backward(device, b);
        double done = clock_seconds();
        f->forward_seconds = fmin(f->forward_seconds, middle - begin);
        f->backward_seconds = fmin(f->backward_seconds, done - middle);
        if (pass % 4 != 0) continue;
        f->gemm_rate = fmax(f->gemm_rate, device_gemm_rate(device, s->type, 0.1));
        f->gemm_f32_rate = fmax(f->gemm_f32_rate, device_gemm_rate(device, DTYPE_F32, 0.1));
    }
}

static void print_line(const char *name, double seconds, double bytes, double flops,
                       const struct figures *f) {
    printf("  %-18s %9.2f ms %9.1f MB %8.1f %% %8.1f GFLOP/s %7.3f\n", name, seconds * 1e3,
           bytes / 1e6, 100 * bytes / seconds / f->copy_rate, flops / seconds / 1e9,
           flops / seconds / f->gemm_rate);
}

static json_t *json_of(const char *name, double seconds, double bytes, double flops,
                       const struct figures *f) {
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "name", name, "seconds", seconds, "bytes",
                     bytes, "bandwidth_share", bytes / seconds / f->copy_rate,
                     "useful_flops_per_second", flops / seconds, "ratio",
                     flops / seconds / f->gemm_rate);
}

static void print(const struct device *device, const struct settings *s, const struct figures *f) {
    const struct plain_times *p = &f->plain;
    const struct line {
        const char *name;
        double seconds, bytes, flops;
        bool shown;
    } lines[] = {
        {"forward", f->forward_seconds, f->forward_bytes, f->forward_flops, true},
        {"backward", f->backward_seconds, f->backward_bytes, f->backward_flops, true},
        {"both", f->forward_seconds + f->backward_seconds, f->forward_bytes + f->backward_bytes,
         f->forward_flops + f->backward_flops, true},
        {"plain forward", p->forward_seconds, p->forward_bytes, f->forward_flops, s->plain},
        {"plain backward", p->backward_seconds, p->backward_bytes, f->backward_flops, s->plain},
        {"plain both", p->forward_seconds + p->backward_seconds,
         p->forward_bytes + p->backward_bytes, f->forward_flops + f->backward_flops, s->plain},
    };
    if (s->json) {
        json_t *list = json_array();
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
            if (lines[i].shown)
                json_array_append_new(list, json_of(lines[i].name, lines[i].seconds, lines[i].bytes,
                                                    lines[i].flops, f));
        json_t *root = json_pack(
            "{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:I, s:o}", "device", device->name,
            "rows", (json_int_t)s->rows, "tokens", (json_int_t)s->tokens, "heads",
            (json_int_t)s->heads, "kv_heads", (json_int_t)s->kv_heads, "head_dim",
            (json_int_t)s->head_dim, "type", dtype_name(s->type), "gemm_flops_per_second",
            f->gemm_rate, "gemm_f32_flops_per_second", f->gemm_f32_rate, "copy_bytes_per_second",
            f->copy_rate, "workspace_bytes", (json_int_t)f->workspace_bytes, "attention", list);
        if (s->plain)
            json_object_set_new(root, "largest_difference", json_real(p->largest_difference));
        json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        printf("\n");
        json_decref(root);
        return;
    }
    printf("%s; %lld x %lld tokens, %lld heads on %lld of keys, head_dim %lld, %s, causal\n",
           device->name, (long long)s->rows, (long long)s->tokens, (long long)s->heads,
           (long long)s->kv_heads, (long long)s->head_dim, dtype_name(s->type));
    printf("GEMM %.1f GFLOP/s (f32: %.1f), copy %.1f GB/s, workspace %.1f MB\n\n",
           f->gemm_rate / 1e9, f->gemm_f32_rate / 1e9, f->copy_rate / 1e9,
           (double)f->workspace_bytes / 1e6);
    printf("  %-18s %12s %12s %10s %16s %7s\n", "", "time", "memory", "bandwidth", "useful",
           "ratio");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (lines[i].shown)
            print_line(lines[i].name, lines[i].seconds, lines[i].bytes, lines[i].flops, f);
    if (s->plain) printf("\n  largest difference of the outputs: %.3g\n", p->largest_difference);
}

static int run(const struct settings *s, struct err *err) {
    struct device device;
    struct figures f = {0};
    struct device_attention_backward b = {0};
    struct arena arena = {0};
    struct device_cpu_options options = {.threads = (int)s->threads};
    if (device_cpu_open(&device, &options, err)) return -1;
    int failed = measure_copy(device.threads, &f.copy_rate, err);
    bool placed = !failed && operands_new(&device, s, &arena, &b, &f, err) == 0;
    failed = !placed;
    if (placed) measure(&device, s, &b, &f);
    if (placed && s->plain) failed = attention_plain(&device, &b, &f.plain, err);
    if (!failed) print(&device, s, &f);
    if (placed) arena_close(&arena);
    device.close(&device);
    return failed ? -1 : 0;
}

static int check(const struct settings *s, struct err *err) {
    const int64_t most = (int64_t)1 << 20;
    if (s->tokens < 1 || s->rows < 1 || s->tokens > most || s->rows > most ||
        s->tokens * s->rows > most)
        return err_set(err, ERR_USAGE,
                       "bench attention: rows x tokens: expected 1 to %lld positions",
                       (long long)most);
    if (s->heads < 1 || s->kv_heads < 1 || s->heads > 1024 || s->heads % s->kv_heads != 0)
        return err_set(err, ERR_USAGE,
                       "bench attention: --kv-heads must divide --heads (1 to 1024)");
    if (s->head_dim < 8 || s->head_dim > 256 || s->head_dim % 8 != 0)
        return err_set(err, ERR_USAGE,
                       "bench attention: --head-dim: expected a multiple of 8 from 8 to 256");
    if (s->threads < 0 || s->threads > MOST_THREADS)
        return err_set(err, ERR_USAGE, "bench attention: --threads: expected 0 to %d",
                       MOST_THREADS);
    if (s->plain && (s->rows != 1 || s->tokens > 16384))
        return err_set(
            err, ERR_USAGE,
            "bench attention: --plain stores whole score matrices: one row, at most 16384 tokens");
    return 0;
}

static int parse(int argc, char **argv, struct settings *s, struct err *err) {
    const struct {
        const char *name;
        int64_t *value;
    } numbers[] = {{"--tokens", &s->tokens},     {"--rows", &s->rows},
                   {"--heads", &s->heads},       {"--kv-heads", &s->kv_heads},
                   {"--head-dim", &s->head_dim}, {"--threads", &s->threads}};
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "--plain") == 0) {
            *(argv[i][2] == 'j' ? &s->json : &s->plain) = true;
            continue;
        }
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            if (strcmp(argv[i], numbers[k].name) == 0) *numbers[k].value = strtoll(value, &end, 10);
        if (strcmp(argv[i], "--seconds") == 0) s->seconds = strtod(value, &end);
        if (strcmp(argv[i], "--type") == 0 && dtype_from_name(value, &s->type) == 0) {
            end = (char *)value + strlen(value);
            if (s->type != DTYPE_BF16 && s->type != DTYPE_F32) end = NULL;
        }
        if (!end || end == value || *end)
            return err_set(err, ERR_USAGE,
                           "bench attention: \"%s %s\" is not understood; --help lists the options",
                           argv[i], value);
        i++;
    }
    if (s->kv_heads == 0) s->kv_heads = s->heads;
    return check(s, err);
}

int bench_attention(int argc, char **argv) {
    struct settings s = {
        .tokens = 4096, .rows = 1, .heads = 12, .head_dim = 64, .type = DTYPE_BF16, .seconds = 3};
    struct err err = {0};
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        fputs(help, stdout);
        return 0;
    }
    if (parse(argc, argv, &s, &err) || run(&s, &err)) return cli_fail(&err);
    return 0;
}
