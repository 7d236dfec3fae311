// Both timelines side by side. See explain.h.
#include "plan/explain.h"
#include "base/numbers.h"
#include <math.h>
#include <stdlib.h>

static int compare_actions(const struct explain_action *a, const struct explain_action *b) {
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    if (a->name != b->name) return a->name < b->name ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

static int by_place(const void *a, const void *b) {
    return compare_actions(*(const struct explain_action *const *)a,
                           *(const struct explain_action *const *)b);
}

static int by_difference(const void *a, const void *b) {
    const struct explain_pair *x = a, *y = b;
    double dx = fabs(x->predicted->seconds - x->measured->seconds);
    double dy = fabs(y->predicted->seconds - y->measured->seconds);
    return (dx < dy) - (dx > dy);
}

static const struct explain_action **sorted(const struct explain_trace *t) {
    const struct explain_action **list = calloc((size_t)t->count + 1, sizeof *list);
    for (int i = 0; list && i < t->count; i++) list[i] = &t->actions[i];
    if (list) qsort(list, (size_t)t->count, sizeof *list, by_place);
    return list;
}

// `name` EXPLAIN_NAMES: all. errors: room for all pairs.
static void sum(const struct explain *e, enum explain_name name, double *errors,
                struct explain_kind *out) {
    *out = (struct explain_kind){0};
    for (int i = 0; i < e->pair_count; i++) {
        const struct explain_pair *p = &e->pairs[i];
        if (!p->measured || (name != EXPLAIN_NAMES && p->measured->name != name)) continue;
        out->predicted += p->predicted->seconds;
        out->measured += p->measured->seconds;
        errors[out->count++] = fabs(p->error);
    }
    out->median_error = numbers_median(errors, (size_t)out->count);
}

static void pair(const struct explain_action **p, int p_count, const struct explain_action **m,
                 int m_count, struct explain *out) {
    for (int i = 0, j = 0; i < p_count || j < m_count;) {
        int order = i == p_count ? 1 : j == m_count ? -1 : compare_actions(p[i], m[j]);
        if (order == 0) {
            const struct explain_action *measured = m[j];
            if (measured && measured->seconds > 0)
                out->pairs[out->pair_count++] =
                    (struct explain_pair){p[i], measured, p[i]->seconds / measured->seconds - 1};
            i++;
            j++;
        } else if (order < 0) {
            out->only_predicted++;
            i++;
        } else {
            out->only_measured++;
            j++;
        }
    }
}

int explain_compare(const struct explain_trace *predicted, const struct explain_trace *measured,
                    struct explain *out, struct err *err) {
    *out = (struct explain){0};
    const struct explain_action **p = sorted(predicted), **m = sorted(measured);
    double *errors = calloc((size_t)measured->count + 1, sizeof *errors);
    int status = 0;
    out->pairs = calloc((size_t)measured->count + 1, sizeof *out->pairs);
    if (!p || !m || !errors || !out->pairs) {
        status = err_set(err, ERR_MEMORY, "no memory to compare %d actions", measured->count);
    } else {
        pair(p, predicted->count, m, measured->count, out);
        for (int n = 0; n < EXPLAIN_NAMES; n++)
            sum(out, (enum explain_name)n, errors, &out->kinds[n]);
        sum(out, EXPLAIN_NAMES, errors, &out->all);
        qsort(out->pairs, (size_t)out->pair_count, sizeof *out->pairs, by_difference);
        if (out->pair_count == 0)
            status = err_set(err, ERR_DATA,
                             "the predicted and the measured timeline have no action in common "
                             "(%d and %d): are they of the same run?",
                             predicted->count, measured->count);
    }
    free(p);
    free(m);
    free(errors);
    if (status != 0) explain_free(out);
    return status;
}

void explain_free(struct explain *e) {
    free(e->pairs);
    *e = (struct explain){0};
}
