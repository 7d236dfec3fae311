// Prices of lists.
#include "cost/stage.h"
#include <math.h>
#include <stdlib.h>

// Groups are looked up once per list.
struct groups {
    struct network_group group[GROUP_KIND_COUNT];
    bool known[GROUP_KIND_COUNT];
};

static double message_seconds(const struct cost_shape *s, const struct cost_op *op,
                              struct groups *groups) {
    if (!groups->known[op->group]) {
        groups->group[op->group] =
            network_group_of(s->cluster, &s->mesh, op->group, s->model->kv_heads);
        groups->known[op->group] = true;
    }
    return network_seconds(s->cluster, &groups->group[op->group], op->message, op->bytes, NULL);
}

static double product_seconds(const struct cost_shape *s, const struct cost_op *op) {
    const struct accelerator *a = &s->cluster->accelerator;
    double extra = op->bytes > 0 ? price_bytes(a, op->bytes) : 0;
    // The engine's chunks run one after the other; grouped products of others are one kernel.
    if (s->stack->own)
        return (double)op->batch *
                   price_product_form(a, op->form, op->precision, op->m, op->n, op->k, 1) +
               extra;
    return price_product_form(a, op->form, op->precision, op->m, op->n, op->k, op->batch) + extra;
}

static double op_seconds(const struct cost_shape *s, const struct cost_op *op,
                         struct groups *groups) {
    const struct accelerator *a = &s->cluster->accelerator;
    switch (op->kind) {
    case COST_PRODUCT:
        return product_seconds(s, op);
    case COST_ATTENTION:
        return price_attention(a, &op->attention, op->form == HARDWARE_INPUT);
    case COST_KERNEL: {
        double fixed = op->launches > 1 ? (op->launches - 1) * a->kernel_seconds.value : 0;
        return price_kernel(a, op->kernel, op->elements, op->bytes, op->precision) + fixed;
    }
    case COST_MESSAGE:
        return message_seconds(s, op, groups);
    }
    return 0;
}

// The first chunk of a gather, or the last one of a sum, has no product beside it.
static double exposed_chunks(const struct cost_ops *ops, int message, int size) {
    const struct cost_op *op = &ops->ops[message];
    int step = op->message == NETWORK_ALL_GATHER ? 1 : -1;
    double alone = op->seconds / (size > 1 ? size : 1), beside = 0;
    for (int i = message + step; i >= 0 && i < ops->count; i += step)
        if (ops->ops[i].kind == COST_PRODUCT) {
            beside = ops->ops[i].seconds;
            break;
        }
    return alone + fmax(0, op->seconds - alone - beside);
}

// Hidden messages share the compute's time; what is longer than it is exposed, cause by cause. Keys
// on their way round have only attention to hide behind.
static void expose(struct cost_sum *sum, double hidden[CAUSE_COUNT], double compute,
                   double attention) {
    double keys = fmin(hidden[CAUSE_CONTEXT], attention), all = 0;
    sum->cause[CAUSE_CONTEXT] += hidden[CAUSE_CONTEXT] - keys;
    sum->seconds += hidden[CAUSE_CONTEXT] - keys;
    hidden[CAUSE_CONTEXT] = keys;
    for (int c = 0; c < CAUSE_COUNT; c++) all += hidden[c];
    sum->hidden += fmin(all, compute);
    if (all <= compute) return;
    for (int c = 0; c < CAUSE_COUNT; c++) sum->cause[c] += hidden[c] / all * (all - compute);
    sum->seconds += all - compute;
}

// The device stands still while the host launches more slowly than it computes; and always, when
// the host waits for each kernel before it goes on.
static void wait_for_host(struct cost_sum *sum) {
    sum->seconds = sum->blocking ? sum->device + sum->host : fmax(sum->device, sum->host);
    sum->cause[CAUSE_HOST] = sum->seconds - sum->device;
}

// The largest of n normal deviations, in standard deviations (Cramer).
static double largest_of(double n) {
    double r = sqrt(2 * log(n));
    return r - (log(log(n)) + log(4 * M_PI)) / (2 * r);
}

// Ranks wait for each other, so that a step has the pace of the slowest accelerator. What a whole
// node of them does is in its figures already.
static double slowest_pace(const struct cost_shape *s) {
    const int node = 8;
    double ranks = mesh_ranks(&s->mesh);
    if (ranks <= node) return 1;
    return 1 + s->cluster->accelerator.speed_spread.value * (largest_of(ranks) - largest_of(node));
}

struct cost_sum cost_price(const struct cost_shape *shape, struct cost_ops *ops) {
    struct cost_sum sum = {.seconds = 0};
    struct groups groups = {.known = {false}};
    double hidden[CAUSE_COUNT] = {0}, compute = 0, pace = slowest_pace(shape);
    for (int i = 0; i < ops->count; i++) {
        struct cost_op *op = &ops->ops[i];
        op->seconds = op_seconds(shape, op, &groups);
        if (op->kind != COST_MESSAGE) op->seconds *= pace;
        sum.flops += op->flops;
        sum.kernels += op->launches;
    }
    for (int i = 0; i < ops->count; i++) {
        const struct cost_op *op = &ops->ops[i];
        double seconds = op->seconds;
        if (op->kind == COST_MESSAGE && op->hidden && !op->chunked) {
            hidden[op->cause] += seconds;
            continue;
        }
        if (op->kind != COST_MESSAGE) compute += seconds;
        if (op->chunked) seconds = exposed_chunks(ops, i, groups.group[op->group].size);
        sum.hidden += op->seconds - seconds;
        sum.cause[op->cause] += seconds;
        sum.seconds += seconds;
    }
    expose(&sum, hidden, compute, sum.cause[CAUSE_ATTENTION]);
    sum.device = sum.seconds;
    sum.blocking = shape->stack->blocking_launch;
    sum.host = shape->stack->graphs ? 0 : sum.kernels * shape->stack->launch_seconds.value;
    wait_for_host(&sum);
    return sum;
}

struct cost_sum cost_sum_add(const struct cost_sum *a, const struct cost_sum *b) {
    struct cost_sum sum = {.device = a->device + b->device,
                           .host = a->host + b->host,
                           .flops = a->flops + b->flops,
                           .kernels = a->kernels + b->kernels,
                           .hidden = a->hidden + b->hidden,
                           .blocking = a->blocking || b->blocking};
    for (int c = 0; c < CAUSE_COUNT; c++) sum.cause[c] = a->cause[c] + b->cause[c];
    wait_for_host(&sum);
    return sum;
}

void cost_ops_free(struct cost_ops *ops) {
    free(ops->ops);
    *ops = (struct cost_ops){NULL, 0, 0};
}
