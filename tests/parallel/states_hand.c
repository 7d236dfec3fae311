// Sums and norms of gradients that are put in by hand: the examples of small numbers whose results
// are known exactly.
#include "engine/state.h"
#include "world.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct ranks; // of one test
struct seat {
    struct ranks *ranks;
    struct comm *comm;
    int rank;
    pthread_t thread;
    double norm;
    float found[2];
};
struct ranks {
    struct layout layout;
    struct model_config config;
    bool evaluates; // engines without gradients and optimizer state
    void (*use)(struct engine *e, struct seat *seat);
    struct seat seats[8];
};

static void *seat_main(void *argument) {
    struct seat *seat = argument;
    struct ranks *r = seat->ranks;
    struct err err = {0};
    struct device device;
    struct device_cpu_options cpu = {.threads = 1};
    struct model model;
    CHECK_OK(device_cpu_open(&device, &cpu, &err), err);
    CHECK_OK(model_describe(&model, &r->config, &err), err);
    struct engine_parallel parallel = {.comm = seat->comm,
                                       .rank = seat->rank,
                                       .layout = &r->layout,
                                       .schedule = PIPELINE_1F1B,
                                       .prefetch = 1,
                                       .gathers_in_flight = 1};
    struct engine_options o = {.parallel = &parallel,
                               .compute = DTYPE_F32,
                               .rows = 1,
                               .context = WORLD_CONTEXT,
                               .micro_batches = 4,
                               .train = !r->evaluates,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8};
    struct engine *e = engine_open(&model, &device, &o, &err);
    if (!e) test_fail(__FILE__, __LINE__, "rank %d: %s", seat->rank, err.text);
    engine_initialise(e, 1);
    states_begin(e, 1);
    r->use(e, seat);
    engine_close(e);
    model_free(&model);
    device.close(&device);
    return NULL;
}

static void take_seats(struct ranks *r) {
    struct err err = {0};
    struct comm *ends[8];
    int n = mesh_ranks(&r->layout.mesh);
    struct comm_options options = {.watchdog_seconds = 30};
    CHECK_OK(comm_open_threads(ends, n, &options, &err), err);
    for (int i = 0; i < n; i++) {
        r->seats[i] = (struct seat){.ranks = r, .comm = ends[i], .rank = i};
        CHECK(pthread_create(&r->seats[i].thread, NULL, seat_main, &r->seats[i]) == 0);
    }
    for (int i = 0; i < n; i++) pthread_join(r->seats[i].thread, NULL);
    for (int i = 0; i < n; i++) comm_close(ends[i]);
}

static void sit_down(struct ranks *r, const char *model, int pp, int dp, int ep, int zero,
                     void (*use)(struct engine *, struct seat *)) {
    struct err err = {0};
    *r = (struct ranks){.config = world_model(model), .use = use};
    r->layout = (struct layout){.mesh = {.size = {pp, dp, 1, 1},
                                         .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                         .ep = ep,
                                         .shard = dp},
                                .chunks = 1,
                                .zero = zero};
    CHECK_OK(layout_split_layers(&r->layout, &r->config, NULL, 0, false, &err), err);
    take_seats(r);
}

// The element of this rank's gradients at a place of a whole tensor, or NULL.
static float *gradient_at(struct engine *e, const char *name, int64_t row, int64_t column) {
    struct err err = {0};
    struct tensor_slice *slices;
    int count;
    float *found = NULL;
    CHECK_OK(engine_slices(e, ENGINE_GRADIENTS, &slices, &count, &err), err);
    for (int i = 0; i < count; i++) {
        const struct tensor_slice *s = &slices[i];
        if (strcmp(s->name, name) != 0 || row < s->row || row >= s->row + s->rows ||
            column < s->column || column >= s->column + s->columns)
            continue;
        found = (float *)s->data + (row - s->row) * s->stride + (column - s->column);
    }
    free(slices);
    return found;
}

static void put(struct engine *e, const char *name, int64_t row, int64_t column, float value) {
    float *at = gradient_at(e, name, row, column);
    if (at) *at = value;
}

// ---- requirement 30: every logical parameter once, wherever experts live ------------------------

