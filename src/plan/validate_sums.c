// Errors by source. See validate_sums.h.
#include "plan/validate_sums.h"
#include "base/numbers.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTED_FROM = 10 }; // usable rows from which a source counts

static bool of(const struct validated *v, const char *source) {
    return source && strcmp(v->row->source, source) == 0;
}
static bool used(const struct validated *v, const char *source) {
    return v->verdict == VALIDATE_USED && v->predicted > 0 && of(v, source);
}

// Mean |error| of a planner that knows one number: the source's own median rate, counted in the way
// that suits it better (model FLOPs, or with what is recomputed).
static double constant_error(const struct validation *v, const char *source, double *room) {
    double best = INFINITY;
    for (int f = VALIDATE_FLOPS_FULL; f <= VALIDATE_FLOPS_HARDWARE; f += 2) {
        int n = 0;
        double sum = 0;
        for (int i = 0; i < v->rows; i++)
            if (used(&v->row[i], source))
                room[n++] = v->row[i].flops[f] / (v->row[i].measured * v->row[i].gpus);
        double rate = numbers_median(room, (size_t)n);
        for (int i = 0; i < v->rows; i++)
            if (used(&v->row[i], source)) {
                const struct validated *r = &v->row[i];
                sum += fabs(r->flops[f] / (rate * r->gpus) - r->measured) / r->measured;
            }
        if (n > 0 && sum / n < best) best = sum / n;
    }
    return isinf(best) ? 0 : best;
}

static void sum_memory(const struct validation *v, struct validate_source *s) {
    for (int i = 0; i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        if (!of(r, s->name) || r->verdict != VALIDATE_USED || !(r->memory > 0) ||
            !(r->memory_predicted > 0))
            continue;
        double error = (r->memory_predicted - r->memory) / r->memory;
        s->memory_rows++;
        s->memory_mean += fabs(error);
        s->memory_bias += error;
        if (fabs(error) > fabs(s->memory_worst)) s->memory_worst = error;
    }
    if (!s->memory_rows) return;
    s->memory_mean /= s->memory_rows;
    s->memory_bias /= s->memory_rows;
}

static void sum_source(const struct validation *v, struct validate_source *s, double *room) {
    int n = 0;
    for (int i = 0; i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        if (!of(r, s->name)) continue;
        s->rows++;
        s->left_out += r->verdict == VALIDATE_LEFT_OUT;
        s->ranked += r->verdict == VALIDATE_RANKED;
        if (!used(r, s->name)) continue;
        s->used++;
        s->mean += fabs(r->error);
        s->bias += r->error;
        if (fabs(r->error) > fabs(s->worst)) s->worst = r->error;
        room[n++] = fabs(r->error);
    }
    sum_memory(v, s);
    if (!s->used) return;
    s->mean /= s->used;
    s->bias /= s->used;
    s->median = numbers_median(room, (size_t)n);
    s->constant = constant_error(v, s->name, room);
    s->beats_constant = s->mean < s->constant + (s->constant <= 0.10 ? 0.03 : 0);
}

static int find_sources(struct validation *v, struct err *err) {
    v->source = calloc((size_t)v->rows + 1, sizeof *v->source);
    if (!v->source) return err_set(err, ERR_MEMORY, "no memory for the sources");
    for (int i = 0; i < v->rows; i++) {
        const char *name = v->row[i].row->source;
        bool known = false;
        for (int s = 0; s < v->sources && !known; s++)
            known = v->source[s].name && strcmp(v->source[s].name, name) == 0;
        if (!known) v->source[v->sources++].name = name;
    }
    return 0;
}

// A table of small sources only has a median over all of them.
static int counted_from(const struct validation *v) {
    for (int s = 0; s < v->sources; s++)
        if (v->source[s].used >= COUNTED_FROM) return COUNTED_FROM;
    return 1;
}

static void sum_all(struct validation *v, double *room) {
    int n = 0;
    v->counted_from = counted_from(v);
    for (int s = 0; s < v->sources; s++) {
        const struct validate_source *source = &v->source[s];
        if (source->used > COUNTED_FROM)
            v->large_sources++, v->beaten_sources += source->beats_constant;
        if (source->used < v->counted_from) continue;
        room[n++] = source->mean;
        v->mean_source += source->mean;
        v->worst_source = fmax(v->worst_source, source->mean);
    }
    v->counted_sources = n;
    if (n) v->mean_source /= n;
    v->median_source = n ? numbers_median(room, (size_t)n) : 0;
    for (int i = 0; i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        if (r->verdict == VALIDATE_USED) {
            v->used++;
            v->mean += fabs(r->error);
            if (fabs(r->error) > fabs(v->worst)) v->worst = r->error;
        }
        if (!(r->memory_total > 0)) continue;
        if (r->ran_out)
            v->failed++, v->failed_found += !r->fits;
        else
            v->succeeded++, v->succeeded_found += r->fits;
    }
    if (v->used) v->mean /= v->used;
}

int validate_sums(struct validation *v, struct err *err) {
    if (find_sources(v, err) != 0) return -1;
    double *room = malloc(((size_t)v->rows + 1) * sizeof *room);
    if (!room) return err_set(err, ERR_MEMORY, "no memory for the sources");
    for (int s = 0; s < v->sources; s++) sum_source(v, &v->source[s], room);
    sum_all(v, room);
    free(room);
    return validate_rank(v, err);
}
