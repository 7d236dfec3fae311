// Attention by context and width of heads, and every other kernel by size. `elements` are those
// that cost/stage.h counts for the kernel. See measure.h.
#include "comm/comm.h"
#include "plan/measure_parts.h"
#include <math.h>
#include <string.h>

enum {
    WIDTH = 512, // of a token in kernels
    HEAD_DIM = 64,
    VOCAB = 8192,
    EXPERTS = 16,
    TABLE_ROWS = 16384, // of an embedding
    MOST_TOKENS = MEASURE_NUMBERS
};

// ---- attention

struct attention {
    enum dtype type;
    int context, head_dim, tokens, heads;
    double pairs; // of a head
    bool backward, fits;
};

static void call_attention(struct measure_rank *r, void *context) {
    struct attention *a = context;
    struct device *d = &r->device;
    uint64_t size = dtype_bytes(a->type);
    int64_t width = (int64_t)a->heads * a->head_dim, qkv = 3 * width;
    if (!a->backward) r->in.at = 0; // the operation before has just written it
    const char *q = measure_take(&r->in, (uint64_t)(a->tokens * qkv) * size);
    struct device_attention forward = {.type = a->type,
                                       .queries = a->tokens,
                                       .keys = a->tokens,
                                       .heads = a->heads,
                                       .kv_heads = a->heads,
                                       .head_dim = a->head_dim,
                                       .scale = 1 / sqrt(a->head_dim),
                                       .q = q,
                                       .k = q + (uint64_t)width * size,
                                       .v = q + 2 * (uint64_t)width * size,
                                       .q_stride = qkv,
                                       .kv_stride = qkv,
                                       .attend_from = r->from,
                                       .attend_to = r->to,
                                       .out_stride = width};
    uint64_t workspace = d->attention_workspace_bytes(d, &forward, a->backward);
    uint64_t out_bytes = (uint64_t)(a->tokens * width) * size;
    forward.lse = measure_take(&r->out, (uint64_t)a->tokens * (uint64_t)a->heads * sizeof(float));
    forward.out = measure_take(&r->out, out_bytes);
    // what is small stays where it is, as in a step
    forward.workspace =
        workspace <= MEASURE_SCRATCH ? r->scratch : measure_take(&r->out, workspace);
    a->fits = q && forward.lse && forward.out && forward.workspace;
    if (!a->fits) return;
    if (!a->backward) {
        d->attention_forward(d, &forward);
        return;
    }
    char *dq = measure_take(&r->out, (uint64_t)(a->tokens * qkv) * size);
    struct device_attention_backward backward = {.forward = forward,
                                                 .dout = measure_take(&r->in, out_bytes),
                                                 .dq = dq,
                                                 .dk = dq + (uint64_t)width * size,
                                                 .dv = dq + 2 * (uint64_t)width * size,
                                                 .workspace = forward.workspace};
    a->fits = dq && backward.dout;
    if (a->fits) d->attention_backward(d, &backward);
}

// Rows of `context` tokens, each of which sees those before it.
static void fill_rows(struct measure_rank *r, struct attention *a) {
    a->pairs = 0;
    for (int i = 0; i < a->tokens; i++) {
        int at = i % a->context;
        r->position[i] = at;
        r->from[i] = i - at;
        r->to[i] = i + 1;
        a->pairs += at + 1;
    }
}

void measure_attention(struct measure_rank *r, enum dtype type) {
    static const int full[][2] = {{64, 64},   {128, 48},   {256, 32},  {256, 48},
                                  {256, 64},  {512, 64},   {512, 128}, {1024, 48},
                                  {1024, 64}, {1024, 128}, {2048, 64}, {2048, 128}};
    static const int quick[][2] = {{64, 64}, {256, 48}, {256, 64}, {1024, 64}, {1024, 128}};
    enum { TOKENS = 1024, HEADS = 6 };
    bool coarse = r->team->options->quick || type != DTYPE_BF16;
    size_t count = coarse ? sizeof quick / sizeof quick[0] : sizeof full / sizeof full[0];
    for (size_t i = 0; i < count; i++) {
        const int *shape = coarse ? quick[i] : full[i];
        struct attention a = {.type = type,
                              .context = shape[0],
                              .head_dim = shape[1],
                              .heads = HEADS,
                              .tokens = shape[0] > TOKENS ? shape[0] : TOKENS};
        fill_rows(r, &a);
        double forward = measure_seconds(r, call_attention, &a);
        a.backward = true;
        double backward = measure_seconds(r, call_attention, &a);
        if (!measure_leads(r) || !a.fits) continue;
        double flops = 2 * a.pairs * a.heads * a.head_dim; // of one product
        struct hardware_attention found = {.precision = measure_precision(type),
                                           .context = a.context,
                                           .head_dim = a.head_dim,
                                           .forward_rate = 2 * flops / forward,
                                           .backward_rate = 4 * flops / backward};
        measure_add_attention(r, &found);
    }
}

