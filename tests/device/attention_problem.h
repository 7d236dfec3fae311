// Attention problems of tests: drawing them, solving them in double, and running a device on them.
#pragma once
#include "device/device.h"

struct problem {
    int queries, keys, heads, kv_heads, head_dim;
    int32_t window;
    enum dtype type;
    double scale;
    int32_t *from, *to;
    // Values as the type holds them; row strides are wider than the rows.
    double *q, *k, *v, *dout;
    double *out, *lse, *dq, *dk, *dv; // expected
};

struct tensor {
    int64_t rows, columns, stride;
    size_t size;
    unsigned char *memory, *at; // guards on both sides
};

struct result {
    struct tensor q, k, v, dout, out, dq, dk, dv, lse;
};

// Every arithmetic that a machine may choose.
struct way {
    enum device_isa isa;
    bool pairs; // of bf16 multiplied by the processor
};
enum { WAYS = 4 };
extern const struct way ways[WAYS];
bool way_available(const struct way *way, enum dtype type);

int problem_below(int n); // a random number in [0, n)
// Intervals, allocated: documents of the given lengths (end 0) one after the other, causal inside
// each; or any non-decreasing borders, about one query in `empty_in` seeing nothing (0: none).
void problem_documents(struct problem *p, const int *lengths);
void problem_intervals(struct problem *p, int empty_in);
void problem_fill(struct problem *p); // random values, room for results
void problem_free(struct problem *p);

// In double. `probability` [heads][queries][keys] or NULL.
void problem_forward(struct problem *p, double *probability);
void problem_backward(struct problem *p);

// By a device: forward and backward; fails when it writes beyond its workspace.
struct result problem_solve(const struct problem *p, const struct way *way, int threads);
void result_free(struct result *r);

double tensor_get(const struct tensor *t, int64_t i, int64_t c);
void tensor_check_outside(
    const struct tensor *t); // guards and the gaps between rows hold what was there
// |found - expected| <= tolerance x max(1, largest expected value)
void tensor_compare(const char *what, const struct tensor *t, const double *expected,
                    double tolerance);
