// Curves as SVG. Colours follow the reader's light or dark setting. See plot.h.
#include "base/svg.h"
#include "observe/plot_parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    WIDTH = 800,
    HEIGHT = 420,
    LEFT = 64,
    RIGHT = 24,
    TOP = 52,
    BOTTOM = 52,
    MOST_POINTS = 700,
    MOST_MARKS = 200
};

struct frame {
    struct plot_range range;
    struct svg svg;
};

static double x_of(const struct frame *f, double x) {
    return LEFT +
           (x - f->range.x_least) / (f->range.x_most - f->range.x_least) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct frame *f, double y) {
    return TOP +
           (f->range.y_most - y) / (f->range.y_most - f->range.y_least) * (HEIGHT - TOP - BOTTOM);
}

static void put_head(struct frame *f, const struct plot *plot) {
    svg_begin(&f->svg, WIDTH, HEIGHT, plot->title,
              ".every{fill:none;stroke:#0969da;stroke-opacity:.3;stroke-width:1}\n"
              ".mean{fill:none;stroke:#0969da;stroke-width:2;stroke-linejoin:round}\n"
              ".marks{fill:none;stroke:#bc4c00;stroke-width:2;stroke-linejoin:round}\n"
              ".mark{fill:#bc4c00}\n",
              ".every,.mean{stroke:#58a6ff}\n.marks{stroke:#f0883e}\n.mark{fill:#f0883e}\n");
}

static void put_grid(struct frame *f, const struct plot *plot) {
    double first, step;
    char label[32];
    const double bottom = HEIGHT - BOTTOM;
    plot_ticks(f->range.y_least, f->range.y_most, 6, &first, &step);
    for (double value = first; value <= f->range.y_most; value += step) {
        svg_put(&f->svg, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, y_of(f, value),
                WIDTH - RIGHT);
        snprintf(label, sizeof label, "%.6g", fabs(value) < step / 1000 ? 0 : value);
        svg_text(&f->svg, LEFT - 8, y_of(f, value) + 4, "text-anchor=\"end\"", label);
    }
    plot_ticks(f->range.x_least, f->range.x_most, 8, &first, &step);
    for (double value = first; value <= f->range.x_most; value += step) {
        svg_put(&f->svg, "<path class=\"grid\" d=\"M%.1f %.1fv5\"/>\n", x_of(f, value), bottom);
        snprintf(label, sizeof label, "%.6g", value);
        svg_text(&f->svg, x_of(f, value), bottom + 20, "text-anchor=\"middle\"", label);
    }
    svg_put(&f->svg, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, bottom, WIDTH - RIGHT);
    svg_text(&f->svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12, "text-anchor=\"middle\"",
             plot->x_label);
    svg_put(&f->svg, "<g transform=\"rotate(-90 16 %.1f)\">", (TOP + bottom) / 2);
    svg_text(&f->svg, 16, (TOP + bottom) / 2, "text-anchor=\"middle\"", plot->y_label);
    svg_put(&f->svg, "</g>\n");
}

static void put_path(struct frame *f, const struct plot_series *s, const char *class) {
    if (s->count == 0) return;
    svg_put(&f->svg, "<path class=\"%s\" d=\"", class);
    for (int i = 0; i < s->count; i++)
        svg_put(&f->svg, "%c%.1f %.1f", i ? 'L' : 'M', x_of(f, s->x[i]), y_of(f, s->y[i]));
    svg_put(&f->svg, "\"/>\n");
}

static void put_legend(struct frame *f, const struct plot *plot) {
    double x = LEFT;
    svg_text(&f->svg, x, 28, "class=\"title\"", plot->title);
    const struct {
        const struct plot_series *series;
        const char *class;
    } list[] = {{&plot->marks, "marks"}, {&plot->main, "mean"}};
    double right = WIDTH - RIGHT;
    for (int i = 0; i < 2; i++) {
        if (list[i].series->count == 0) continue;
        double width = 8.0 * (double)strlen(list[i].series->name);
        svg_text(&f->svg, right - width, 28, "", list[i].series->name);
        svg_put(&f->svg, "<path class=\"%s\" d=\"M%.1f 24h18\"/>\n", list[i].class,
                right - width - 24);
        right -= width + 44;
    }
}

int plot_svg(const struct plot *plot, struct text *out, struct err *err) {
    struct frame f = {.svg = {.out = out}};
    struct plot_series every = {0}, smooth = {0}, mean = {0}, marks = {0};
    if (plot_range_of(plot, &f.range, err) != 0) return -1;
    f.svg.failed = plot_thin(&plot->main, MOST_POINTS, &every) | plot_smooth(&plot->main, &smooth) |
                   plot_thin(&smooth, MOST_POINTS / 2, &mean) |
                   plot_thin(&plot->marks, MOST_MARKS, &marks);
    put_head(&f, plot);
    put_grid(&f, plot);
    put_path(&f, &every, "every");
    put_path(&f, &mean, "mean");
    put_path(&f, &marks, "marks");
    for (int i = 0; i < marks.count; i++)
        svg_put(&f.svg, "<circle class=\"mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n",
                x_of(&f, marks.x[i]), y_of(&f, marks.y[i]));
    put_legend(&f, plot);
    svg_end(&f.svg);
    plot_series_free(&every);
    plot_series_free(&smooth);
    plot_series_free(&mean);
    plot_series_free(&marks);
    return f.svg.failed ? err_set(err, ERR_MEMORY, "no memory for the plot") : 0;
}
