// Curves as SVG. Colours follow the reader's light or dark setting. See plot.h.
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
    struct text *out;
    int failed;
};

static double x_of(const struct frame *f, double x) {
    return LEFT +
           (x - f->range.x_least) / (f->range.x_most - f->range.x_least) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct frame *f, double y) {
    return TOP +
           (f->range.y_most - y) / (f->range.y_most - f->range.y_least) * (HEIGHT - TOP - BOTTOM);
}

static void put_escaped(struct frame *f, const char *text) {
    for (; *text; text++) {
        const char *entity = *text == '<'   ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '&' ? "&amp;"
                                            : NULL;
        f->failed |= entity ? text_puts(f->out, entity) : text_put(f->out, text, 1);
    }
}

static void put_text(struct frame *f, double x, double y, const char *attributes,
                     const char *text) {
    f->failed |= text_printf(f->out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    put_escaped(f, text);
    f->failed |= text_puts(f->out, "</text>\n");
}

static void put_head(struct frame *f, const struct plot *plot) {
    f->failed |=
        text_printf(f->out,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                    "height=\"%d\" role=\"img\">\n<title>",
                    WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_escaped(f, plot->title);
    f->failed |= text_puts(
        f->out, "</title>\n<style>\n"
                "svg{background:#fff}\n"
                "text{font:13px system-ui,-apple-system,\"Segoe UI\",Helvetica,Arial,sans-serif;"
                "fill:#57606a}\n"
                ".title{font-size:16px;font-weight:600;fill:#1f2328}\n"
                ".grid{stroke:#d8dee4;stroke-width:1}\n"
                ".every{fill:none;stroke:#0969da;stroke-opacity:.3;stroke-width:1}\n"
                ".mean{fill:none;stroke:#0969da;stroke-width:2;stroke-linejoin:round}\n"
                ".marks{fill:none;stroke:#bc4c00;stroke-width:2;stroke-linejoin:round}\n"
                ".mark{fill:#bc4c00}\n"
                "@media (prefers-color-scheme:dark){\n"
                "svg{background:#0d1117}\ntext{fill:#9198a1}\n.title{fill:#f0f6fc}\n"
                ".grid{stroke:#30363d}\n.every,.mean{stroke:#58a6ff}\n.marks{stroke:#f0883e}\n"
                ".mark{fill:#f0883e}\n}\n"
                "</style>\n");
}

static void put_grid(struct frame *f, const struct plot *plot) {
    double first, step;
    char label[32];
    const double bottom = HEIGHT - BOTTOM;
    plot_ticks(f->range.y_least, f->range.y_most, 6, &first, &step);
    for (double value = first; value <= f->range.y_most; value += step) {
        f->failed |= text_printf(f->out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT,
                                 y_of(f, value), WIDTH - RIGHT);
        snprintf(label, sizeof label, "%.6g", fabs(value) < step / 1000 ? 0 : value);
        put_text(f, LEFT - 8, y_of(f, value) + 4, "text-anchor=\"end\"", label);
    }
    plot_ticks(f->range.x_least, f->range.x_most, 8, &first, &step);
    for (double value = first; value <= f->range.x_most; value += step) {
        f->failed |= text_printf(f->out, "<path class=\"grid\" d=\"M%.1f %.1fv5\"/>\n",
                                 x_of(f, value), bottom);
        snprintf(label, sizeof label, "%.6g", value);
        put_text(f, x_of(f, value), bottom + 20, "text-anchor=\"middle\"", label);
    }
    f->failed |= text_printf(f->out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, bottom,
                             WIDTH - RIGHT);
    put_text(f, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12, "text-anchor=\"middle\"", plot->x_label);
    f->failed |= text_printf(f->out, "<g transform=\"rotate(-90 16 %.1f)\">", (TOP + bottom) / 2);
    put_text(f, 16, (TOP + bottom) / 2, "text-anchor=\"middle\"", plot->y_label);
    f->failed |= text_puts(f->out, "</g>\n");
}

static void put_path(struct frame *f, const struct plot_series *s, const char *class) {
    if (s->count == 0) return;
    f->failed |= text_printf(f->out, "<path class=\"%s\" d=\"", class);
    for (int i = 0; i < s->count; i++)
        f->failed |=
            text_printf(f->out, "%c%.1f %.1f", i ? 'L' : 'M', x_of(f, s->x[i]), y_of(f, s->y[i]));
    f->failed |= text_puts(f->out, "\"/>\n");
}

static void put_legend(struct frame *f, const struct plot *plot) {
    double x = LEFT;
    put_text(f, x, 28, "class=\"title\"", plot->title);
    const struct {
        const struct plot_series *series;
        const char *class;
    } list[] = {{&plot->marks, "marks"}, {&plot->main, "mean"}};
    double right = WIDTH - RIGHT;
    for (int i = 0; i < 2; i++) {
        if (list[i].series->count == 0) continue;
        double width = 8.0 * (double)strlen(list[i].series->name);
        put_text(f, right - width, 28, "", list[i].series->name);
        f->failed |= text_printf(f->out, "<path class=\"%s\" d=\"M%.1f 24h18\"/>\n", list[i].class,
                                 right - width - 24);
        right -= width + 44;
    }
}

int plot_svg(const struct plot *plot, struct text *out, struct err *err) {
    struct frame f = {.out = out};
    struct plot_series every = {0}, smooth = {0}, mean = {0}, marks = {0};
    if (plot_range_of(plot, &f.range, err) != 0) return -1;
    f.failed = plot_thin(&plot->main, MOST_POINTS, &every) | plot_smooth(&plot->main, &smooth) |
               plot_thin(&smooth, MOST_POINTS / 2, &mean) |
               plot_thin(&plot->marks, MOST_MARKS, &marks);
    put_head(&f, plot);
    put_grid(&f, plot);
    put_path(&f, &every, "every");
    put_path(&f, &mean, "mean");
    put_path(&f, &marks, "marks");
    for (int i = 0; i < marks.count; i++)
        f.failed |= text_printf(out, "<circle class=\"mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n",
                                x_of(&f, marks.x[i]), y_of(&f, marks.y[i]));
    put_legend(&f, plot);
    f.failed |= text_puts(out, "</svg>\n");
    plot_series_free(&every);
    plot_series_free(&smooth);
    plot_series_free(&mean);
    plot_series_free(&marks);
    return f.failed ? err_set(err, ERR_MEMORY, "no memory for the plot") : 0;
}
