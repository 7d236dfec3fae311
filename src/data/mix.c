// Weighted mixing by rounding, see mix.h.
#include "data/mix.h"
#include <math.h>
#include <stdbool.h>

static const uint64_t WHOLE = (uint64_t)1 << 63;

static long double sum(const double *weights, int begin, int end) {
    long double total = 0;
    for (int i = begin; i < end; i++) total += weights[i];
    return total;
}

// A group of m sets has 2m - 1 nodes, so the second half's node is known from the size of the
// first.
static int second_half(const struct mix *mix, int node) {
    return node + 2 * (mix->nodes[node].middle - mix->nodes[node].begin);
}

static void divide(struct mix *mix, const double *weights, int node, int begin, int end) {
    struct mix_node *group = &mix->nodes[node];
    *group = (struct mix_node){.begin = begin, .middle = end, .end = end};
    if (end - begin < 2) return;
    long double all = sum(weights, begin, end), best = INFINITY;
    for (int middle = begin + 1; middle < end; middle++) {
        long double off = fabsl(2 * sum(weights, begin, middle) - all);
        if (off < best) {
            best = off;
            group->middle = middle;
        }
    }
    long double first = sum(weights, begin, group->middle);
    if (sum(weights, group->middle, end) == 0)
        group->share = WHOLE;
    else
        group->share = (uint64_t)(first / all * 0x1p63L + 0.5L);
    divide(mix, weights, node + 1, begin, group->middle);
    divide(mix, weights, second_half(mix, node), group->middle, end);
}

int mix_open(struct mix *mix, const double *weights, int count, struct err *err) {
    if (count < 1 || count > MIX_MAX_SETS)
        return err_set(err, ERR_USAGE, "%d data sets; expected 1 to %d", count, MIX_MAX_SETS);
    for (int i = 0; i < count; i++)
        if (!(weights[i] >= 0) || isinf(weights[i]))
            return err_set(err, ERR_USAGE,
                           "weight %g of data set %d: expected a number of at least 0", weights[i],
                           i);
    if (sum(weights, 0, count) <= 0)
        return err_set(err, ERR_USAGE,
                       "the weights of the data sets are all 0; expected one above 0");
    mix->count = count;
    divide(mix, weights, 0, 0, count);
    return 0;
}

static uint64_t rounded(uint64_t share, uint64_t n) {
    return (uint64_t)(((unsigned __int128)share * n + (WHOLE >> 1)) >> 63);
}

int mix_pick(const struct mix *mix, uint64_t n, uint64_t *before) {
    int node = 0;
    while (mix->nodes[node].end - mix->nodes[node].begin > 1) {
        uint64_t first = rounded(mix->nodes[node].share, n);
        if (rounded(mix->nodes[node].share, n + 1) > first) {
            n = first;
            node = node + 1;
        } else {
            n -= first;
            node = second_half(mix, node);
        }
    }
    *before = n;
    return mix->nodes[node].begin;
}

uint64_t mix_draws(const struct mix *mix, int set, uint64_t n) {
    int node = 0;
    while (mix->nodes[node].end - mix->nodes[node].begin > 1) {
        uint64_t first = rounded(mix->nodes[node].share, n);
        bool in_first = set < mix->nodes[node].middle;
        n = in_first ? first : n - first;
        node = in_first ? node + 1 : second_half(mix, node);
    }
    return n;
}
