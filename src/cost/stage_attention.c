// Attention between the projections: rotation, scores, and the keys of other ranks.
#include "cost/list.h"
#include "model/flops.h"
#include <math.h>

// Pairs of one head of one sequence that this rank computes; parts are balanced over cp.
static double pairs(const struct cost_list *l) {
    int64_t window = l->model->layer_window[l->layer];
    return (double)flops_attended_pairs(l->shape->context, window) / l->cp;
}

void cost_rotate(struct cost_list *l, bool backward) {
    bool normed = l->model->qk_norm != QK_NORM_NONE;
    if (l->model->learned_positions && !normed) return;
    enum hardware_kernel kernel = backward ? KERNEL_ROPE_BACKWARD : KERNEL_ROPE;
    double width = (double)(l->heads + 2 * l->kv_heads) * (double)l->head_dim;
    if (model_is_latent(l->model)) width = (double)(l->heads + 1) * l->model->qk_rope_head_dim;
    struct cost_op *op = cost_kernel(l, backward ? "rope gradient" : "rope", kernel,
                                     (double)l->tokens * width, 2 * l->element);
    if (l->stack->fused_rope) return;
    op->launches = 8; // halves, negation, join, two products, sum, of queries and of keys
    op->bytes *= 5;
}

// ---- context parallelism -----------------------------------------------------------------------

// Keys and values go round, or are gathered. Backward their gradients come home as well, in FP32.
static void context_keys(struct cost_list *l, bool backward) {
    if (l->cp == 1) return;
    double width = (double)l->kv_heads * (double)(l->head_dim + l->value_dim);
    double elements = (double)l->tokens * l->cp * width;
    bool gathers = l->shape->gather_keys, hidden = !gathers && !l->shape->no_overlap;
    cost_message(l, gathers ? "gather keys" : "ring", NETWORK_ALL_GATHER, GROUP_CP, CAUSE_CONTEXT,
                 elements * l->element)
        ->hidden = hidden;
    if (!backward) return;
    double sums = l->stack->own || l->element > 2 ? 4 : 2;
    cost_message(l, gathers ? "scatter keys" : "ring gradient", NETWORK_REDUCE_SCATTER, GROUP_CP,
                 CAUSE_CONTEXT, elements * sums)
        ->hidden = hidden;
}

// ---- fused -------------------------------------------------------------------------------------

// Rings compute attention in pieces. ring-flash-attention reports 0.90 of one kernel's rate for
// balanced causal rings over 8 A100 or H800, messages hidden; part of the loss is the merging
// below.
static double ring_share(const struct cost_list *l) {
    const double pieces = 0.92;
    double share = l->stack->attention_share.value > 0 ? l->stack->attention_share.value : 1;
    return l->cp > 1 && !l->shape->gather_keys && !l->stack->own ? share * pieces : share;
}

static struct price_attention fused_shape(const struct cost_list *l) {
    return (struct price_attention){.precision = l->wide,
                                    .rows = l->shape->rows,
                                    .queries = l->shape->context / l->cp,
                                    .keys = l->shape->context,
                                    .pairs = pairs(l),
                                    .heads = l->heads,
                                    .kv_heads = l->kv_heads,
                                    .head_dim = l->head_dim,
                                    .value_dim = l->value_dim,
                                    .causal = true,
                                    .older = l->stack->older_attention,
                                    .share = ring_share(l)};
}

// Between the layout of the projections and that of the kernel.
static void attention_copies(struct cost_list *l) {
    double copies = l->stack->attention_copies.value;
    double width = (double)(l->heads + 2 * l->kv_heads) * (double)l->head_dim;
    if (copies > 0)
        cost_kernel(l, "copy", KERNEL_COPY, (double)l->tokens * width, 2 * l->element * copies)
            ->launches = (int)ceil(copies);
}

static void fused(struct cost_list *l, bool backward) {
    struct price_attention shape = fused_shape(l);
    attention_copies(l);
    cost_attention(l, backward ? "attention gradient" : "attention", &shape, backward);
    if (l->cp == 1 || l->shape->gather_keys) return;
    // Each step of the ring adds its part to the result in FP32.
    double merged = (double)l->tokens * (double)l->heads * (double)l->value_dim * (l->cp - 1);
    cost_kernel(l, "attention merge", KERNEL_SUM, merged, 12)->launches = 2 * (l->cp - 1);
}

