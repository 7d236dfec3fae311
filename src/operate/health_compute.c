// Products and memory.
#include "base/clock.h"
#include "base/dtype.h"
#include "base/random.h"
#include "base/text.h"
#include "device/device.h"
#include "operate/health_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// ---- products

enum { TOKENS = 512, OUTPUTS = 1024, INPUTS = 768, SAMPLES = 256 };

struct product {
    enum dtype type;
    unsigned char *x, *w, *packed, *first, *again;
};

static double element(const struct product *p, const unsigned char *values, int64_t at) {
    float f;
    uint16_t half;
    if (p->type == DTYPE_BF16) {
        memcpy(&half, values + 2 * at, 2);
        return (double)bf16_to_float(half);
    }
    memcpy(&f, values + 4 * at, 4);
    return (double)f;
}

static void fill(enum dtype type, unsigned char *values, int64_t count, uint64_t key) {
    float piece[1024];
    for (int64_t at = 0; at < count; at += 1024) {
        int64_t here = count - at < 1024 ? count - at : 1024;
        random_normals(key, (uint64_t)at, (uint64_t)here, piece);
        dtype_convert(values + (size_t)at * dtype_bytes(type), type, piece, DTYPE_F32,
                      (size_t)here);
    }
}

// The sample: sums in double, beside what rounding of the inputs' type and of a sum of this length
// may do. Returns how many are too far off.
static int64_t far_off(const struct product *p, double *worst) {
    double allowed = p->type == DTYPE_BF16 ? 1.0 / 128 : 1e-4;
    int64_t count = 0;
    *worst = 0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        int64_t token = (int64_t)random_permute(7, i, TOKENS);
        int64_t output = (int64_t)random_permute(8, i, OUTPUTS);
        double sum = 0, size = 0;
        for (int64_t k = 0; k < INPUTS; k++) {
            double term =
                element(p, p->x, token * INPUTS + k) * element(p, p->w, output * INPUTS + k);
            sum += term;
            size += term * term;
        }
        double off = fabs(element(p, p->first, token * OUTPUTS + output) - sum);
        off /= fmax(fabs(sum), sqrt(size));
        if (!(off <= allowed)) count++;
        if (!(off <= *worst)) *worst = off;
    }
    return count;
}

static void multiply(struct device *d, const struct product *p, unsigned char *y) {
    struct device_weight weight = {
        .n = OUTPUTS, .k = INPUTS, .type = p->type, .plain = p->w, .packed_forward = p->packed};
    d->linear_forward(d, &weight, TOKENS, p->x, INPUTS, NULL, y, OUTPUTS, p->type);
}

static void run_products(const struct health_options *o, struct device *d, struct product *p,
                         struct health_check *check) {
    size_t bytes = (size_t)TOKENS * OUTPUTS * dtype_bytes(p->type);
    double limit = o->gemm_seconds > 0 ? o->gemm_seconds : 1, best = INFINITY, worst;
    int64_t equal = 0, differ = 0;
    multiply(d, p, p->first); // made and warm
    multiply(d, p, p->first);
    if (health_breaks(o, check->name)) p->first[bytes / 3] ^= 0x40;
    for (double begin = clock_seconds(), now = begin; now - begin < limit || equal + differ < 3;) {
        multiply(d, p, p->again);
        double then = now;
        now = clock_seconds();
        best = fmin(best, now - then);
        if (memcmp(p->first, p->again, bytes) == 0)
            equal++;
        else
            differ++;
        now = clock_seconds(); // the comparison is not timed
    }
    int64_t off = far_off(p, &worst);
    check->rate = 2.0 * TOKENS * OUTPUTS * INPUTS / best;
    check->passed = differ == 0 && off == 0 && d->failure.kind == ERR_NONE;
    if (d->failure.kind != ERR_NONE)
        snprintf(check->found, sizeof check->found, "%.250s", d->failure.text);
    else
        snprintf(check->found, sizeof check->found,
                 "%.0f GFLOP/s on %d threads, %lld of %lld results differ from the first, %lld of "
                 "%d sampled sums are off (by %.1e at most)",
                 check->rate / 1e9, d->threads, (long long)differ, (long long)(equal + differ),
                 (long long)off, SAMPLES, worst);
}

