// Action lists of a rank, see schedule.h.
#include "schedule/schedule.h"
#include <stdio.h>
#include <stdlib.h>

enum { ACTIONS_PER_MICRO_BATCH = 3 };

int schedule_open(struct schedule *schedule, int micro_batches, struct err *err) {
    *schedule = (struct schedule){.capacity = micro_batches * ACTIONS_PER_MICRO_BATCH + 1};
    schedule->actions = calloc((size_t)schedule->capacity, sizeof *schedule->actions);
    if (schedule->actions) return 0;
    return err_set(err, ERR_MEMORY, "no memory for a schedule of %d micro-batches", micro_batches);
}

void schedule_close(struct schedule *schedule) {
    free(schedule->actions);
    *schedule = (struct schedule){NULL, 0, 0};
}

static void put(struct schedule *s, enum action_kind kind, int micro_batch) {
    s->actions[s->count++] = (struct action){kind, 0, micro_batch, 0, 0, -1};
}

void schedule_accumulate(struct schedule *schedule, int micro_batches, bool split) {
    schedule->count = 0;
    for (int m = 0; m < micro_batches; m++) {
        put(schedule, ACTION_FORWARD, m);
        put(schedule, split ? ACTION_BACKWARD_INPUT : ACTION_BACKWARD, m);
        if (split) put(schedule, ACTION_BACKWARD_WEIGHT, m);
    }
    put(schedule, ACTION_STEP, -1);
}

static int occurrences(const struct schedule *s, int end, enum action_kind kind, int stage,
                       int micro_batch) {
    int n = 0;
    for (int i = 0; i < end; i++)
        n += s->actions[i].kind == kind && s->actions[i].stage == stage &&
             s->actions[i].micro_batch == micro_batch;
    return n;
}

// What must stand before the action at `i`, and what must not.
static const char *fault_at(const struct schedule *s, int i, int micro_batches) {
    struct action a = s->actions[i];
    if (a.kind == ACTION_STEP)
        return occurrences(s, i, ACTION_STEP, a.stage, -1) ? "a second step of this stage" : NULL;
    if (a.micro_batch < 0 || a.micro_batch >= micro_batches)
        return "no such micro-batch in the step";
    if (occurrences(s, i, ACTION_STEP, a.stage, -1)) return "stands behind the step of its stage";
    int forward = occurrences(s, i, ACTION_FORWARD, a.stage, a.micro_batch);
    int whole = occurrences(s, i, ACTION_BACKWARD, a.stage, a.micro_batch);
    int input = occurrences(s, i, ACTION_BACKWARD_INPUT, a.stage, a.micro_batch);
    int weight = occurrences(s, i, ACTION_BACKWARD_WEIGHT, a.stage, a.micro_batch);
    if (a.kind == ACTION_FORWARD) return forward ? "a second forward" : NULL;
    if (!forward) return "its forward must come before";
    if (a.kind == ACTION_BACKWARD_WEIGHT) {
        if (weight) return "a second weight half";
        return input ? NULL : "its input half must come before";
    }
    return whole || input ? "a second backward" : NULL;
}

static const char *fault_at_end(const struct schedule *s, struct action a) {
    if (!occurrences(s, s->count, ACTION_STEP, a.stage, -1)) return "its stage has no step";
    if (a.kind == ACTION_FORWARD &&
        !occurrences(s, s->count, ACTION_BACKWARD, a.stage, a.micro_batch) &&
        !occurrences(s, s->count, ACTION_BACKWARD_WEIGHT, a.stage, a.micro_batch))
        return "its backward is missing or lacks the weight half";
    return NULL;
}

int schedule_validate(const struct schedule *schedule, int micro_batches, struct err *err) {
    char name[32];
    for (int i = 0; i < schedule->count; i++) {
        const char *fault = fault_at(schedule, i, micro_batches);
        if (!fault) fault = fault_at_end(schedule, schedule->actions[i]);
        if (!fault) continue;
        schedule_action_text(schedule->actions[i], name);
        return err_set(err, ERR_DATA, "schedule: action %d, %s: %s", i, name, fault);
    }
    int forwards = 0;
    for (int m = 0; m < micro_batches; m++)
        forwards += occurrences(schedule, schedule->count, ACTION_FORWARD, 0, m) > 0;
    if (forwards != micro_batches)
        return err_set(err, ERR_DATA, "schedule: stage 0 sees %d of the step's %d micro-batches",
                       forwards, micro_batches);
    return 0;
}

bool schedule_ascending(const struct schedule *schedule) {
    // A parameter's gradients come from whole backwards or from weight halves; norms and the like
    // from input halves.
    static const enum action_kind halves[2] = {ACTION_BACKWARD_INPUT, ACTION_BACKWARD_WEIGHT};
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < schedule->count; i++)
            for (int j = 0; j < i; j++) {
                struct action a = schedule->actions[i], b = schedule->actions[j];
                bool both = (a.kind == halves[h] || a.kind == ACTION_BACKWARD) &&
                            (b.kind == halves[h] || b.kind == ACTION_BACKWARD);
                if (both && a.stage == b.stage && b.micro_batch > a.micro_batch) return false;
            }
    return true;
}

void schedule_action_text(struct action action, char out[32]) {
    static const char letters[] = "FBIWS><}{GR"; // enum action_kind
    if (action.micro_batch < 0)
        snprintf(out, 32, "%d%c", action.stage, letters[action.kind]);
    else
        snprintf(out, 32, "%d%c%d", action.stage, letters[action.kind], action.micro_batch);
}

int schedule_print(const struct schedule *schedule, struct text *out) {
    char name[32];
    for (int i = 0; i < schedule->count; i++) {
        schedule_action_text(schedule->actions[i], name);
        if (text_printf(out, "%s%s", i ? " " : "", name) != 0) return -1;
    }
    return text_puts(out, "\n");
}
