// The experts of a layer on one rank: router, rows on their way, grouped products, the shared
// expert. The engine's own order is that of engine/moe.c.
//
// Useful operations count the rows that tokens choose; time counts the busiest rank, whose experts
// get `imbalance` times as many.
#include "cost/list.h"
#include <math.h>

enum { OWN_CHUNK = 256, OWN_PAD = 32 }; // engine/moe.h: MOE_CHUNK, MOE_PAD
// An expert's last tile is half empty on average: grouped products of 32 experts with 1,024 rows
// run 7 to 11 % below one large product, of 40 with 2,460 rows 2 to 8 % (SimuMax, B200).
enum { EDGE_ROWS = 64 };

struct rows {
    int64_t local;     // experts of this rank
    int64_t each;      // rows of one of them
    double sent, busy; // rows that this rank sends, and that the busiest one receives
    double worked;     // and works on: those of all tensor ranks, where they cut experts
    int64_t width, shared_width;
};

bool cost_experts_apart(const struct cost_list *l) {
    return !l->stack->own && l->sequence;
}

// Tokens that this rank routes.
static int64_t routed(const struct cost_list *l) {
    return cost_experts_apart(l) ? l->residual : l->tokens;
}

// Routed apart, and yet each expert cut over tp: what arrives is gathered before the experts.
static bool gathers_rows(const struct cost_list *l) {
    return cost_experts_apart(l) && !l->stack->experts_whole;
}

static struct rows rows_of(const struct cost_list *l) {
    const struct model_config *c = l->model;
    bool whole = cost_experts_apart(l) && l->stack->experts_whole;
    struct rows r = {.local = c->experts / l->ep,
                     .sent = (double)routed(l) * c->top_k,
                     .width = whole ? c->expert_ffn : c->expert_ffn / l->tp,
                     .shared_width = c->shared_ffn / l->tp};
    double imbalance = l->shape->imbalance > 1 ? l->shape->imbalance : 1;
    r.busy = r.sent * (l->ep > 1 ? imbalance : 1);
    r.worked = r.busy * (gathers_rows(l) ? l->tp : 1);
    // Grouped kernels take the rows of each expert on their own: no alignment is lost at odd counts
    r.each = ((int64_t)ceil(r.worked / (double)r.local) + 15) / 16 * 16;
    return r;
}

// Products of all local experts. The engine makes one per chunk of rows, others one kernel for all.
static void grouped(struct cost_list *l, const char *name, enum hardware_form form,
                    const struct rows *r, int64_t n, int64_t k) {
    double rows_useful = r->sent * (gathers_rows(l) ? l->tp : 1);
    if (form != HARDWARE_WEIGHT)
        cost_quantise(l, r->worked * (double)(form == HARDWARE_FORWARD ? k : n));
    struct cost_op *op = cost_product(l, name, form, r->each, n, k);
    op->batch = r->local;
    op->precision = l->shape->precision;
    op->flops = 2 * rows_useful * (double)n * (double)k;
    if (!l->stack->own) {
        if (form == HARDWARE_WEIGHT)
            cost_accumulate(l, op);
        else
            op->m += EDGE_ROWS;
        return;
    }
    int64_t chunks = (r->each + OWN_CHUNK - 1) / OWN_CHUNK;
    int64_t rows = (r->each + chunks - 1) / chunks;
    op->m = (rows + OWN_PAD - 1) / OWN_PAD * OWN_PAD;
    op->batch = r->local * chunks;
    op->launches = (int)op->batch;
}

static void permute(struct cost_list *l, const char *name, double rows) {
    cost_kernel(l, name, KERNEL_PERMUTE, rows * (double)l->hidden, 2 * l->element);
}

// Of the rows of a token, how many cross between nodes where each node is sent one copy (DeepEP)
// and hands it on inside: with random choices the number of different nodes among them.
static double copies_share(const struct cost_list *l) {
    const struct cluster *c = l->shape->cluster;
    double nodes = ceil((double)l->ep / (c->domain > 0 ? c->domain : 1)), k = l->model->top_k;
    if (!l->stack->copy_per_node || nodes <= 1) return 1;
    return fmin(1, nodes * (1 - pow(1 - 1 / nodes, k)) / k);
}

static void exchange(struct cost_list *l, const char *name, const struct rows *r) {
    if (l->ep == 1) return;
    cost_message(l, name, NETWORK_ALL_TO_ALL, GROUP_EP, CAUSE_EXPERT,
                 r->busy * (double)l->hidden * l->element * copies_share(l))
        ->hidden = l->stack->overlap_experts && !l->shape->no_overlap;
}

static void tensor_rows(struct cost_list *l, const char *name, enum network_kind kind,
                        const struct rows *r) {
    cost_message(l, name, kind, GROUP_TP, CAUSE_TENSOR, r->worked * (double)l->hidden * l->element);
}

