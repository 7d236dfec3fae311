// A pipeline's timeline as SVG: a row per rank, time to the right. Colours follow the reader's
// light or dark setting. See pipeline.h.
#include "base/svg.h"
#include "schedule/pipeline_parts.h"
#include <stdio.h>
#include <string.h>

enum { LEFT = 64, RIGHT = 16, TOP = 64, ROW = 30, GAP = 6, FOOT = 28, LEAST = 640, MOST = 1600 };

struct drawing {
    const struct pipeline *p;
    const struct pipeline_times *t;
    struct svg svg;
    double scale; // pixels per second
    int width;
};

static const struct kind {
    enum action_kind kind;
    char class;
    const char *name;
} kinds[] = {{ACTION_FORWARD, 'f', "forward"},
             {ACTION_BACKWARD, 'b', "backward"},
             {ACTION_BACKWARD_INPUT, 'i', "input half"},
             {ACTION_BACKWARD_WEIGHT, 'w', "weight half"},
             {ACTION_STEP, 's', "step"}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void put_head(struct drawing *d, const char *title) {
    // Second and later stages of a rank (.n) are paler. Text on a box is dark in both settings.
    svg_begin(&d->svg, d->width, TOP + d->p->shape.ranks * (ROW + GAP) + FOOT, title,
              ".m text{font-size:11px;fill:#0d1117;text-anchor:middle}\n"
              ".idle{fill:#eaeef2}\n"
              ".f{fill:#79b8ff}.b{fill:#7ee0a0}.i{fill:#6fd6d0}.w{fill:#ffd27a}.s{fill:#b8a6f0}\n"
              ".f.n{fill:#c2deff}.b.n{fill:#c6f2d4}.i.n{fill:#c3eeeb}.w.n{fill:#ffecc4}\n"
              "path{stroke:#fff;stroke-width:1}\n",
              ".idle{fill:#21262d}\npath{stroke:#0d1117}\n");
    svg_text(&d->svg, LEFT, 24, "class=\"title\"", title);
}

static struct action action_of(const struct drawing *d, const struct pipeline_span *s) {
    return d->p->ranks[s->rank].actions[s->action];
}

// Whether the stage is not the first of its rank.
static bool is_later_stage(const struct drawing *d, const struct pipeline_span *s) {
    struct action a = action_of(d, s);
    if (a.kind == ACTION_STEP) return false;
    for (int k = 0; k < a.stage; k++)
        if (d->p->stage_rank[k] == s->rank) return true;
    return false;
}

static int row_top(int rank) {
    return TOP + rank * (ROW + GAP);
}

// All boxes of a kind are one path.
static int put_boxes(struct drawing *d, const struct kind *kind, bool later) {
    int count = 0;
    for (int k = 0; k < d->t->span_count; k++) {
        const struct pipeline_span *s = &d->t->spans[k];
        if (s->wait || s->end <= s->begin || action_of(d, s).kind != kind->kind ||
            is_later_stage(d, s) != later)
            continue;
        if (count++ == 0)
            svg_put(&d->svg, "<path class=\"%c%s\" d=\"", kind->class, later ? " n" : "");
        double width = (s->end - s->begin) * d->scale;
        svg_put(&d->svg, "M%.1f %dh%.1fv%dh-%.1fz", LEFT + s->begin * d->scale, row_top(s->rank),
                width, ROW, width);
    }
    if (count) svg_put(&d->svg, "\"/>\n");
    return count;
}

// Micro-batch numbers where they fit.
static void put_numbers(struct drawing *d) {
    svg_put(&d->svg, "<g class=\"m\">\n");
    for (int k = 0; k < d->t->span_count; k++) {
        const struct pipeline_span *s = &d->t->spans[k];
        struct action a = action_of(d, s);
        double width = (s->end - s->begin) * d->scale;
        if (s->wait || a.kind == ACTION_STEP || width < (a.micro_batch < 10 ? 8 : 14)) continue;
        svg_put(&d->svg, "<text x=\"%.1f\" y=\"%d\">%d</text>\n",
                LEFT + (s->begin + s->end) / 2 * d->scale, row_top(s->rank) + ROW / 2 + 4,
                a.micro_batch);
    }
    svg_put(&d->svg, "</g>\n");
}

static void put_legend_entry(struct drawing *d, double *x, const char *class, const char *name) {
    svg_put(&d->svg,
            "<path class=\"%s\" d=\"M%.0f 38h14v14h-14z\"/>"
            "<text x=\"%.0f\" y=\"50\">%s</text>\n",
            class, *x, *x + 19, name);
    *x += 40 + 7.0 * (double)strlen(name);
}

static void put_rows(struct drawing *d) {
    for (int r = 0; r < d->p->shape.ranks; r++)
        svg_put(&d->svg,
                "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">rank %d</text>"
                "<path class=\"idle\" d=\"M%d %dh%.1fv%dh-%.1fz\"/>\n",
                LEFT - 8, row_top(r) + ROW / 2 + 4, r, LEFT, row_top(r), d->t->total * d->scale,
                ROW, d->t->total * d->scale);
}

int pipeline_draw_svg(const struct pipeline *p, const struct pipeline_times *t, const char *title,
                      struct text *out) {
    int longest = 0;
    for (int r = 0; r < p->shape.ranks; r++)
        if (longest < p->compute[r].count) longest = p->compute[r].count;
    int wanted = LEFT + RIGHT + longest * 22;
    struct drawing d = {p,
                        t,
                        {.out = out},
                        0,
                        wanted < LEAST  ? LEAST
                        : wanted > MOST ? MOST
                                        : wanted};
    if (t->total > 0) d.scale = (d.width - LEFT - RIGHT) / t->total;
    double x = LEFT;
    put_head(&d, title);
    put_rows(&d);
    for (int k = 0; k < KINDS; k++) {
        const char class[2] = {kinds[k].class, 0};
        if (put_boxes(&d, &kinds[k], false)) put_legend_entry(&d, &x, class, kinds[k].name);
        put_boxes(&d, &kinds[k], true);
    }
    put_legend_entry(&d, &x, "idle", "idle");
    if (p->shape.chunks > 1)
        svg_put(&d.svg, "<text x=\"%.0f\" y=\"50\">paler: later stages of a rank</text>\n", x);
    put_numbers(&d);
    svg_put(&d.svg,
            "<text x=\"%d\" y=\"%d\">time; numbers are micro-batches</text>\n"
            "</svg>\n",
            LEFT, row_top(p->shape.ranks) + 16);
    return d.svg.failed ? -1 : 0;
}
