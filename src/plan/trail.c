// The decisions, one key after the other: the layout with this key alone moved to the values on
// either side. See trail.h.
#include "plan/trail.h"
#include "base/text.h"
#include "plan/trail_parts.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *trail_kind_name(enum trail_kind kind) {
    static const char *const names[TRAIL_KINDS] = {"choice", "trap", "chapter"};
    return names[kind];
}

void trail_say(struct trail *out, enum trail_kind kind, const char *name, const char *format, ...) {
    if (out->count == TRAIL_MOST_LINES) return;
    struct trail_line *line = &out->lines[out->count++];
    va_list values;
    line->kind = kind;
    line->name = name;
    va_start(values, format);
    vsnprintf(line->text, sizeof line->text, format, values);
    va_end(values);
}

const char *trail_costliest(const struct estimate *own, const struct estimate *other,
                            double *seconds) {
    const char *name = NULL;
    *seconds = 0;
    for (int i = 0; i < other->waterfall_lines; i++) {
        double more = other->waterfall[i].share * other->step_seconds;
        for (int k = 0; k < own->waterfall_lines; k++)
            if (strcmp(own->waterfall[k].name, other->waterfall[i].name) == 0)
                more -= own->waterfall[k].share * own->step_seconds;
        if (more <= *seconds) continue;
        *seconds = more;
        name = other->waterfall[i].name;
    }
    return name;
}

// ---- the layout with something changed

// dp takes what the others leave; the micro-batch shrinks to what divides a replica's share, and
// the stages to as many as there are layers. -1: cannot be.
static int settle(const struct search_request *r, struct search_choice *choice) {
    int *v = choice->value;
    int64_t others = (int64_t)v[SEARCH_TP] * v[SEARCH_PP] * v[SEARCH_CP];
    int64_t world = (int64_t)r->cluster->nodes * r->cluster->per_node;
    if (others > world || world % others != 0) return -1;
    v[SEARCH_DP] = (int)(world / others);
    int data = v[SEARCH_DP] * v[SEARCH_CP];
    if (r->batch % v[SEARCH_DP] != 0) return -1;
    int64_t share = r->batch / v[SEARCH_DP];
    while (share % v[SEARCH_MICRO] != 0) v[SEARCH_MICRO]--;
    while (data % v[SEARCH_EP] != 0) v[SEARCH_EP]--;
    if (data == 1) v[SEARCH_ZERO] = 0;
    if (v[SEARCH_TP] == 1) v[SEARCH_SEQUENCE] = 0;
    if (v[SEARCH_SCHEDULE] == PIPELINE_INTERLEAVED &&
        v[SEARCH_PP] * v[SEARCH_CHUNKS] > r->model->layers)
        v[SEARCH_CHUNKS] = r->model->layers / v[SEARCH_PP];
    if (v[SEARCH_PP] == 1 || v[SEARCH_CHUNKS] < 1 ||
        (v[SEARCH_SCHEDULE] == PIPELINE_INTERLEAVED && v[SEARCH_CHUNKS] < 2)) {
        v[SEARCH_SCHEDULE] = PIPELINE_1F1B;
        v[SEARCH_CHUNKS] = 1;
    }
    if (v[SEARCH_PP] == 1) v[SEARCH_ENDS] = 0;
    return 0;
}

struct chooser {
    const struct trail_subject *subject;
    struct job *job; // room
};

// "tp 4 takes 6.31 s, +5.0 % (tensor-parallel messages +0.31 s)", "tp 4 would need 103.1 GB".
// Empty: there is no such layout.
static void put_other(struct chooser *c, struct search_choice choice, const char *what,
                      char out[200]) {
    const struct search_request *r = c->subject->request;
    const struct estimate *own = c->subject->estimate;
    struct estimate other;
    double capacity = search_capacity(r), seconds;
    out[0] = 0;
    if (settle(r, &choice) != 0 || search_job(r, &choice, c->job, NULL) != 0 ||
        estimate_step(c->job, false, &other, NULL) != 0)
        return;
    const char *line = trail_costliest(own, &other, &seconds);
    if (other.memory_peak > capacity)
        snprintf(out, 200, "%s would need %.1f of %.1f GB", what, other.memory_peak / 1e9,
                 capacity / 1e9);
    else if (line && other.step_seconds > own->step_seconds)
        snprintf(out, 200, "%s would take %.4g s, %+.1f %% (%s %+.3g s)", what, other.step_seconds,
                 100 * (other.step_seconds / own->step_seconds - 1), line, seconds);
    else
        snprintf(out, 200, "%s would take %.4g s, %+.1f %%", what, other.step_seconds,
                 100 * (other.step_seconds / own->step_seconds - 1));
    estimate_free(&other);
}

