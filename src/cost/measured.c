// Interpolation between measured points. See measured.h.
//
// What varies little is interpolated: the rate of products and attention, and the cost of an
// element; the logarithms of both against those of the sizes.
#include "cost/measured.h"
#include "device/device.h"
#include <math.h>

// A mean of logarithms, weighted by the inverse fourth power of the distance: at a point it is the
// point's, far from all the mean of the nearest ones.
struct mean {
    double sum, weight;
};

static void mean_add(struct mean *m, double squared_distance, double value) {
    const double least = 1e-6; // so that a point that is met decides alone
    double weight = 1 / ((squared_distance + least) * (squared_distance + least));
    m->sum += weight * log(value);
    m->weight += weight;
}

static double squared_ratio(double a, double b) {
    double d = log2(a / b);
    return d * d;
}

// The nearest format that was measured: the same, else 16 bits for narrower ones, else any.
static bool found_precision(enum hardware_precision wanted, const bool *there,
                            enum hardware_precision *out) {
    for (int p = (int)wanted; p >= 0; p--)
        if (there[p]) {
            *out = (enum hardware_precision)p;
            return true;
        }
    for (int p = (int)wanted; p < HARDWARE_PRECISIONS; p++)
        if (there[p]) {
            *out = (enum hardware_precision)p;
            return true;
        }
    return false;
}

// ---- products

static bool counts(const struct accelerator *a, const struct hardware_product *p,
                   enum hardware_form form) {
    const struct hardware_product *first = &a->products[0];
    return p->form == form && p->ranks == first->ranks && p->threads == first->threads &&
           p->seconds > 0;
}

static double product_rate(const struct accelerator *a, enum hardware_form form,
                           enum hardware_precision precision, double m, double n, double k) {
    struct mean mean = {0};
    for (int i = 0; i < a->product_count; i++) {
        const struct hardware_product *p = &a->products[i];
        if (!counts(a, p, form) || p->precision != precision) continue;
        double pm = (double)p->m, pn = (double)p->n, pk = (double)p->k;
        mean_add(&mean, squared_ratio(m, pm) + squared_ratio(n, pn) + squared_ratio(k, pk),
                 2 * pm * pn * pk / p->seconds);
    }
    return exp(mean.sum / mean.weight);
}

bool measured_product(const struct accelerator *a, enum hardware_form form,
                      enum hardware_precision precision, int64_t m, int64_t n, int64_t k,
                      double *seconds) {
    bool there[HARDWARE_PRECISIONS] = {false};
    for (int i = 0; i < a->product_count; i++)
        if (counts(a, &a->products[i], form)) there[a->products[i].precision] = true;
    if (!found_precision(precision, there, &precision)) return false;
    double outputs = (double)n, inputs = (double)k, total = 0;
    // A CPU makes a weight's gradient in chunks of tokens, one after the other (device/device.h),
    // each of which reads and writes the sum.
    bool chunked = form == HARDWARE_WEIGHT && a->cpu && m > DEVICE_TOKEN_CHUNK;
    int64_t chunk = chunked ? DEVICE_TOKEN_CHUNK : m, rest = m % chunk;
    double whole = (double)(m - rest);
    total = 2 * whole * outputs * inputs /
            product_rate(a, form, precision, (double)chunk, outputs, inputs);
    if (rest > 0)
        total += 2 * (double)rest * outputs * inputs /
                 product_rate(a, form, precision, (double)rest, outputs, inputs);
    *seconds = total;
    return true;
}

// ---- attention

bool measured_attention(const struct accelerator *a, const struct price_attention *s, bool backward,
                        double *seconds) {
    bool there[HARDWARE_PRECISIONS] = {false};
    const struct hardware_attention *first = a->attention;
    enum hardware_precision precision;
    for (int i = 0; i < a->attention_count; i++)
        if (a->attention[i].ranks == first->ranks && a->attention[i].threads == first->threads)
            there[a->attention[i].precision] = true;
    if (!found_precision(s->precision, there, &precision)) return false;
    // Points are of whole causal rows; other masks are like those with as many pairs per query.
    double context = fmax(1, 2 * s->pairs / (double)s->queries - 1);
    double value_dim = (double)(s->value_dim > 0 ? s->value_dim : s->head_dim);
    double width = ((double)s->head_dim + value_dim) / 2;
    struct mean mean = {0};
    for (int i = 0; i < a->attention_count; i++) {
        const struct hardware_attention *p = &a->attention[i];
        if (p->precision != precision || p->ranks != first->ranks || p->threads != first->threads)
            continue;
        mean_add(&mean,
                 squared_ratio(context, (double)p->context) +
                     squared_ratio(width, (double)p->head_dim),
                 backward ? p->backward_rate : p->forward_rate);
    }
    double pairs = s->pairs * (double)s->rows * (double)s->heads;
    *seconds = (backward ? 8 : 4) * pairs * width / exp(mean.sum / mean.weight);
    return true;
}

// ---- kernels

static bool is_of(const struct accelerator *a, const struct hardware_kernel_point *p,
                  enum hardware_kernel kernel) {
    const struct hardware_kernel_point *first = &a->kernel_points[0];
    return p->kernel == kernel && p->ranks == first->ranks && p->threads == first->threads &&
           p->elements > 0 && p->seconds > 0;
}

bool measured_kernel(const struct accelerator *a, enum hardware_kernel kernel, double elements,
                     enum hardware_precision precision, double *seconds) {
    bool there[HARDWARE_PRECISIONS] = {false};
    const struct hardware_kernel_point *below = NULL, *above = NULL;
    for (int i = 0; i < a->kernel_point_count; i++)
        if (is_of(a, &a->kernel_points[i], kernel)) there[a->kernel_points[i].precision] = true;
    if (!found_precision(precision, there, &precision)) return false;
    for (int i = 0; i < a->kernel_point_count; i++) {
        const struct hardware_kernel_point *p = &a->kernel_points[i];
        if (!is_of(a, p, kernel) || p->precision != precision) continue;
        if (p->elements <= elements && (!below || p->elements > below->elements)) below = p;
        if (p->elements >= elements && (!above || p->elements < above->elements)) above = p;
    }
    if (!below || !above || below == above) { // outside: the cost of an element stays
        const struct hardware_kernel_point *p = below ? below : above;
        if (!p) return false;
        *seconds = p->seconds * elements / p->elements;
        return true;
    }
    double at = log(elements / below->elements) / log(above->elements / below->elements);
    double each = (1 - at) * log(below->seconds / below->elements) +
                  at * log(above->seconds / above->elements);
    *seconds = elements * exp(each);
    return true;
}
