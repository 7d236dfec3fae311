// Sums in group order: every element is ((p0 + p1) + p2) + ... in FP32, rounded once at the end
// where the result is BF16. Blocks only keep the running sums in the cache; they change no bit.
#include "comm/comm.h"

enum { BLOCK = 2048 };

struct plain {
    enum dtype wire, out;
};

void comm_add_part(enum dtype wire, const void *part, int64_t at, int count, float *sum,
                   bool store) {
    if (wire == DTYPE_F32) {
        const float *p = (const float *)part + at;
        if (store)
            for (int i = 0; i < count; i++) sum[i] = p[i];
        else
            for (int i = 0; i < count; i++) sum[i] += p[i];
    } else {
        const bf16 *p = (const bf16 *)part + at;
        if (store)
            for (int i = 0; i < count; i++) sum[i] = bf16_to_float(p[i]);
        else
            for (int i = 0; i < count; i++) sum[i] += bf16_to_float(p[i]);
    }
}

static void sum_plain(void *context, const void *const *parts, int count, int64_t elements,
                      void *out) {
    const struct plain *plain = context;
    float sum[BLOCK] = {0};
    for (int64_t at = 0; at < elements; at += BLOCK) {
        int n = elements - at < BLOCK ? (int)(elements - at) : BLOCK;
        comm_add_part(plain->wire, parts[0], at, n, sum, true);
        for (int p = 1; p < count; p++) comm_add_part(plain->wire, parts[p], at, n, sum, false);
        if (plain->out == DTYPE_F32) {
            float *to = (float *)out + at;
            for (int i = 0; i < n; i++) to[i] = sum[i];
        } else {
            bf16 *to = (bf16 *)out + at;
            for (int i = 0; i < n; i++) to[i] = bf16_from_float(sum[i]);
        }
    }
}

struct comm_reduction comm_reduction_plain(enum dtype wire, enum dtype out) {
    static struct plain kinds[2][2] = {{{DTYPE_F32, DTYPE_F32}, {DTYPE_F32, DTYPE_BF16}},
                                       {{DTYPE_BF16, DTYPE_F32}, {DTYPE_BF16, DTYPE_BF16}}};
    return (struct comm_reduction){
        .sum = sum_plain,
        .context = &kinds[wire == DTYPE_BF16][out == DTYPE_BF16],
        .wire_bytes = (uint32_t)dtype_bytes(wire),
        .out_bytes = (uint32_t)dtype_bytes(out),
    };
}
