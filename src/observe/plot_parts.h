// Inner parts of the plots: what drawing on a terminal and as SVG share.
#pragma once
#include "observe/plot.h"

struct plot_range {
    double x_least, x_most, y_least, y_most;
};
int plot_range_of(const struct plot *plot, struct plot_range *range, struct err *err);
// At most about `most` points that stand for the whole series.
int plot_thin(const struct plot_series *from, int most, struct plot_series *to);
int plot_smooth(const struct plot_series *from, struct plot_series *to);
