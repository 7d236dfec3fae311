// Crews of ranks that measure together, and the timing of one call. See measure.h.
#include "plan/measure.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "plan/measure_parts.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

// What disturbs a measurement for a moment seldom does so again at the same place of the next
// round.
enum { ALIGN = 4096, ROUNDS = 3, QUICK_ROUNDS = 1 };
static const double POOL_BYTES = 192e6, POOL_SHARE = 0.2; // of a rank; of the memory, all ranks
static const double SAMPLE_SECONDS = 0.004, QUICK_SECONDS = 0.002, RATE_SECONDS = 0.3;

int measure_crews(int cores, bool quick, struct measure_crew crews[MEASURE_MOST_CREWS]) {
    int count = 0;
    crews[count++] = (struct measure_crew){1, cores};
    if (cores == 1) return count;
    for (int threads = cores / 2; !quick && threads > 1 && count < MEASURE_MOST_CREWS - 2;
         threads /= 4)
        crews[count++] = (struct measure_crew){cores / threads, threads};
    crews[count++] = (struct measure_crew){cores, 1};
    if (!quick) crews[count++] = (struct measure_crew){1, 1};
    return count;
}

void measure_fill(struct measure_pool *pool) {
    uint16_t *at = (uint16_t *)(void *)pool->memory;
    for (uint64_t i = 0; i < pool->bytes / sizeof *at; i++) at[i] = 0x3c00;
}

void *measure_take(struct measure_pool *pool, uint64_t bytes) {
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (bytes > pool->bytes) return NULL;
    if (pool->at + bytes > pool->bytes) pool->at = 0;
    void *taken = pool->memory + pool->at;
    pool->at += bytes;
    return taken;
}

// ---- time ---------------------------------------------------------------------------------------

static double timed(struct measure_rank *r, measure_call *call, void *context) {
    double begin = clock_seconds();
    call(r, context);
    return clock_seconds() - begin;
}

double measure_seconds(struct measure_rank *r, measure_call *call, void *context) {
    struct measure_team *team = r->team;
    if (r->round == 0) call(r, context); // makes what the library makes once
    pthread_barrier_wait(&team->barrier);
    r->samples[0] = timed(r, call, context);
    if (measure_leads(r)) {
        double samples = team->sample_seconds / (r->samples[0] + 1e-9);
        team->samples =
            samples < MEASURE_MOST_SAMPLES - 1 ? (int)samples + 1 : MEASURE_MOST_SAMPLES - 1;
    }
    pthread_barrier_wait(&team->barrier);
    for (int i = 1; i <= team->samples; i++) r->samples[i] = timed(r, call, context);
    r->seconds = numbers_median(r->samples, (size_t)team->samples + 1);
    pthread_barrier_wait(&team->barrier);
    double sum = 0;
    for (int i = 0; i < team->crew->ranks; i++) sum += team->rank[i].seconds;
    pthread_barrier_wait(&team->barrier);
    return sum / team->crew->ranks;
}

// ---- results ------------------------------------------------------------------------------------

// One more element at the end, zero; NULL where memory is short: `err` of the rank says so.
static void *grow(struct measure_rank *r, void **list, int *count, size_t size) {
    if ((*count & (*count - 1)) == 0) { // a power of two, or none yet: full
        size_t room = *count ? 2 * (size_t)*count : 1;
        void *larger = realloc(*list, room * size);
        if (!larger) {
            err_set(&r->err, ERR_MEMORY, "no memory for what was measured");
            return NULL;
        }
        *list = larger;
    }
    void *place = (char *)*list + (size_t)(*count)++ * size;
    memset(place, 0, size);
    return place;
}

void measure_add_product(struct measure_rank *r, const struct hardware_product *found) {
    struct accelerator *a = r->team->out;
    struct hardware_product *p =
        grow(r, (void **)&a->products, &a->product_count, sizeof *a->products);
    if (!p) return;
    *p = *found;
    p->ranks = r->team->crew->ranks;
    p->threads = r->team->crew->threads;
}

void measure_add_attention(struct measure_rank *r, const struct hardware_attention *found) {
    struct accelerator *a = r->team->out;
    struct hardware_attention *p =
        grow(r, (void **)&a->attention, &a->attention_count, sizeof *a->attention);
    if (!p) return;
    *p = *found;
    p->ranks = r->team->crew->ranks;
    p->threads = r->team->crew->threads;
}

