// What users of other systems ran into, with the numbers of their reports: unequal and empty
// shards, micro-batches of different lengths, norms, counters, copies after many steps. Every
// example runs under each kind of parallelism that could get it wrong.
#include "checkpoint/checkpoint.h"
#include "world.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ONE PIPELINE_1F1B
#define LAYOUT(model_, pp_, dp_, cp_, tp_, zero_, schedule_, ...)                                  \
    {                                                                                              \
        .model = model_, .pp = pp_, .dp = dp_, .cp = cp_, .tp = tp_, .ep = 1, .zero = zero_,       \
        .schedule = schedule_, .rows = 1, ##__VA_ARGS__                                            \
    }

static double most_apart(const float *a, const float *b, size_t count) { // over the largest of b
    double most = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    return most / largest;
}

// ---- token losses that are known beforehand -----------------------------------------------------

static const double losses[] = {1, 2, 3, 10, 2, 5, 8}; // of token t with itself as target
enum { KNOWN = sizeof losses / sizeof losses[0] };

// Weights whose blocks do nothing: the logits of token t are 0 but for its own.
static float *weights_of_known_losses(const char *kind) {
    struct model_config c = world_model(kind);
    struct model model;
    struct err err = {0};
    CHECK_OK(model_describe(&model, &c, &err), err);
    int64_t count = 0, at = 0;
    for (int p = 0; p < model.param_count; p++) count += param_elements(&model.params[p]);
    float *all = calloc((size_t)count, sizeof *all);
    double normed = 1 / sqrt(1.0 / c.hidden + c.norm_eps);
    for (int p = 0; p < model.param_count; p++) {
        const struct param *param = &model.params[p];
        bool table = strcmp(param->name, "embedding.weight") == 0;
        bool head = strcmp(param->name, "head.weight") == 0;
        for (int64_t i = 0; strstr(param->name, "norm") && i < param_elements(param); i++)
            all[at + i] = 1;
        for (int t = 0; t < KNOWN && (table || head); t++)
            all[at + t * param->columns + t] =
                table ? 1 : (float)(log((c.vocab - 1) / (exp(losses[t]) - 1)) / normed);
        at += param_elements(param);
    }
    model_free(&model);
    return all;
}

static void blank(struct batch *b) {
    for (int i = 0; i < b->tokens; i++) b->target[i] = -1;
}

static void put(struct batch *b, int at, int token) {
    b->input[at] = b->target[at] = token;
}

// A sample is a row; rows of a micro-batch follow each other.
static void four_tokens(struct batch *b, int step, int index) {
    (void)step;
    blank(b);
    for (int row = 0; row < b->rows; row++) {
        int at = row * b->context;
        if (index * b->rows + row == 0)
            put(b, at, 0), put(b, at + 1, 1), put(b, at + 2, 2);
        else
            put(b, at + 1, 3);
    }
}

static void twelve_tokens(struct batch *b, int step, int index) {
    (void)step;
    blank(b);
    for (int row = 0; row < b->rows; row++)
        for (int i = 0; i < 10; i++) {
            bool first = index * b->rows + row == 0;
            if (first || i < 2) put(b, row * b->context + 3 * i, first ? 4 : 5);
        }
}

static void last_of_four(struct batch *b, int step, int index) {
    (void)step;
    b->context = 4;
    b->tokens = 4 * b->rows;
    b->non_pad = b->tokens;
    blank(b);
    for (int i = 0; i < b->tokens; i++) {
        b->attend_from[i] = i / 4 * 4;
        b->attend_to[i] = i + 1;
    }
    if (index == 0) put(b, 3, 6);
}

static void nothing(struct batch *b, int step, int index) {
    (void)step, (void)index;
    blank(b);
}

static const struct world_layout layouts_of_two[] = {
    // two samples a step
    LAYOUT("untied", 1, 1, 1, 1, 0, ONE),
    LAYOUT("untied", 1, 2, 1, 1, 0, ONE),
    LAYOUT("untied", 1, 2, 1, 1, 1, ONE),
    LAYOUT("untied", 1, 2, 1, 1, 2, ONE),
    LAYOUT("untied", 1, 2, 1, 1, 3, ONE),
    LAYOUT("untied", 2, 1, 1, 1, 0, ONE),
    LAYOUT("untied", 2, 1, 1, 1, 0, PIPELINE_ZB_V, .chunks = 2),
    LAYOUT("untied", 2, 2, 1, 1, 1, ONE),
    LAYOUT("untied", 1, 1, 2, 1, 0, ONE),
    LAYOUT("untied", 1, 1, 2, 1, 0, ONE, .gather_keys = true),
    LAYOUT("untied", 1, 1, 2, 1, 0, ONE, .per_document = true),
    LAYOUT("untied", 1, 2, 2, 1, 3, ONE),
    LAYOUT("untied", 1, 1, 1, 2, 0, ONE),
    LAYOUT("untied", 1, 2, 1, 4, 1, ONE, .no_sequence = true),
    LAYOUT("untied", 2, 2, 2, 2, 2, ONE),
    LAYOUT("moe", 1, 2, 1, 1, 0, ONE),
    LAYOUT("moe", 2, 2, 1, 1, 1, ONE),
};
enum { LAYOUTS_OF_TWO = sizeof layouts_of_two / sizeof layouts_of_two[0] };

