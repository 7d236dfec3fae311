// A list of operations under construction.
#include "cost/list.h"
#include <stdlib.h>

// ---- local sizes -------------------------------------------------------------------------------

static int divisible(int64_t number, int64_t by, const char *what, const char *axis,
                     struct err *err) {
    if (by > 0 && number % by == 0) return 0;
    char near[64] = "";
    return err_set(err, ERR_USAGE, "%s %lld is not divisible by %s %lld: %s %s would do", what,
                   (long long)number, axis, (long long)by, axis,
                   mesh_nearest_divisors(number, by, near));
}

static int check(const struct cost_shape *s, struct err *err) {
    const struct model_config *c = s->model;
    int tp = s->mesh.size[MESH_TP], cp = s->mesh.size[MESH_CP];
    if (s->rows < 1 || s->context < 1)
        return err_set(err, ERR_USAGE,
                       "a micro-batch of %d sequences of %d tokens cannot be priced: both must be "
                       "at least 1",
                       s->rows, s->context);
    if (divisible(c->heads, tp, "heads", "tp", err) != 0) return -1;
    if (c->kv_heads > tp && divisible(c->kv_heads, tp, "kv_heads", "tp", err) != 0) return -1;
    if (divisible(s->context, cp, "context", "cp", err) != 0) return -1;
    if (c->experts > 0 && divisible(c->experts, s->mesh.ep, "experts", "ep", err) != 0) return -1;
    if (c->ffn > 0 && divisible(c->ffn, tp, "ffn", "tp", err) != 0) return -1;
    return 0;
}

int cost_list_open(struct cost_list *l, const struct cost_shape *shape, struct cost_ops *out,
                   struct err *err) {
    const struct model_config *c = shape->model;
    if (check(shape, err) != 0) return -1;
    int64_t tp = shape->mesh.size[MESH_TP], cp = shape->mesh.size[MESH_CP], vocab_step = 64 * tp;
    bool fp32 = shape->precision == HARDWARE_FP32;
    *l = (struct cost_list){
        .shape = shape,
        .model = c,
        .stack = shape->stack,
        .out = out,
        .wide = fp32 ? HARDWARE_FP32 : HARDWARE_BF16,
        .element = fp32 ? 4 : 2,
        .tp = (int)tp,
        .cp = (int)cp,
        .ep = shape->mesh.ep > 1 ? shape->mesh.ep : 1,
        .sequence = tp > 1 && shape->sequence_parallel,
        .tokens = (int64_t)shape->rows * shape->context / cp,
        .hidden = c->hidden,
        .heads = c->heads / tp,
        .kv_heads = c->kv_heads > tp ? c->kv_heads / tp : 1,
        .head_dim = c->head_dim,
        .value_dim = model_is_latent(c) ? c->v_head_dim : c->head_dim,
        .ffn = c->ffn / tp,
        .vocab = (c->vocab + vocab_step - 1) / vocab_step * vocab_step / tp,
    };
    l->residual = l->sequence ? (l->tokens + tp - 1) / tp : l->tokens;
    return 0;
}

int cost_list_close(const struct cost_list *l, struct err *err) {
    if (!l->failed) return 0;
    return err_set(err, ERR_MEMORY, "no memory for a list of %d operations", l->out->count);
}

// ---- entries -----------------------------------------------------------------------------------

static struct cost_op *append(struct cost_list *l, const struct cost_op *op) {
    static _Thread_local struct cost_op scratch;
    struct cost_ops *o = l->out;
    if (o->count == o->capacity) {
        int capacity = o->capacity ? 2 * o->capacity : 64;
        struct cost_op *ops = realloc(o->ops, (size_t)capacity * sizeof *ops);
        if (!ops) {
            l->failed = true;
            return &scratch;
        }
        o->ops = ops;
        o->capacity = capacity;
    }
    o->ops[o->count] = *op;
    return &o->ops[o->count++];
}

struct cost_op *cost_product(struct cost_list *l, const char *name, enum hardware_form form,
                             int64_t m, int64_t n, int64_t k) {
    struct cost_op op = {.name = name,
                         .kind = COST_PRODUCT,
                         .cause = CAUSE_PRODUCT,
                         .form = form,
                         .precision = l->wide,
                         .m = m,
                         .n = n,
                         .k = k,
                         .batch = 1,
                         .launches = 1,
                         .flops = 2.0 * (double)m * (double)n * (double)k};
    return append(l, &op);
}

struct cost_op *cost_kernel(struct cost_list *l, const char *name, enum hardware_kernel kernel,
                            double elements, double bytes_per_element) {
    struct cost_op op = {.name = name,
                         .kind = COST_KERNEL,
                         .cause = CAUSE_KERNEL,
                         .precision = l->wide,
                         .kernel = kernel,
                         .elements = elements,
                         .bytes = elements * bytes_per_element,
                         .launches = 1};
    return append(l, &op);
}

