// The two ends of the model: look-up, and final norm with head and loss; and the update.
#include "cost/list.h"
#include "device/device.h"

// Fused kernels over rows of a vocabulary reach half of the streaming rate (SimuMax, B200: 0.28 to
// 0.32 of the bandwidth, streaming 0.67).
enum { FUSED_LOSS = 2 };

static double all_elements(const struct cost_list *l) {
    return (double)l->tokens * (double)l->hidden;
}

// ---- embedding ---------------------------------------------------------------------------------

static void embedding_forward(struct cost_list *l) {
    struct cost_op *op =
        cost_kernel(l, "embedding", KERNEL_EMBEDDING, all_elements(l), 2 * l->element);
    cost_reduce(l, "reduce embedding");
    if (l->stack->own) return;
    op->launches = l->tp > 1 ? 6 : 1; // which ids are here, and zeros for the others
    if (l->model->learned_positions)
        cost_kernel(l, "embedding", KERNEL_EMBEDDING, (double)l->residual * (double)l->hidden,
                    4 * l->element)
            ->launches = 2;
    if (l->stack->dropout)
        cost_kernel(l, "dropout", KERNEL_DROPOUT, (double)l->residual * (double)l->hidden,
                    2 * l->element + 1);
}

static void embedding_weight(struct cost_list *l) {
    cost_gather(l, "gather gradient");
    // sorted by id, then added up row by row
    struct cost_op *op = cost_kernel(l, "embedding gradient", KERNEL_EMBEDDING_BACKWARD,
                                     all_elements(l), 4 * l->element);
    if (!l->stack->own) op->launches = 8;
    if (l->model->learned_positions)
        cost_kernel(l, "embedding gradient", KERNEL_EMBEDDING_BACKWARD,
                    (double)l->residual * (double)l->hidden, 4 * l->element)
            ->launches = l->stack->own ? 1 : 8;
}

int cost_list_embedding(const struct cost_shape *shape, enum cost_pass pass, struct cost_ops *out,
                        struct err *err) {
    struct cost_list l;
    if (cost_list_open(&l, shape, out, err) != 0) return -1;
    if (pass == COST_FORWARD) embedding_forward(&l);
    // the engine's last action of a stage's input half
    if (pass == (l.stack->own ? COST_INPUT : COST_WEIGHT)) embedding_weight(&l);
    return cost_list_close(&l, err);
}

// ---- head --------------------------------------------------------------------------------------

static void statistics(struct cost_list *l, int numbers) {
    if (l->tp > 1)
        cost_message(l, "loss statistics", NETWORK_ALL_REDUCE, GROUP_TP, CAUSE_TENSOR,
                     4.0 * numbers * (double)l->tokens);
}

// Chunk by chunk, with both gradients.
static void head_own(struct cost_list *l) {
    int64_t chunk = l->tokens < DEVICE_TOKEN_CHUNK ? l->tokens : DEVICE_TOKEN_CHUNK;
    int64_t chunks = (l->tokens + chunk - 1) / chunk;
    static const char *const name = "head";
    cost_norm_forward(l, l->model->norm_place == NORM_BEFORE);
    cost_gather(l, "gather head");
    for (int form = 0; form < 3; form++) {
        static const enum hardware_form forms[3] = {HARDWARE_FORWARD, HARDWARE_WEIGHT,
                                                    HARDWARE_INPUT};
        struct cost_op *op = cost_product(l, name, forms[form], chunk, l->vocab, l->hidden);
        op->batch = chunks;
        op->launches = (int)chunks;
        op->flops = 2.0 * (double)l->tokens * (double)l->hidden * l->model->vocab / l->tp;
        if (form == 0) {
            cost_kernel(l, "cross-entropy", KERNEL_LOSS, (double)l->tokens * (double)l->vocab, 12);
            statistics(l, 3 * l->tp);
        }
    }
    cost_reduce(l, "reduce head");
}

// Useful are the rows of the vocabulary that exist.
static void head_product(struct cost_list *l, enum hardware_form form) {
    struct cost_op *op = cost_product(l, "head", form, l->tokens, l->vocab, l->hidden);
    op->flops = 2.0 * (double)l->tokens * (double)l->hidden * l->model->vocab / l->tp;
    if (form == HARDWARE_WEIGHT)
        op->bytes =
            (double)l->vocab * (double)l->hidden * 2 * (double)dtype_bytes(l->stack->gradient);
}