// ---- kernels

struct kernel {
    enum hardware_kernel kernel;
    enum dtype type;
    int64_t elements;
    bool fits;
};

// Operands of one call: each [elements] of the kernel's type.
struct operands {
    const void *a, *b;
    void *out, *out2;
    float *vector, *vector2, *workspace;
    int64_t tokens;
};

static void call_norm(struct measure_rank *r, const struct kernel *k, const struct operands *o) {
    struct device_norm norm = {.type = k->type,
                               .tokens = o->tokens,
                               .width = WIDTH,
                               .eps = 1e-5,
                               .x = o->a,
                               .delta = o->b,
                               .residual = o->out2,
                               .y = o->out,
                               .weight = (const float *)o->a,
                               .rstd = o->vector};
    r->device.norm_forward(&r->device, &norm);
}

static void call_norm_backward(struct measure_rank *r, const struct kernel *k,
                               const struct operands *o) {
    struct device_norm_backward norm = {.type = k->type,
                                        .tokens = o->tokens,
                                        .width = WIDTH,
                                        .x = o->a,
                                        .dy = o->b,
                                        .weight = (const float *)o->a,
                                        .rstd = (const float *)o->b,
                                        .dx_add = o->a,
                                        .dx = o->out,
                                        .dweight = o->vector,
                                        .workspace = o->workspace};
    r->device.norm_backward(&r->device, &norm);
}

static struct device_rope rope_of(struct measure_rank *r, const struct kernel *k,
                                  const struct operands *o) {
    int heads = WIDTH / HEAD_DIM - 2;
    return (struct device_rope){.type = k->type,
                                .tokens = o->tokens,
                                .heads = heads,
                                .kv_heads = 1,
                                .head_dim = HEAD_DIM,
                                .qkv_in = o->out,
                                .qkv_out = o->out,
                                .position = r->numbers,
                                .cosine = (const float *)(const void *)r->in.memory,
                                .sine = (const float *)(const void *)r->in.memory};
}

static void call_rope_backward(struct measure_rank *r, const struct kernel *k,
                               const struct operands *o) {
    struct device_rope_backward rope = {
        .forward = rope_of(r, k, o), .dqkv_in = o->out, .dqkv_out = o->out};
    rope.workspace = o->workspace;
    r->device.rope_backward(&r->device, &rope);
}

static void call_adamw(struct measure_rank *r, const struct kernel *k, const struct operands *o) {
    struct device_adamw adamw = {.count = k->elements,
                                 .master = o->out,
                                 .moment1 = o->out2,
                                 .moment2 = o->workspace,
                                 .gradient = o->a,
                                 .weight = k->type == DTYPE_BF16 ? (bf16 *)(void *)o->vector : NULL,
                                 .learning_rate = 1e-3,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .decay = 0.1,
                                 .gradient_scale = 1,
                                 .step = 1};
    r->device.adamw(&r->device, &adamw);
}

static void call_pack(struct measure_rank *r, const struct kernel *k, const struct operands *o) {
    struct device_weight w = {.n = k->elements / WIDTH, .k = WIDTH, .type = k->type, .plain = o->a};
    r->backward = !r->backward; // both layouts, in turns
    uint64_t bytes = r->device.pack_bytes(&r->device, &w, r->backward);
    void *packed = bytes ? measure_take(&r->out, bytes) : NULL;
    if (!packed) return;
    if (r->backward)
        w.packed_backward = packed;
    else
        w.packed_forward = packed;
    r->device.pack(&r->device, &w, r->backward);
}