static void norm_of_12_3_4(struct engine *e, struct seat *seat) {
    put(e, "layers.1.attention.out.weight", 5, 7, 12);
    put(e, "layers.0.experts.0.up.weight", 1, 2, 3);
    put(e, "layers.2.experts.3.down.weight", 3, 4, 4);
    seat->norm = states_norm(e);
}

static int expert_elements(struct engine *e, struct seat *seat) {
    (void)seat;
    return (gradient_at(e, "layers.0.experts.0.up.weight", 1, 2) != NULL) +
           (gradient_at(e, "layers.2.experts.3.down.weight", 3, 4) != NULL);
}

static void count_experts(struct engine *e, struct seat *seat) {
    seat->norm = expert_elements(e, seat);
}

TEST(norm_counts_each_expert_once) {
    struct ranks r;
    sit_down(&r, "moe", 1, 2, 2, 0, count_experts);
    CHECK(r.seats[0].norm == 1 && r.seats[1].norm == 1); // they do live on different ranks
    for (int zero = 0; zero < 4; zero++)
        for (int ep = 1; ep <= 4; ep *= 2) {
            sit_down(&r, "moe", 1, 4, ep, zero, norm_of_12_3_4);
            for (int i = 0; i < 4; i++) CHECK(r.seats[i].norm == 13.0);
        }
    sit_down(&r, "moe", 2, 2, 2, 1, norm_of_12_3_4);
    for (int i = 0; i < 4; i++) CHECK(r.seats[i].norm == 13.0);
}

// A gradient that is no number on one rank is one on all: they skip the same step.
static void put_nan(struct engine *e, struct seat *seat) {
    put(e, "layers.0.attention.out.weight", 0, 0, NAN);
    seat->norm = states_norm(e);
}

TEST(norm_that_is_no_number_is_none_anywhere) {
    struct ranks r;
    for (int zero = 0; zero < 3; zero++) {
        sit_down(&r, "untied", 2, 2, 1, zero, put_nan);
        for (int i = 0; i < 4; i++) CHECK(isnan(r.seats[i].norm));
    }
}

// ---- requirement 32: first the two ends of a tied table, then the data ranks --------------------

static void tied_33(struct engine *e, struct seat *seat) {
    int dp = e->local.at[MESH_DP];
    int table = e->param[PARAM_EMBEDDING];
    int64_t hidden = e->model->config.hidden;
    if (e->flat.unit_embedding >= 0) { // looked up: row 3, and in one rank row 8
        float *rows = e->single[SINGLE_LOOKUP];
        int32_t *ids = e->single[SINGLE_LOOKUP_IDS];
        e->looked_up = 1 + dp;
        ids[0] = 3, ids[1] = 8;
        memset(rows, 0, (size_t)(2 * hidden) * sizeof *rows);
        rows[5] = dp ? 2 : 1;
        rows[hidden + 5] = 7;
    }
    if (e->flat.unit_head >= 0) {
        float *head = e->param_at[table].gradient;
        memset(head, 0, (size_t)param_elements_padded(&e->model->params[table]) * sizeof *head);
        head[3 * hidden + 5] = dp ? 20 : 10;
    }
    states_finish_gradients(e);
    const float *sum = gradient_at(e, "embedding.weight", 3, 5);
    const float *other = gradient_at(e, "embedding.weight", 8, 5);
    seat->found[0] = sum ? *sum : -1;
    seat->found[1] = other ? *other : -1;
}

TEST(tied_ends_are_added_before_data_ranks) {
    struct ranks r;
    for (int zero = 0; zero < 4; zero++)
        for (int pp = 1; pp <= 2; pp++) {
            sit_down(&r, "gpt2", pp, 2, 1, zero, tied_33);
            int found = 0;
            for (int i = 0; i < 2 * pp; i++) {
                if (r.seats[i].found[0] < 0) continue; // in another rank's shard
                CHECK(r.seats[i].found[0] == 33 && r.seats[i].found[1] == 7);
                found++;
            }
            CHECK_EQ_INT(found, zero ? pp : 2 * pp);
        }
}

