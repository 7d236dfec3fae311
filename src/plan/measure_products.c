// Products of a weight [n, k] in the three forms that a step has, on a grid of shapes. See
// measure.h.
#include "plan/measure_parts.h"

struct shape {
    int n, k;
};
// From the halves of a small model's matrices, which ranks of tensor parallelism hold, to heads.
static const struct shape full_shapes[] = {{96, 96},    {128, 512},  {512, 128},   {288, 288},
                                           {256, 1024}, {1024, 256}, {512, 512},   {768, 768},
                                           {2304, 768}, {768, 2304}, {2048, 2048}, {4096, 1024},
                                           {768, 4096}, {8192, 256}, {32768, 512}};
static const struct shape quick_shapes[] = {{96, 96},    {256, 256},  {768, 768},
                                            {3072, 768}, {768, 3072}, {16384, 256}};
static const int full_tokens[] = {64, 256, 1024}, quick_tokens[] = {64, 512};
enum { LEAST_VOCABULARY = 8192 };
static const double MOST_FLOPS = 2.5e9; // of one product; what is larger runs at the same rate

struct product {
    struct device_weight weight;
    enum dtype type;
    int tokens;
    enum hardware_form form;
    bool fits;
};

static void call_product(struct measure_rank *r, void *context) {
    struct product *p = context;
    struct device *d = &r->device;
    struct device_weight *w = &p->weight;
    uint64_t size = dtype_bytes(p->type);
    uint64_t x_bytes = (uint64_t)(p->tokens * w->k) * size;
    uint64_t y_bytes = (uint64_t)(p->tokens * w->n) * size;
    const void *x = measure_take(&r->in, x_bytes), *y = measure_take(&r->in, y_bytes);
    if (p->form == HARDWARE_WEIGHT) {
        float *dw = measure_take(&r->out, (uint64_t)(w->n * w->k) * sizeof(float));
        p->fits = x && y && dw;
        if (p->fits) d->linear_backward_weight(d, w, p->tokens, y, w->n, x, w->k, dw, false);
        return;
    }
    // Every element is the same, so that a packed copy is any memory of its size.
    bool backward = p->form == HARDWARE_INPUT;
    uint64_t pack_bytes = d->pack_bytes(d, w, backward);
    void *packed = pack_bytes ? measure_take(&r->in, pack_bytes) : NULL;
    w->plain = packed ? packed : measure_take(&r->in, (uint64_t)(w->n * w->k) * size);
    w->packed_forward = backward ? NULL : packed;
    w->packed_backward = backward ? packed : NULL;
    // the widest are heads, whose logits are FP32
    enum dtype y_type = w->n >= LEAST_VOCABULARY ? DTYPE_F32 : p->type;
    void *to = measure_take(&r->out, backward ? x_bytes
                                              : (uint64_t)(p->tokens * w->n) * dtype_bytes(y_type));
    p->fits = x && y && w->plain && to;
    if (!p->fits) return;
    if (backward)
        d->linear_backward_input(d, w, p->tokens, y, w->n, to, w->k);
    else
        d->linear_forward(d, w, p->tokens, x, w->k, NULL, to, w->n, y_type);
}

static void measure_one(struct measure_rank *r, struct product *p) {
    double seconds = measure_seconds(r, call_product, p);
    if (!measure_leads(r) || !p->fits) return;
    struct hardware_product found = {.precision = measure_precision(p->type),
                                     .form = p->form,
                                     .m = p->tokens,
                                     .n = p->weight.n,
                                     .k = p->weight.k,
                                     .seconds = seconds};
    measure_add_product(r, &found);
}

void measure_products(struct measure_rank *r, enum dtype type) {
    static const enum hardware_form forms[] = {HARDWARE_FORWARD, HARDWARE_INPUT, HARDWARE_WEIGHT};
    // the usual type on the fine grid
    bool quick = r->team->options->quick || type != DTYPE_BF16;
    const struct shape *shapes = quick ? quick_shapes : full_shapes;
    size_t shape_count = quick ? sizeof quick_shapes / sizeof quick_shapes[0]
                               : sizeof full_shapes / sizeof full_shapes[0];
    const int *tokens = quick ? quick_tokens : full_tokens;
    size_t token_count = quick ? sizeof quick_tokens / sizeof quick_tokens[0]
                               : sizeof full_tokens / sizeof full_tokens[0];
    for (size_t s = 0; s < shape_count; s++)
        for (size_t t = 0; t < token_count; t++)
            for (int f = 0; f < 3; f++) {
                struct product p = {.weight = {.n = shapes[s].n, .k = shapes[s].k, .type = type},
                                    .type = type,
                                    .tokens = tokens[t],
                                    .form = forms[f]};
                // gradients of weights are made in chunks, all alike
                if (p.form == HARDWARE_WEIGHT && p.tokens > DEVICE_TOKEN_CHUNK)
                    p.tokens = DEVICE_TOKEN_CHUNK;
                if (2.0 * p.tokens * shapes[s].n * shapes[s].k > MOST_FLOPS) continue;
                measure_one(r, &p);
            }
}