static void call_route(struct measure_rank *r, const struct kernel *k, const struct operands *o) {
    (void)k;
    struct device_route route = {.tokens = o->tokens,
                                 .experts = EXPERTS,
                                 .top_k = 2,
                                 .logits = o->a,
                                 .normalise = true,
                                 .expert = (int32_t *)(void *)o->vector,
                                 .weight = o->vector2,
                                 .score = o->out,
                                 .lse = o->workspace};
    r->device.experts.route(&r->device, &route);
}

// The sum of two contributions, as the communication thread makes it.
static void call_sum(const struct kernel *k, const struct operands *o) {
    enum { BLOCK = 1024 };
    float *sum = o->out;
    for (int64_t at = 0; at < k->elements; at += BLOCK) {
        int n = k->elements - at < BLOCK ? (int)(k->elements - at) : BLOCK;
        comm_add_part(k->type, o->a, at, n, sum + at, true);
        comm_add_part(k->type, o->b, at, n, sum + at, false);
    }
}

static void perform(struct measure_rank *r, const struct kernel *k, const struct operands *o) {
    struct device *d = &r->device;
    int64_t n = k->elements, tokens = o->tokens;
    switch (k->kernel) {
    case KERNEL_NORM:
        call_norm(r, k, o);
        break;
    case KERNEL_NORM_BACKWARD:
        call_norm_backward(r, k, o);
        break;
    case KERNEL_ROPE: {
        struct device_rope rope = rope_of(r, k, o);
        d->rope_forward(d, &rope);
        break;
    }
    case KERNEL_ROPE_BACKWARD:
        call_rope_backward(r, k, o);
        break;
    case KERNEL_GELU:
        d->gelu_forward(d, k->type, n, o->a, o->out);
        break;
    case KERNEL_GELU_BACKWARD:
        d->gelu_backward(d, k->type, n, o->a, o->b, o->out, NULL);
        break;
    case KERNEL_SWIGLU:
        d->swiglu_forward(d, k->type, tokens, WIDTH, o->a, o->out);
        break;
    case KERNEL_SWIGLU_BACKWARD:
        d->swiglu_backward(d, k->type, tokens, WIDTH, o->a, o->b, o->out, NULL);
        break;
    case KERNEL_BIAS_BACKWARD:
        d->bias_backward(d, k->type, tokens, WIDTH, o->a, WIDTH, o->vector, false, o->workspace);
        break;
    case KERNEL_ADD:
        d->add(d, k->type, n, o->a, o->b, o->out);
        break;
    case KERNEL_DROPOUT: {
        struct device_dropout dropout = {.type = k->type,
                                         .rows = tokens,
                                         .width = WIDTH,
                                         .key = 1,
                                         .rate = 0.1,
                                         .x = o->a,
                                         .out = o->out};
        d->dropout(d, &dropout);
        break;
    }
    case KERNEL_COPY:
        d->convert(d, n, o->a, DTYPE_F32, o->out, DTYPE_BF16);
        break;
    case KERNEL_EMBEDDING:
        d->embedding_forward(d, k->type, tokens, WIDTH, r->in.memory, NULL, r->to, NULL, o->out);
        break;
    case KERNEL_EMBEDDING_BACKWARD:
        d->embedding_backward(d, k->type, tokens, WIDTH, TABLE_ROWS, o->a, r->to,
                              (float *)(void *)r->out.memory, false);
        break;
    case KERNEL_LOSS:
        d->cross_entropy(d, k->type, n / VOCAB, VOCAB, VOCAB, o->a, r->numbers, 1, o->vector,
                         o->out);
        break;
    case KERNEL_ADAMW:
        call_adamw(r, k, o);
        break;
    case KERNEL_GRAD_NORM:
        d->square_sums(d, n, o->a, (double *)(void *)o->workspace, NULL);
        break;
    case KERNEL_SUM:
        call_sum(k, o);
        break;
    case KERNEL_PACK:
        call_pack(r, k, o);
        break;
    case KERNEL_ROUTE:
        call_route(r, k, o);
        break;
    case KERNEL_PERMUTE:
        d->experts.gather_rows(d, k->type, tokens, WIDTH, r->position, o->a, o->out);
        break;
    default: // the engine has none
        break;
    }
}

