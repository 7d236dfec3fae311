// Measures the present machine: matrix products by shape, form and precision, attention, kernels by
// size, memory bandwidth, messages between ranks, and storage. What is found goes into the same
// structures that the catalogue reads, so that a measured machine is a cluster like any other.
//
// Nothing of a run is timed: shapes are a grid, from which prices are interpolated. Operands move
// through memory that is larger than the caches, as they do in a step, where every layer has its
// own.
#pragma once
#include "base/error.h"
#include "hardware/hardware.h"
#include <stdbool.h>

// So many ranks of so many threads work at the same time, each on its own operands: they share
// caches and bandwidth as the ranks of a run do.
struct measure_crew {
    int ranks, threads;
};
enum { MEASURE_MOST_CREWS = 8 };
// The crews that a machine of `cores` cores is measured with: one rank of all of them, one rank per
// core; unless `quick` also what lies between, and one core alone. Returns how many.
int measure_crews(int cores, bool quick, struct measure_crew crews[MEASURE_MOST_CREWS]);

struct measure_options {
    bool quick; // a coarser grid, shorter samples
};

// Appends to the accelerator's products, attention and kernel points; sets the best product rates,
// memory bandwidth and memory size, each of the first crew. Lists are taken with malloc:
// measure_free.
int measure_compute(const struct measure_crew *crew, const struct measure_options *options,
                    struct accelerator *out, struct err *err);
void measure_free(struct accelerator *accelerator);

// Writes, reads and many small files in a folder that exists; what was made is removed. Sets the
// figures of `out`.
int measure_storage(const char *folder, const struct measure_options *options, struct storage *out,
                    struct err *err);