// One key at two other values; value < 0: not that one.
struct others {
    char text[420];
};
static void put_others(struct chooser *c, enum search_key key, int less, int more,
                       struct others *out) {
    int values[2] = {less, more};
    out->text[0] = 0;
    for (int i = 0; i < 2; i++) {
        char what[64], value[24], text[200];
        if (values[i] < 0) continue;
        struct search_choice choice = c->subject->entry->choice;
        choice.value[key] = values[i];
        snprintf(what, sizeof what, "%s %s",
                 key == SEARCH_MICRO ? "micro-batch" : search_key_name(key),
                 search_value_text(key, values[i], value));
        put_other(c, choice, what, text);
        if (text[0])
            snprintf(out->text + strlen(out->text), sizeof out->text - strlen(out->text), "; %s",
                     text);
    }
}

// The divisors of `of` next to the value: halves and doubles where those divide.
static int next_divisor(int64_t of, int value, int step) {
    for (int next = value + step; next >= 1 && next <= of && next <= 4 * value; next += step)
        if (of % next == 0) return next;
    return -1;
}

// ---- sentences

static void say_tensor(struct chooser *c, struct trail *out) {
    const struct cluster *cluster = c->subject->request->cluster;
    const int *v = c->subject->entry->choice.value;
    int tp = v[SEARCH_TP], left = tp * v[SEARCH_DP];
    struct others o;
    put_others(c, SEARCH_TP, next_divisor(left, tp, -1), next_divisor(left, tp, 1), &o);
    if (tp == 1)
        trail_say(out, TRAIL_CHOICE, "tp", "no tensor parallelism%s", o.text);
    else if (tp <= cluster->domain)
        trail_say(out, TRAIL_CHOICE, "tp",
                  "tp %d stays inside the fast domain of %d (%s, %.0f GB/s one way per accelerator "
                  "against %.0f beyond)%s",
                  tp, cluster->domain, cluster->fast.name, cluster->fast.bandwidth.value / 1e9,
                  cluster->slow.bandwidth.value / 1e9, o.text);
    else
        trail_say(out, TRAIL_CHOICE, "tp", "tp %d leaves the fast domain of %d%s", tp,
                  cluster->domain, o.text);
}

static void say_pipeline(struct chooser *c, struct trail *out) {
    const int *v = c->subject->entry->choice.value;
    int pp = v[SEARCH_PP], left = pp * v[SEARCH_DP];
    struct others o;
    put_others(c, SEARCH_PP, next_divisor(left, pp, -1), next_divisor(left, pp, 1), &o);
    if (pp == 1)
        trail_say(out, TRAIL_CHOICE, "pp", "no pipeline: the model fits without%s", o.text);
    else
        trail_say(out, TRAIL_CHOICE, "pp", "pp %d%s", pp, o.text);
}

static void say_context(struct chooser *c, struct trail *out) {
    const int *v = c->subject->entry->choice.value;
    int cp = v[SEARCH_CP], left = cp * v[SEARCH_DP];
    struct others o;
    put_others(c, SEARCH_CP, next_divisor(left, cp, -1), next_divisor(left, cp, 1), &o);
    trail_say(out, TRAIL_CHOICE, "cp", "%s sequences of %d tokens%s",
              cp == 1 ? "no context parallelism for" : "context parallelism for",
              c->subject->request->context, o.text);
}

static void say_experts(struct chooser *c, struct trail *out) {
    const int *v = c->subject->entry->choice.value;
    int ep = v[SEARCH_EP], experts = c->subject->request->model->experts;
    struct others o;
    if (experts == 0) return;
    put_others(c, SEARCH_EP, next_divisor(experts, ep, -1), next_divisor(experts, ep, 1), &o);
    trail_say(out, TRAIL_CHOICE, "ep", "ep %d: %d of %d experts of a layer on each rank%s", ep,
              experts / ep, experts, o.text);
}

static void say_micro_batches(struct chooser *c, struct trail *out) {
    const int *v = c->subject->entry->choice.value;
    const struct job *job = c->subject->job;
    int64_t share = c->subject->request->batch / v[SEARCH_DP];
    struct others o;
    put_others(c, SEARCH_MICRO, next_divisor(share, v[SEARCH_MICRO], -1),
               next_divisor(share, v[SEARCH_MICRO], 1), &o);
    trail_say(out, TRAIL_CHOICE, "micro_batch",
              "%d micro-batch%s of %d sequence%s a step in each replica (bubble %.1f %%)%s",
              job->micro_batches, job->micro_batches == 1 ? "" : "es", job->rows,
              job->rows == 1 ? "" : "s", 100 * c->subject->estimate->bubble, o.text);
}