// In a forward pass the operation before has just written what these read; what the others read
// has left the caches by then.
static bool follows_writer(enum hardware_kernel kernel) {
    return kernel == KERNEL_ROPE || kernel == KERNEL_GELU || kernel == KERNEL_SWIGLU;
}

// Largest operands, in units of `elements` of the widest type.
static void call_kernel(struct measure_rank *r, void *context) {
    struct kernel *k = context;
    uint64_t bytes = (uint64_t)k->elements * sizeof(float);
    bool gated = k->kernel == KERNEL_SWIGLU || k->kernel == KERNEL_SWIGLU_BACKWARD;
    uint64_t wide = gated ? 2 * bytes : bytes;
    int64_t width = k->kernel == KERNEL_ROUTE ? EXPERTS : WIDTH;
    uint64_t size = dtype_bytes(k->type);
    if (k->kernel != KERNEL_LOSS && k->kernel != KERNEL_GRAD_NORM && k->kernel != KERNEL_COPY &&
        k->kernel != KERNEL_ADAMW && k->kernel != KERNEL_ROUTE)
        wide = wide / sizeof(float) * size;
    if (follows_writer(k->kernel)) r->in.at = 0;
    if (k->kernel == KERNEL_ROPE) r->out.at = 0; // in place
    struct operands o = {.a = measure_take(&r->in, wide + WIDTH * sizeof(float)),
                         .b = measure_take(&r->in, wide + WIDTH * sizeof(float)),
                         .out = measure_take(&r->out, 2 * wide),
                         .out2 = measure_take(&r->out, wide),
                         .tokens = k->elements / width};
    // what is small stays where it is, as in a step
    o.vector = (float *)(void *)r->scratch;
    o.vector2 = (float *)(void *)(r->scratch + MEASURE_SCRATCH / 4);
    o.workspace = (float *)(void *)(r->scratch + MEASURE_SCRATCH / 2);
    if (k->kernel == KERNEL_ADAMW) {
        o.vector = measure_take(&r->out, bytes / 2);
        o.workspace = measure_take(&r->out, bytes);
    }
    k->fits = o.a && o.b && o.out && o.out2 && o.vector && o.workspace;
    if (k->fits) perform(r, k, &o);
}

static bool has_kernel(enum hardware_kernel kernel) {
    return kernel != KERNEL_BIAS && kernel != KERNEL_SOFTMAX; // part of products and of attention
}

void measure_kernels(struct measure_rank *r, enum dtype type) {
    static const int64_t full[] = {1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22},
                         quick[] = {1 << 14, 1 << 18, 1 << 21};
    bool coarse = r->team->options->quick || type != DTYPE_BF16;
    size_t sizes = coarse ? sizeof quick / sizeof quick[0] : sizeof full / sizeof full[0];
    uint64_t table = (uint64_t)TABLE_ROWS * WIDTH * sizeof(float);
    for (int i = 0; i < MOST_TOKENS; i++) {
        r->position[i] = i * 5 % 16; // of the tokens that the smallest call has
        r->to[i] = (int)((int64_t)i * 7919 % TABLE_ROWS);
    }
    measure_fill(&r->out);
    for (int kernel = 0; kernel < HARDWARE_KERNELS; kernel++)
        for (size_t s = 0; s < sizes && has_kernel((enum hardware_kernel)kernel); s++) {
            struct kernel k = {(enum hardware_kernel)kernel, type, coarse ? quick[s] : full[s],
                               false};
            bool looks_up = k.kernel == KERNEL_EMBEDDING || k.kernel == KERNEL_EMBEDDING_BACKWARD;
            if (k.kernel == KERNEL_ROUTE && k.elements > MOST_TOKENS) continue;
            if (looks_up && table > r->in.bytes) continue;
            double seconds = measure_seconds(r, call_kernel, &k);
            if (!measure_leads(r) || !k.fits) continue;
            struct hardware_kernel_point found = {.kernel = k.kernel,
                                                  .precision = measure_precision(type),
                                                  .elements = (double)k.elements,
                                                  .seconds = seconds};
            measure_add_kernel(r, &found);
        }
}
