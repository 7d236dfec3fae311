// Curves of a run as a picture: braille characters for a terminal, SVG for a page (readable on
// light and on dark ground, without scripts or fonts of its own).
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>

struct plot_series { // points in rising order of x; values that are not finite are left out
    const char *name;
    double *x, *y;
    int count, capacity;
};
// Appends a point; -1 when memory is short. Start with {0}, end with plot_series_free.
int plot_series_put(struct plot_series *series, double x, double y);
void plot_series_free(struct plot_series *series);

struct plot {
    const char *title, *x_label, *y_label;
    struct plot_series main;  // every step: drawn faint, its running mean in full
    struct plot_series marks; // few points, e.g. of evaluations: drawn as dots with a line
};

// Ticks of an axis at round numbers: the first one, and their distance, about `wanted` of them
// inside [least, most].
void plot_ticks(double least, double most, int wanted, double *first, double *step);

// `columns` x `rows` characters with axes and legend; colour only when asked for. -1 when memory is
// short or there is no point to draw.
int plot_terminal(const struct plot *plot, int columns, int rows, bool colour, struct text *out,
                  struct err *err);
// At most some 40 KB, whatever the number of points.
int plot_svg(const struct plot *plot, struct text *out, struct err *err);

// Series of metrics.jsonl text: `key` of the step lines into main, of the evaluations into marks.
// Errors name the line. A last line without an end (a run at work) is left out.
int plot_read(struct plot *plot, const char *text, size_t bytes, const char *path, const char *key,
              struct err *err);