// ---- requirement 41: 1 and 256 times 2^-9, over ranks and micro-batches, are 1.5
// -----------------

static void add_small_gradients(struct engine *e, struct seat *seat) {
    enum { MICRO_BATCHES = 257, AT = 77 };
    int param = model_param(e->model, 1, PARAM_OUT), unit = 1;
    size_t bytes = (size_t)param_elements_padded(&e->model->params[param]) * sizeof(float);
    float small = seat->rank % 2 ? 0 : 1;
    states_begin(e, MICRO_BATCHES);
    for (int m = 0; m < MICRO_BATCHES; m++) {
        unit_gradients_begin(e, unit);
        float *gradient = engine_gradient(e, param);
        if (engine_first(e, param)) memset(gradient, 0, bytes);
        gradient[AT] += small;
        small = 1.0f / 1024; // of each of two ranks
        unit_gradients_end(e, unit, m == MICRO_BATCHES - 1);
    }
    const int others[] = {0, 2, 3, e->flat.unit_embedding, e->flat.unit_head};
    for (int i = 0; i < 5; i++) { // buckets wait for all their units
        unit_gradients_begin(e, others[i]);
        unit_gradients_end(e, others[i], true);
    }
    states_finish_gradients(e);
    const char *name = e->model->params[param].name;
    int64_t columns = e->model->params[param].columns;
    const float *sum = gradient_at(e, name, AT / columns, AT % columns);
    seat->found[0] = sum ? *sum : -1;
}

TEST(small_gradients_add_up_in_every_stage) {
    struct ranks r;
    for (int zero = 0; zero < 4; zero++) {
        sit_down(&r, "untied", 1, 2, 1, zero, add_small_gradients);
        int found = 0;
        for (int i = 0; i < 2; i++) {
            if (r.seats[i].found[0] < 0) continue; // in the other rank's shard
            if (r.seats[i].found[0] != 1.5f)
                test_fail(__FILE__, __LINE__, "zero %d, rank %d: %.9g", zero, i,
                          (double)r.seats[i].found[0]);
            found++;
        }
        CHECK(found >= 1);
    }
}

// ---- forward passes between steps ---------------------------------------------------------------

// A row, another one for each replica. Returns its memory.
static void *make_row(const struct engine *e, struct batch *batch) {
    void *memory = calloc(1, batch_bytes(WORLD_CONTEXT));
    batch_place(batch, memory, 1, WORLD_CONTEXT);
    for (int i = 0; i < WORLD_CONTEXT; i++) {
        batch->input[i] = (i * 7 + 11 * e->local.at[MESH_DP]) % 90;
        batch->target[i] = (i * 5 + 3) % 90;
        batch->position[i] = i;
        batch->attend_to[i] = i + 1;
        batch->attended_pairs += i + 1;
    }
    batch->counted = batch->non_pad = WORLD_CONTEXT;
    return memory;
}

// Evaluation before and behind an update reads the weights of its time, gathered or not.
static void evaluate_and_step(struct engine *e, struct seat *seat) {
    struct err err = {0};
    struct batch batch, *list[1] = {&batch};
    void *memory = make_row(e, &batch);
    double sum;
    int64_t counted;
    seat->norm = 0;
    for (int k = 1; k <= 3; k++) {
        CHECK_OK(engine_evaluate(e, &batch, &sum, &counted, NULL, &err), err);
        CHECK_EQ_INT(counted, 2 * WORLD_CONTEXT);
        seat->norm = seat->norm * 10 + sum;
        struct engine_step step = {.learning_rate = 0.01, .update = k};
        CHECK_OK(engine_run_step(e, list, 1, &step, &err), err);
        CHECK(!step.skipped);
        if (k == 2) engine_weights_changed(e); // as a loader does
    }
    free(memory);
}

TEST(evaluation_between_steps_reads_new_weights) {
    struct ranks r;
    double first = 0;
    for (int zero = 0; zero < 4; zero++)
        for (int pp = 1; pp <= 2; pp++) {
            sit_down(&r, "llama", pp, 2, 1, zero, evaluate_and_step);
            if (zero == 0 && pp == 1) first = r.seats[0].norm;
            CHECK(first > 0);
            for (int i = 0; i < 2 * pp; i++) CHECK(r.seats[i].norm == first);
        }
}

