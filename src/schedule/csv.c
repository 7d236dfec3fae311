// Compute actions of a pipeline as CSV, one row per rank. See pipeline.h.
#include "schedule/pipeline_parts.h"
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// ---- reading

struct reader {
    const char *name;
    struct err *err;
    int ranks, stages, micro_batches; // seen so far
    struct row {                      // [ranks], as pipeline.compute
        struct schedule list;
        int line;
    } * rows;
    int *stage_rank; // [stages]
    int room;        // of stage_rank
};

static int fault(struct reader *r, int line, int column, const char *what, const char *cell,
                 size_t length) {
    char text[41] = "";
    for (size_t k = 0; k < length && k < sizeof text - 1; k++) // a wrong file may hold anything
        text[k] = isprint((unsigned char)cell[k]) ? cell[k] : '?';
    return err_set(r->err, ERR_DATA, "%s: row %d, column %d: %s, found \"%s\"", r->name, line,
                   column, what, text);
}

// A number of at most six digits; -1: none.
static int number(const char **at, const char *end) {
    int value = 0, digits = 0;
    for (; *at < end && isdigit((unsigned char)**at) && digits < 7; (*at)++, digits++)
        value = value * 10 + (**at - '0');
    return digits == 0 || digits == 7 ? -1 : value;
}

static int hold_stage(struct reader *r, int stage, int rank) {
    if (stage >= r->room) {
        int room = stage + 16;
        int *more = realloc(r->stage_rank, (size_t)room * sizeof *more);
        if (!more) return err_set(r->err, ERR_MEMORY, "no memory for a schedule");
        memset(more + r->room, -1, (size_t)(room - r->room) * sizeof *more);
        r->stage_rank = more;
        r->room = room;
    }
    if (r->stage_rank[stage] < 0) r->stage_rank[stage] = rank;
    if (r->stages <= stage) r->stages = stage + 1;
    return r->stage_rank[stage] == rank ? 0 : -1;
}

static int append(struct reader *r, struct action a) {
    struct schedule *list = &r->rows[r->ranks - 1].list;
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 64;
        struct action *more = realloc(list->actions, (size_t)capacity * sizeof *more);
        if (!more) return err_set(r->err, ERR_MEMORY, "no memory for a schedule");
        list->actions = more;
        list->capacity = capacity;
    }
    list->actions[list->count++] = a;
    return 0;
}

static int read_cell(struct reader *r, int line, int column, const char *cell, size_t length) {
    static const char letters[] = "FBIW"; // enum action_kind
    while (length > 0 && isspace((unsigned char)*cell)) cell++, length--;
    while (length > 0 && isspace((unsigned char)cell[length - 1])) length--;
    if (length == 0) return 0;
    const char *at = cell, *end = cell + length;
    int stage = number(&at, end);
    const char *letter = at < end && *at ? strchr(letters, toupper((unsigned char)*at)) : NULL;
    at++;
    int micro_batch = stage >= 0 && letter ? number(&at, end) : -1;
    if (micro_batch < 0 || at != end)
        return fault(r, line, column,
                     "expected an action such as 0F3: stage, one of F B I W, micro-batch", cell,
                     length);
    if (hold_stage(r, stage, r->ranks - 1) != 0)
        return r->err && r->err->kind
                   ? -1
                   : fault(r, line, column, "expected a stage that no earlier row holds", cell,
                           length);
    if (r->micro_batches <= micro_batch) r->micro_batches = micro_batch + 1;
    return append(
        r, (struct action){(enum action_kind)(letter - letters), stage, micro_batch, -1, -1, -1});
}

static int read_row(struct reader *r, int line, const char *row, size_t length) {
    struct row *more = realloc(r->rows, ((size_t)r->ranks + 1) * sizeof *more);
    if (!more) return err_set(r->err, ERR_MEMORY, "no memory for a schedule");
    r->rows = more;
    r->rows[r->ranks++] = (struct row){.line = line};
    int column = 1;
    for (size_t begin = 0; begin <= length; column++) {
        const char *comma = memchr(row + begin, ',', length - begin);
        size_t end = comma ? (size_t)(comma - row) : length;
        if (read_cell(r, line, column, row + begin, end - begin) != 0) return -1;
        begin = end + 1;
    }
    return 0;
}

static bool is_blank(const char *row, size_t length) {
    for (size_t k = 0; k < length; k++)
        if (!isspace((unsigned char)row[k])) return false;
    return true;
}

static int read_rows(struct reader *r, const char *text) {
    for (int line = 1; *text; line++) {
        size_t length = strcspn(text, "\n");
        if (*text != '#' && !is_blank(text, length) && read_row(r, line, text, length) != 0)
            return -1;
        text += length + (text[length] == '\n');
    }
    if (!r->stage_rank)
        return err_set(r->err, ERR_DATA, "%s: expected one row of actions per rank, found none",
                       r->name);
    return 0;
}