// ---- scores in memory --------------------------------------------------------------------------

// Megatron-LM's fused softmax holds a row of so many keys at most (2,048 until 2022), and four
// heads in a block.
static bool fuses_softmax(const struct cost_list *l) {
    const int most = 4096, block = 4;
    return l->stack->fused_softmax && l->shape->context <= most &&
           l->shape->rows * l->heads % block == 0;
}

// One of the products over all pairs; useful are the attended ones.
static void score_product(struct cost_list *l, const char *name, int64_t m, int64_t n, int64_t k,
                          int64_t width) {
    struct cost_op *op = cost_product(l, name, HARDWARE_FORWARD, m, n, k);
    op->batch = l->shape->rows * l->heads;
    op->cause = CAUSE_ATTENTION;
    op->flops = 2 * pairs(l) * (double)width * (double)op->batch;
}

static double score_elements(const struct cost_list *l) {
    int64_t queries = l->shape->context / l->cp;
    return (double)l->shape->rows * (double)l->heads * (double)queries * l->shape->context;
}

static void stored_forward(struct cost_list *l) {
    int64_t queries = l->shape->context / l->cp, keys = l->shape->context;
    double scores = score_elements(l);
    score_product(l, "scores", queries, keys, l->head_dim, l->head_dim);
    struct cost_op *softmax = cost_kernel(l, "softmax", KERNEL_SOFTMAX, scores, 2 * l->element);
    softmax->cause = CAUSE_ATTENTION;
    if (!fuses_softmax(l)) { // scale, mask, softmax with its casts: each reads and writes
        softmax->launches = 4;
        softmax->bytes = scores * 16;
    }
    if (l->stack->dropout)
        cost_kernel(l, "dropout", KERNEL_DROPOUT, scores, 2 * l->element + 1)->cause =
            CAUSE_ATTENTION;
    score_product(l, "values", queries, l->value_dim, keys, l->value_dim);
    // heads side by side again
    cost_kernel(l, "copy", KERNEL_COPY, (double)l->tokens * (double)l->heads * (double)l->value_dim,
                2 * l->element);
}

static void stored_backward(struct cost_list *l) {
    int64_t queries = l->shape->context / l->cp, keys = l->shape->context;
    double scores = score_elements(l);
    cost_kernel(l, "copy", KERNEL_COPY, (double)l->tokens * (double)l->heads * (double)l->value_dim,
                2 * l->element);
    score_product(l, "probability gradient", queries, keys, l->value_dim, l->value_dim);
    score_product(l, "value gradient", keys, l->value_dim, queries, l->value_dim);
    if (l->stack->dropout)
        cost_kernel(l, "dropout", KERNEL_DROPOUT, scores, 2 * l->element + 1)->cause =
            CAUSE_ATTENTION;
    struct cost_op *softmax =
        cost_kernel(l, "softmax gradient", KERNEL_SOFTMAX, scores, 3 * l->element);
    softmax->cause = CAUSE_ATTENTION;
    if (!fuses_softmax(l)) {
        softmax->launches = 4;
        softmax->bytes = scores * 18;
    }
    score_product(l, "query gradient", queries, l->head_dim, keys, l->head_dim);
    score_product(l, "key gradient", keys, l->head_dim, queries, l->head_dim);
    // the three parts into one gradient
    double width = (double)(l->heads + 2 * l->kv_heads) * (double)l->head_dim;
    cost_kernel(l, "copy", KERNEL_COPY, (double)l->tokens * width, 2 * l->element);
}

// ---- entry -------------------------------------------------------------------------------------

void cost_attention_forward(struct cost_list *l) {
    cost_rotate(l, false);
    context_keys(l, false);
    if (l->stack->flash_attention)
        fused(l, false);
    else
        stored_forward(l);
}

void cost_attention_backward(struct cost_list *l) {
    context_keys(l, true);
    if (l->stack->flash_attention)
        fused(l, true);
    else
        stored_backward(l);
    cost_rotate(l, true);
}
