// Element types: every f16 both ways, bf16 rounding, and conversions against one rounding of the
// exact value.
#include "base/dtype.h"
#include "base/random.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>

// `value` rounded to nearest, ties to even, in a format with `digits` binary digits and normal
// numbers from 2^lowest up to below 2^end.
static double rounded(double value, int digits, int lowest, int end) {
    int exponent;
    if (value == 0 || !isfinite(value)) return value;
    frexp(value, &exponent); // |value| in [2^(exponent - 1), 2^exponent)
    int unit = (exponent - 1 > lowest ? exponent - 1 : lowest) - (digits - 1);
    double result = ldexp(rint(ldexp(value, -unit)), unit);
    return fabs(result) >= ldexp(1, end) ? copysign(INFINITY, value) : result;
}
static double to_f16(double value) {
    return rounded(value, 11, -14, 16);
}
static double to_bf16(double value) {
    return rounded(value, 8, -126, 128);
}

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

TEST(dtype_f16_all_values_both_ways) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_float((uint16_t)h);
        int exponent = h >> 10 & 31, fraction = h & 1023;
        if (exponent == 31 && fraction) {
            CHECK(isnan(f) && isnan(f16_to_float(f16_from_float(f))));
            continue;
        }
        double size = exponent == 31  ? INFINITY
                      : exponent == 0 ? ldexp(fraction, -24)
                                      : ldexp(1024 + fraction, exponent - 25);
        CHECK((double)f == (h & 0x8000 ? -size : size));
        CHECK_EQ_INT(signbit(f) != 0, h >> 15);
        CHECK_EQ_INT(f16_from_float(f), h);
    }
}

TEST(dtype_f16_rounds_to_even) {
    for (uint32_t h = 0; h < 0x7bff;
         h++) { // between each two neighbours: the tie and its neighbours
        float low = f16_to_float((uint16_t)h), high = f16_to_float((uint16_t)(h + 1));
        float middle = (low + high) / 2;
        CHECK_EQ_INT(f16_from_float(middle), h % 2 == 0 ? h : h + 1);
        CHECK_EQ_INT(f16_from_float(nextafterf(middle, low)), h);
        CHECK_EQ_INT(f16_from_float(-nextafterf(middle, high)), (h + 1) | 0x8000);
    }
    CHECK_EQ_INT(f16_from_float(65519.99f), 0x7bff);
    CHECK_EQ_INT(f16_from_float(65520.0f), 0x7c00);
    CHECK_EQ_INT(f16_from_float(-1e30f), 0xfc00);
    CHECK_EQ_INT(f16_from_float(1e-30f), 0);
    CHECK_EQ_INT(f16_from_float(-0.0f), 0x8000);
}

TEST(dtype_bf16_rounding) {
    CHECK_EQ_INT(bf16_from_float(1.0f), 0x3f80);
    CHECK_EQ_INT(bf16_from_float(float_of(0x3f808000)), 0x3f80); // tie to even, down
    CHECK_EQ_INT(bf16_from_float(float_of(0x3f818000)), 0x3f82); // tie to even, up
    CHECK_EQ_INT(bf16_from_float(float_of(0x3f808001)), 0x3f81);
    CHECK_EQ_INT(bf16_from_float(float_of(0x7f7fffff)),
                 0x7f80); // the largest float becomes infinity
    CHECK_EQ_INT(bf16_from_float(INFINITY), 0x7f80);
    CHECK_EQ_INT(bf16_from_float(-INFINITY), 0xff80);
    CHECK_EQ_INT(bf16_from_float(-0.0f), 0x8000);
    // NaN whose set bits all lie in the lower half must not become infinity
    CHECK(isnan(bf16_to_float(bf16_from_float(float_of(0x7f800001)))));
    CHECK(isnan(bf16_to_float(bf16_from_float(float_of(0xffffffff)))));
    for (uint32_t b = 0; b < 65536; b++) {
        float f = bf16_to_float((bf16)b);
        if (!isnan(f)) CHECK_EQ_INT(bf16_from_float(f), b);
    }
    for (uint64_t i = 0; i < 300000; i++) {
        uint32_t words[4];
        random_words(1, i, words);
        float f = float_of(words[0]);
        if (!isnan(f)) CHECK((double)bf16_to_float(bf16_from_float(f)) == to_bf16((double)f));
    }
}

// Doubles of all sizes, many of them a hair beside a tie of the narrow types.
static double awkward_double(uint64_t i) {
    uint32_t w[4];
    random_words(7, i, w);
    int exponent = (int)(w[0] % 80) - 50;
    if (w[0] % 97 == 0) exponent = (int)(w[0] % 400) - 200;
    double value = ldexp(1 + (double)(w[1] % 4096) / 4096, exponent);
    switch (w[2] % 4) {
    case 0:
        value = nextafter(value, INFINITY);
        break;
    case 1:
        value = nextafter(value, 0);
        break;
    case 2:
        value += ldexp((double)w[3], exponent - 40);
        break;
    default:
        break;
    }
    return w[2] & 4 ? -value : value;
}

TEST(dtype_convert_rounds_once) {
    enum { COUNT = 200000 };
    double *wide = malloc(COUNT * sizeof *wide);
    uint16_t *half = malloc(COUNT * sizeof *half), *brain = malloc(COUNT * sizeof *brain);
    float *single = malloc(COUNT * sizeof *single);
    for (uint64_t i = 0; i < COUNT; i++) wide[i] = awkward_double(i);
    dtype_convert(half, DTYPE_F16, wide, DTYPE_F64, COUNT);
    dtype_convert(brain, DTYPE_BF16, wide, DTYPE_F64, COUNT);
    dtype_convert(single, DTYPE_F32, wide, DTYPE_F64, COUNT);
    for (int i = 0; i < COUNT; i++) {
        CHECK((double)f16_to_float(half[i]) == to_f16(wide[i]));
        CHECK((double)bf16_to_float(brain[i]) == to_bf16(wide[i]));
        CHECK(single[i] == (float)wide[i]);
    }
    free(wide), free(half), free(brain), free(single);
}

TEST(dtype_convert_all_pairs_and_lengths) {
    static const enum dtype floating[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    enum { MOST = 1100 };
    double exact[MOST], back[MOST + 1];
    unsigned char from[8 * MOST], to[8 * MOST + 8];
    for (int i = 0; i < MOST; i++) exact[i] = (i % 255 - 127) * 0.25; // exact in every type
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++)
            for (size_t count = 0; count <= MOST; count = count * 3 + 1) {
                dtype_convert(from, floating[a], exact, DTYPE_F64, count);
                memset(to, 0xee, sizeof to);
                dtype_convert(to, floating[b], from, floating[a], count);
                CHECK_EQ_INT(to[count * dtype_bytes(floating[b])], 0xee); // nothing behind the end
                dtype_convert(back, DTYPE_F64, to, floating[b], count);
                CHECK_BYTES(back, exact, count * sizeof(double));
            }
}

TEST(dtype_names) {
    for (int i = 0; i < DTYPE_COUNT; i++) {
        enum dtype found;
        CHECK_EQ_INT(dtype_from_name(dtype_name((enum dtype)i), &found), 0);
        CHECK_EQ_INT(found, i);
        CHECK(dtype_bytes(found) > 0);
    }
    enum dtype none = DTYPE_U8;
    CHECK_EQ_INT(dtype_from_name("float", &none), -1);
    CHECK_EQ_INT(none, DTYPE_U8);
    CHECK_STR(dtype_name(DTYPE_COUNT), "unknown");
}