void measure_add_kernel(struct measure_rank *r, const struct hardware_kernel_point *found) {
    struct accelerator *a = r->team->out;
    struct hardware_kernel_point *p =
        grow(r, (void **)&a->kernel_points, &a->kernel_point_count, sizeof *a->kernel_points);
    if (!p) return;
    *p = *found;
    p->ranks = r->team->crew->ranks;
    p->threads = r->team->crew->threads;
}

// Every round has left the same list; one of medians stays. `first`: elements of earlier crews.
struct list {
    char *at;
    int *count, first;
    size_t size, member; // of an element; of what is measured in it
};

static void join_rounds(const struct list *l, int rounds) {
    int each = (*l->count - l->first) / rounds;
    for (int i = 0; i < each; i++) {
        double values[ROUNDS] = {0};
        for (int k = 0; k < rounds; k++)
            memcpy(&values[k], l->at + (size_t)(l->first + k * each + i) * l->size + l->member,
                   sizeof values[k]);
        double middle = numbers_median(values, (size_t)rounds);
        memcpy(l->at + (size_t)(l->first + i) * l->size + l->member, &middle, sizeof middle);
    }
}

static void join_all(struct accelerator *a, const int first[3], int rounds) {
    const struct list lists[] = {
        {(char *)a->products, &a->product_count, first[0], sizeof *a->products,
         offsetof(struct hardware_product, seconds)},
        {(char *)a->attention, &a->attention_count, first[1], sizeof *a->attention,
         offsetof(struct hardware_attention, forward_rate)},
        {(char *)a->attention, &a->attention_count, first[1], sizeof *a->attention,
         offsetof(struct hardware_attention, backward_rate)},
        {(char *)a->kernel_points, &a->kernel_point_count, first[2], sizeof *a->kernel_points,
         offsetof(struct hardware_kernel_point, seconds)}};
    for (int i = 0; i < 4; i++) join_rounds(&lists[i], rounds);
    a->product_count = first[0] + (a->product_count - first[0]) / rounds;
    a->attention_count = first[1] + (a->attention_count - first[1]) / rounds;
    a->kernel_point_count = first[2] + (a->kernel_point_count - first[2]) / rounds;
}

void measure_free(struct accelerator *a) {
    free(a->products);
    free(a->attention);
    free(a->kernel_points);
    a->products = NULL;
    a->attention = NULL;
    a->kernel_points = NULL;
    a->product_count = a->attention_count = a->kernel_point_count = 0;
}

// ---- ranks --------------------------------------------------------------------------------------

static int open_rank(struct measure_rank *r, uint64_t pool_bytes, struct err *err) {
    struct device_cpu_options options = {.threads = r->team->crew->threads};
    size_t numbers = (size_t)MEASURE_NUMBERS * sizeof(int32_t);
    if (arena_open(&r->arena, 2 * pool_bytes + MEASURE_SCRATCH + 4 * numbers + ALIGN, 1, err) !=
            0 ||
        device_cpu_open(&r->device, &options, err) != 0)
        return -1;
    r->in = (struct measure_pool){arena_take(&r->arena, pool_bytes), pool_bytes, 0};
    r->out = (struct measure_pool){arena_take(&r->arena, pool_bytes), pool_bytes, 0};
    r->numbers = arena_take(&r->arena, numbers);
    r->from = arena_take(&r->arena, numbers);
    r->to = arena_take(&r->arena, numbers);
    r->position = arena_take(&r->arena, numbers);
    r->scratch = arena_take(&r->arena, MEASURE_SCRATCH);
    measure_fill(&r->in);
    for (int i = 0; i < MEASURE_NUMBERS; i++) r->numbers[i] = i * 7 % 1000;
    return 0;
}

static void measure_rounds(struct measure_rank *r) {
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F32};
    for (int i = 0; i < 2 * r->team->rounds; i++) {
        r->round = i / 2;
        measure_products(r, types[i % 2]);
        measure_attention(r, types[i % 2]);
        measure_kernels(r, types[i % 2]);
    }
}

// Ranks meet at barriers, so none begins before all are there.
static void *rank_main(void *argument) {
    struct measure_rank *r = argument;
    while (sem_wait(&r->team->start) != 0) continue;
    if (!r->team->failed) measure_rounds(r);
    return NULL;
}

