// The MFU waterfall and the memory of the pipeline ranks: rows of bars. See draw.h.
#include "plan/draw.h"
#include "plan/draw_chart.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 800, LEFT = 224, RIGHT = 90, TOP = 60, ROW = 22, GAP = 6 };

static double row_of(int row) {
    return TOP + row * (ROW + GAP);
}

static void put_bar(struct svg *svg, int row, double from, double to, const char *class) {
    svg_put(svg, "<path class=\"%s\" d=\"M%.1f %.1fH%.1fv%dH%.1fz\"/>\n", class, from, row_of(row),
            to, ROW, from);
}

static void put_row_name(struct svg *svg, int row, const char *name) {
    svg_text(svg, LEFT - 8, row_of(row) + ROW - 6, "text-anchor=\"end\"", name);
}

static double share_of(double share) {
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

// ---- waterfall ----------------------------------------------------------------------------------

static void put_loss(struct svg *svg, int row, const struct waterfall_line *line, double left) {
    char label[48];
    put_row_name(svg, row, line->name);
    put_bar(svg, row, share_of(left - line->share), share_of(left), "c4");
    snprintf(label, sizeof label, "-%.1f", 100 * line->share);
    svg_text(svg, share_of(left) + 6, row_of(row) + ROW - 6, "", label);
    // what is left goes on to the next row
    svg_put(svg, "<path class=\"grid\" d=\"M%.1f %.1fv%d\"/>\n", share_of(left - line->share),
            row_of(row) + ROW, GAP);
}

static void put_level(struct svg *svg, int row, const char *name, double share, const char *class) {
    char label[32];
    put_row_name(svg, row, name);
    put_bar(svg, row, share_of(0), share_of(share), class);
    snprintf(label, sizeof label, "%.1f %%", 100 * share);
    svg_text(svg, share_of(share) + 6, row_of(row) + ROW - 6, "class=\"strong\"", label);
}

int draw_waterfall(const struct estimate *e, const char *title, struct text *out, struct err *err) {
    struct svg svg = {.out = out};
    char line[200];
    int rows = 2;
    for (int i = 0; i < e->waterfall_lines; i++) rows += e->waterfall[i].share >= 0.0005;
    svg_begin(&svg, WIDTH, (int)row_of(rows) + 56, title, draw_light, draw_dark);
    svg_text(&svg, 16, 24, "class=\"title\"", title);
    svg_text(&svg, 16, 44, "", "share of the accelerators' dense rate; what is lost, in points");
    put_level(&svg, 0, "dense rate", 1, "c7");
    double left = 1;
    int row = 1;
    for (int i = 0; i < e->waterfall_lines; i++) {
        if (e->waterfall[i].share >= 0.0005) put_loss(&svg, row++, &e->waterfall[i], left);
        left -= e->waterfall[i].share;
    }
    put_level(&svg, row, "MFU (causal)", e->mfu_causal, "c0");
    snprintf(line, sizeof line,
             "MFU (full attention) %.1f %%, HFU %.1f %%. Step %.3f s simulated; T_fwd + max(T_bwd, "
             "T_comm) + T_opt = %.3f s.",
             100 * e->mfu_full, 100 * e->hfu, e->step_seconds, e->overlap_formula_seconds);
    svg_text(&svg, 16, row_of(rows) + 18, "", line);
    snprintf(line, sizeof line,
             "Bubble %.1f %% simulated, %.1f %% were messages free, %.1f %% by its formula.",
             100 * e->bubble, 100 * fmax(0, e->bubble_without_messages), 100 * e->bubble_formula);
    svg_text(&svg, 16, row_of(rows) + 38, "", line);
    svg_end(&svg);
    return svg.failed ? err_set(err, ERR_MEMORY, "no memory for the picture") : 0;
}

// ---- memory -------------------------------------------------------------------------------------

static void put_memory_legend(struct svg *svg, const struct plan_memory *ranks, int count,
                              double y) {
    double x = 16;
    for (int item = 0; item < PLAN_ITEMS; item++) {
        double most = 0;
        for (int r = 0; r < count; r++) most = fmax(most, ranks[r].bytes[item]);
        if (most <= 0) continue;
        const char *name = plan_memory_item_name((enum plan_memory_item)item);
        if (x + 30 + 7 * (double)strlen(name) > WIDTH - 16) x = 16, y += 20;
        svg_put(svg, "<path class=\"c%d\" fill-opacity=\"%s\" d=\"M%.1f %.1fh12v12h-12z\"/>\n",
                item % DRAW_COLOURS, item < DRAW_COLOURS ? "1" : ".45", x, y - 11);
        svg_text(svg, x + 17, y, "", name);
        x += 36 + 7 * (double)strlen(name);
    }
}

static void put_memory_row(struct svg *svg, int row, const struct plan_memory *m, double scale) {
    char label[48];
    double at = LEFT;
    snprintf(label, sizeof label, "rank %d, %d in flight", m->pipeline_rank, m->in_flight);
    put_row_name(svg, row, label);
    for (int item = 0; item < PLAN_ITEMS; item++) {
        double width = m->bytes[item] * scale;
        if (width < 0.05) continue;
        svg_put(svg, "<path class=\"c%d\" fill-opacity=\"%s\" d=\"M%.1f %.1fh%.1fv%dh-%.1fz\"/>\n",
                item % DRAW_COLOURS, item < DRAW_COLOURS ? "1" : ".45", at, row_of(row), width, ROW,
                width);
        at += width;
    }
    snprintf(label, sizeof label, "%.1f GB", m->total / 1e9);
    svg_text(svg, at + 6, row_of(row) + ROW - 6, "class=\"strong\"", label);
}

int draw_memory(const struct plan_memory *ranks, int count, double limit_bytes, const char *title,
                struct text *out, struct err *err) {
    struct svg svg = {.out = out};
    double most = limit_bytes;
    char label[64];
    for (int r = 0; r < count; r++) most = fmax(most, ranks[r].total);
    if (count < 1 || !(most > 0))
        return err_set(err, ERR_DATA, "picture \"%s\": there is nothing to draw", title);
    double scale = (WIDTH - LEFT - RIGHT) / most;
    svg_begin(&svg, WIDTH, (int)row_of(count) + 66, title, draw_light, draw_dark);
    svg_text(&svg, 16, 24, "class=\"title\"", title);
    for (int r = 0; r < count; r++) put_memory_row(&svg, r, &ranks[r], scale);
    if (limit_bytes > 0) {
        double x = LEFT + limit_bytes * scale;
        svg_put(&svg, "<path class=\"limit\" d=\"M%.1f %dV%.1f\"/>\n", x, TOP - 8, row_of(count));
        snprintf(label, sizeof label, "memory %.1f GB", limit_bytes / 1e9);
        svg_text(&svg, x, TOP - 14, "text-anchor=\"end\"", label);
    }
    put_memory_legend(&svg, ranks, count, row_of(count) + 26);
    svg_end(&svg);
    return svg.failed ? err_set(err, ERR_MEMORY, "no memory for the picture") : 0;
}
