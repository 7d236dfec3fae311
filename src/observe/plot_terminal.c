// Curves in braille characters: a character is a grid of 2 x 4 dots. See plot.h.
#include "observe/plot_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL_WIDTH = 8, LEAST_COLUMNS = 30, LEAST_ROWS = 6, MOST_CHARACTERS = 10000 };

struct canvas {
    int columns, rows;    // characters inside the axes
    unsigned char *dots;  // [rows, columns] braille bits
    unsigned char *marks; // [rows, columns] 1: a point of the few
    struct plot_range range;
};

static int column_of(const struct canvas *c, double x, int cells) {
    double share = (x - c->range.x_least) / (c->range.x_most - c->range.x_least);
    int at = (int)(share * cells);
    return at < 0 ? 0 : at >= cells ? cells - 1 : at;
}

static int row_of(const struct canvas *c, double y, int cells) {
    double share = (c->range.y_most - y) / (c->range.y_most - c->range.y_least);
    int at = (int)(share * cells);
    return at < 0 ? 0 : at >= cells ? cells - 1 : at;
}

static void dot(struct canvas *c, int x, int y) {
    static const unsigned char bits[4][2] = {{1, 8}, {2, 16}, {4, 32}, {64, 128}};
    c->dots[y / 4 * c->columns + x / 2] |= bits[y % 4][x % 2];
}

// Dots from one point to the next, without gaps.
static void draw_line(struct canvas *c, const struct plot_series *s) {
    int last_x = 0, last_y = 0;
    for (int i = 0; i < s->count; i++) {
        int x = column_of(c, s->x[i], 2 * c->columns), y = row_of(c, s->y[i], 4 * c->rows);
        int steps = i == 0                              ? 0
                    : abs(x - last_x) > abs(y - last_y) ? abs(x - last_x)
                                                        : abs(y - last_y);
        for (int k = 1; k < steps; k++)
            dot(c, last_x + (x - last_x) * k / steps, last_y + (y - last_y) * k / steps);
        dot(c, x, y);
        last_x = x;
        last_y = y;
    }
}

static void draw_marks(struct canvas *c, const struct plot_series *s) {
    for (int i = 0; i < s->count; i++)
        c->marks[row_of(c, s->y[i], c->rows) * c->columns + column_of(c, s->x[i], c->columns)] = 1;
}

static int put_braille(struct text *out, unsigned bits) {
    if (bits == 0) return text_puts(out, " ");
    char bytes[4];
    int length = text_utf8_encode(0x2800 + bits, bytes);
    return text_put(out, bytes, (size_t)length);
}

// A label stands on the row that its value falls into.
static int put_label(const struct canvas *c, int row, double first, double step, struct text *out) {
    for (double value = first; value < c->range.y_most; value += step)
        if (row_of(c, value, c->rows) == row)
            return text_printf(out, "%*.6g \xE2\x94\xA4", LABEL_WIDTH - 1,
                               fabs(value) < step / 1000 ? 0 : value);
    return text_printf(out, "%*s \xE2\x94\x82", LABEL_WIDTH - 1, "");
}

static int put_row(const struct canvas *c, int row, bool colour, struct text *out) {
    int failed = 0;
    if (colour) failed |= text_puts(out, "\033[36m");
    for (int i = 0; i < c->columns; i++) {
        if (!c->marks[row * c->columns + i])
            failed |= put_braille(out, c->dots[row * c->columns + i]);
        else
            failed |= text_puts(out, colour ? "\033[33m\xE2\x97\x8F\033[36m" : "\xE2\x97\x8F");
    }
    return failed | text_puts(out, colour ? "\033[0m\n" : "\n");
}

static int put_x_axis(const struct canvas *c, const struct plot *plot, struct text *out) {
    double first, step;
    int failed = text_printf(out, "%*s \xE2\x94\x94", LABEL_WIDTH - 1, ""), at = 0;
    for (int i = 0; i < c->columns; i++) failed |= text_puts(out, "\xE2\x94\x80");
    failed |= text_printf(out, "\n%*s", LABEL_WIDTH, "");
    plot_ticks(c->range.x_least, c->range.x_most, c->columns / 14, &first, &step);
    for (double value = first; value <= c->range.x_most; value += step) {
        char label[32];
        int length = snprintf(label, sizeof label, "%.6g", value);
        int place = 1 + column_of(c, value, c->columns) - length / 2;
        if (place < at || place + length > c->columns + 1) continue;
        failed |= text_printf(out, "%*s%s", place - at, "", label);
        at = place + length;
    }
    return failed | text_printf(out, "  %s\n", plot->x_label);
}

static int put_all(const struct canvas *c, const struct plot *plot, bool colour, struct text *out) {
    double first, step;
    const char *main_colour = colour ? "\033[36m" : "", *mark_colour = colour ? "\033[33m" : "",
               *end = colour ? "\033[0m" : "";
    int failed = text_printf(out, "%*s %s", LABEL_WIDTH, "", plot->title);
    if (plot->main.count)
        failed |= text_printf(out, "   %s\xE2\xA0\x92\xE2\xA0\xA4 %s%s", main_colour,
                              plot->main.name, end);
    if (plot->marks.count)
        failed |= text_printf(out, "   %s\xE2\x97\x8F %s%s", mark_colour, plot->marks.name, end);
    failed |= text_puts(out, "\n");
    plot_ticks(c->range.y_least, c->range.y_most, c->rows / 3, &first, &step);
    for (int row = 0; row < c->rows; row++)
        failed |= put_label(c, row, first, step, out) | put_row(c, row, colour, out);
    return failed | put_x_axis(c, plot, out);
}

int plot_terminal(const struct plot *plot, int columns, int rows, bool colour, struct text *out,
                  struct err *err) {
    struct canvas c = {.columns = columns - LABEL_WIDTH - 1, .rows = rows - 3};
    struct plot_series smooth = {0}, thin = {0};
    if (columns < LEAST_COLUMNS || rows < LEAST_ROWS)
        return err_set(err, ERR_USAGE, "a plot of %d x %d characters: expected at least %d x %d",
                       columns, rows, LEAST_COLUMNS, LEAST_ROWS);
    if (columns > MOST_CHARACTERS || rows > MOST_CHARACTERS)
        return err_set(err, ERR_USAGE, "a plot of %d x %d characters: expected at most %d x %d",
                       columns, rows, MOST_CHARACTERS, MOST_CHARACTERS);
    if (plot_range_of(plot, &c.range, err) != 0) return -1;
    size_t cells = (size_t)c.columns * (size_t)c.rows;
    c.dots = calloc(cells, 1);
    c.marks = calloc(cells, 1);
    int failed = !c.dots || !c.marks || plot_smooth(&plot->main, &smooth) != 0 ||
                 plot_thin(&smooth, 2 * c.columns, &thin) != 0;
    if (!failed) {
        draw_line(&c, &thin);
        draw_marks(&c, &plot->marks);
        failed = put_all(&c, plot, colour, out);
    }
    free(c.dots);
    free(c.marks);
    plot_series_free(&smooth);
    plot_series_free(&thin);
    return failed ? err_set(err, ERR_MEMORY, "no memory for the plot") : 0;
}
