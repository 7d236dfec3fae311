// Seconds from measured points (`weft bench hardware`), between which they are interpolated. Each
// returns false where nothing was measured, and then sets nothing. Where points of several crews
// (ranks x threads) stand side by side those of the first one's crew count.
#pragma once
#include "cost/price.h"

// m tokens, n outputs, k inputs in every form, as price_product_form says; one product.
bool measured_product(const struct accelerator *a, enum hardware_form form,
                      enum hardware_precision precision, int64_t m, int64_t n, int64_t k,
                      double *seconds);
bool measured_attention(const struct accelerator *a, const struct price_attention *shape,
                        bool backward, double *seconds);
bool measured_kernel(const struct accelerator *a, enum hardware_kernel kernel, double elements,
                     enum hardware_precision precision, double *seconds);
