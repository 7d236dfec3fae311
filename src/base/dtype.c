// Element types and their conversions, see dtype.h.
#include "base/dtype.h"

static const struct {
    const char *name;
    size_t bytes;
} types[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", 4}, [DTYPE_BF16] = {"bf16", 2}, [DTYPE_F16] = {"f16", 2},
    [DTYPE_F64] = {"f64", 8}, [DTYPE_I64] = {"i64", 8},   [DTYPE_I32] = {"i32", 4},
    [DTYPE_U16] = {"u16", 2}, [DTYPE_U8] = {"u8", 1},
};

size_t dtype_bytes(enum dtype type) {
    return types[type].bytes;
}

const char *dtype_name(enum dtype type) {
    return (unsigned)type < DTYPE_COUNT ? types[type].name : "unknown";
}

int dtype_from_name(const char *name, enum dtype *type) {
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(types[i].name, name) == 0) {
            *type = (enum dtype)i;
            return 0;
        }
    return -1;
}

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

float f16_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) { // zero, or fraction * 2^-24
        float value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

// Round to nearest, ties to even; too large becomes infinity, NaN stays a quiet NaN.
uint16_t f16_from_float(float f) {
    uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // from 65520 on
    if (size < 0x38800000u) {                                   // below 2^-14: a multiple of 2^-24
        // Adding 1/2 puts the unit 2^-24 into the last place of the fraction, so the sum rounds as
        // wanted.
        uint32_t rounded = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | rounded);
    }
    uint32_t rounded = size + 0xfffu + (size >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

// Nearest-to-zero float with the last bit set when something was cut off ("round to odd"): rounding
// that again to a type of at least two bits less gives what one rounding of the double would have
// given.
static float float_round_odd(double d) {
    float f = (float)d;
    if ((double)f == d || d != d) return f;
    uint32_t bits = bits_of(f);
    double size = d < 0 ? -d : d, cut = (double)f < 0 ? -(double)f : (double)f;
    if (cut > size) bits--; // the conversion rounded away from zero (also to infinity)
    return float_of(bits | 1u);
}

// `count` elements of any floating type but f64 to float.
static void to_floats(float *to, const void *from, enum dtype type, size_t count) {
    const uint16_t *half = from;
    switch (type) {
    case DTYPE_BF16:
        for (size_t i = 0; i < count; i++) to[i] = bf16_to_float(half[i]);
        break;
    case DTYPE_F16:
        for (size_t i = 0; i < count; i++) to[i] = f16_to_float(half[i]);
        break;
    default:
        memcpy(to, from, 4 * count);
    }
}

static void from_floats(void *to, enum dtype type, const float *from, size_t count) {
    uint16_t *half = to;
    double *wide = to;
    switch (type) {
    case DTYPE_BF16:
        for (size_t i = 0; i < count; i++) half[i] = bf16_from_float(from[i]);
        break;
    case DTYPE_F16:
        for (size_t i = 0; i < count; i++) half[i] = f16_from_float(from[i]);
        break;
    case DTYPE_F64:
        for (size_t i = 0; i < count; i++) wide[i] = (double)from[i];
        break;
    default:
        memcpy(to, from, 4 * count);
    }
}

void dtype_convert(void *to, enum dtype to_type, const void *from, enum dtype from_type,
                   size_t count) {
    if (to_type == from_type) {
        if (count) memcpy(to, from, count * dtype_bytes(to_type));
        return;
    }
    if (from_type == DTYPE_F32) {
        from_floats(to, to_type, from, count);
        return;
    }
    if (to_type == DTYPE_F32 && from_type != DTYPE_F64) {
        to_floats(to, from, from_type, count);
        return;
    }
    enum { PIECE = 512 };
    float piece[PIECE];
    const unsigned char *source = from;
    unsigned char *target = to;
    for (size_t at = 0; at < count; at += PIECE) {
        size_t part = count - at < PIECE ? count - at : PIECE;
        const void *here = source + at * dtype_bytes(from_type);
        if (from_type == DTYPE_F64) {
            const double *wide = here;
            for (size_t i = 0; i < part; i++)
                piece[i] = to_type == DTYPE_F32 ? (float)wide[i] : float_round_odd(wide[i]);
        } else {
            to_floats(piece, here, from_type, part);
        }
        from_floats(target + at * dtype_bytes(to_type), to_type, piece, part);
    }
}