static int check_type(const struct health_options *o, struct device *d, enum dtype type,
                      struct health *out, struct err *err) {
    struct health_check *check =
        health_add(out, err, "gemm %s", type == DTYPE_BF16 ? "bf16" : "fp32");
    if (!check) return -1;
    struct device_weight shape = {.n = OUTPUTS, .k = INPUTS, .type = type};
    size_t size = dtype_bytes(type), y_bytes = (size_t)TOKENS * OUTPUTS * size;
    uint64_t packed_bytes = d->pack_bytes(d, &shape, false);
    struct product p = {.type = type,
                        .x = malloc((size_t)TOKENS * INPUTS * size),
                        .w = malloc((size_t)OUTPUTS * INPUTS * size),
                        .first = malloc(y_bytes),
                        .again = malloc(y_bytes)};
    if (packed_bytes) p.packed = aligned_alloc(64, (packed_bytes + 63) / 64 * 64);
    int result = 0;
    if (p.x && p.w && p.first && p.again && (p.packed || !packed_bytes)) {
        fill(type, p.x, (int64_t)TOKENS * INPUTS, 1);
        fill(type, p.w, (int64_t)OUTPUTS * INPUTS, 2);
        shape.plain = p.w;
        shape.packed_forward = p.packed;
        if (p.packed) d->pack(d, &shape, false);
        run_products(o, d, &p, check);
    } else {
        result = err_set(err, ERR_MEMORY, "health: no memory for a product");
    }
    free(p.x);
    free(p.w);
    free(p.first);
    free(p.again);
    free(p.packed);
    return result;
}

int health_gemm(const struct health_options *o, struct health *out, struct err *err) {
    struct device device;
    struct device_cpu_options options = {.threads = o->threads};
    if (device_cpu_open(&device, &options, err) != 0) return -1;
    int result = check_type(o, &device, DTYPE_F32, out, err);
    if (result == 0) result = check_type(o, &device, DTYPE_BF16, out, err);
    device.close(&device);
    return result;
}

// ---- memory

static uint64_t pattern(int number, uint64_t at) {
    static const uint64_t constant[] = {0, ~0ull, 0x5555555555555555, 0xaaaaaaaaaaaaaaaa};
    if (number < 4) return constant[number];
    return (at + 1) * 0x9e3779b97f4a7c15; // another one at every place
}

int health_memory(const struct health_options *o, struct health *out, struct err *err) {
    enum { PATTERNS = 5 };
    struct health_check *check = health_add(out, err, "memory");
    uint64_t bytes = o->memory_bytes ? o->memory_bytes : 256000000, wrong = 0, first = 0;
    if (!check) return -1;
    void *region = MAP_FAILED;
    for (; bytes >= 1 << 20; bytes /= 2) {
        region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (region != MAP_FAILED) break;
    }
    if (region == MAP_FAILED) return err_set_errno(err, "health: no memory for its own check");
    volatile uint64_t *words = region; // every write and read is made
    uint64_t count = bytes / 8;
    double begin = clock_seconds();
    for (int number = 0; number < PATTERNS; number++) {
        for (uint64_t i = 0; i < count; i++) words[i] = pattern(number, i);
        if (number == 2 && health_breaks(o, "memory")) words[count / 2] ^= 4;
        for (uint64_t i = 0; i < count; i++)
            if (words[i] != pattern(number, i) && wrong++ == 0) first = i * 8;
    }
    double seconds = clock_seconds() - begin;
    munmap(region, bytes);
    check->rate = 2.0 * PATTERNS * (double)count * 8 / seconds;
    check->passed = wrong == 0;
    char size[32];
    snprintf(check->found, sizeof check->found, "%s, %d patterns, %.1f GB/s, %llu words are wrong",
             text_bytes(count * 8, size), PATTERNS, check->rate / 1e9, (unsigned long long)wrong);
    if (wrong > 0) {
        size_t used = strlen(check->found);
        snprintf(check->found + used, sizeof check->found - used, ", the first at byte %llu",
                 (unsigned long long)first);
    }
    return 0;
}