static void expect_loss(void (*edit)(struct batch *, int, int), double loss, int64_t counted) {
    char name[160];
    float *dense = weights_of_known_losses("untied"), *experts = weights_of_known_losses("moe");
    struct world_result one, r;
    struct world_layout whole = layouts_of_two[0]; // both samples as one micro-batch
    whole.samples = whole.rows = 2;
    whole.steps = 1;
    whole.edit = edit;
    whole.start = dense;
    world_run(&whole, &one);
    for (int i = 0; i < LAYOUTS_OF_TWO; i++) {
        struct world_layout l = layouts_of_two[i];
        bool has_experts = strcmp(l.model, "moe") == 0;
        l.samples = 2;
        l.steps = 1;
        l.edit = edit;
        l.start = has_experts ? experts : dense;
        if (has_experts) l.ep = 2;
        world_run(&l, &r);
        if (!(fabs(r.loss[0] - loss) <= 1e-6 * loss) || r.counted != counted)
            test_fail(__FILE__, __LINE__, "%s: loss %.9g of %lld tokens", world_name(&l, name),
                      r.loss[0], (long long)r.counted);
        if (!has_experts) {
            CHECK_CLOSE(r.norm[0], one.norm[0], 1e-5);
            CHECK(most_apart(r.moments, one.moments, r.weight_count) <= 1e-5); // of gradients
        }
        world_free(&r);
    }
    world_free(&one);
    free(dense);
    free(experts);
}

TEST(r23_short_micro_batches_weigh_by_tokens) { // 23, 148: not 6.0
    expect_loss(four_tokens, 4.0, 4);
}
TEST(r24_unequal_ranks_weigh_by_tokens) { // 24, 148: not 3.5
    expect_loss(twelve_tokens, 2.5, 12);
}
TEST(r25_shards_without_tokens_give_nothing) {
    expect_loss(last_of_four, 8.0, 1);
}

TEST(r25_steps_without_tokens_change_nothing) {
    for (int i = 0; i < LAYOUTS_OF_TWO; i++) {
        struct world_layout l = layouts_of_two[i];
        struct world_result r;
        l.samples = l.steps = 2;
        l.edit = nothing;
        world_run(&l, &r);
        CHECK(r.last.skipped && r.counted == 0 && !isnan(r.last.loss));
        CHECK_BYTES(r.weights, r.initial, r.weight_count * sizeof(float));
        world_free(&r);
    }
}

// ---- 28: micro-batches of other lengths within a step -------------------------------------------

static void shorten(struct batch *b, int tokens) {
    b->context = b->tokens = tokens;
    b->non_pad = tokens;
    for (int i = 0; i < tokens; i++) {
        if (b->target[i] < 0) b->target[i] = (3 * i + 1) % 90;
        b->attend_from[i] = 0;
        b->attend_to[i] = i + 1;
        b->position[i] = i;
    }
}

static void lengths_8_5_8(struct batch *b, int step, int index) {
    (void)step;
    shorten(b, index % 3 == 1 ? 5 : 8);
}
static void lengths_8_4_12(struct batch *b, int step, int index) {
    (void)step;
    shorten(b, index % 3 == 1 ? 4 : index % 3 == 2 ? 12 : 8);
}

static void expect_lengths(void (*edit)(struct batch *, int, int), const struct world_layout *list,
                           int count) {
    char name[160], text[200];
    for (int i = 0; i < count; i++) {
        struct world_result one, r;
        struct world_layout l = list[i], whole = LAYOUT(l.model, 1, 1, 1, 1, 0, ONE);
        l.edit = whole.edit = edit;
        l.samples = whole.samples = 6;
        l.steps = whole.steps = 4;
        world_run(&whole, &one);
        world_run(&l, &r);
        const char *apart = world_apart(&r, &one, l.steps, text);
        if (apart) test_fail(__FILE__, __LINE__, "%s: %s", world_name(&l, name), apart);
        if (l.dp * l.cp * l.tp == 1) CHECK(world_same(&r, &one, l.steps));
        world_free(&one);
        world_free(&r);
    }
}

