// Checksums of the engine's state: no bit of a run changes, clean runs have no findings, and every
// flipped bit of sign, exponent and the upper 7 bits of the mantissa is found, on every layout.
#include "base/random.h"
#include "world.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct engine_guards all_guards = {
    .optimizer = true, .gradients = true, .weights_every = 1, .products_every = 1};

static const struct world_layout layouts[] = {
    {.model = "gpt2", .pp = 1, .dp = 1, .cp = 1, .tp = 1, .rows = 2, .bf16 = true},
    {.model = "llama", .pp = 1, .dp = 1, .cp = 1, .tp = 1, .rows = 8},
    {.model = "llama", .pp = 1, .dp = 2, .cp = 1, .tp = 1, .rows = 1, .bf16 = true, .threads = 2},
    {.model = "gpt2", .pp = 1, .dp = 2, .cp = 1, .tp = 1, .zero = 1, .rows = 2, .bf16 = true},
    {.model = "untied",
     .pp = 1,
     .dp = 2,
     .cp = 1,
     .tp = 1,
     .zero = 1,
     .rows = 2,
     .bf16_gather = true},
    {.model = "llama", .pp = 1, .dp = 2, .cp = 1, .tp = 1, .zero = 2, .rows = 1, .bf16 = true},
    {.model = "gpt2", .pp = 1, .dp = 2, .cp = 1, .tp = 1, .zero = 3, .rows = 2, .bf16 = true},
    {.model = "llama", .pp = 1, .dp = 4, .cp = 1, .tp = 1, .zero = 3, .shard = 2, .rows = 1},
    {.model = "llama", .pp = 2, .dp = 1, .cp = 1, .tp = 1, .rows = 1, .bf16 = true},
    {.model = "untied", .pp = 2, .dp = 1, .cp = 1, .tp = 1, .rows = 1, .schedule = PIPELINE_ZB_H1},
    {.model = "llama", .pp = 1, .dp = 1, .cp = 1, .tp = 2, .rows = 2, .bf16 = true},
    {.model = "untied", .pp = 1, .dp = 1, .cp = 2, .tp = 1, .rows = 2, .bf16 = true},
    {.model = "moe",
     .pp = 1,
     .dp = 2,
     .cp = 1,
     .tp = 1,
     .ep = 2,
     .zero = 2,
     .rows = 2,
     .bf16 = true},
    {.model = "shared", .pp = 1, .dp = 2, .cp = 1, .tp = 1, .zero = 1, .rows = 2},
    {.model = "llama",
     .pp = 1,
     .dp = 1,
     .cp = 1,
     .tp = 1,
     .rows = 2,
     .bf16 = true,
     .bf16_gradients = true},
    {.model = "gpt2",
     .pp = 1,
     .dp = 2,
     .cp = 1,
     .tp = 1,
     .zero = 0,
     .rows = 2,
     .bf16 = true,
     .per_micro_batch = true},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void say(const struct engine_finding *f, char out[300]) {
    snprintf(out, 300, "%s of %s, block %lld, %016llx for %016llx", engine_found_name(f->kind),
             f->parameter, (long long)f->block, (unsigned long long)f->found,
             (unsigned long long)f->expected);
}

static void finds_nothing(struct engine *e, int rank, int step, const struct engine_step *done) {
    struct engine_finding f[4];
    char text[300];
    (void)done;
    if (engine_findings(e, f, 4) == 0) return;
    say(&f[0], text);
    test_fail(__FILE__, __LINE__, "rank %d, step %d: %s", rank, step, text);
}

static void compare_with_and_without(const struct world_layout *layout) {
    struct world_layout l = *layout;
    struct world_result without, with;
    char name[160];
    l.steps = 4;
    l.dropout = 0.1;
    world_run(&l, &without);
    l.guards = all_guards;
    l.after_step = finds_nothing;
    world_run(&l, &with);
    if (!world_same(&without, &with, l.steps))
        test_fail(__FILE__, __LINE__, "%s: guards change bits", world_name(&l, name));
    CHECK(with.planned_is_allocated);
    world_free(&without);
    world_free(&with);
}

TEST(guards_change_no_bit_and_find_nothing_in_clean_runs) {
    for (int i = 0; i < LAYOUTS; i++) compare_with_and_without(&layouts[i]);
}

// ---- flips --------------------------------------------------------------------------------------

enum { TRIALS = 100 };

static struct {
    enum engine_target target;
    bool gradient;
    int found;
    uint64_t seed;
} trial;

// Sign, exponent and the upper 7 bits of the mantissa.
static int draw_bit(int n) {
    return 16 + (int)(random_uniform(random_key(trial.seed, "bit"), (uint64_t)n) * 16);
}

static uint64_t draw_element(int n) {
    uint32_t words[4];
    random_words(random_key(trial.seed, "element"), (uint64_t)n, words);
    return (uint64_t)words[0] << 32 | words[1];
}

// What a flip left behind must not reach the next one.
static void reset(struct engine *e) {
    struct tensor_slice *slices;
    struct err err = {0};
    int count;
    CHECK_OK(engine_slices(e, ENGINE_MOMENTS, &slices, &count, &err), err);
    for (int i = 0; i < count; i++)
        for (int64_t r = 0; r < slices[i].rows; r++)
            memset((float *)slices[i].data + r * slices[i].stride, 0,
                   (size_t)slices[i].columns * sizeof(float));
    free(slices);
    engine_initialise(e, 1);
}

static int ranks_of_run;

// Even steps are clean, in odd ones a bit is flipped on one rank.
static void flip(struct engine *e, int rank, int step, struct engine_step *asked) {
    int n = step / 2;
    if (step % 2 == 0) reset(e);
    if (step % 2 == 0 || n % ranks_of_run != rank) {
        if (step % 2 == 1 && !trial.gradient) { // settles alike on all ranks
            char name[128];
            int bytes;
            engine_element(e, trial.target, 0, &bytes, name);
        }
        return;
    }
    int bit = draw_bit(n);
    if (trial.gradient) {
        struct engine_fault fault = {
            .kind = ENGINE_FAULT_GRADIENT, .element = draw_element(n), .bit = bit};
        engine_inject(e, &fault);
        return;
    }
    char name[128];
    int bytes;
    unsigned char *data = engine_element(e, trial.target, draw_element(n), &bytes, name);
    CHECK(data != NULL);
    if (bytes == 2) bit -= 16;
    data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    (void)asked;
}

// Of a step's product, in a row that is looked at. What lies below the bound of rounding is not
// seen: low bits of small elements.
static void flip_product(struct engine *e, int rank, int step, struct engine_step *asked) {
    (void)asked;
    if (step % 2 == 0) reset(e);
    if (step % 2 == 0 || rank != 0) return;
    struct engine_fault fault = {
        .kind = ENGINE_FAULT_PRODUCT, .element = draw_element(step / 2), .bit = draw_bit(step / 2)};
    engine_inject(e, &fault);
}

static void look_at_product(struct engine *e, int rank, int step, const struct engine_step *done) {
    struct engine_finding f;
    if (step % 2 == 0 || rank != 0) {
        finds_nothing(e, rank, step, done);
        return;
    }
    if (engine_findings(e, &f, 1) == 0) return;
    CHECK_EQ_INT(f.kind, FOUND_PRODUCT);
    trial.found++;
}

TEST(flipped_bits_of_products_are_found) {
    static const int which[] = {0, 1, 6, 10};
    trial.found = 0;
    for (int i = 0; i < 4; i++) {
        struct world_layout l = layouts[which[i]];
        struct world_result result;
        trial.seed = (uint64_t)i + 1;
        l.steps = 2 * TRIALS / 4;
        l.guards = all_guards;
        l.before_step = flip_product;
        l.after_step = look_at_product;
        l.ranks_differ = true;
        world_run(&l, &result);
        world_free(&result);
    }
    fprintf(stderr, "%d of %d flips of products found\n", trial.found, TRIALS);
    CHECK(trial.found >= 85);
}

static bool fits(const struct engine_finding *f) {
    if (trial.gradient) return f->kind == FOUND_GRADIENT;
    if (trial.target == TARGET_WEIGHT) return f->kind == FOUND_WEIGHT || f->kind == FOUND_MASTER;
    if (trial.target == TARGET_MASTER) return f->kind == FOUND_MASTER;
    return f->kind == FOUND_MOMENT;
}

static void look(struct engine *e, int rank, int step, const struct engine_step *done) {
    struct engine_finding f[4];
    char text[300];
    int n = step / 2, count = engine_findings(e, f, 4);
    (void)done;
    if (step % 2 == 0 || n % ranks_of_run != rank) {
        finds_nothing(e, rank, step, done);
        return;
    }
    if (count == 0) test_fail(__FILE__, __LINE__, "trial %d, bit %d: not found", n, draw_bit(n));
    say(&f[0], text);
    // The most serious one comes first. Others may see it too: a block of small parameters is named
    // by each comparison in its own way, and a product with a flipped weight is none of the packed
    // copy's.
    if (!fits(&f[0])) test_fail(__FILE__, __LINE__, "trial %d: %d findings: %s", n, count, text);
    __atomic_add_fetch(&trial.found, 1, __ATOMIC_RELAXED);
}

// A hundred flips, dealt out over layouts.
static void flip_on_layouts(enum engine_target target, bool gradient, const int *which, int count) {
    trial.target = target;
    trial.gradient = gradient;
    trial.found = 0;
    for (int i = 0; i < count; i++) {
        struct world_layout l = layouts[which[i]];
        struct world_result result;
        trial.seed = (uint64_t)i + 1;
        l.steps = 2 * TRIALS / count;
        if (!gradient && l.rows * l.dp <= 4) l.samples = 4;
        l.guards = all_guards;
        l.before_step = flip;
        l.ranks_differ = true;
        l.after_step = look;
        ranks_of_run = world_ranks(&l);
        world_run(&l, &result);
        world_free(&result);
    }
    CHECK_EQ_INT(trial.found, TRIALS);
}

static const int some[] = {0, 1, 3, 6};
enum { SOME = sizeof some / sizeof *some };

TEST(flipped_bits_of_working_weights_are_found) {
    flip_on_layouts(TARGET_WEIGHT, false, some, SOME);
}
TEST(flipped_bits_of_masters_are_found) {
    flip_on_layouts(TARGET_MASTER, false, some, SOME);
}
TEST(flipped_bits_of_moments_are_found) {
    flip_on_layouts(TARGET_MOMENT1, false, some, SOME / 2);
    flip_on_layouts(TARGET_MOMENT2, false, some + SOME / 2, SOME / 2);
}
TEST(flipped_bits_of_gradients_are_found) {
    static const int all[] = {0, 1, 2, 3, 5, 6, 8, 9, 12, 14};
    flip_on_layouts(TARGET_WEIGHT, true, all, sizeof all / sizeof *all);
}

// ---- what is refused stays as it was; copies are made anew --------------------------------------

static bool refuse(void *context, const struct engine_step *step) {
    struct engine_finding f;
    (void)step;
    return engine_findings(context, &f, 1) == 0;
}

static void flip_and_refuse(struct engine *e, int rank, int step, struct engine_step *asked) {
    (void)rank;
    asked->may_update = refuse;
    asked->context = e;
    if (step != 2) return;
    struct engine_fault fault = {.kind = ENGINE_FAULT_GRADIENT, .element = 1234567, .bit = 22};
    engine_inject(e, &fault);
}

static void was_refused(struct engine *e, int rank, int step, const struct engine_step *done) {
    (void)e;
    (void)rank;
    CHECK_EQ_INT(done->skipped, step == 2);
}

static bool never(void *context, const struct engine_step *step) {
    (void)context;
    (void)step;
    return false;
}

static void skip_third(struct engine *e, int rank, int step, struct engine_step *asked) {
    (void)e;
    (void)rank;
    if (step == 2) asked->may_update = never;
}

TEST(a_flipped_gradient_stops_the_update) {
    struct world_layout l = layouts[0];
    struct world_result clean, flipped;
    l.guards = all_guards;
    l.steps = 4;
    l.before_step = skip_third;
    world_run(&l, &clean);
    l.before_step = flip_and_refuse;
    l.after_step = was_refused;
    world_run(&l, &flipped);
    CHECK(memcmp(clean.weights, flipped.weights, clean.weight_count * sizeof(float)) == 0);
    CHECK_EQ_INT(clean.weight_count, flipped.weight_count);
    world_free(&clean);
    world_free(&flipped);
}

// ---- replicas -----------------------------------------------------------------------------------

static struct {
    int rank; // whose state is changed, behind the second step
    int of;   // ranks of the group that sees it
    bool undecided, seen_by[8];
} odd;

static void change_one(struct engine *e, int rank, int step, const struct engine_step *done) {
    struct engine_difference d[4];
    struct err err = {0};
    char name[128];
    int bytes, parts = 3, count = 0;
    (void)done;
    unsigned char *data = engine_element(e, TARGET_MASTER, 0, &bytes, name);
    if (step == 2 && rank == odd.rank) data[2] ^= 1;
    for (int part = 0; part < parts; part++) {
        int n = engine_compare_replicas(e, part, parts, d, 4, &err);
        if (n < 0) test_fail(__FILE__, __LINE__, "%s", err.text);
        if (n == 0) continue;
        CHECK_EQ_INT(n, 1);
        CHECK(strcmp(d[0].parameter, name) == 0);
        CHECK_EQ_INT(d[0].of, odd.of);
        CHECK(d[0].undecided == odd.undecided);
        CHECK_EQ_INT(d[0].rank_count, odd.undecided ? odd.of : 1);
        if (!odd.undecided) CHECK_EQ_INT(d[0].ranks[0], odd.rank);
        count++;
    }
    CHECK_EQ_INT(count, step == 2 && odd.seen_by[rank]);
}

static void compare_replicas(const struct world_layout *layout, int rank, int of, int seen) {
    struct world_layout l = *layout;
    struct world_result result;
    odd.rank = rank;
    odd.of = of;
    odd.undecided = of == 2;
    for (int r = 0; r < 8; r++) odd.seen_by[r] = seen >> r & 1;
    l.steps = 3;
    l.after_step = change_one;
    world_run(&l, &result);
    world_free(&result);
}

TEST(the_odd_one_of_several_replicas_is_named) {
    struct world_layout l = {.model = "llama", .pp = 1, .dp = 4, .cp = 1, .tp = 1, .rows = 1};
    compare_replicas(&l, 2, 4, 15);
    l.dp = 2;
    compare_replicas(&l, 1, 2, 3); // undecided
    l = (struct world_layout){
        .model = "llama", .pp = 1, .dp = 4, .cp = 1, .tp = 1, .zero = 3, .shard = 2, .rows = 1};
    compare_replicas(&l, 2, 2, 1 << 0 | 1 << 2); // of the same shard
    l = (struct world_layout){
        .model = "gpt2", .pp = 1, .dp = 4, .cp = 1, .tp = 1, .zero = 1, .rows = 1, .bf16 = true};
    compare_replicas(&l, 0, 4, 0); // a shard has no replica
}

// ---- replays ------------------------------------------------------------------------------------

static uint64_t digests[2][4]; // of the step, of its replay
static int shift;

static void replay_third(struct engine *e, int rank, int step, struct engine_step *asked) {
    (void)rank;
    (void)e;
    asked->update = step < 2 ? step + 1 : 3; // steps 2 and 3 compute the same
    asked->no_update = step >= 2;
    asked->dropout_seed = 5;
    asked->data_shift = step == 3 ? shift : 0;
}

static void note_digest(struct engine *e, int rank, int step, const struct engine_step *done) {
    (void)done;
    if (step >= 2) digests[step - 2][rank] = engine_gradient_digest(e);
}

// The same samples in steps 2 and 3, in the latter those of the rank that stands `shift` further.
static void same_samples(struct batch *b, int step, int index) {
    int per_rank = 4, ranks = 2;
    if (step == 3) index = (index + shift * per_rank) % (per_rank * ranks);
    for (int i = 0; step >= 2 && i < b->tokens; i++) b->input[i] = (i * 7 + index * 13) % 90;
    for (int i = 0; step >= 2 && i < b->tokens; i++) {
        b->target[i] = i + 1 < b->tokens ? b->input[i + 1] : -1;
        b->position[i] = i;
        b->attend_from[i] = 0;
        b->attend_to[i] = i + 1;
    }
    if (step >= 2) b->non_pad = b->tokens;
}

TEST(another_data_rank_computes_the_same_contributions) {
    static const struct world_layout kinds[] = {
        {.model = "llama", .pp = 1, .dp = 2, .cp = 1, .tp = 1, .rows = 1, .bf16 = true},
        {.model = "gpt2", .pp = 1, .dp = 2, .cp = 1, .tp = 1, .zero = 3, .rows = 1}};
    for (int k = 0; k < 4; k++) {
        struct world_layout l = kinds[k / 2];
        struct world_result result;
        shift = k % 2;
        l.guards = all_guards;
        l.steps = 4;
        l.dropout = 0.2;
        l.before_step = replay_third;
        l.after_step = note_digest;
        l.edit = same_samples;
        world_run(&l, &result);
        CHECK(digests[0][0] != digests[0][1]);
        for (int r = 0; r < 2; r++) CHECK(digests[0][r] == digests[1][(r + shift) % 2]);
        CHECK(result.loss[2] == result.loss[3] || shift); // sums over ranks in another order
        world_free(&result);
    }
}
