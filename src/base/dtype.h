// Element types that occur in buffers and files, and the conversions between them.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_U16,
    DTYPE_U8,
    DTYPE_COUNT
};

typedef uint16_t bf16; // the upper half of a float

size_t dtype_bytes(enum dtype type);
const char *dtype_name(enum dtype type);                 // "f32", "bf16", ...
int dtype_from_name(const char *name, enum dtype *type); // 0 or -1

static inline float bf16_to_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

// Round to nearest, ties to even; NaN stays NaN.
static inline bf16 bf16_from_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bf16)((bits >> 16) | 0x40u);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_float(uint16_t h);
uint16_t f16_from_float(float f);

// `count` elements from one floating type to another (f32, bf16, f16, f64); the buffers do not
// overlap.
void dtype_convert(void *to, enum dtype to_type, const void *from, enum dtype from_type,
                   size_t count);
