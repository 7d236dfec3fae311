// Merging attention over two blocks of keys, see device.h. The larger of the two sums has weight 1
// before the division, so nothing overflows.
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

static void merge_head(const struct device_attention_merge *a, int64_t query, int head) {
    int64_t at = head * a->queries + query;
    float own = a->lse[at], other = a->part_lse[at];
    if (other == -INFINITY) return;
    float max = own > other ? own : other;
    float own_weight = own == -INFINITY ? 0 : expf(own - max), weight = expf(other - max);
    float sum = own_weight + weight;
    own_weight /= sum;
    weight /= sum;
    int64_t row = (query * a->heads + head) * a->head_dim;
    for (int64_t i = 0; i < a->head_dim; i += SIMD_WIDTH) {
        int64_t left = a->head_dim - i;
        simd_f x = simd_load_upto(a->out, row + i, left, DTYPE_F32) * own_weight;
        simd_f y = simd_load_upto(a->part, row + i, left, DTYPE_F32) * weight;
        simd_store_upto(a->out, row + i, left, DTYPE_F32, x + y);
    }
    a->lse[at] = max + logf(sum);
}

static void attention_merge(struct device *device, const struct device_attention_merge *args) {
    double begin = record_begin(device->lane);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t query = 0; query < args->queries; query++)
        for (int head = 0; head < args->heads; head++) merge_head(args, query, head);
    record_end(device->lane, RECORD_ATTENTION, "attention merge", -1, begin);
}

void ISA(attention_merge_fill)(struct device *device) {
    device->attention_merge = attention_merge;
}
