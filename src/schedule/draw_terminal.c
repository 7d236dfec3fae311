// A pipeline's timeline in characters. See pipeline.h.
#include "schedule/pipeline_parts.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Of a column: which span stands there (its index + 1; 0: nothing) and the character.
struct column {
    int span;
    char character;
};

// Background and text per enum action_kind: blue, green, teal, amber; steps grey.
static const char *const colors[] = {
    [ACTION_FORWARD] = "\033[48;5;68;38;5;231m",
    [ACTION_BACKWARD] = "\033[48;5;71;38;5;16m",
    [ACTION_BACKWARD_INPUT] = "\033[48;5;73;38;5;16m",
    [ACTION_BACKWARD_WEIGHT] = "\033[48;5;179;38;5;16m",
    [ACTION_STEP] = "\033[48;5;245;38;5;16m",
};

static bool is_later_stage(const struct pipeline *p, int rank, int stage) {
    for (int k = 0; k < stage; k++)
        if (p->stage_rank[k] == rank) return true;
    return false;
}

// "1F12" when `stages`, else "F12", or "f12" for a later stage of the rank; "F" where there is no
// room for more. Returns the length.
static int label(const struct pipeline *p, int rank, struct action a, bool stages, int room,
                 char out[32]) {
    char whole[32];
    schedule_action_text(a, whole);
    const char *text = stages ? whole : whole + strspn(whole, "0123456789");
    int length = (int)strlen(text) > room ? 1 : (int)strlen(text);
    memcpy(out, text, (size_t)length);
    if (!stages && a.kind != ACTION_STEP && is_later_stage(p, rank, a.stage))
        out[0] = (char)tolower((unsigned char)out[0]);
    return length;
}

static int left_of(const struct pipeline_times *t, double when, int columns) {
    int column = (int)(when / t->total * columns + 0.5);
    return column < columns ? column : columns;
}

// Whether every label has room for its stage.
static bool stages_fit(const struct pipeline *p, const struct pipeline_times *t, int columns) {
    for (int k = 0; k < t->span_count && p->shape.chunks > 1; k++) {
        struct pipeline_span s = t->spans[k];
        struct action a = p->ranks[s.rank].actions[s.action];
        char whole[32];
        schedule_action_text(a, whole);
        int room = left_of(t, s.end, columns) - left_of(t, s.begin, columns);
        if (!s.wait && a.kind != ACTION_STEP && (int)strlen(whole) > room) return false;
    }
    return p->shape.chunks > 1;
}

static void place_span(const struct pipeline *p, const struct pipeline_times *t, int index,
                       bool stages, struct column *row, int columns) {
    struct pipeline_span span = t->spans[index];
    struct action a = p->ranks[span.rank].actions[span.action];
    int begin = left_of(t, span.begin, columns), end = left_of(t, span.end, columns);
    if (end <= begin) return; // shorter than a column
    char text[32];
    int length = label(p, span.rank, a, stages, end - begin, text);
    for (int k = begin; k < end; k++)
        row[k] = (struct column){index + 1, k - begin < length ? text[k - begin] : '-'};
}

static int put_row(const struct pipeline *p, const struct pipeline_times *t,
                   const struct column *row, int columns, bool color, struct text *out) {
    int failed = 0;
    for (int k = 0; k < columns; k++) {
        int span = row[k].span;
        bool fresh = k == 0 || row[k - 1].span != span;
        if (color && fresh) {
            failed |= text_puts(out, "\033[0m");
            if (span) {
                struct pipeline_span s = t->spans[span - 1];
                failed |= text_puts(out, colors[p->ranks[s.rank].actions[s.action].kind]);
            }
        }
        char c = !span ? ' ' : color && row[k].character == '-' ? ' ' : row[k].character;
        failed |= text_put(out, &c, 1);
    }
    return failed | text_puts(out, color ? "\033[0m\n" : "\n");
}

int pipeline_draw_terminal(const struct pipeline *p, const struct pipeline_times *t, int width,
                           bool color, struct text *out) {
    char head[32];
    int left = snprintf(head, sizeof head, "rank %d ", p->shape.ranks - 1), failed = 0;
    int columns = width - left < 8 ? 8 : width - left;
    struct column *row = calloc((size_t)columns, sizeof *row);
    if (!row) return -1;
    bool stages = t->total > 0 && stages_fit(p, t, columns);
    for (int r = 0; r < p->shape.ranks; r++) {
        memset(row, 0, (size_t)columns * sizeof *row);
        for (int k = 0; k < t->span_count && t->total > 0; k++)
            if (t->spans[k].rank == r && !t->spans[k].wait)
                place_span(p, t, k, stages, row, columns);
        failed |= text_printf(out, "rank %-*d", left - 5, r);
        failed |= put_row(p, t, row, columns, color, out);
    }
    free(row);
    return failed ? -1 : 0;
}