TEST(r28_lengths_8_5_8_over_stages) {
    static const struct world_layout list[] = {
        LAYOUT("llama", 2, 1, 1, 1, 0, ONE),
        LAYOUT("gpt2", 2, 1, 1, 1, 0, PIPELINE_GPIPE),
        LAYOUT("llama", 2, 1, 1, 1, 0, PIPELINE_INTERLEAVED, .chunks = 2),
        LAYOUT("gpt2", 2, 1, 1, 1, 0, PIPELINE_ZB_H1),
        LAYOUT("llama", 2, 1, 1, 1, 0, PIPELINE_ZB_V, .chunks = 2),
        LAYOUT("llama", 2, 2, 1, 1, 2, ONE),
        LAYOUT("llama", 2, 1, 1, 2, 0, ONE, .no_sequence = true),
    };
    expect_lengths(lengths_8_5_8, list, sizeof list / sizeof list[0]);
}

TEST(r28_lengths_that_divide_over_every_axis) {
    static const struct world_layout list[] = {
        LAYOUT("llama", 2, 1, 1, 2, 0, ONE),
        LAYOUT("llama", 2, 1, 2, 1, 0, ONE),
        LAYOUT("gpt2", 1, 2, 2, 1, 3, ONE),
        LAYOUT("untied", 2, 1, 2, 2, 0, ONE, .gather_keys = true),
    };
    expect_lengths(lengths_8_4_12, list, sizeof list / sizeof list[0]);
}

// ---- copies after many steps --------------------------------------------------------------------

static void expect_equal_copies(struct world_layout l, int steps) {
    char name[160];
    struct world_result r;
    l.steps = steps;
    world_run(&l, &r);
    if (!r.copies_are_equal) test_fail(__FILE__, __LINE__, "%s", world_name(&l, name));
    CHECK(r.loss[steps - 1] < r.loss[0]);
    world_free(&r);
}

TEST(r30_dense_weights_over_expert_groups_after_20_clipped_steps) {
    static const struct world_layout list[] = {LAYOUT("moe", 1, 2, 1, 1, 0, ONE),
                                               LAYOUT("shared", 1, 4, 1, 1, 1, ONE),
                                               LAYOUT("moe", 1, 2, 1, 2, 0, ONE)};
    for (int i = 0; i < 3; i++) {
        struct world_layout l = list[i];
        l.ep = 2;
        l.samples = 4;
        l.clip = 0.3;
        expect_equal_copies(l, 20);
    }
}

TEST(r32_tied_tables_after_50_steps) {
    static const struct world_layout list[] = {
        LAYOUT("gpt2", 2, 2, 1, 1, 1, ONE), LAYOUT("llama", 2, 2, 1, 1, 3, ONE),
        LAYOUT("llama", 2, 2, 1, 1, 0, PIPELINE_ZB_H1),
        LAYOUT("gpt2", 2, 2, 1, 1, 1, PIPELINE_ZB_V, .chunks = 2)};
    for (int i = 0; i < 4; i++) {
        struct world_layout l = list[i];
        l.samples = 4;
        expect_equal_copies(l, 50);
    }
}

TEST(r34_copies_over_tensor_ranks_after_100_steps) {
    static const struct world_layout list[] = {
        LAYOUT("gpt2", 1, 1, 1, 2, 0, ONE), LAYOUT("llama", 1, 1, 1, 4, 0, ONE),
        LAYOUT("llama", 1, 1, 1, 2, 0, ONE, .no_sequence = true)};
    for (int i = 0; i < 3; i++) {
        struct world_layout l = list[i];
        l.samples = 2;
        expect_equal_copies(l, 100);
    }
}

// ---- 144 and 146: counters and norms ------------------------------------------------------------

static void half_padded(struct batch *b, int step, int index) {
    (void)step, (void)index;
    shorten(b, 16);
    for (int i = 8; i < 16; i++) {
        b->target[i] = -1;
        b->attend_from[i] = i;
    }
    b->non_pad = 8;
}

TEST(r144_each_token_is_counted_once) {
    static const struct world_layout list[] = {
        LAYOUT("llama", 1, 1, 1, 1, 0, ONE), LAYOUT("llama", 1, 2, 2, 2, 0, ONE),
        LAYOUT("llama", 2, 2, 2, 2, 1, ONE), LAYOUT("llama", 2, 1, 1, 1, 0, ONE)};
    for (int i = 0; i < 4; i++) {
        struct world_layout l = list[i];
        struct world_result r;
        l.samples = 8; // accumulation 4 on each of two data ranks
        l.steps = 1;
        l.edit = half_padded;
        world_run(&l, &r);
        CHECK_EQ_INT(r.last.processed, 128);
        CHECK_EQ_INT(r.last.non_pad, 64);
        CHECK_EQ_INT(r.last.counted, 64);
        CHECK_CLOSE(r.last.attended_pairs, 8 * (36 + 8), 1e-12);
        world_free(&r);
    }
}