static void say_schedule(struct chooser *c, struct trail *out) {
    const int *v = c->subject->entry->choice.value;
    enum pipeline_kind kind = (enum pipeline_kind)v[SEARCH_SCHEDULE];
    char text[3][200];
    if (v[SEARCH_PP] == 1) return;
    struct search_choice one = c->subject->entry->choice, two = one, three = one;
    one.value[SEARCH_SCHEDULE] = PIPELINE_1F1B;
    one.value[SEARCH_CHUNKS] = 1;
    two.value[SEARCH_SCHEDULE] = PIPELINE_INTERLEAVED;
    two.value[SEARCH_CHUNKS] = 2;
    three.value[SEARCH_SCHEDULE] = PIPELINE_ZB_H1;
    three.value[SEARCH_CHUNKS] = 1;
    for (int i = 0; i < 3; i++) text[i][0] = 0;
    if (kind != PIPELINE_1F1B) put_other(c, one, "; 1f1b", text[0]);
    if (kind != PIPELINE_INTERLEAVED) put_other(c, two, "; interleaved with 2 chunks", text[1]);
    if (kind != PIPELINE_ZB_H1 && v[SEARCH_RECOMPUTE] == RECOMPUTE_NONE)
        put_other(c, three, "; zb-h1", text[2]);
    trail_say(out, TRAIL_CHOICE, "schedule", "%s with %d stage%s a rank%s%s%s",
              pipeline_kind_name(kind), v[SEARCH_CHUNKS], v[SEARCH_CHUNKS] == 1 ? "" : "s", text[0],
              text[1], text[2]);
}

static void say_zero(struct chooser *c, struct trail *out) {
    static const char *const cut[] = {"nothing is", "optimizer states are",
                                      "optimizer states and gradients are",
                                      "optimizer states, gradients and weights are"};
    const int *v = c->subject->entry->choice.value;
    int zero = v[SEARCH_ZERO], data = v[SEARCH_DP] * v[SEARCH_CP];
    struct others o;
    if (data == 1) return;
    put_others(c, SEARCH_ZERO, zero - 1, zero < 3 ? zero + 1 : -1, &o);
    trail_say(out, TRAIL_CHOICE, "zero", "zero %d: %s sharded over %d data ranks%s", zero,
              cut[zero], data, o.text);
}

static void say_recompute(struct chooser *c, struct trail *out) {
    int mode = c->subject->entry->choice.value[SEARCH_RECOMPUTE];
    struct others o;
    char value[24];
    put_others(c, SEARCH_RECOMPUTE, mode - 1, mode < RECOMPUTE_FULL ? mode + 1 : -1, &o);
    trail_say(out, TRAIL_CHOICE, "recompute", "recompute %s%s",
              search_value_text(SEARCH_RECOMPUTE, mode, value), o.text);
}

static void say_sequence(struct chooser *c, struct trail *out) {
    const int *v = c->subject->entry->choice.value;
    struct others o;
    if (v[SEARCH_TP] == 1) return;
    put_others(c, SEARCH_SEQUENCE, !v[SEARCH_SEQUENCE], -1, &o);
    trail_say(out, TRAIL_CHOICE, "sequence", "%s sequence parallelism%s",
              v[SEARCH_SEQUENCE] ? "with" : "without", o.text);
}

int trail_choices(const struct trail_subject *subject, struct trail *out, struct err *err) {
    struct chooser c = {subject, malloc(sizeof(struct job))};
    if (!c.job) return err_set(err, ERR_MEMORY, "no memory for a job");
    say_tensor(&c, out);
    say_sequence(&c, out);
    say_pipeline(&c, out);
    say_schedule(&c, out);
    say_micro_batches(&c, out);
    say_context(&c, out);
    say_experts(&c, out);
    say_zero(&c, out);
    say_recompute(&c, out);
    free(c.job);
    return 0;
}

int trail_make(const struct trail_subject *subject, struct trail *out, struct err *err) {
    *out = (struct trail){0};
    if (trail_choices(subject, out, err) != 0) return -1;
    trail_traps(subject, out);
    trail_chapters(subject, out);
    return 0;
}
