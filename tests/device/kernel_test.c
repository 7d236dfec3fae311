// Bodies of kernel_test.h.
#include "kernel_test.h"

static uint64_t next(struct run *run) {
    run->seed = run->seed * 6364136223846793005u + 1442695040888963407u;
    return run->seed >> 33;
}

double run_draw(struct run *run) {
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)next(run) / 2147483648.0 - 0.5;
    return sum * 1.7;
}

int run_below(struct run *run, int limit) {
    return (int)(next(run) % (uint64_t)limit);
}

void *run_memory(struct run *run, size_t bytes) {
    void *p = NULL;
    CHECK(run->owned_count < 256);
    CHECK(posix_memalign(&p, 64, bytes + 64) == 0);
    memset(p, 0xff, bytes + 64);
    return run->owned[run->owned_count++] = p;
}

struct values run_output(struct run *run, enum dtype type, int64_t count) {
    struct values v = {.count = count, .type = type};
    v.data = run_memory(run, (size_t)count * dtype_bytes(type));
    v.exact = run_memory(run, (size_t)count * sizeof(double));
    return v;
}

struct values run_values(struct run *run, enum dtype type, int64_t count, double scale) {
    struct values v = run_output(run, type, count);
    for (int64_t i = 0; i < count; i++) v.exact[i] = run_draw(run) * scale;
    dtype_convert(v.data, type, v.exact, DTYPE_F64, (size_t)count);
    dtype_convert(v.exact, DTYPE_F64, v.data, type, (size_t)count);
    return v;
}

const float *run_floats(const struct values *v) {
    return v->data;
}

double run_tolerance(const struct run *run, double f32) {
    return run->type == DTYPE_BF16 ? 1.0 / 256 + f32 : f32;
}

void run_check(struct run *run, const char *what, const struct values *v, double tolerance) {
    double *found = run_memory(run, (size_t)v->count * sizeof(double)), squares = 0;
    dtype_convert(found, DTYPE_F64, v->data, v->type, (size_t)v->count);
    for (int64_t i = 0; i < v->count; i++) squares += v->exact[i] * v->exact[i];
    double rms = v->count ? sqrt(squares / (double)v->count) : 0;
    for (int64_t i = 0; i < v->count; i++) {
        double allowed = tolerance * (fabs(v->exact[i]) + rms);
        if (!(fabs(found[i] - v->exact[i]) <= allowed)) {
            test_fail(__FILE__, __LINE__,
                      "%s, %s, %s: element %lld of %lld is %.9g, expected %.9g (within %.2g)",
                      run->device.name, dtype_name(run->type), what, (long long)i,
                      (long long)v->count, found[i], v->exact[i], allowed);
        }
    }
    size_t bytes = (size_t)v->count * dtype_bytes(v->type);
    run->bytes = realloc(run->bytes, run->size + bytes + 1);
    CHECK(run->bytes != NULL);
    memcpy(run->bytes + run->size, v->data, bytes);
    run->size += bytes;
}

bool run_open(struct run *run, enum device_isa isa, enum dtype type, int threads) {
    struct err err = {0};
    *run = (struct run){.type = type, .seed = 20250101};
    struct device_cpu_options options = {.threads = threads, .limit = isa};
    if (device_cpu_open(&run->device, &options, &err)) {
        CHECK_CONTAINS(err.text, "this processor has no");
        return false;
    }
    return true;
}

void run_close(struct run *run) {
    run->device.close(&run->device);
    for (int i = 0; i < run->owned_count; i++) free(run->owned[i]);
    free(run->bytes);
}

void for_every_device(void (*body)(struct run *run)) {
    static const enum device_isa isas[] = {DEVICE_ISA_AVX512, DEVICE_ISA_AVX2, DEVICE_ISA_PORTABLE};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < 2; t++) {
            struct run one, more;
            if (!run_open(&one, isas[i], types[t], 1)) continue;
            body(&one);
            for (int threads = 2; threads <= (isas[i] == DEVICE_ISA_AVX512 ? 3 : 2); threads++) {
                CHECK(run_open(&more, isas[i], types[t], threads));
                body(&more);
                CHECK_EQ_INT(more.size, one.size);
                if (one.size && memcmp(more.bytes, one.bytes, one.size) != 0) {
                    test_fail(__FILE__, __LINE__, "%s, %s: bits differ from those of one thread",
                              more.device.name, dtype_name(types[t]));
                }
                run_close(&more);
            }
            run_close(&one);
        }
    }
}
