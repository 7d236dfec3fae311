// Weighted mixing by rounding, see mix.h.
#include "data/mix.h"
#include <math.h>

static const uint64_t WHOLE = (uint64_t)1 << 63;

int mix_open(struct mix *mix, const double *weights, int count, struct err *err) {
    if (count < 1 || count > MIX_MAX_SETS)
        return err_set(err, ERR_USAGE, "%d data sets; expected 1 to %d", count, MIX_MAX_SETS);
    double total = 0;
    for (int i = 0; i < count; i++) {
        if (!(weights[i] >= 0) || isinf(weights[i]))
            return err_set(err, ERR_USAGE,
                           "weight %g of data set %d: expected a number of at least 0", weights[i],
                           i);
        total += weights[i];
    }
    if (!(total > 0) || isinf(total))
        return err_set(err, ERR_USAGE,
                       "the weights of the data sets add up to %g; expected a "
                       "finite sum above 0",
                       total);
    mix->count = count;
    double left = total;
    for (int i = 0; i < count; i++) {
        // The rest is added up afresh: subtracting would leave rounding errors where nothing should
        // be left.
        double rest = 0;
        for (int j = i + 1; j < count; j++) rest += weights[j];
        left = weights[i] + rest;
        if (rest == 0)
            mix->share[i] = WHOLE;
        else
            mix->share[i] =
                (uint64_t)((long double)weights[i] / (long double)left * 0x1p63L + 0.5L);
    }
    return 0;
}

static uint64_t rounded(uint64_t share, uint64_t n) {
    return (uint64_t)(((unsigned __int128)share * n + (WHOLE >> 1)) >> 63);
}

int mix_pick(const struct mix *mix, uint64_t n, uint64_t *before) {
    for (int i = 0;; i++) {
        uint64_t own = rounded(mix->share[i], n);
        if (i == mix->count - 1 || rounded(mix->share[i], n + 1) > own) {
            *before = own;
            return i;
        }
        n -= own;
    }
}

uint64_t mix_draws(const struct mix *mix, int set, uint64_t n) {
    for (int i = 0; i < set; i++) n -= rounded(mix->share[i], n);
    return rounded(mix->share[set], n);
}
