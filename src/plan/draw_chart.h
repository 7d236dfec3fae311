// Curves and points on two axes, as SVG; what the pictures of draw.h have in common.
#pragma once
#include "base/error.h"
#include "base/svg.h"
#include <stdbool.h>

enum draw_mark { DRAW_LINE, DRAW_DASHED, DRAW_DOTS };
struct draw_series { // values that are not finite are left out
    const char *name;
    const double *x, *y;
    const double *low, *high; // whiskers of dots, or NULL
    int count;
    enum draw_mark mark;
    int colour; // of DRAW_COLOURS
};
enum { DRAW_COLOURS = 8 };
struct draw_tick {
    double value;
    const char *label;
};
struct draw_chart {
    const char *title, *subtitle, *x_label, *y_label;
    bool x_log, x_share, y_share;  // _share: labels in percent
    double y_least, y_most;        // both 0: of the values
    const struct draw_tick *ticks; // of x; NULL: round numbers
    int tick_count;
    const struct draw_series *series;
    int count;
};
// ERR_DATA when there is nothing to draw.
int draw_chart(const struct draw_chart *chart, struct text *out, struct err *err);

// Rules for classes c0 ... c7 (fill) and s0 ... s7 (stroke), and faint ones, for svg_begin.
extern const char draw_light[], draw_dark[];