static void head_forward(struct cost_list *l) {
    double logits = (double)l->tokens * (double)l->vocab;
    cost_norm_forward(l, false);
    cost_gather(l, "gather head");
    head_product(l, HARDWARE_FORWARD);
    // fused: the logits are read once. Else: to FP32, largest, difference, exponential, sum,
    // quotient
    cost_kernel(l, "cross-entropy", KERNEL_LOSS, logits,
                l->stack->fused_loss ? FUSED_LOSS * l->element : 30)
        ->launches = l->stack->fused_loss ? 1 : 12;
    statistics(l, 3);
}

static void head_input(struct cost_list *l) {
    double logits = (double)l->tokens * (double)l->vocab;
    cost_kernel(l, "cross-entropy gradient", KERNEL_LOSS, logits,
                l->stack->fused_loss ? 2 * FUSED_LOSS * l->element : 22)
        ->launches = l->stack->fused_loss ? 1 : 4;
    head_product(l, HARDWARE_INPUT);
    cost_reduce(l, "reduce head");
    cost_norm_backward(l);
}

// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, sec. 2.2): two streams joined, a layer,
// the head and its loss once more.
static int list_prediction(struct cost_list *l, enum cost_pass pass, struct cost_ops *out,
                           struct err *err) {
    int first = out->count;
    const int64_t joined = 2 * l->hidden;
    if (pass == COST_FORWARD) {
        cost_norm_forward(l, false);
        cost_norm_forward(l, false);
        cost_linear(l, "join", l->residual, l->hidden, joined);
        head_forward(l);
    }
    if (pass == COST_INPUT) {
        head_input(l);
        cost_linear_input(l, "join", l->residual, l->hidden, joined);
        cost_norm_backward(l);
        cost_norm_backward(l);
    }
    if (pass == COST_WEIGHT) {
        head_product(l, HARDWARE_WEIGHT);
        cost_linear_weight(l, "join", l->residual, l->hidden, joined);
    }
    if (cost_list_layer(l->shape, l->model->layers - 1, pass, out, err) != 0) return -1;
    for (int i = first; i < out->count; i++) out->ops[i].flops = 0;
    return 0;
}

int cost_list_head(const struct cost_shape *shape, enum cost_pass pass, struct cost_ops *out,
                   struct err *err) {
    struct cost_list l;
    if (cost_list_open(&l, shape, out, err) != 0) return -1;
    if (l.stack->own) {
        if (pass == COST_FORWARD) head_own(&l);
        if (pass == COST_INPUT) cost_norm_backward(&l);
        return cost_list_close(&l, err);
    }
    if (pass == COST_FORWARD) head_forward(&l);
    if (pass == COST_INPUT) head_input(&l);
    if (pass == COST_WEIGHT) head_product(&l, HARDWARE_WEIGHT);
    for (int i = 0; i < shape->predictions; i++)
        if (list_prediction(&l, pass, out, err) != 0) return -1;
    return cost_list_close(&l, err);
}

// ---- update ------------------------------------------------------------------------------------

// AdamW in one pass: gradient, master, two moments read; master, moments, weight written. The norm
// reads the gradients. Others clip and clear gradients in passes of their own, and write weights in
// a third.
double cost_update_seconds(const struct cost_shape *shape, double parameters, double gradients) {
    const struct accelerator *a = &shape->cluster->accelerator;
    const struct stack *stack = shape->stack;
    enum hardware_precision wide =
        shape->precision == HARDWARE_FP32 ? HARDWARE_FP32 : HARDWARE_BF16;
    double gradient = (double)dtype_bytes(stack->gradient);
    double weight = wide == HARDWARE_FP32 || !stack->masters ? 0 : 2;
    double update = 12 + 12 + gradient + weight, rest = stack->own ? 0 : 3 * gradient;
    if (!stack->own && weight > 0) rest += 4;
    double seconds = price_kernel(a, KERNEL_ADAMW, parameters, parameters * update, wide) +
                     price_kernel(a, KERNEL_GRAD_NORM, gradients, gradients * gradient, wide) +
                     price_bytes(a, gradients * rest);
    // both layouts of products, once per step
    if (stack->own && a->cpu)
        seconds += 2 * price_kernel(a, KERNEL_PACK, parameters, parameters * 4, wide);
    return seconds;
}