static void route(struct cost_list *l) {
    double scores = (double)routed(l) * l->model->experts;
    if (l->wide != HARDWARE_FP32)
        cost_kernel(l, "convert", KERNEL_COPY, (double)routed(l) * (double)l->hidden,
                    l->element + 4);
    struct cost_op *op =
        cost_product(l, "router", HARDWARE_FORWARD, routed(l), l->model->experts, l->hidden);
    if (l->stack->own) op->precision = HARDWARE_FP32;
    op = cost_kernel(l, "router", KERNEL_ROUTE, scores, 16);
    if (!l->stack->own) op->launches = 10; // softmax, choice, counts, map, sums
    if (l->ep > 1)
        cost_message(l, "counts", NETWORK_ALL_GATHER, GROUP_EP, CAUSE_EXPERT,
                     8.0 * l->model->experts * l->ep);
}

// Rows to the tiles of their experts.
static void dispatch(struct cost_list *l, const struct rows *r) {
    permute(l, "gather rows", r->sent);
    exchange(l, "dispatch", r);
    if (gathers_rows(l)) tensor_rows(l, "gather rows over tp", NETWORK_ALL_GATHER, r);
    if (l->ep > 1 && r->local > 1) permute(l, "gather rows", r->worked);
}

static void give_back(struct cost_list *l, const struct rows *r) {
    if (l->stack->own || (l->ep > 1 && r->local > 1)) permute(l, "scatter rows", r->worked);
    if (gathers_rows(l)) tensor_rows(l, "sum rows over tp", NETWORK_REDUCE_SCATTER, r);
    exchange(l, "combine", r);
    permute(l, "combine rows", r->sent);
}

void cost_experts_forward(struct cost_list *l) {
    struct rows r = rows_of(l);
    route(l);
    dispatch(l, &r);
    grouped(l, "expert up", HARDWARE_FORWARD, &r, 2 * r.width, l->hidden);
    cost_activation_forward(l, r.worked, (double)r.width);
    grouped(l, "expert down", HARDWARE_FORWARD, &r, l->hidden, r.width);
    give_back(l, &r);
    if (r.shared_width == 0) return;
    if (cost_experts_apart(l)) cost_gather(l, "gather shared");
    cost_linear(l, "shared up", l->tokens, 2 * r.shared_width, l->hidden);
    cost_activation_forward(l, (double)l->tokens, (double)r.shared_width);
    cost_linear(l, "shared down", l->tokens, l->hidden, r.shared_width);
    if (cost_experts_apart(l)) cost_reduce(l, "reduce shared");
}

void cost_experts_input(struct cost_list *l) {
    struct rows r = rows_of(l);
    bool keeps =
        l->shape->recompute == RECOMPUTE_NONE || l->shape->recompute == RECOMPUTE_SELECTIVE;
    if (l->stack->own && !keeps) { // redone where it is needed, not before the layer's backward
        dispatch(l, &r);
        grouped(l, "expert up", HARDWARE_FORWARD, &r, 2 * r.width, l->hidden);
        l->out->ops[l->out->count - 1].flops = 0;
        if (r.shared_width > 0) {
            cost_linear(l, "shared up", l->tokens, 2 * r.shared_width, l->hidden);
            l->out->ops[l->out->count - 1].flops = 0;
        }
    }
    dispatch(l, &r);
    grouped(l, "expert down", HARDWARE_INPUT, &r, l->hidden, r.width);
    cost_activation_backward(l, r.worked, (double)r.width);
    grouped(l, "expert up", HARDWARE_INPUT, &r, 2 * r.width, l->hidden);
    give_back(l, &r);
    cost_kernel(l, "router gradient", KERNEL_ROUTE, (double)routed(l) * l->model->experts, 16)
        ->launches = l->stack->own ? 1 : 8;
    struct cost_op *op =
        cost_product(l, "router", HARDWARE_INPUT, routed(l), l->model->experts, l->hidden);
    if (l->stack->own) op->precision = HARDWARE_FP32;
    if (r.shared_width == 0) return;
    if (cost_experts_apart(l)) cost_gather(l, "gather shared");
    cost_linear_input(l, "shared down", l->tokens, l->hidden, r.shared_width);
    cost_activation_backward(l, (double)l->tokens, (double)r.shared_width);
    cost_linear_input(l, "shared up", l->tokens, 2 * r.shared_width, l->hidden);
    if (cost_experts_apart(l)) cost_reduce(l, "reduce shared");
}

void cost_experts_weight(struct cost_list *l) {
    struct rows r = rows_of(l);
    grouped(l, "expert up", HARDWARE_WEIGHT, &r, 2 * r.width, l->hidden);
    grouped(l, "expert down", HARDWARE_WEIGHT, &r, l->hidden, r.width);
    if (l->stack->own && l->wide != HARDWARE_FP32)
        cost_kernel(l, "convert", KERNEL_COPY, (double)l->tokens * (double)l->hidden,
                    l->element + 4);
    struct cost_op *op =
        cost_product(l, "router", HARDWARE_WEIGHT, routed(l), l->model->experts, l->hidden);
    if (l->stack->own) op->precision = HARDWARE_FP32;
    if (r.shared_width == 0) return;
    if (cost_experts_apart(l)) cost_gather_again(l, "gather shared");
    cost_linear_weight(l, "shared up", l->tokens, 2 * r.shared_width, l->hidden);
    cost_linear_weight(l, "shared down", l->tokens, l->hidden, r.shared_width);
}
