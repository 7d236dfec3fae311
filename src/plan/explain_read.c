// Timelines read back: the actions of a step, with the waits inside them told apart. See explain.h.
#include "base/numbers.h"
#include "plan/explain.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 4096, COMPUTE_ROW = 0, MOST_STEPS = 1024 };

struct event {
    char name[64], kind[32];
    int row;
    double begin, seconds;
};

// What one rank's spans become.
struct reader {
    const char *path;
    int line, rank, step, count_in_step[EXPLAIN_NAMES];
    double stage_wait, state_wait; // of the step so far
    double step_end;
    bool has_end;
    struct sample {
        struct explain_action action;
        int step;
    } * samples;
    int sample_count, sample_capacity;
    struct step {
        double seconds, stage, state; // waits for stages, for states
    } * steps;
    int step_count, step_capacity;
};

static bool parse_event(const char *line, struct event *e) {
    double begin, seconds;
    int process;
    if (*line == ',') line++;
    if (sscanf(line,
               " {\"name\":\"%63[^\"]\",\"cat\":\"%31[^\"]\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,"
               "\"ts\":%lf,\"dur\":%lf",
               e->name, e->kind, &process, &e->row, &begin, &seconds) != 6)
        return false;
    e->begin = begin * 1e-6;
    e->seconds = seconds * 1e-6;
    return true;
}

static bool find_name(const char *text, enum explain_name *out) {
    for (int n = 0; n < EXPLAIN_NAMES; n++)
        if (strcmp(text, explain_name_text((enum explain_name)n)) == 0) {
            *out = (enum explain_name)n;
            return true;
        }
    return false;
}

// Between stages; else of states (gradients, weights, the norm). Those of a layer's own groups
// belong to its action.
static bool waits_for_stage(const char *name) {
    return strcmp(name, "receive") == 0 || strcmp(name, "send") == 0;
}
static bool belongs_to_layer(const char *name) {
    const char *stream = strchr(name, ' ');
    return stream && (strncmp(stream + 1, "tp@", 3) == 0 || strncmp(stream + 1, "cp@", 3) == 0 ||
                      strncmp(stream + 1, "ep@", 3) == 0);
}

static void *room(void *list, int count, int *capacity, size_t size) {
    if (count < *capacity) return list;
    int more = *capacity ? 2 * *capacity : 64;
    void *larger = realloc(list, (size_t)more * size);
    if (larger) *capacity = more;
    return larger;
}

static int no_memory(const struct reader *r, struct err *err) {
    return err_set(err, ERR_MEMORY, "%s: no memory for the actions of a trace", r->path);
}

static int add_sample(struct reader *r, enum explain_name name, double seconds, struct err *err) {
    struct sample *larger =
        room(r->samples, r->sample_count, &r->sample_capacity, sizeof *r->samples);
    if (!larger) return no_memory(r, err);
    r->samples = larger;
    r->samples[r->sample_count++] = (struct sample){
        {r->rank, name, r->count_in_step[name]++, seconds > 0 ? seconds : 0}, r->step};
    return 0;
}

static int end_step(struct reader *r, double end, double begin, struct err *err) {
    struct step *larger = room(r->steps, r->step_count, &r->step_capacity, sizeof *r->steps);
    if (!larger) return no_memory(r, err);
    r->steps = larger;
    r->steps[r->step_count++] =
        (struct step){end - (r->has_end ? r->step_end : begin), r->stage_wait, r->state_wait};
    r->step_end = end;
    r->has_end = true;
    r->stage_wait = r->state_wait = 0;
    r->step++;
    memset(r->count_in_step, 0, sizeof r->count_in_step);
    return 0;
}

// Spans come in the order in which they end: waits before the action that they are inside of.
struct pending {
    double begin, seconds;
    bool stage;
};
enum { MOST_PENDING = 1024 };

static int take_event(struct reader *r, const struct event *e, struct pending *pending, int *count,
                      double *first, struct err *err) {
    enum explain_name name;
    if (strcmp(e->kind, "comm_wait") == 0) {
        if (!belongs_to_layer(e->name) && *count < MOST_PENDING)
            pending[(*count)++] = (struct pending){e->begin, e->seconds, waits_for_stage(e->name)};
        return 0;
    }
    if (!find_name(e->name, &name)) return 0;
    double waited = 0;
    if (*first < 0) *first = e->begin;
    for (int i = 0; i < *count; i++) {
        if (pending[i].begin >= e->begin - 1e-9) waited += pending[i].seconds;
        if (pending[i].stage)
            r->stage_wait += pending[i].seconds;
        else
            r->state_wait += pending[i].seconds;
    }
    *count = 0;
    if (add_sample(r, name, e->seconds - waited, err) != 0) return -1;
    if (name != EXPLAIN_OPTIMIZER) return 0;
    return end_step(r, e->begin + e->seconds, *first, err);
}

static int read_row(struct reader *r, int row, struct err *err) {
    struct pending pending[MOST_PENDING];
    struct event e;
    char line[1024];
    int count = 0;
    double first = -1;
    FILE *file = fopen(r->path, "re");
    if (!file) return err_set_errno(err, "%s cannot be read", r->path);
    int status = 0;
    for (r->line = 1; status == 0 && fgets(line, sizeof line, file); r->line++)
        if (parse_event(line, &e) && e.row == row)
            status = take_event(r, &e, pending, &count, &first, err);
    fclose(file);
    return status;
}

