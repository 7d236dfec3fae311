// Attention of the CPU backend: cuts the work into units, hands them to threads, and chooses the
// kernels. The arithmetic is in attention_kernel.h.
#include "device/cpu/attention.h"
#include "device/cpu/cpu.h"
#include <omp.h>
#include <string.h>

static int64_t round_up(int64_t x, int64_t to) {
    return (x + to - 1) / to * to;
}

static unsigned char *align(void *p) { // to a cache line
    return (unsigned char *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

static struct attention_shape shape_of(const struct device_attention *args, bool pairs,
                                       bool backward) {
    struct attention_shape s = {
        .head_dim = args->head_dim, .pairs = pairs, .group = args->heads / args->kv_heads};
    s.depth = pairs ? s.head_dim / 2 : s.head_dim;
    s.width = (int)round_up(s.head_dim, 16);
    s.row = pairs ? s.depth : s.width;
    s.keys = round_up(args->keys, ATTENTION_TILE) + ATTENTION_TILE;
    int64_t queries = args->queries;
    if (!backward && queries > ATTENTION_UNIT_QUERIES) queries = ATTENTION_UNIT_QUERIES;
    s.queries = round_up(queries, ATTENTION_TILE);
    return s;
}

static uint64_t scratch_bytes(const struct attention_shape *s, bool backward) {
    int64_t per = s->pairs ? 2 : 1, tile = ATTENTION_TILE, arrays = 16;
    int64_t elements;
    if (!backward) {
        elements = s->keys * s->depth + s->keys / per * s->width + tile * (s->row + s->width) +
                   tile * tile;
    } else {
        int64_t per_head =
            2 * s->queries * s->row + s->queries * (s->width + 2) + 16; // 16: its pointers
        if (s->pairs) per_head += 2 * (s->queries / per * s->width);
        elements = tile * (2 * s->depth + 3 * s->width) + 4 * tile * tile + s->group * per_head;
        arrays += 7 * s->group;
    }
    return (uint64_t)round_up(elements * 4 + arrays * 64, 4096);
}

static uint64_t plan_bytes(const struct device_attention *args) {
    int64_t units = args->queries + args->queries / ATTENTION_UNIT_QUERIES + 1;
    return (uint64_t)round_up(
        args->queries * 8 + units * (int64_t)sizeof(struct attention_unit) + 128, 4096);
}

// The interval of each query with the window applied.
static void clip_intervals(const struct device_attention *args, int32_t *from, int32_t *to) {
    for (int64_t i = 0; i < args->queries; i++) {
        from[i] = args->attend_from[i];
        to[i] = args->attend_to[i];
        if (args->window > 0 && to[i] - from[i] > args->window) from[i] = to[i] - args->window;
        if (to[i] < from[i]) to[i] = from[i];
    }
}

static int64_t add_units(struct attention_unit *units, int64_t count, int64_t begin, int64_t end,
                         int64_t limit, const int32_t *from, const int32_t *to) {
    int32_t origin = from[begin];
    for (int64_t i = begin; i < end; i += limit) {
        int64_t next = i + limit < end ? i + limit : end;
        int32_t key_end = 0;
        for (int64_t j = i; j < next; j++) key_end = to[j] > key_end ? to[j] : key_end;
        units[count++] = (struct attention_unit){
            .query_begin = (int32_t)i,
            .query_end = (int32_t)next,
            .key_origin = origin,
            .key_begin = origin + (from[i] - origin) / ATTENTION_TILE * ATTENTION_TILE,
            .key_end = key_end,
        };
    }
    return count;
}

// Units of all queries that see a key; `limit` queries each at most. A query that sees none stays
// inside a segment when those around it overlap; its interval becomes an empty one that keeps
// `from` ascending.
static int64_t find_units(const struct device_attention *args, int32_t *from, int32_t *to,
                          int64_t limit, struct attention_unit *units) {
    int64_t count = 0, begin = 0;
    while (begin < args->queries) {
        if (from[begin] >= to[begin]) {
            begin++;
            continue;
        }
        int64_t last = begin;
        for (int64_t i = begin + 1; i < args->queries; i++) {
            if (from[i] >= to[i]) continue;
            if (from[i] >= to[last]) break;
            for (int64_t empty = last + 1; empty < i; empty++) from[empty] = to[empty] = from[last];
            last = i;
        }
        count = add_units(units, count, begin, last + 1, limit, from, to);
        begin = last + 1;
    }
    return count;
}

static void zero_rows(void *base, enum dtype type, int64_t stride, int64_t begin, int64_t end,
                      int64_t columns) {
    size_t size = dtype_bytes(type);
    for (int64_t i = begin; i < end; i++)
        memset((char *)base + (size_t)(i * stride) * size, 0, (size_t)columns * size);
}

static void empty_queries(const struct attention_job *job) {
    const struct device_attention *a = job->args;
    for (int64_t i = 0; i < a->queries; i++) {
        if (job->from[i] < job->to[i]) continue;
        int64_t columns = (int64_t)a->heads * a->head_dim;
        if (job->backward) {
            zero_rows(job->backward->dq, job->out_type, job->dq_stride, i, i + 1, columns);
            continue;
        }
        zero_rows(a->out, job->out_type, a->out_stride, i, i + 1, columns);
        for (int h = 0; a->lse && h < a->heads; h++) a->lse[h * a->queries + i] = -__builtin_inff();
    }
}

// Keys that no unit covers have no gradient.
static void empty_keys(const struct attention_job *job, const struct attention_unit *units,
                       int64_t count) {
    const struct device_attention *a = job->args;
    int64_t columns = (int64_t)a->kv_heads * a->head_dim, next = 0;
    for (int64_t u = 0; u <= count; u++) {
        int64_t begin = u < count ? units[u].key_origin : a->keys;
        zero_rows(job->backward->dk, job->out_type, a->kv_stride, next, begin, columns);
        zero_rows(job->backward->dv, job->out_type, a->kv_stride, next, begin, columns);
        if (u < count) next = units[u].key_end;
    }
}

// `few` (or NULL) takes the units of few queries.
static void run(int threads, struct attention_job *job, attention_unit_function *kernel,
                attention_unit_function *few, unsigned char *workspace) {
    const struct device_attention *a = job->args;
    int64_t limit = job->backward ? a->queries : ATTENTION_UNIT_QUERIES;
    workspace = align(workspace);
    int32_t *from = (int32_t *)workspace, *to = from + a->queries;
    struct attention_unit *units = (void *)(to + a->queries);
    clip_intervals(a, from, to);
    job->from = from;
    job->to = to;
    empty_queries(job);
    int64_t count = find_units(a, from, to, limit > 0 ? limit : 1, units);
    if (job->backward) empty_keys(job, units, count);
    unsigned char *scratch = workspace + plan_bytes(a);
    uint64_t each = scratch_bytes(&job->shape, job->backward != NULL);
    // Late units of a sequence are the long ones: begin with them.
    int64_t work = count * a->kv_heads;
#pragma omp parallel num_threads(threads)
    {
        unsigned char *own = scratch + each * (uint64_t)omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < work; i++) {
            int64_t item = work - 1 - i;
            const struct attention_unit *unit = &units[item / a->kv_heads];
            int64_t queries = unit->query_end - unit->query_begin;
            bool is_few = few && queries <= ATTENTION_FEW_QUERIES &&
                          queries * job->shape.group <= ATTENTION_FEW_ROWS;
            (is_few ? few : kernel)(job, unit, (int)(item % a->kv_heads), own);
        }
    }
}

// Whether bf16 is multiplied in pairs by choice; else everything is FP32. Intel's cores with
// AVX512_BF16 start one product of pairs every second cycle but two FP32 products in every cycle
// (measured: 93 against 183 GFLOP/s a core at 3.1 GHz), so pairs would cost speed there; AMD's do a
// product of pairs in the time of an FP32 one. Chosen by the vendor, never by a measurement: the
// same machine gives the same bits.
static bool prefers_pairs(void) {
#if defined WEFT_X86_64
    return attention_can_pair() && !__builtin_cpu_is("intel");
#else
    return false;
#endif
}

bool attention_can_pair(void) {
#if defined WEFT_X86_64
    return __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

static bool uses_pairs(struct device *device, enum dtype type) {
    const struct cpu_device *cpu = cpu_device_of(device);
    return type == DTYPE_BF16 && cpu->isa == DEVICE_ISA_AVX512 && cpu->attention_pairs;
}

static attention_unit_function *choose(enum device_isa isa, bool pairs, bool backward) {
#if defined WEFT_X86_64
    if (pairs) return backward ? attention_backward_avx512bf16 : attention_forward_avx512bf16;
    if (isa == DEVICE_ISA_AVX512)
        return backward ? attention_backward_avx512 : attention_forward_avx512;
    if (isa == DEVICE_ISA_AVX2) return backward ? attention_backward_avx2 : attention_forward_avx2;
#else
    (void)isa;
    (void)pairs;
#endif
    return backward ? attention_backward_portable : attention_forward_portable;
}

static attention_unit_function *choose_few(enum device_isa isa) {
#if defined WEFT_X86_64
    if (isa == DEVICE_ISA_AVX512) return attention_few_avx512;
    if (isa == DEVICE_ISA_AVX2) return attention_few_avx2;
#else
    (void)isa;
#endif
    return attention_few_portable;
}

static void forward(struct device *device, const struct device_attention *args) {
    double begin = record_begin(device->lane);
    bool pairs = uses_pairs(device, args->type);
    struct attention_job job = {.args = args,
                                .shape = shape_of(args, pairs, false),
                                .out_type = args->out_f32 ? DTYPE_F32 : args->type};
    enum device_isa isa = cpu_device_of(device)->isa;
    run(device->threads, &job, choose(isa, pairs, false), choose_few(isa), args->workspace);
    record_end(device->lane, RECORD_ATTENTION, "attention", -1, begin);
}

static void backward(struct device *device, const struct device_attention_backward *args) {
    double begin = record_begin(device->lane);
    bool pairs = uses_pairs(device, args->forward.type);
    struct attention_job job = {.args = &args->forward,
                                .backward = args,
                                .shape = shape_of(&args->forward, pairs, true),
                                .out_type = args->gradients_f32 ? DTYPE_F32 : args->forward.type,
                                .dq_stride =
                                    args->dq_stride ? args->dq_stride : args->forward.q_stride};
    run(device->threads, &job, choose(cpu_device_of(device)->isa, pairs, true), NULL,
        args->workspace);
    record_end(device->lane, RECORD_ATTENTION, "attention gradient", -1, begin);
}

static uint64_t workspace_bytes(struct device *device, const struct device_attention *args,
                                bool for_backward) {
    struct attention_shape shape = shape_of(args, uses_pairs(device, args->type), for_backward);
    return 64 + plan_bytes(args) + (uint64_t)device->threads * scratch_bytes(&shape, for_backward);
}

void attention_fill(struct device *device) {
    cpu_device_of(device)->attention_pairs = prefers_pairs();
    device->attention_forward = forward;
    device->attention_backward = backward;
    device->attention_workspace_bytes = workspace_bytes;
}
