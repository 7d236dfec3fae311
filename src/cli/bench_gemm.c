// weft bench gemm: the best product rate, the rates of a training step's products in every form
// against it, and how near the kernels between them come to the memory bandwidth.
#include "base/arena.h"
#include "base/clock.h"
#include "cli/bench.h"
#include "cli/bench_kernels.h"
#include "cli/cli.h"
#include "cli/options.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const char help[] = "usage: weft bench gemm [--type bf16|f32] [--tokens N] [--threads N] "
                           "[--seconds S] [--no-kernels] [--json]\n"
                           "\n"
                           "best GEMM rate: pre-packed 4096 x 768 x 3072 and 4096 x 3072 x 768, "
                           "the larger. Each product of GPT-2 124M is shown\n"
                           "as a share of it: y = x w^T and dx = dy w with plain and packed "
                           "weights, and dw += dy^T x in chunks of 512 tokens.\n"
                           "`block` weighs the products of a transformer block by their work. "
                           "Kernels are shown as bytes that must pass through\n"
                           "memory per second, as a share of the triad a = b + s c. --seconds "
                           "(0.2) is spent on each figure.\n";

struct settings {
    int tokens, threads;
    double seconds;
    const char *type_name;
    enum dtype type;
    bool no_kernels, json;
};

static const struct {
    const char *name;
    int64_t n, k;
    bool in_block;
} shapes[] = {{"qkv", 2304, 768, true},
              {"out", 768, 768, true},
              {"up", 3072, 768, true},
              {"down", 768, 3072, true},
              {"head", 50304, 768, false}};
enum { SHAPES = sizeof shapes / sizeof *shapes, FORMS = 5, HEAD_TOKENS = 1024 };
static const char *const form_names[FORMS] = {"forward", "forward_packed", "input", "input_packed",
                                              "weight"};

struct figures {
    double rate_before, rate_after, flops[SHAPES], seconds[SHAPES][FORMS];
    struct bandwidth_figures memory;
};

struct operands {
    unsigned char *x, *y, *w, *packed;
    float *dw;
};

static void run_form(struct device *d, const struct device_weight *weight, int form, int64_t tokens,
                     const struct operands *o, enum dtype out_type) {
    if (form < 2) {
        d->linear_forward(d, weight, tokens, o->x, weight->k, NULL, o->y, weight->n, out_type);
    } else if (form < 4) {
        d->linear_backward_input(d, weight, tokens, o->y, weight->n, o->x, weight->k);
    } else {
        d->linear_backward_weight(d, weight, tokens, o->y, weight->n, o->x, weight->k, o->dw,
                                  false);
    }
}

// Best time of one form of one shape.
static double measure(struct device *d, const struct settings *s, int shape, int form,
                      const struct operands *o) {
    struct device_weight weight = {
        .n = shapes[shape].n, .k = shapes[shape].k, .type = s->type, .plain = o->w};
    if (form == 1) weight.packed_forward = o->packed;
    if (form == 3) weight.packed_backward = o->packed;
    if (form == 1 || form == 3) d->pack(d, &weight, form == 3);
    int64_t tokens = shapes[shape].in_block ? s->tokens : HEAD_TOKENS;
    enum dtype out_type = shapes[shape].in_block ? s->type : DTYPE_F32; // logits
    double begin = clock_seconds(), best = 1e30;
    for (int i = 0; i < 4 || clock_seconds() - begin < s->seconds; i++) {
        double from = clock_seconds();
        run_form(d, &weight, form, tokens, o, out_type);
        double took = clock_seconds() - from;
        if (i > 0 && took < best) best = took; // the first makes the product
    }
    return best;
}

static int measure_products(struct device *d, const struct settings *s, struct figures *f,
                            struct err *err) {
    size_t most = (size_t)(s->tokens > HEAD_TOKENS ? s->tokens : HEAD_TOKENS),
           size = dtype_bytes(s->type);
    size_t y_bytes = most * 3072 * size, w_bytes = (size_t)50304 * 768 * size;
    if (y_bytes < (size_t)HEAD_TOKENS * 50304 * 4) y_bytes = (size_t)HEAD_TOKENS * 50304 * 4;
    size_t packed_bytes =
        2 * w_bytes + ((size_t)1 << 20); // layouts round up; bf16 may be held as FP32
    struct arena arena;
    if (arena_open(&arena,
                   most * 3072 * size + y_bytes + w_bytes + packed_bytes + (size_t)50304 * 768 * 4 +
                       4096,
                   1, err))
        return -1;
    struct operands o = {.x = arena_take(&arena, most * 3072 * size),
                         .y = arena_take(&arena, y_bytes),
                         .w = arena_take(&arena, w_bytes),
                         .packed = arena_take(&arena, packed_bytes),
                         .dw = arena_take(&arena, (size_t)50304 * 768 * 4)};
    for (size_t i = 0; i < most * 3072 * size; i += 2) memcpy(o.x + i, &(uint16_t){0x3c00}, 2);
    for (size_t i = 0; i < w_bytes; i += 2) memcpy(o.w + i, &(uint16_t){0x3c00}, 2);
    for (size_t i = 0; i < y_bytes; i += 2) memcpy(o.y + i, &(uint16_t){0x3c00}, 2);
    f->rate_before = device_gemm_rate(d, s->type, s->seconds);
    for (int i = 0; i < SHAPES; i++) {
        int64_t tokens = shapes[i].in_block ? s->tokens : HEAD_TOKENS;
        f->flops[i] = 2.0 * (double)tokens * (double)shapes[i].n * (double)shapes[i].k;
        for (int form = 0; form < FORMS; form++) f->seconds[i][form] = measure(d, s, i, form, &o);
    }
    f->rate_after = device_gemm_rate(d, s->type, s->seconds);
    arena_close(&arena);
    return 0;
}