struct cost_op *cost_message(struct cost_list *l, const char *name, enum network_kind kind,
                             enum mesh_group_kind group, enum cost_cause cause, double bytes) {
    struct cost_op op = {.name = name,
                         .kind = COST_MESSAGE,
                         .cause = cause,
                         .message = kind,
                         .group = group,
                         .bytes = bytes,
                         .launches = 1};
    return append(l, &op);
}

struct cost_op *cost_attention(struct cost_list *l, const char *name,
                               const struct price_attention *shape, bool backward) {
    double width = (double)(shape->head_dim + shape->value_dim);
    double pairs = shape->pairs * (double)shape->rows * (double)shape->heads;
    struct cost_op op = {.name = name,
                         .kind = COST_ATTENTION,
                         .cause = CAUSE_ATTENTION,
                         .form = backward ? HARDWARE_INPUT : HARDWARE_FORWARD,
                         .precision = l->wide,
                         .batch = 1,
                         .attention = *shape,
                         .launches = backward ? 3 : 1,
                         .flops = (backward ? 4 : 2) * pairs * width};
    return append(l, &op);
}

// ---- linear maps -------------------------------------------------------------------------------

static bool narrow(const struct cost_list *l) {
    return l->shape->precision > HARDWARE_BF16;
}

// Two bytes are read, one written in either order: turning it round halves the rate of the writes.
enum { CAST_BYTES = 6 };

void cost_quantise(struct cost_list *l, double elements) {
    if (narrow(l)) cost_kernel(l, "cast", KERNEL_COPY, elements, CAST_BYTES);
}

void cost_linear(struct cost_list *l, const char *name, int64_t m, int64_t n, int64_t k) {
    cost_quantise(l, (double)m * (double)k);
    cost_product(l, name, HARDWARE_FORWARD, m, n, k)->precision = l->shape->precision;
}

void cost_linear_input(struct cost_list *l, const char *name, int64_t m, int64_t n, int64_t k) {
    cost_quantise(l, (double)m * (double)n);
    cost_product(l, name, HARDWARE_INPUT, m, n, k)->precision = l->shape->precision;
}

void cost_linear_weight(struct cost_list *l, const char *name, int64_t m, int64_t n, int64_t k) {
    struct cost_op *op = cost_product(l, name, HARDWARE_WEIGHT, m, n, k);
    op->precision = l->shape->precision;
    if (l->stack->own) return; // what its products measure
    cost_accumulate(l, op);
}

// In the product itself about half of it hides beside the tiles of others; in a kernel of its own
// the product's result is read again.
void cost_accumulate(struct cost_list *l, struct cost_op *op) {
    double elements = (double)op->batch * (double)op->n * (double)op->k;
    double both_ways = 2 * elements * (double)dtype_bytes(l->stack->gradient);
    op->bytes = l->stack->fused_accumulate ? both_ways / 2 : both_ways + 2 * elements;
    op->launches += !l->stack->fused_accumulate;
}

// ---- tensor parallelism ------------------------------------------------------------------------

static double vector_bytes(const struct cost_list *l) {
    return (double)l->tokens * (double)l->hidden * l->element;
}

static struct cost_op *tensor_message(struct cost_list *l, const char *name,
                                      enum network_kind kind) {
    struct cost_op *op = cost_message(l, name, kind, GROUP_TP, CAUSE_TENSOR, vector_bytes(l));
    op->hidden = op->chunked = l->stack->overlap_tensor && !l->shape->no_overlap;
    return op;
}

void cost_gather(struct cost_list *l, const char *name) {
    if (l->sequence) tensor_message(l, name, NETWORK_ALL_GATHER);
}

void cost_gather_again(struct cost_list *l, const char *name) {
    if (!l->sequence) return;
    struct cost_op *op = tensor_message(l, name, NETWORK_ALL_GATHER);
    if (l->stack->own) return;
    op->hidden = !l->shape->no_overlap;
    op->chunked = false;
}

void cost_reduce(struct cost_list *l, const char *name) {
    if (l->tp > 1)
        tensor_message(l, name, l->sequence ? NETWORK_REDUCE_SCATTER : NETWORK_ALL_REDUCE);
}

void cost_reduce_gradient(struct cost_list *l) {
    if (l->tp == 1) return;
    cost_reduce(l, "reduce gradient");
    if (l->failed || !l->stack->overlap_weight || l->shape->no_overlap) return;
    struct cost_op *op = &l->out->ops[l->out->count - 1];
    op->hidden = true;
    op->chunked = false;
}