TEST(r146_norms_are_those_of_the_whole_before_clipping) {
    static const struct {
        int dp, rows, zero, pp, tp;
    } list[] = {{1, 8, 0, 1, 1}, {1, 2, 0, 1, 1}, {2, 4, 0, 1, 1}, {2, 1, 1, 1, 1},
                {2, 1, 2, 1, 1}, {2, 4, 3, 1, 1}, {4, 2, 1, 1, 1}, {4, 1, 2, 1, 1},
                {4, 2, 3, 1, 1}, {1, 2, 0, 2, 1}, {2, 2, 3, 2, 1}, {1, 2, 0, 1, 2}};
    double norm = 0;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (int clipped = 0; clipped < 2; clipped++) {
            struct world_layout l =
                LAYOUT("gpt2", list[i].pp, list[i].dp, 1, list[i].tp, list[i].zero, ONE);
            struct world_result r;
            l.rows = list[i].rows;
            l.steps = 2;
            l.frozen = true;
            l.clip = clipped ? 0.1 : 1e9;
            world_run(&l, &r);
            if (i == 0 && !clipped) norm = r.norm[0];
            CHECK_CLOSE(r.norm[0], norm, 1e-6);
            CHECK_CLOSE(r.last.clip_factor, clipped ? 0.1 / r.norm[1] : 1, 1e-12);
            CHECK_BYTES(r.weights, r.initial, r.weight_count * sizeof(float));
            world_free(&r);
        }
}

// ---- 85: what a step needs is there before the first one
// -----------------------------------------

static struct tensor_slice *state_of(struct engine *e, int *count) {
    struct err err = {0};
    struct tensor_slice *part[2];
    int counts[2];
    CHECK_OK(engine_slices(e, ENGINE_MASTER, &part[0], &counts[0], &err), err);
    CHECK_OK(engine_slices(e, ENGINE_MOMENTS, &part[1], &counts[1], &err), err);
    *count = counts[0] + counts[1];
    part[0] = realloc(part[0], (size_t)*count * sizeof *part[0]);
    memcpy(part[0] + counts[0], part[1], (size_t)counts[1] * sizeof *part[1]);
    free(part[1]);
    return part[0];
}

// Saves before any step, spoils the weights, loads.
static void save_at_step_0(struct engine *e, struct comm *comm) {
    struct err err = {0};
    int members[16], count, n = comm_size(comm);
    for (int i = 0; i < n; i++) members[i] = i;
    struct comm_stream *world = comm_stream_open(comm, "checkpoint", members, n, &err);
    struct model_config config = world_model("llama");
    struct tensor_slice *slices = state_of(e, &count);
    struct checkpoint_state state = {
        .seed = 1, .config = "", .binary = "test", .gemm = "test", .isa = "test"};
    struct checkpoint_saved saved;
    struct checkpoint *c = NULL;
    CHECK_OK(checkpoint_save_slices(test_temp_dir(), &config, slices, count, &state, 1 << 20, world,
                                    &saved, &err),
             err);
    engine_initialise(e, 99);
    CHECK_OK(checkpoint_open_newest_world(test_temp_dir(), world, &c, &err), err);
    CHECK(c != NULL && checkpoint_state(c)->step == 0);
    CHECK_OK(checkpoint_load_slices(c, slices, count, world, &err), err);
    checkpoint_close(c);
    engine_weights_changed(e);
    comm_stream_close(world);
    free(slices);
}

TEST(r85_a_checkpoint_of_step_0_is_the_beginning) {
    static const struct world_layout list[] = {
        LAYOUT("llama", 1, 2, 1, 1, 3, ONE), LAYOUT("llama", 2, 2, 1, 2, 1, ONE),
        LAYOUT("llama", 2, 2, 1, 1, 2, PIPELINE_ZB_V, .chunks = 2)};
    for (int i = 0; i < 3; i++) {
        char name[160], folder[4200];
        struct world_layout l = list[i];
        struct world_result plain, loaded;
        l.steps = 3;
        world_run(&l, &plain);
        l.at_start = save_at_step_0;
        world_run(&l, &loaded);
        if (!world_same(&plain, &loaded, l.steps))
            test_fail(__FILE__, __LINE__, "%s", world_name(&l, name));
        snprintf(folder, sizeof folder, "rm -r %s/step_*", test_temp_dir());
        CHECK_EQ_INT(test_shell(name, sizeof name, "%s", folder), 0);
        world_free(&plain);
        world_free(&loaded);
    }
}
