// See draw_chart.h.
#include "plan/draw_chart.h"
#include "observe/plot.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 800, HEIGHT = 440, LEFT = 72, RIGHT = 24, TOP = 84, BOTTOM = 52 };

// Distinguishable also for colour-blind eyes (after Okabe and Ito), light and dark.
const char draw_light[] =
    ".c0{fill:#0969da}.c1{fill:#d55e00}.c2{fill:#009e73}.c3{fill:#cc79a7}\n"
    ".c4{fill:#e69f00}.c5{fill:#56b4e9}.c6{fill:#8250df}.c7{fill:#8c959f}\n"
    ".s0{stroke:#0969da}.s1{stroke:#d55e00}.s2{stroke:#009e73}.s3{stroke:#cc79a7}\n"
    ".s4{stroke:#e69f00}.s5{stroke:#56b4e9}.s6{stroke:#8250df}.s7{stroke:#8c959f}\n"
    ".l{fill:none;stroke-width:2;stroke-linejoin:round}.d{stroke-dasharray:6 4}\n"
    ".limit{stroke:#cf222e;stroke-width:2}.strong{fill:#1f2328}.in{fill:#0d1117}\n"
    ".faint{fill:#eaeef2}\n";
const char draw_dark[] = ".c0{fill:#58a6ff}.c1{fill:#f0883e}.c2{fill:#3fb950}.c6{fill:#a371f7}\n"
                         ".s0{stroke:#58a6ff}.s1{stroke:#f0883e}.s2{stroke:#3fb950}"
                         ".s6{stroke:#a371f7}\n"
                         ".strong{fill:#f0f6fc}.faint{fill:#21262d}\n";

struct frame {
    const struct draw_chart *chart;
    struct svg svg;
    double x_least, x_most, y_least, y_most; // x in logarithms where x_log
};

static double x_value(const struct draw_chart *c, double x) {
    return c->x_log ? log(x) : x;
}

static double x_of(const struct frame *f, double x) {
    return LEFT +
           (x_value(f->chart, x) - f->x_least) / (f->x_most - f->x_least) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct frame *f, double y) {
    return TOP + (f->y_most - y) / (f->y_most - f->y_least) * (HEIGHT - TOP - BOTTOM);
}

static bool drawn(const struct draw_series *s, int i) {
    return isfinite(s->x[i]) && isfinite(s->y[i]);
}

static int find_range(struct frame *f, struct err *err) {
    const struct draw_chart *c = f->chart;
    f->x_least = f->y_least = INFINITY;
    f->x_most = f->y_most = -INFINITY;
    for (int k = 0; k < c->count; k++)
        for (int i = 0; i < c->series[k].count; i++) {
            const struct draw_series *s = &c->series[k];
            if (!drawn(s, i)) continue;
            f->x_least = fmin(f->x_least, x_value(c, s->x[i]));
            f->x_most = fmax(f->x_most, x_value(c, s->x[i]));
            f->y_least = fmin(f->y_least, s->low ? fmin(s->low[i], s->y[i]) : s->y[i]);
            f->y_most = fmax(f->y_most, s->high ? fmax(s->high[i], s->y[i]) : s->y[i]);
        }
    if (!(f->x_least <= f->x_most))
        return err_set(err, ERR_DATA, "picture \"%s\": there is nothing to draw", c->title);
    if (f->x_least == f->x_most) f->x_least -= 0.5, f->x_most += 0.5;
    double margin = f->y_most > f->y_least ? 0.06 * (f->y_most - f->y_least)
                                           : fmax(fabs(f->y_most) * 0.1, 1e-9);
    f->y_least -= margin;
    f->y_most += margin;
    if (c->y_least != c->y_most) {
        f->y_least = c->y_least;
        f->y_most = c->y_most;
    }
    double side = 0.02 * (f->x_most - f->x_least);
    f->x_least -= side;
    f->x_most += side;
    return 0;
}

static void put_value(char *out, size_t bytes, double value, bool share) {
    snprintf(out, bytes, share ? "%.4g %%" : "%.5g", share ? 100 * value : value);
}

static void put_y_axis(struct frame *f) {
    double first, step;
    char label[32];
    plot_ticks(f->y_least, f->y_most, 6, &first, &step);
    for (int i = 0; first + i * step <= f->y_most + step * 1e-9; i++) {
        double value = first + i * step;
        double shown = fabs(value) < step / 1000 ? 0 : value;
        svg_put(&f->svg, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, y_of(f, value),
                WIDTH - RIGHT);
        put_value(label, sizeof label, shown, f->chart->y_share);
        svg_text(&f->svg, LEFT - 8, y_of(f, value) + 4, "text-anchor=\"end\"", label);
    }
    svg_put(&f->svg, "<g transform=\"rotate(-90 16 %.1f)\">", (TOP + HEIGHT - BOTTOM) / 2.0);
    svg_text(&f->svg, 16, (TOP + HEIGHT - BOTTOM) / 2.0, "text-anchor=\"middle\"",
             f->chart->y_label);
    svg_put(&f->svg, "</g>\n");
}