static int agree(struct reader *r, const char *what, int file, int wanted) {
    if (wanted == 0 || wanted == file) return 0;
    return err_set(r->err, ERR_DATA, "%s: has %d %s, expected %d", r->name, file, what, wanted);
}

// Stages without a gap and equally many on each rank.
static int check_stages(struct reader *r) {
    for (int s = 0; s < r->stages; s++)
        if (r->stage_rank[s] < 0)
            return err_set(r->err, ERR_DATA, "%s: no row holds stage %d of the %d", r->name, s,
                           r->stages);
    for (int k = 0; k < r->ranks; k++) {
        int held = 0;
        for (int s = 0; s < r->stages; s++) held += r->stage_rank[s] == k;
        if (held * r->ranks != r->stages)
            return err_set(r->err, ERR_DATA,
                           "%s: row %d holds %d of the %d stages; expected equally many in each "
                           "of the %d rows",
                           r->name, r->rows[k].line, held, r->stages, r->ranks);
    }
    return 0;
}

static int build(struct reader *r, const struct pipeline_shape *wanted, struct pipeline *p) {
    struct pipeline_shape shape = *wanted;
    shape.kind = PIPELINE_FILE;
    shape.ranks = r->ranks;
    shape.chunks = r->stages / r->ranks;
    shape.micro_batches = r->micro_batches;
    if (agree(r, "ranks", shape.ranks, wanted->ranks) != 0 ||
        agree(r, "stages per rank", shape.chunks, wanted->chunks) != 0 ||
        agree(r, "micro-batches", shape.micro_batches, wanted->micro_batches) != 0)
        return -1;
    struct pipeline made;
    if (pipeline_allocate(&made, &shape, r->err) != 0) return err_context(r->err, "%s", r->name);
    memcpy(made.stage_rank, r->stage_rank, (size_t)r->stages * sizeof(int));
    for (int k = 0; k < r->ranks; k++) { // the rows lend their lists to the check
        struct schedule own = made.compute[k];
        made.compute[k] = r->rows[k].list;
        r->rows[k].list = own;
    }
    int result = pipeline_check_compute(&made, r->err);
    if (result == 0) pipeline_lower(&made, made.slots, made.flows);
    if (result == 0) result = pipeline_validate(&made, r->err);
    if (result == 0)
        *p = made;
    else
        pipeline_close(&made);
    return result == 0 ? 0 : err_context(r->err, "%s", r->name);
}

int pipeline_open_csv(struct pipeline *pipeline, const char *text, const char *name,
                      const struct pipeline_shape *shape, struct err *err) {
    struct err own = {0};
    struct reader r = {.name = name, .err = &own};
    int result = read_rows(&r, text);
    if (result == 0) result = check_stages(&r);
    if (result == 0) result = build(&r, shape, pipeline);
    for (int k = 0; k < r.ranks; k++) free(r.rows[k].list.actions);
    free(r.rows);
    free(r.stage_rank);
    return result == 0 ? 0 : err_set(err, own.kind, "%s", own.text);
}

// ---- writing

static int print_row(const struct pipeline *p, const struct pipeline_times *times, int rank,
                     struct text *out) {
    int column = 0, failed = 0;
    for (int k = 0; k < times->span_count; k++) {
        struct pipeline_span span = times->spans[k];
        if (span.rank != rank || span.wait) continue;
        struct action a = p->ranks[rank].actions[span.action];
        if (!action_is_compute(a.kind)) continue;
        char name[32];
        schedule_action_text(a, name);
        int begin = (int)(span.begin + 0.5);
        for (; column < begin; column++) failed |= text_puts(out, ",");
        failed |= text_printf(out, "%s", name);
    }
    return failed | text_puts(out, "\n");
}

int pipeline_print_csv(const struct pipeline *p, struct text *out) {
    bool halves = false;
    for (int r = 0; r < p->shape.ranks; r++)
        for (int i = 0; i < p->compute[r].count; i++)
            halves |= p->compute[r].actions[i].kind == ACTION_BACKWARD_INPUT;
    double half = halves ? 1 : 0.5;
    struct pipeline_costs costs = {.forward = 1, .input = half, .weight = half};
    struct pipeline_times times;
    struct err err = {0};
    if (pipeline_simulate(p, &costs, &times, &err) != 0) return -1;
    int failed = 0;
    for (int r = 0; r < p->shape.ranks; r++) failed |= print_row(p, &times, r, out);
    pipeline_times_free(&times);
    return failed ? -1 : 0;
}
