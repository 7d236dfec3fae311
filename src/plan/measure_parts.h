// A measurement in progress, for the files of this room: measure.c (crews and timing),
// measure_products.c, measure_kernels.c (and attention).
#pragma once
#include "base/arena.h"
#include "device/device.h"
#include "plan/measure.h"
#include <pthread.h>
#include <semaphore.h>

enum { MEASURE_MOST_SAMPLES = 64 };

// A ring of memory from which operands are taken one behind the other.
struct measure_pool {
    unsigned char *memory;
    uint64_t bytes, at;
};

struct measure_team;
struct measure_rank {
    struct measure_team *team;
    int index;
    pthread_t thread;
    struct arena arena;
    struct device device;
    struct measure_pool in, out;   // constant small numbers, never written; whatever was left there
    unsigned char *scratch;        // for what is small and stays where it is
    int32_t *numbers;              // [MEASURE_NUMBERS] small ids
    int32_t *from, *to, *position; // [MEASURE_NUMBERS] of attention; rising positions
    bool backward;                 // of the call in progress, where there are two
    int round;
    double samples[MEASURE_MOST_SAMPLES], seconds;
    struct err err;
};
enum { MEASURE_NUMBERS = 1 << 16, MEASURE_SCRATCH = 1 << 24 };

struct measure_team {
    const struct measure_crew *crew;
    const struct measure_options *options;
    struct accelerator *out;
    struct measure_rank *rank;
    pthread_barrier_t barrier;
    sem_t start; // all ranks are there, or
    bool failed; // not
    int samples; // of the call in progress
    int rounds;
    double sample_seconds; // to spend on a call
};

void measure_fill(struct measure_pool *pool); // with small numbers, as bf16 and as FP32
// Memory that has not been used for as long as the pool is large; NULL: larger than the pool.
void *measure_take(struct measure_pool *pool, uint64_t bytes);
// All ranks call it with the same things: the time of one `call`, mean over the ranks, each its
// median over repetitions.
typedef void measure_call(struct measure_rank *rank, void *context);
double measure_seconds(struct measure_rank *rank, measure_call *call, void *context);
static inline bool measure_leads(const struct measure_rank *rank) { // keeps the results
    return rank->index == 0;
}
// Into the accelerator's lists, with the crew. Every round adds the same ones in the same order.
void measure_add_product(struct measure_rank *rank, const struct hardware_product *found);
void measure_add_attention(struct measure_rank *rank, const struct hardware_attention *found);
void measure_add_kernel(struct measure_rank *rank, const struct hardware_kernel_point *found);

void measure_products(struct measure_rank *rank, enum dtype type);
void measure_attention(struct measure_rank *rank, enum dtype type);
void measure_kernels(struct measure_rank *rank, enum dtype type);

static inline enum hardware_precision measure_precision(enum dtype type) {
    return type == DTYPE_BF16 ? HARDWARE_BF16 : HARDWARE_FP32;
}