static int run(struct measure_team *team, struct err *err) {
    int ranks = team->crew->ranks, started = 1;
    sem_init(&team->start, 0, 0);
    pthread_barrier_init(&team->barrier, NULL, (unsigned)ranks);
    for (; started < ranks; started++)
        if (pthread_create(&team->rank[started].thread, NULL, rank_main, &team->rank[started]) != 0)
            break;
    team->failed = started < ranks;
    for (int i = 1; i < started; i++) sem_post(&team->start);
    if (!team->failed) measure_rounds(&team->rank[0]);
    for (int i = 1; i < started; i++) pthread_join(team->rank[i].thread, NULL);
    pthread_barrier_destroy(&team->barrier);
    sem_destroy(&team->start);
    if (team->failed)
        return err_set(err, ERR_MEMORY, "no thread for rank %d of %d", started, ranks);
    if (team->rank[0].err.kind)
        return err_set(err, team->rank[0].err.kind, "%s", team->rank[0].err.text);
    for (int i = 0; i < ranks; i++)
        if (device_check(&team->rank[i].device, err) != 0) return -1;
    return 0;
}

static uint64_t memory_bytes(void) {
    struct sysinfo info;
    return sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : 0;
}

static struct figure measured(double value) {
    return (struct figure){value, FIGURE_MEASURED, "weft bench hardware"};
}

// Bytes per second of a = b + s c, as a stream through memory: what is read and written.
struct triad {
    float *a;
    const float *b, *c;
    int64_t count;
};

static void call_triad(struct measure_rank *r, void *context) {
    const struct triad *t = context;
    float *a = t->a;
    const float *b = t->b, *c = t->c;
#pragma omp parallel for simd schedule(static) num_threads(r->device.threads)
    for (int64_t i = 0; i < t->count; i++) a[i] = b[i] + 3.0f * c[i];
}

static void measure_whole(struct measure_rank *r) {
    struct accelerator *a = r->team->out;
    int64_t third = (int64_t)(r->in.bytes / 2 / sizeof(float));
    struct triad t = {(float *)(void *)r->out.memory, (const float *)(const void *)r->in.memory,
                      (const float *)(const void *)r->in.memory + third, third};
    a->memory_bandwidth = measured(12.0 * (double)third / measure_seconds(r, call_triad, &t));
    double seconds = r->team->options->quick ? RATE_SECONDS / 3 : RATE_SECONDS;
    a->dense[HARDWARE_BF16] = measured(device_gemm_rate(&r->device, DTYPE_BF16, seconds));
    a->dense[HARDWARE_FP32] = measured(device_gemm_rate(&r->device, DTYPE_F32, seconds));
    a->memory_bytes = measured((double)memory_bytes());
    a->memory_share = a->sustained[HARDWARE_BF16] = a->sustained[HARDWARE_FP32] = measured(1);
    a->cpu = true;
}

int measure_compute(const struct measure_crew *crew, const struct measure_options *options,
                    struct accelerator *out, struct err *err) {
    struct measure_team team = {.crew = crew, .options = options, .out = out};
    double pool = POOL_SHARE * (double)memory_bytes() / crew->ranks / 2;
    if (pool > POOL_BYTES) pool = POOL_BYTES;
    uint64_t pool_bytes = (uint64_t)pool / ALIGN * ALIGN;
    int opened = 0, status = 0;
    const int first[3] = {out->product_count, out->attention_count, out->kernel_point_count};
    team.rounds = options->quick ? QUICK_ROUNDS : ROUNDS;
    team.sample_seconds = options->quick ? QUICK_SECONDS : SAMPLE_SECONDS;
    team.rank = calloc((size_t)crew->ranks, sizeof *team.rank);
    if (!team.rank) return err_set(err, ERR_MEMORY, "no memory for %d ranks", crew->ranks);
    for (; opened < crew->ranks && status == 0; opened++) {
        team.rank[opened].team = &team;
        team.rank[opened].index = opened;
        status = open_rank(&team.rank[opened], pool_bytes, err);
    }
    if (status == 0) status = run(&team, err);
    if (status == 0) join_all(out, first, team.rounds);
    if (status == 0 && out->dense[HARDWARE_BF16].value <= 0) {
        struct measure_crew one = {1, crew->threads};
        team.crew = &one;
        pthread_barrier_init(&team.barrier, NULL, 1);
        measure_whole(&team.rank[0]);
        pthread_barrier_destroy(&team.barrier);
    }
    for (int i = 0; i < opened; i++) {
        if (team.rank[i].device.close) team.rank[i].device.close(&team.rank[i].device);
        arena_close(&team.rank[i].arena);
    }
    free(team.rank);
    return status;
}