// ---- medians ------------------------------------------------------------------------------------

// Of a member of the first steps.
static double median(const struct step *steps, int count, size_t member) {
    double few[MOST_STEPS] = {0};
    if (count > MOST_STEPS) count = MOST_STEPS;
    for (int i = 0; i < count; i++)
        few[i] = *(const double *)(const void *)((const char *)&steps[i] + member);
    return numbers_median(few, (size_t)count);
}

static int compare_samples(const void *a, const void *b) {
    const struct sample *x = a, *y = b;
    if (x->action.name != y->action.name) return x->action.name < y->action.name ? -1 : 1;
    if (x->action.index != y->action.index) return x->action.index < y->action.index ? -1 : 1;
    return (x->action.seconds > y->action.seconds) - (x->action.seconds < y->action.seconds);
}

static int add_action(struct explain_trace *out, const struct explain_action *action) {
    struct explain_action *larger =
        room(out->actions, out->count, &out->capacity, sizeof *out->actions);
    if (!larger) return -1;
    out->actions = larger;
    out->actions[out->count++] = *action;
    return 0;
}

// Samples of one place, sorted by seconds, become their median.
static int join(struct reader *r, int skip, struct explain_trace *out, struct err *err) {
    int kept = 0;
    for (int i = 0; i < r->sample_count; i++)
        if (r->samples[i].step >= skip && r->samples[i].step < r->step_count)
            r->samples[kept++] = r->samples[i];
    if (kept > 0) qsort(r->samples, (size_t)kept, sizeof *r->samples, compare_samples);
    for (int i = 0, end; i < kept; i = end) {
        const struct explain_action *a = &r->samples[i].action;
        for (end = i; end < kept && r->samples[end].action.name == a->name &&
                      r->samples[end].action.index == a->index;)
            end++;
        struct explain_action one = *a;
        int low = i + (end - i - 1) / 2, high = i + (end - i) / 2;
        one.seconds = (r->samples[low].action.seconds + r->samples[high].action.seconds) / 2;
        if (add_action(out, &one) != 0) return no_memory(r, err);
    }
    return 0;
}

static int finish(struct reader *r, int skip, struct explain_trace *out, struct err *err) {
    if (r->step_count == 0)
        return err_set(err, ERR_DATA,
                       "%s holds no step: expected spans named forward, backward, optimizer, as "
                       "train.trace writes them",
                       r->path);
    if (skip > r->step_count - 1) skip = r->step_count - 1;
    if (join(r, skip, out, err) != 0) return -1;
    int count = r->step_count - skip;
    const struct step *steps = r->steps + skip;
    double step = median(steps, count, offsetof(struct step, seconds));
    if (out->ranks == 0) {
        out->step_seconds = step;
        out->steps = count;
    }
    // means over the ranks so far
    double share = 1.0 / ++out->ranks;
    out->stage_seconds +=
        share * (median(steps, count, offsetof(struct step, stage)) - out->stage_seconds);
    out->state_seconds +=
        share * (median(steps, count, offsetof(struct step, state)) - out->state_seconds);
    return 0;
}

static int read_rank(const char *path, int row, int rank, int skip, struct explain_trace *out,
                     struct err *err) {
    struct reader r = {.path = path, .rank = rank};
    int status = read_row(&r, row, err);
    if (status == 0) status = finish(&r, skip, out, err);
    free(r.samples);
    free(r.steps);
    return status;
}

int explain_read_measured(const char *path, int rank, int skip, struct explain_trace *out,
                          struct err *err) {
    return read_rank(path, COMPUTE_ROW, rank, skip, out, err);
}

// Rows as the file names them, in ascending order.
static int count_rows(const char *path, int *rows, struct err *err) {
    FILE *file = fopen(path, "re");
    char line[1024];
    int found = 0, row, rank;
    if (!file) return err_set_errno(err, "%s cannot be read", path);
    while (fgets(line, sizeof line, file)) {
        const char *at = line[0] == ',' ? line + 1 : line;
        if (sscanf(at,
                   " {\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%*d,\"tid\":%d,\"args\":{"
                   "\"name\":\"rank %d\"",
                   &row, &rank) == 2 &&
            row == rank && row == found && found < MOST_ROWS)
            found++;
    }
    fclose(file);
    *rows = found;
    return found > 0 ? 0
                     : err_set(err, ERR_DATA,
                               "%s is no predicted timeline: expected rows named \"rank 0\", "
                               "\"rank 1\" ...",
                               path);
}

int explain_read_predicted(const char *path, struct explain_trace *out, struct err *err) {
    int rows;
    if (count_rows(path, &rows, err) != 0) return -1;
    for (int r = 0; r < rows; r++)
        if (read_rank(path, r, r, 0, out, err) != 0) return -1;
    return 0;
}

void explain_trace_free(struct explain_trace *trace) {
    free(trace->actions);
    *trace = (struct explain_trace){0};
}
