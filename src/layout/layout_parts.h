// What the files of this room share.
#pragma once
#include "layout/layout.h"

// The numbers of a run that a layout must divide.
struct layout_run {
    int context, rows, micro_batches;
};

// Heads, widths and experts over tp and ep, layers over stages.
int layout_fits_model(const struct layout *layout, const struct model_config *model,
                      struct err *err);
// ... and tokens over cp and tp.
int layout_fits_run(const struct layout *layout, const struct model_config *model,
                    const struct layout_run *run, struct err *err);

// The two layouts of the same number of ranks that are nearest to this one and fit, as text for a
// message: "; nearest layouts that work on 8 ranks: tp 2 x dp 4, or tp 4 x dp 2". Empty when none
// fits.
const char *layout_nearest(const struct layout *layout, const struct model_config *model,
                           const struct layout_run *run, char out[256]);
