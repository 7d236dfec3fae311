// Matrix products and kernels bound by memory.
//
// A product on a GPU is cut into tiles of its result; each processor computes a tile over the whole
// inner dimension, and a wave is as many tiles as there are processors. What that explains, and a
// constant rate does not: a product one tile wider than a wave takes two waves; a small one leaves
// processors idle; a short inner dimension is spent filling and draining pipelines; and batched
// products of attention heads, whose inner dimension is the head's width, run at a fraction of the
// peak.
#include "cost/measured.h"
#include <math.h>

static double positive(double value, double otherwise) {
    return value > 0 ? value : otherwise;
}

static double element_bytes(enum hardware_precision precision) {
    static const double bytes[HARDWARE_PRECISIONS] = {4, 2, 1, 0.5};
    return bytes[precision];
}

// The dense rate, or the next wider format's where the accelerator has none of this one.
static double dense_rate(const struct accelerator *a, enum hardware_precision precision) {
    for (int p = (int)precision; p >= 0; p--)
        if (a->dense[p].value > 0) return a->dense[p].value;
    return positive(a->dense[HARDWARE_BF16].value, 1e12);
}

static double product_rate(const struct accelerator *a, enum hardware_precision precision) {
    return dense_rate(a, precision) * positive(a->sustained[precision].value, 0.8);
}

double price_bytes(const struct accelerator *a, double bytes) {
    return bytes /
           (positive(a->memory_bandwidth.value, 1e11) * positive(a->memory_share.value, 0.8));
}

// ---- products ----------------------------------------------------------------------------------

// [m, k] x [k, n], `batch` of them.
struct matrix {
    int64_t m, n, k, batch;
};

static struct matrix matrix_of(enum hardware_form form, int64_t m, int64_t n, int64_t k,
                               int64_t batch) {
    if (form == HARDWARE_INPUT) return (struct matrix){m, k, n, batch};
    if (form == HARDWARE_WEIGHT) return (struct matrix){n, k, m, batch};
    return (struct matrix){m, n, k, batch};
}

static double ceil_div(double a, double b) {
    return ceil(a / b);
}

// A tile reads (rows + columns) elements for rows x columns multiply-adds: small tiles wait for
// them. 1 for the largest common tile.
static double tile_slowness(double rows, double columns) {
    const double load = 32, best = 1 + load * (1.0 / 256 + 1.0 / 128);
    return (1 + load * (1 / rows + 1 / columns)) / best;
}

// Tiles split along k add their parts up through memory.
static double tiled(const struct accelerator *a, const struct matrix *x, double rate, double fill,
                    int rows, int columns, int split) {
    const double k_step = 32;
    double units = a->units > 0 ? a->units : 1;
    double tiles =
        ceil_div((double)x->m, rows) * ceil_div((double)x->n, columns) * (double)x->batch * split;
    double k = ceil_div(ceil_div((double)x->k, split), k_step) * k_step;
    double seconds =
        2.0 * rows * columns * (k + fill) * tile_slowness(rows, columns) / (rate / units);
    double sums = split > 1 ? 8.0 * split * (double)x->m * (double)x->n * (double)x->batch : 0;
    return ceil_div(tiles, units) * seconds + price_bytes(a, sums);
}

// A tile's start and end take so many cycles, in which narrower formats would do more of k.
static double fill_of(const struct accelerator *a, enum hardware_precision precision) {
    double fill = positive(a->fill_k.value, 64), wide = a->dense[HARDWARE_BF16].value;
    return precision > HARDWARE_BF16 && wide > 0 ? fill * dense_rate(a, precision) / wide : fill;
}

static double quickest_tiles(const struct accelerator *a, enum hardware_precision precision,
                             const struct matrix *x) {
    enum { MOST_SPLIT = 16 };
    double best = HUGE_VAL, rate = product_rate(a, precision), fill = fill_of(a, precision);
    for (int t = 0; t < a->tile_count; t++)
        for (int split = 1; split <= MOST_SPLIT && (split == 1 || x->k >= 256 * split); split *= 2)
            best = fmin(best, tiled(a, x, rate, fill, a->tile_m[t], a->tile_n[t], split));
    return best;
}

// Kernels load 16 bytes at a time. Where rows begin elsewhere, loads are as narrow as the alignment
// that is left, and large products take twice the time (a vocabulary of 50,257 in place of 50,304
// costs GPT-2 a quarter of its speed). Where they do not begin at lines of 128 bytes, loads touch
// one line more (NVIDIA's guide to matrix products).
static double misalignment(const struct matrix *x, double bytes) {
    const double vector = 16 / bytes, line = 128 / bytes;
    double k = (double)x->k, n = (double)x->n;
    if (fmod(k, vector) != 0 || fmod(n, vector) != 0) return 2;
    return x->batch == 1 && (fmod(k, line) != 0 || fmod(n, line) != 0) ? 1.15 : 1;
}

// Batched products off 16 bytes leave the tensor units: they run on plain ones with sums in FP32
// (heads of 108 in place of 144 cost BigScience a third of a step).
static bool leaves_tensor_units(const struct accelerator *a, const struct matrix *x, double bytes) {
    double vector = 16 / bytes;
    return x->batch > 1 && a->dense[HARDWARE_FP32].value > 0 &&
           (fmod((double)x->k, vector) != 0 || fmod((double)x->n, vector) != 0);
}

