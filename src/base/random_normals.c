// Many normal deviates at once: a block of four random words gives four of them (two Box-Muller
// pairs). Logarithm, sine and cosine are series of plain products and sums, so that the values are
// the same under every C library and processor.
#include "base/random.h"
#include <math.h>
#include <string.h>

// Natural logarithm of x in (0, 1], to about 1e-10: the exponent apart, a mantissa m in [sqrt(1/2),
// sqrt(2)) by ln m = 2 atanh((m - 1) / (m + 1)).
static double logarithm(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    uint64_t shifted = bits - 0x3FE6A09E667F3BCDu; // of sqrt(1/2)
    int exponent = (int)((int64_t)shifted >> 52);
    bits -= (uint64_t)exponent << 52;
    double m;
    memcpy(&m, &bits, 8);
    double s = (m - 1) / (m + 1), q = s * s;
    double series =
        1 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * (1.0 / 11)))));
    return exponent * 0.693147180559945309417 + 2 * s * series;
}

// Cosine and sine of `turn` full turns, turn in [0, 1), to about 1e-10: the nearest quarter turn
// apart, Taylor series over a remaining angle of at most an eighth of a turn.
static void circle(double turn, double *cosine, double *sine) {
    int quarter = (int)(4 * turn + 0.5);
    double x = 6.283185307179586476925 * (turn - 0.25 * quarter), q = x * x;
    double c =
        1 + q * (-1.0 / 2 +
                 q * (1.0 / 24 + q * (-1.0 / 720 + q * (1.0 / 40320 + q * (-1.0 / 3628800)))));
    double s =
        x *
        (1 + q * (-1.0 / 6 + q * (1.0 / 120 +
                                  q * (-1.0 / 5040 + q * (1.0 / 362880 + q * (-1.0 / 39916800))))));
    // turned by quarters with exact factors; a branch here would be guessed wrong half of the time
    static const double turned_cosine[4] = {1, 0, -1, 0}, turned_sine[4] = {0, 1, 0, -1};
    double a = turned_cosine[quarter & 3], b = turned_sine[quarter & 3];
    *cosine = a * c - b * s;
    *sine = b * c + a * s;
}

static void four_normals(uint64_t key, uint64_t block, float out[4]) {
    uint32_t w[4];
    random_words(key, block, w);
    for (int pair = 0; pair < 2; pair++) {
        double cosine, sine, radius = sqrt(-2 * logarithm((w[2 * pair] + 1.0) * 0x1p-32));
        circle(w[2 * pair + 1] * 0x1p-32, &cosine, &sine);
        out[2 * pair] = (float)(radius * cosine);
        out[2 * pair + 1] = (float)(radius * sine);
    }
}

void random_normals(uint64_t key, uint64_t first, uint64_t count, float *out) {
    uint64_t end = first + count;
    for (uint64_t block = first / 4; 4 * block < end; block++) {
        float four[4];
        four_normals(key, block, four);
        uint64_t from = 4 * block < first ? first : 4 * block,
                 to = 4 * block + 4 < end ? 4 * block + 4 : end;
        for (uint64_t i = from; i < to; i++) out[i - first] = four[i - 4 * block];
    }
}