static void evaluate_alone(struct engine *e, struct seat *seat) {
    struct err err = {0};
    struct batch batch;
    void *memory = make_row(e, &batch);
    int64_t counted;
    for (int k = 0; k < 3; k++) {
        double sum;
        CHECK_OK(engine_evaluate(e, &batch, &sum, &counted, NULL, &err), err);
        CHECK_EQ_INT(counted, e->layout.mesh.size[MESH_DP] * WORLD_CONTEXT);
        CHECK(k == 0 || sum == seat->norm);
        seat->norm = sum;
    }
    free(memory);
}

TEST(engines_for_evaluation_alone_agree_on_every_axis) {
    static const struct {
        int pp, dp, cp, tp, zero;
    } list[] = {{1, 2, 1, 1, 0}, {2, 2, 1, 1, 0}, {1, 2, 1, 1, 1}, {2, 2, 1, 1, 3},
                {1, 2, 1, 2, 0}, {1, 2, 2, 1, 3}, {2, 2, 1, 2, 2}};
    double first = 0;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        struct err err = {0};
        struct ranks r = {.config = world_model("llama"), .use = evaluate_alone, .evaluates = true};
        r.layout =
            (struct layout){.mesh = {.size = {list[i].pp, list[i].dp, list[i].cp, list[i].tp},
                                     .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                     .ep = 1,
                                     .shard = list[i].dp * list[i].cp},
                            .chunks = 1,
                            .sequence_parallel = list[i].tp > 1,
                            .zero = list[i].zero};
        CHECK_OK(layout_split_layers(&r.layout, &r.config, NULL, 0, false, &err), err);
        take_seats(&r);
        if (i == 0) first = r.seats[0].norm;
        CHECK(first > 0);
        bool same_bits = list[i].cp == 1 && list[i].tp == 1;
        for (int k = 0; k < mesh_ranks(&r.layout.mesh); k++)
            CHECK(same_bits ? r.seats[k].norm == first
                            : fabs(r.seats[k].norm - first) < 1e-5 * first);
    }
}

// Two models on the same ranks: each has streams of its own.
static void evaluate_beside_another(struct engine *e, struct seat *seat) {
    struct err err = {0};
    struct engine_parallel parallel = e->parallel;
    struct engine_options o = e->options;
    parallel.name = "second";
    o.parallel = &parallel;
    struct device device;
    struct device_cpu_options cpu = {.threads = 1};
    CHECK_OK(device_cpu_open(&device, &cpu, &err), err);
    struct engine *second = engine_open(e->whole, &device, &o, &err);
    if (!second) test_fail(__FILE__, __LINE__, "rank %d: %s", seat->rank, err.text);
    engine_initialise(second, 2);
    struct batch batch;
    void *memory = make_row(e, &batch);
    double sums[2][2];
    int64_t counted;
    for (int k = 0; k < 2; k++) {
        CHECK_OK(engine_evaluate(e, &batch, &sums[0][k], &counted, NULL, &err), err);
        CHECK_OK(engine_evaluate(second, &batch, &sums[1][k], &counted, NULL, &err), err);
    }
    CHECK(sums[0][0] == sums[0][1] && sums[1][0] == sums[1][1] && sums[0][0] != sums[1][0]);
    seat->norm = sums[0][0];
    engine_close(second);
    device.close(&device);
    free(memory);
}

TEST(two_engines_share_the_ranks) {
    struct ranks r;
    double alone;
    sit_down(&r, "llama", 2, 2, 1, 3, evaluate_alone);
    alone = r.seats[0].norm;
    sit_down(&r, "llama", 2, 2, 1, 3, evaluate_beside_another);
    for (int i = 0; i < 4; i++) CHECK(r.seats[i].norm == alone);
}

