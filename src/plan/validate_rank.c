// Rows that differ in layout only: which one is ranked first, and what that costs. See validate.h.
#include "base/numbers.h"
#include "plan/validate_sums.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool same_question(const struct published *a, const struct published *b) {
    return strcmp(a->source, b->source) == 0 && strcmp(a->model, b->model) == 0 &&
           strcmp(a->precision, b->precision) == 0 && a->gpus == b->gpus &&
           a->sequences == b->sequences && a->context == b->context && a->layers == b->layers &&
           a->hidden == b->hidden && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           (isnan(a->params_billions) || a->params_billions == b->params_billions);
}

static int find_groups(struct validation *v, int *first, int *size) {
    int groups = 0;
    for (int i = 0; i < v->rows; i++) {
        struct validated *r = &v->row[i];
        if (r->verdict == VALIDATE_LEFT_OUT || !(r->predicted > 0) || r->row->sequences <= 0)
            continue;
        int g = 0;
        while (g < groups && !same_question(v->row[first[g]].row, r->row)) g++;
        if (g == groups) first[groups] = i, size[groups++] = 0;
        size[g]++;
        r->group = g;
    }
    return groups;
}

// Rank of a value among those of its group, equal ones sharing the middle.
static double place(const struct validation *v, int i, bool predicted) {
    double below = 0, mine = predicted ? v->row[i].predicted : v->row[i].measured;
    for (int j = 0; j < v->rows; j++) {
        if (v->row[j].group != v->row[i].group) continue;
        double other = predicted ? v->row[j].predicted : v->row[j].measured;
        below += other < mine ? 1 : other == mine ? 0.5 : 0;
    }
    return below;
}

static double spearman(const struct validation *v, int group, int size) {
    double mean = size / 2.0, xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < v->rows; i++) {
        if (v->row[i].group != group) continue;
        double x = place(v, i, true) - mean, y = place(v, i, false) - mean;
        xy += x * y, xx += x * x, yy += y * y;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 1;
}

static bool same_layout(const struct published *a, const struct published *b) {
    return a->tp == b->tp && a->pp == b->pp && a->vpp == b->vpp && a->cp == b->cp &&
           a->ep == b->ep && a->zero == b->zero && a->rows == b->rows &&
           strcmp(a->schedule, b->schedule) == 0 && strcmp(a->recompute, b->recompute) == 0;
}

// Mean over the group's measurements of one layout: some were run again on another day.
static double measured(const struct validation *v, int row) {
    double sum = 0;
    int n = 0;
    for (int i = 0; i < v->rows; i++)
        if (v->row[i].group == v->row[row].group && same_layout(v->row[i].row, v->row[row].row))
            sum += v->row[i].measured, n++;
    return sum / n;
}

// The pick is the quickest of those that are predicted to fit, or of all when none is. The room
// that a search leaves is not asked for: these layouts ran.
static double regret(const struct validation *v, int group) {
    int pick = -1;
    double best = INFINITY;
    for (int i = 0; i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        if (r->group != group) continue;
        best = fmin(best, measured(v, i));
        bool better =
            pick < 0 ||
            (r->fits == v->row[pick].fits ? r->predicted < v->row[pick].predicted : r->fits);
        if (better) pick = i;
    }
    return measured(v, pick) / best;
}

static int layouts(const struct validation *v, int group, int first) {
    for (int i = first + 1; i < v->rows; i++)
        if (v->row[i].group == group && !same_layout(v->row[i].row, v->row[first].row)) return 2;
    return 1;
}

static void rank_source(const struct validation *v, struct validate_ranking *ranking,
                        const int *first, const int *size, int groups, double *room) {
    int ordered = 0;
    for (int g = 0; g < groups; g++) {
        if (layouts(v, g, first[g]) < 2 || strcmp(v->row[first[g]].row->source, ranking->name) != 0)
            continue;
        double r = regret(v, g);
        room[ranking->groups++] = r;
        ranking->rows += size[g];
        ranking->regret_mean += r;
        ranking->regret_worst = fmax(ranking->regret_worst, r);
        if (size[g] < 3) continue;
        ranking->spearman += spearman(v, g, size[g]);
        ordered++;
    }
    if (ranking->groups) ranking->regret_mean /= ranking->groups;
    ranking->regret_median = numbers_median(room, (size_t)ranking->groups);
    if (ordered) ranking->spearman /= ordered;
}

static void schedule_ratios(struct validation *v) {
    for (int i = 0; i < v->rows; i++)
        for (int j = i + 1; j < v->rows; j++) {
            const struct validated *a = &v->row[i], *b = &v->row[j];
            if (a->group < 0 || a->group != b->group ||
                strncmp(a->row->source, "zerobubble", 10) != 0 ||
                strcmp(a->row->schedule, b->row->schedule) == 0)
                continue;
            double error = fabs(a->predicted / b->predicted * b->measured / a->measured - 1);
            v->schedule_pairs++;
            v->schedule_mean += error;
            v->schedule_worst = fmax(v->schedule_worst, error);
        }
    if (v->schedule_pairs) v->schedule_mean /= v->schedule_pairs;
}

int validate_rank(struct validation *v, struct err *err) {
    size_t n = (size_t)v->rows + 1;
    int *first = malloc(2 * n * sizeof *first);
    double *room = malloc(n * sizeof *room);
    v->ranking = calloc((size_t)v->sources + 1, sizeof *v->ranking);
    int result = first && room && v->ranking ? 0 : err_set(err, ERR_MEMORY, "no memory for groups");
    if (result == 0) {
        int groups = find_groups(v, first, first + n);
        for (int s = 0; s < v->sources; s++) {
            struct validate_ranking *ranking = &v->ranking[v->rankings];
            *ranking = (struct validate_ranking){.name = v->source[s].name};
            rank_source(v, ranking, first, first + n, groups, room);
            v->rankings += ranking->groups > 0;
        }
        schedule_ratios(v);
    }
    free(first);
    free(room);
    return result;
}