// Labels that would touch the one before, at `last`, are left out.
static void put_x_tick(struct frame *f, double value, const char *label, double *last) {
    double x = x_of(f, value);
    if (x < LEFT - 1 || x > WIDTH - RIGHT + 1 || x < *last + 42) return;
    *last = x;
    svg_put(&f->svg, "<path class=\"grid\" d=\"M%.1f %dv5\"/>\n", x, HEIGHT - BOTTOM);
    svg_text(&f->svg, x, HEIGHT - BOTTOM + 20, "text-anchor=\"middle\"", label);
}

static void put_x_axis(struct frame *f) {
    const struct draw_chart *c = f->chart;
    double first, step, last = -INFINITY;
    char label[32];
    svg_put(&f->svg, "<path class=\"grid\" d=\"M%d %dH%d\"/>\n", LEFT, HEIGHT - BOTTOM,
            WIDTH - RIGHT);
    for (int i = 0; i < c->tick_count; i++)
        put_x_tick(f, c->ticks[i].value, c->ticks[i].label, &last);
    if (!c->tick_count) {
        plot_ticks(f->x_least, f->x_most, 8, &first, &step);
        for (int i = 0; first + i * step <= f->x_most; i++) {
            double value = first + i * step;
            put_value(label, sizeof label, fabs(value) < step / 1000 ? 0 : value, c->x_share);
            put_x_tick(f, value, label, &last);
        }
    }
    svg_text(&f->svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12, "text-anchor=\"middle\"",
             c->x_label);
}

static void put_line(struct frame *f, const struct draw_series *s) {
    bool open = false;
    svg_put(&f->svg, "<path class=\"l s%d%s\" d=\"", s->colour % DRAW_COLOURS,
            s->mark == DRAW_DASHED ? " d" : "");
    for (int i = 0; i < s->count; i++) {
        bool here = drawn(s, i) && s->y[i] >= f->y_least && s->y[i] <= f->y_most;
        if (here)
            svg_put(&f->svg, "%c%.1f %.1f", open ? 'L' : 'M', x_of(f, s->x[i]), y_of(f, s->y[i]));
        open = here;
    }
    svg_put(&f->svg, "\"/>\n");
}

static double inside(const struct frame *f, double y) {
    return fmin(fmax(y, f->y_least), f->y_most);
}

static void put_dots(struct frame *f, const struct draw_series *s) {
    for (int i = 0; i < s->count; i++) {
        if (!drawn(s, i) || s->y[i] < f->y_least || s->y[i] > f->y_most) continue;
        if (s->low && s->high)
            svg_put(&f->svg, "<path class=\"l s%d\" d=\"M%.1f %.1fV%.1f\"/>\n",
                    s->colour % DRAW_COLOURS, x_of(f, s->x[i]), y_of(f, inside(f, s->low[i])),
                    y_of(f, inside(f, s->high[i])));
        svg_put(&f->svg, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
                s->colour % DRAW_COLOURS, x_of(f, s->x[i]), y_of(f, s->y[i]));
    }
}

static bool shows(const struct draw_series *s) {
    for (int i = 0; i < s->count; i++)
        if (drawn(s, i)) return true;
    return false;
}

static void put_legend(struct frame *f) {
    const struct draw_chart *c = f->chart;
    double x = LEFT;
    for (int k = 0; k < c->count; k++) {
        const struct draw_series *s = &c->series[k];
        if (!s->name || !*s->name || !shows(s)) continue;
        if (s->mark == DRAW_DOTS)
            svg_put(&f->svg, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"66\" r=\"4\"/>\n",
                    s->colour % DRAW_COLOURS, x + 8);
        else
            svg_put(&f->svg, "<path class=\"l s%d%s\" d=\"M%.1f 66h18\"/>\n",
                    s->colour % DRAW_COLOURS, s->mark == DRAW_DASHED ? " d" : "", x);
        svg_text(&f->svg, x + 24, 70, "", s->name);
        x += 46 + 6.7 * (double)strlen(s->name);
    }
}

int draw_chart(const struct draw_chart *chart, struct text *out, struct err *err) {
    struct frame f = {.chart = chart, .svg = {.out = out}};
    if (find_range(&f, err) != 0) return -1;
    svg_begin(&f.svg, WIDTH, HEIGHT, chart->title, draw_light, draw_dark);
    svg_text(&f.svg, LEFT, 24, "class=\"title\"", chart->title);
    if (chart->subtitle) svg_text(&f.svg, LEFT, 44, "", chart->subtitle);
    put_y_axis(&f);
    put_x_axis(&f);
    for (int k = 0; k < chart->count; k++)
        if (chart->series[k].mark == DRAW_DOTS)
            put_dots(&f, &chart->series[k]);
        else
            put_line(&f, &chart->series[k]);
    put_legend(&f);
    svg_end(&f.svg);
    return f.svg.failed ? err_set(err, ERR_MEMORY, "no memory for the picture") : 0;
}