// A rank of a layout of two without a way to the other computes nothing that would look like a run.
TEST(layout_without_communication_is_refused) {
    struct err err = {0};
    struct model model;
    struct model_config config = world_model("llama");
    struct device device;
    struct device_cpu_options cpu = {.threads = 1};
    CHECK_OK(device_cpu_open(&device, &cpu, &err), err);
    CHECK_OK(model_describe(&model, &config, &err), err);
    struct layout layout = layout_single(&config);
    layout.mesh.size[MESH_DP] = layout.mesh.shard = 2;
    struct engine_parallel parallel = {.layout = &layout, .schedule = PIPELINE_1F1B};
    struct engine_options o = {.parallel = &parallel,
                               .compute = DTYPE_F32,
                               .rows = 1,
                               .context = WORLD_CONTEXT,
                               .micro_batches = 1,
                               .train = true};
    CHECK(engine_open(&model, &device, &o, &err) == NULL);
    CHECK_CONTAINS(err.text, "2 ranks");
    model_free(&model);
    device.close(&device);
}

// ---- what every rank says it holds --------------------------------------------------------------

enum { MOST_ELEMENTS = 1 << 17, MOST_COPIES = 32 };
static unsigned char *held; // [element][copy] of the whole model; filled by one thread at a time
static pthread_mutex_t holding = PTHREAD_MUTEX_INITIALIZER;

static void note_slices(struct engine *e, struct seat *seat) {
    struct err err = {0};
    struct tensor_slice *slices;
    int count;
    (void)seat;
    CHECK_OK(engine_slices(e, ENGINE_MASTER, &slices, &count, &err), err);
    pthread_mutex_lock(&holding);
    for (int i = 0; i < count; i++) {
        const struct tensor_slice *s = &slices[i];
        int64_t first = 0, columns;
        int p = 0;
        for (; strcmp(e->whole->params[p].name, s->name) != 0; p++)
            first += param_elements(&e->whole->params[p]);
        columns = e->whole->params[p].columns;
        CHECK(s->copies >= 1 && s->copies <= MOST_COPIES && s->copy >= 0 && s->copy < s->copies);
        CHECK(s->rows > 0 && s->columns > 0 && s->row >= 0 && s->column >= 0);
        CHECK(s->row + s->rows <= e->whole->params[p].rows && s->column + s->columns <= columns);
        for (int64_t row = s->row; row < s->row + s->rows; row++)
            for (int64_t column = s->column; column < s->column + s->columns; column++)
                for (int c = 0; c < MOST_COPIES; c++) // numbers behind the last copy count as there
                    if (c == s->copy || (s->copy == 0 && c >= s->copies))
                        held[(first + row * columns + column) * MOST_COPIES + c]++;
    }
    pthread_mutex_unlock(&holding);
    free(slices);
}

TEST(every_copy_of_every_element_is_held_once) {
    static const struct {
        const char *model;
        int pp, dp, ep, zero;
    } cases[] = {{"llama", 1, 3, 1, 0}, {"llama", 1, 3, 1, 1},  {"gpt2", 2, 2, 1, 0},
                 {"gpt2", 2, 3, 1, 3},  {"untied", 4, 2, 1, 2}, {"moe", 1, 4, 2, 0},
                 {"moe", 2, 4, 2, 3},   {"moe", 1, 4, 4, 1}};
    held = malloc(MOST_ELEMENTS * MOST_COPIES);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct ranks r;
        struct err err = {0};
        struct model whole;
        memset(held, 0, MOST_ELEMENTS * MOST_COPIES);
        sit_down(&r, cases[k].model, cases[k].pp, cases[k].dp, cases[k].ep, cases[k].zero,
                 note_slices);
        CHECK_OK(model_describe(&whole, &r.config, &err), err);
        int64_t elements = 0;
        for (int p = 0; p < whole.param_count; p++) elements += param_elements(&whole.params[p]);
        CHECK(elements <= MOST_ELEMENTS);
        for (int64_t i = 0; i < elements * MOST_COPIES; i++)
            if (held[i] != 1)
                test_fail(__FILE__, __LINE__, "case %zu: element %lld, copy %d is held %d times", k,
                          (long long)(i / MOST_COPIES), (int)(i % MOST_COPIES), held[i]);
        model_free(&whole);
    }
    free(held);
}