static double best_rate(const struct figures *f) {
    return f->rate_before > f->rate_after ? f->rate_before : f->rate_after;
}

// Rate of a block's forward, input and weight products together over the best rate.
static double block_ratio(const struct figures *f, bool packed) {
    double flops = 0, seconds = 0;
    for (int i = 0; i < SHAPES; i++) {
        if (!shapes[i].in_block) continue;
        flops += 3 * f->flops[i];
        seconds += f->seconds[i][packed] + f->seconds[i][2 + packed] + f->seconds[i][4];
    }
    return flops / seconds / best_rate(f);
}

static void print_text(const struct device *d, const struct settings *s, const struct figures *f) {
    printf("%s, %s\n", d->name, dtype_name(s->type));
    printf("best GEMM rate %.1f GFLOP/s (%.1f before, %.1f after)\n\n", best_rate(f) / 1e9,
           f->rate_before / 1e9, f->rate_after / 1e9);
    printf("%d tokens (head: %d), share of the best rate\n", s->tokens, HEAD_TOKENS);
    printf("%-6s %6s %6s", "", "n", "k");
    for (int form = 0; form < FORMS; form++) printf(" %15s", form_names[form]);
    printf("\n");
    for (int i = 0; i < SHAPES; i++) {
        printf("%-6s %6d %6d", shapes[i].name, (int)shapes[i].n, (int)shapes[i].k);
        for (int form = 0; form < FORMS; form++)
            printf(" %15.3f", f->flops[i] / f->seconds[i][form] / best_rate(f));
        printf("\n");
    }
    printf("block  %.3f plain, %.3f packed\n", block_ratio(f, false), block_ratio(f, true));
    if (s->no_kernels) return;
    const struct bandwidth_figures *m = &f->memory;
    printf("\nmemory: copy %.1f GB/s, triad %.1f GB/s\n", m->copy_rate / 1e9, m->triad_rate / 1e9);
    for (int i = 0; i < m->count; i++) {
        double rate = m->kernel[i].bytes / m->kernel[i].seconds;
        printf("%-28s %7.1f GB/s  %.2f of triad\n", m->kernel[i].name, rate / 1e9,
               rate / m->triad_rate);
    }
}

static void print_json(const struct device *d, const struct settings *s, const struct figures *f) {
    json_t *products = json_object(), *kernels = json_object();
    for (int i = 0; i < SHAPES; i++) {
        json_t *one = json_object();
        for (int form = 0; form < FORMS; form++)
            json_object_set_new(one, form_names[form],
                                json_real(f->flops[i] / f->seconds[i][form]));
        json_object_set_new(products, shapes[i].name, one);
    }
    for (int i = 0; i < f->memory.count; i++) {
        json_object_set_new(kernels, f->memory.kernel[i].name,
                            json_real(f->memory.kernel[i].bytes / f->memory.kernel[i].seconds));
    }
    json_t *all = json_pack(
        "{s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:o, s:f, s:f, s:o}", "device", d->name, "type",
        dtype_name(s->type), "tokens", s->tokens, "best_gemm_rate_flops_per_second", best_rate(f),
        "rate_before", f->rate_before, "block_ratio_plain", block_ratio(f, false),
        "block_ratio_packed", block_ratio(f, true), "products_flops_per_second", products,
        "copy_bytes_per_second", f->memory.copy_rate, "triad_bytes_per_second",
        f->memory.triad_rate, "kernels_bytes_per_second", kernels);
    json_dumpf(all, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(all);
}

int bench_gemm(int argc, char **argv) {
    struct settings s = {.tokens = 4096, .seconds = 0.2, .type_name = "bf16"};
    const struct option options[] = {
        {"--type", OPTION_TEXT, &s.type_name, 0},
        {"--tokens", OPTION_COUNT, &s.tokens, 1},
        {"--threads", OPTION_THREADS, &s.threads, 1},
        {"--seconds", OPTION_NUMBER, &s.seconds, 0},
        {"--no-kernels", OPTION_FLAG, &s.no_kernels, 0},
        {"--json", OPTION_FLAG, &s.json, 0},
    };
    struct err err = {0};
    int words = 0;
    int read =
        options_read(argc, argv, options, sizeof options / sizeof *options, NULL, 0, &words, &err);
    if (read > 0) {
        printf("%s", help);
        return 0;
    }
    if (read == 0 &&
        (dtype_from_name(s.type_name, &s.type) || (s.type != DTYPE_BF16 && s.type != DTYPE_F32)))
        read = err_set(&err, ERR_USAGE, "--type %s: expected bf16 or f32", s.type_name);
    if (read < 0) return cli_fail(&err);
    struct device device;
    struct device_cpu_options how = {.threads = s.threads};
    if (device_cpu_open(&device, &how, &err)) return cli_fail(&err);
    struct figures f = {0};
    int failed = measure_products(&device, &s, &f, &err);
    if (!failed && !s.no_kernels)
        failed = bench_kernels(&device, s.type, s.seconds, &f.memory, &err);
    if (!failed && s.json) print_json(&device, &s, &f);
    if (!failed && !s.json) print_text(&device, &s, &f);
    device.close(&device);
    return failed ? cli_fail(&err) : 0;
}