static double modelled_product(const struct accelerator *a, enum hardware_precision precision,
                               const struct matrix *x) {
    double rate = product_rate(a, precision), bytes = element_bytes(precision);
    double m = (double)x->m, n = (double)x->n, k = (double)x->k;
    double seconds = 2 * m * n * k * (double)x->batch / rate;
    if (a->tile_count > 0 && leaves_tensor_units(a, x, bytes))
        seconds = quickest_tiles(a, HARDWARE_FP32, x);
    else if (a->tile_count > 0)
        seconds = quickest_tiles(a, precision, x) * misalignment(x, bytes);
    double moved = (double)x->batch * (bytes * (m * k + k * n) + fmax(bytes, 2) * m * n);
    return fmax(seconds, price_bytes(a, moved)) + a->kernel_seconds.value;
}

double price_product_form(const struct accelerator *a, enum hardware_form form,
                          enum hardware_precision precision, int64_t m, int64_t n, int64_t k,
                          int64_t batch) {
    double measured;
    if (m <= 0 || n <= 0 || k <= 0 || batch <= 0) return 0;
    if (measured_product(a, form, precision, m, n, k, &measured)) return (double)batch * measured;
    struct matrix x = matrix_of(form, m, n, k, batch);
    return modelled_product(a, precision, &x);
}

double price_product(const struct accelerator *a, enum hardware_precision precision, int64_t m,
                     int64_t n, int64_t k, int64_t batch) {
    return price_product_form(a, HARDWARE_FORWARD, precision, m, n, k, batch);
}

// ---- attention ---------------------------------------------------------------------------------

// Exponentials cost a head's pair the same whatever its width, so narrow heads spend a larger share
// on them. 1 at 128.
static double width_share(double head_dim) {
    const double exponentials = 32, stated = 128;
    return fmin(1, head_dim / (head_dim + exponentials) * (stated + exponentials) / stated);
}

static double flash_share(const struct accelerator *a, bool older, bool backward) {
    double share = backward ? a->flash_backward.value : a->flash_forward.value;
    double of_older = backward ? a->flash2_backward.value : a->flash2_forward.value;
    return positive(older && of_older > 0 ? of_older : share, 0.5);
}

double price_attention(const struct accelerator *a, const struct price_attention *s,
                       bool backward) {
    const double block = 128;
    double measured;
    if (s->rows <= 0 || s->queries <= 0 || s->heads <= 0 || s->pairs <= 0) return 0;
    if (measured_attention(a, s, backward, &measured)) return measured;
    double value_dim = (double)(s->value_dim > 0 ? s->value_dim : s->head_dim);
    double heads = (double)s->rows * (double)s->heads;
    // Whole blocks are computed: the causal border passes through the middle of one per row of
    // blocks.
    double pairs = s->pairs;
    if (s->causal)
        pairs = fmin(pairs + (double)s->queries * block, (double)s->queries * (double)s->keys);
    double flops = (backward ? 4 : 2) * pairs * heads * ((double)s->head_dim + value_dim);
    double share = flash_share(a, s->older, backward) * positive(s->share, 1);
    double rate = dense_rate(a, s->precision) * share * width_share((double)s->head_dim);
    double blocks = heads * ceil_div((double)s->queries, block);
    if (a->units > 1) rate *= blocks / (ceil_div(blocks, a->units) * a->units);
    double each = element_bytes(s->precision) * (double)s->rows;
    double moved =
        each * ((double)s->queries * (double)s->heads * ((double)s->head_dim + value_dim) +
                (double)s->keys * (double)s->kv_heads * ((double)s->head_dim + value_dim));
    if (backward) moved *= 2.5;
    return fmax(flops / rate, price_bytes(a, moved)) + a->kernel_seconds.value * (backward ? 3 : 1);
}

// ---- kernels -----------------------------------------------------------------------------------

// Of the rate of plain streaming: random masks cost instructions, and a softmax waits for the sums
// of its rows. Korthikanti et al. 2022, Table 4: redoing the attention of its layer takes 1.3 ms.
static double kernel_share(enum hardware_kernel kernel) {
    if (kernel == KERNEL_DROPOUT) return 0.7;
    if (kernel == KERNEL_SOFTMAX) return 0.8;
    if (kernel == KERNEL_PERMUTE)
        return 0.75; // SimuMax, B200: 0.50 of the bandwidth, streaming 0.67
    return 1;
}

double price_kernel(const struct accelerator *a, enum hardware_kernel kernel, double elements,
                    double bytes, enum hardware_precision precision) {
    double measured;
    if (measured_kernel(a, kernel, elements, precision, &measured)) return measured;
    const struct hardware_kernel_rate *rate =
        &a->kernels[kernel][precision == HARDWARE_FP32 ? 0 : 1];
    if (rate->seconds_per_element > 0 || rate->fixed_seconds > 0)
        return rate->fixed_seconds + elements * rate->seconds_per_element;
    return price_bytes(a, bytes) / kernel_share(kernel) + a->kernel_seconds.value;
}
