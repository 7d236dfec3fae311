// What `weft data` prints.
#pragma once
#include "data/inspect.h"
#include "data/loader.h"
#include "data/prepare.h"
#include <stdbool.h>

// Progress of prepare on standard error, about once a second.
void data_print_progress(const struct prepare_counts *counts, void *context);
void data_print_prepared(const struct prepare_counts *counts, const char *out, bool lossless,
                         bool json);
void data_print_inspected(const struct dataset *set, const struct inspect_report *report,
                          const char *path, bool json);
void data_print_mix(const struct loader_mix_row *rows, int count, bool json);
