// Running one check over every instruction set that this machine has, both compute types and
// several thread counts, whose outputs must agree bit by bit.
#pragma once
#include "device/device.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    struct device device;
    enum dtype type;
    uint64_t seed;
    unsigned char *bytes; // of all outputs, to be compared between thread counts
    size_t size;
    void *owned[256];
    int owned_count;
};

// A matrix as the device sees it (data) and its exact values in double.
struct values {
    void *data;
    double *exact;
    int64_t count;
    enum dtype type;
};

double run_draw(struct run *run); // about normal
int run_below(struct run *run, int limit);
void *run_memory(struct run *run, size_t bytes); // freed at the end; filled with NaN patterns
struct values run_values(struct run *run, enum dtype type, int64_t count, double scale);
struct values run_output(struct run *run, enum dtype type,
                         int64_t count);         // `exact` is room for the reference
const float *run_floats(const struct values *v); // NULL for none

// |found - exact| <= tolerance (|exact| + rms of exact) for every element; and the bytes are kept
// for comparison.
void run_check(struct run *run, const char *what, const struct values *found, double tolerance);
double run_tolerance(const struct run *run,
                     double f32); // f32's, or that of a value rounded to bf16

// Calls `body` for everything there is.
void for_every_device(void (*body)(struct run *run));
// The device alone; false when the machine lacks the instruction set.
bool run_open(struct run *run, enum device_isa isa, enum dtype type, int threads);
void run_close(struct run *run);
