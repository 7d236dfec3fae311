// Runs under guard: spikes of bad samples, steps passed over, states that were damaged on purpose,
// and what becomes of a run that met them: the losses of one that did not.
#include "data/loader.h"
#include "data/shard_write.h"
#include "ranks.h"
#include "run_fixture.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- text with bad samples ---------------------------------------------------------------------

enum { CONTEXT = 32, SAMPLES = 400 };

// A document for each sample; what follows each id is easily learnt. In the bad ones an id is
// repeated.
static const char *write_text(const char *name, const uint64_t *bad, int bad_count) {
    const char *path = test_path(name);
    struct shard_info like = {
        .kind = SHARD_WEFT, .vocab_size = 100, .eod = -1, .bos = -1, .token_bytes = 2};
    struct shard_writer w;
    struct err err = {0};
    CHECK_OK(shard_writer_open(&w, path, &like, &err), err);
    for (uint64_t s = 0; s <= SAMPLES; s++) {
        uint32_t ids[CONTEXT];
        for (uint32_t i = 0; i < CONTEXT; i++) ids[i] = (uint32_t)(7 * (s * CONTEXT + i)) % 97;
        for (int b = 0; b < bad_count; b++)
            for (uint32_t i = 0; bad[b] == s && i < CONTEXT; i++) ids[i] = 5;
        CHECK_OK(shard_writer_document(&w, ids, CONTEXT, CONTEXT, &err), err);
    }
    CHECK_OK(shard_writer_close(&w, &like, &err), err);
    return path;
}

static const char *const learning[] = {"optimizer.learning_rate=0.01",
                                       "train.precision=fp32",
                                       "guard.loss_factor=3",
                                       "data.readers=1",
                                       "checkpoint.every=10",
                                       "checkpoint.keep_last=9",
                                       "eval.at_end=false"};

// Words of a run that learns this text.
static const char *const *learn(const char *path, const char *const *more) {
    static const char *words[32];
    static char data[4096], validation[4096];
    int count = 0;
    snprintf(data, sizeof data, "data.train=%s", path);
    snprintf(validation, sizeof validation, "data.validation=");
    words[count++] = data;
    words[count++] = validation;
    for (size_t i = 0; i < sizeof learning / sizeof learning[0]; i++) words[count++] = learning[i];
    for (; *more; more++) words[count++] = *more;
    words[count] = NULL;
    return words;
}

// Ids of the four samples of a step.
static void ids_of_step(const char *path, int64_t step, uint64_t ids[4]) {
    static struct train_config config;
    struct config_paths paths;
    struct loader_options options;
    struct err err = {0};
    fixture_config(&config, test_temp_dir(), "ids", learn(path, WORDS("train.micro_batch=4")));
    CHECK_OK(config_loader(&config, false, 4, &paths, &options, &err), err);
    void *memory = malloc(loader_bytes(&options));
    struct loader *loader = loader_open(&options, memory, &err);
    CHECK(loader != NULL);
    for (int i = 0; i < 4; i++) {
        struct loader_origin o;
        CHECK_OK(loader_origin(loader, (uint64_t)(4 * (step - 1) + i), &o, &err), err);
        ids[i] = o.id;
    }
    loader_close(loader);
    free(memory);
}

TEST(r74_bad_samples_are_skipped_on_all_ranks_and_named) {
    uint64_t ids[4];
    const char *clean = strdup(write_text("clean.weft", NULL, 0));
    ids_of_step(clean, 50, ids);
    const char *bad = strdup(write_text("bad.weft", ids, 4));
    for (int ranks = 1; ranks <= 2; ranks++) {
        const char *const *few = WORDS("train.steps=80");
        ranks_run_to_end(ranks == 1 ? "clean 1" : "clean 2", ranks, learn(clean, few));
        CHECK_EQ_INT(ranks_skipped_step(), 0);
        CHECK_STR(ranks_lines.data, "");
        ranks_run_to_end(ranks == 1 ? "bad 1" : "bad 2", ranks, learn(bad, few));
        CHECK_EQ_INT(ranks_skipped_step(), 50);
        CHECK_CONTAINS(ranks_lines.data, "step 50: the step was skipped: loss ");
        CHECK_CONTAINS(ranks_lines.data, "above 3 times the moving average");
        for (int i = 0; i < 4; i++) {
            char name[64];
            snprintf(name, sizeof name, "%llu (bad.weft document %llu)", (unsigned long long)ids[i],
                     (unsigned long long)ids[i]);
            CHECK_CONTAINS(ranks_lines.data, name);
        }
        CHECK_EQ_INT(ranks_events("loss_spike"), 1);
        // Nothing of the step has reached the weights: as if it had been passed over.
        uint64_t hash = fixture_checkpoint_hash(ranked[0].config, 80);
        ranks_run_to_end(ranks == 1 ? "over 1" : "over 2", ranks,
                         learn(bad, WORDS("train.steps=80", "train.skip_steps=50")));
        CHECK_EQ_INT(ranks_skipped_step(), 0);
        CHECK_EQ_INT(ranks_events("passed_over"), 1);
        CHECK(fixture_checkpoint_hash(ranked[0].config, 80) == hash);
    }
}

TEST(r74_a_resumed_run_decides_as_an_unbroken_one) {
    uint64_t ids[4];
    const char *clean = strdup(write_text("clean.weft", NULL, 0));
    ids_of_step(clean, 50, ids);
    const char *bad = strdup(write_text("bad.weft", ids, 4));
    ranks_run_to_end("whole", 1, learn(bad, WORDS("train.steps=70")));
    CHECK_EQ_INT(ranks_skipped_step(), 50);
    struct ranks_outcome whole = ranks_outcome(70);
    static const char *const cuts[] = {"train.stop_at=15", "train.stop_at=49", "train.stop_at=50"};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        ranks_run_to_end(cuts[i], 1, learn(bad, WORDS("train.steps=70", cuts[i])));
        ranks_run_to_end(cuts[i], 1, learn(bad, WORDS("train.steps=70")));
        CHECK_EQ_INT(ranks_skipped_step(), 50);
        CHECK_SAME(ranks_outcome(70), whole);
    }
}

// Four spikes within a hundred steps: back to before the first, and past all of them.
TEST(many_spikes_roll_back_and_are_passed_over) {
    static const int64_t steps[] = {42, 45, 50, 53};
    uint64_t ids[16];
    const char *clean = strdup(write_text("clean.weft", NULL, 0));
    for (int i = 0; i < 4; i++) ids_of_step(clean, steps[i], ids + 4 * i);
    const char *bad = strdup(write_text("bad.weft", ids, 16));
    for (int ranks = 1; ranks <= 2; ranks++) {
        ranks_run_to_end(ranks == 1 ? "bad 1" : "bad 2", ranks,
                         learn(bad, WORDS("train.steps=70")));
        CHECK_CONTAINS(ranks_lines.data,
                       "step 40: the run went back to step 40 and passes over steps 42 "
                       "to 53: more than 3 steps of the last 100 were spikes");
        CHECK_EQ_INT(ranks_events("passed_over"), 12);
        CHECK_EQ_INT(ranks_skipped_step(), 0); // those lines were cut
        struct ranks_outcome back = ranks_outcome(70);
        ranks_run_to_end(
            ranks == 1 ? "over 1" : "over 2", ranks,
            learn(bad, WORDS("train.steps=70",
                             "train.skip_steps=[42,43,44,45,46,47,48,49,50,51,52,53]")));
        CHECK_SAME(back, ranks_outcome(70));
        // The list is part of the state: a run that is resumed among them passes over the rest.
        ranks_run_to_end(ranks == 1 ? "cut 1" : "cut 2", ranks,
                         learn(bad, WORDS("train.steps=70", "train.stop_at=47")));
        ranks_run_to_end(ranks == 1 ? "cut 1" : "cut 2", ranks,
                         learn(bad, WORDS("train.steps=70")));
        CHECK_SAME(back, ranks_outcome(70));
    }
}

TEST(without_a_saved_state_spikes_are_only_skipped) {
    static const int64_t steps[] = {42, 45, 50, 53};
    uint64_t ids[16];
    const char *clean = strdup(write_text("clean.weft", NULL, 0));
    for (int i = 0; i < 4; i++) ids_of_step(clean, steps[i], ids + 4 * i);
    const char *bad = strdup(write_text("bad.weft", ids, 16));
    ranks_run_to_end("bad", 1, learn(bad, WORDS("train.steps=60", "checkpoint.every=0")));
    CHECK_CONTAINS(ranks_lines.data, "there is no older state to go back to");
    CHECK_EQ_INT(ranks_events("loss_spike"), 4);
    CHECK_EQ_INT(ranked[0].result.step, 60);
}

// ---- faults on purpose -------------------------------------------------------------------------

// The run of these words with a fault is, to the last bit, the one without.
static void check_fault(const char *name, int ranks, const char *const *words, const char *fault,
                        const char *said) {
    char folder[100];
    const char *all[40];
    int count = 0;
    for (; words[count]; count++) all[count] = words[count];
    all[count] = NULL;
    snprintf(folder, sizeof folder, "%s without", name);
    ranks_run_to_end(folder, ranks, all);
    CHECK_STR(ranks_lines.data, "");
    struct ranks_outcome clean = ranks_outcome(12);
    char kind[64];
    snprintf(kind, sizeof kind, "fault.kind=%s", fault);
    all[count++] = kind;
    all[count++] = "fault.step=6";
    all[count++] = ranks > 1 ? "fault.rank=1" : "fault.rank=0";
    all[count] = NULL;
    snprintf(folder, sizeof folder, "%s with", name);
    ranks_run_to_end(folder, ranks, all);
    if (!strstr(ranks_lines.data, said))
        test_fail(__FILE__, __LINE__, "%s: no \"%s\" in\n%s", name, said, ranks_lines.data);
    CHECK_SAME(ranks_outcome(12), clean);
    CHECK_EQ_INT(ranks_events("silent_corruption"), 1);
}

TEST(a_flipped_bit_of_the_optimizer_state_is_undone) {
    check_fault("one", 1, WORDS("checkpoint.every=4"), "flip_optimizer",
                "the run went back to step 4");
    for (int i = 0; i < RANKS_LAYOUTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "layout %d", i);
        check_fault(name, 2, ranks_layouts[i], "flip_optimizer", "the run went back to step 4");
    }
}

TEST(a_flipped_bit_of_a_weight_is_undone) {
    check_fault("one", 1, WORDS("checkpoint.every=4"), "flip_weight", "working weight of ");
    for (int i = 0; i < RANKS_LAYOUTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "layout %d", i);
        check_fault(name, 2, ranks_layouts[i], "flip_weight", "working weight of ");
    }
}

// What was found is of the state that the run has left; a step that is passed over looks at
// nothing.
TEST(a_run_goes_back_to_where_the_next_step_is_passed_over) {
    static const char *const faults[] = {"flip_optimizer", "flip_weight"};
    for (int i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "two %s", faults[i]);
        check_fault(faults[i], 1, WORDS("checkpoint.every=0", "train.skip_steps=1"), faults[i],
                    "the run went back to step 0");
        check_fault(name, 2, WORDS("parallel.dp=2", "checkpoint.every=0", "train.skip_steps=1"),
                    faults[i], "the run went back to step 0");
    }
}

TEST(a_flipped_bit_of_a_gradient_is_computed_again) {
    check_fault("one", 1, WORDS("checkpoint.every=4"), "flip_gradient", "the step was done again");
    for (int i = 0; i < RANKS_LAYOUTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "layout %d", i);
        check_fault(name, 2, ranks_layouts[i], "flip_gradient", "the step was done again");
        CHECK_EQ_INT(ranks_event_rank("silent_corruption"), 1);
    }
}

TEST(a_passing_nan_is_computed_again) {
    check_fault("one", 1, WORDS("checkpoint.every=4"), "nan", "passing fault: ");
    for (int i = 0; i < RANKS_LAYOUTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "layout %d", i);
        check_fault(name, 2, ranks_layouts[i], "nan", "passing fault: ");
    }
}

// A bit of the exponent, so that no rounding hides it; of the product that each step looks at.
TEST(a_flipped_bit_of_a_product_is_computed_again) {
    const char *words[8] = {"guard.products_every=1", "fault.bit=30", "checkpoint.every=4"};
    check_fault("one", 1, words, "flip_product", "a matrix product with ");
    CHECK_CONTAINS(ranks_lines.data, "the step was done again");
    for (int i = 0; i < RANKS_LAYOUTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "layout %d", i);
        for (int k = 0; k < 4; k++) words[3 + k] = ranks_layouts[i][k];
        check_fault(name, 2, words, "flip_product", "a matrix product with ");
        CHECK_CONTAINS(ranks_lines.data, "the step was done again");
        CHECK_EQ_INT(ranks_event_rank("silent_corruption"), 1);
    }
}

TEST(without_an_older_state_a_run_begins_anew) {
    ranks_run_to_end("clean", 2, WORDS("parallel.dp=2", "parallel.zero=1"));
    struct ranks_outcome clean = ranks_outcome(12);
    ranks_run_to_end("flipped", 2,
                     WORDS("parallel.dp=2", "parallel.zero=1", "fault.kind=flip_optimizer",
                           "fault.step=3", "fault.rank=1"));
    CHECK_CONTAINS(ranks_lines.data, "the run went back to step 0: step 3: ");
    CHECK_SAME(ranks_outcome(12), clean);
}

// Elements behind the last id of the vocabulary are stored nowhere, and guarded all the same.
TEST(flipped_bits_of_padding_are_undone) {
    const char *words[12] = {"parallel.dp=2", "parallel.zero=0", "model.layers=1", "model.ffn=32",
                             "checkpoint.every=4"};
    ranks_run_to_end("clean", 2, words);
    struct ranks_outcome clean = ranks_outcome(12);
    words[5] = "fault.kind=flip_optimizer";
    words[6] = "fault.step=6";
    words[7] = "fault.rank=1";
    int tables = 0;
    for (int seed = 1; seed <= 24; seed++) {
        char word[32], name[32];
        snprintf(word, sizeof word, "fault.seed=%d", seed);
        snprintf(name, sizeof name, "seed %d", seed);
        words[8] = word;
        ranks_run_to_end(name, 2, words);
        CHECK_CONTAINS(ranks_lines.data, "the run went back to step 4");
        tables +=
            strstr(ranks_lines.data, "embedding.weight") || strstr(ranks_lines.data, "head.weight");
        CHECK_SAME(ranks_outcome(12), clean);
    }
    CHECK(tables >= 8); // a fifth of their rows is padding
}

// Saved behind the run, the state may be on its way to memory or disk when the fault is found.
TEST(a_run_goes_back_to_states_saved_behind_it) {
    const char *const *words =
        WORDS("parallel.dp=2", "parallel.zero=1", "checkpoint.snapshot=true", "train.steps=24",
              "checkpoint.every=2", "fault.kind=[flip_optimizer,flip_gradient,flip_weight]",
              "fault.step=[9,14,19]", "fault.rank=[1,0,1]");
    ranks_run_to_end("clean", 2, WORDS("parallel.dp=2", "parallel.zero=1", "train.steps=24"));
    struct ranks_outcome clean = ranks_outcome(24);
    ranks_run_to_end("flipped", 2, words);
    CHECK_CONTAINS(ranks_lines.data, "the run went back to step ");
    CHECK_CONTAINS(ranks_lines.data, "the step was done again");
    CHECK_SAME(ranks_outcome(24), clean);
}

TEST(a_nan_without_replay_is_skipped) {
    ranks_run_to_end("run", 2,
                     WORDS("parallel.dp=2", "guard.replay=false", "fault.kind=nan", "fault.step=6",
                           "fault.rank=1"));
    CHECK_EQ_INT(ranks_skipped_step(), 6);
    CHECK_CONTAINS(ranks_lines.data, "step 6: the step was skipped: ");
    CHECK_CONTAINS(ranks_lines.data, "not finite; samples ");
}

TEST(a_rank_with_too_many_faults_is_given_up) {
    ranks_run("run", 2,
              WORDS("parallel.dp=2", "guard.most_faults=1", "fault.kind=[flip_gradient,nan]",
                    "fault.step=[5,7]", "fault.rank=1"));
    CHECK_CONTAINS(ranked[1].err.text, "rank 1 (");
    CHECK_CONTAINS(ranked[1].err.text, "cannot be trusted: step 7: ");
    CHECK_EQ_INT(err_exit_status(&ranked[1].err), 76);
    CHECK_EQ_INT(err_exit_status(&ranked[0].err), 75);
    CHECK(ranked[0].result.silent && !ranked[1].result.silent);
}

// ---- replicas ----------------------------------------------------------------------------------

static const char *const alone[] = { // nothing but the comparison of replicas
    "guard.optimizer=false",  "guard.gradients=false",  "guard.weights_every=0",
    "guard.products_every=0", "guard.loss_factor=0",    "guard.norm_deviations=0",
    "guard.replicas_every=5", "fault.kind=flip_weight", "fault.rank=1",
    "fault.step=10",          "fault.bit=20",           "train.precision=fp32",
    "train.steps=20",         "train.batch=12",         "parallel.zero=0"};

static const char *const *replicas(const char *const *more) {
    static const char *words[32];
    int count = 0;
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++) words[count++] = alone[i];
    for (; *more; more++) words[count++] = *more;
    words[count] = NULL;
    return words;
}

TEST(r78_a_flipped_weight_of_one_replica_is_named) {
    ranks_run("three", 3, replicas(WORDS("guard.on_corruption=leave", "train.micro_batch=1")));
    CHECK_EQ_INT(err_exit_status(&ranked[1].err), 76);
    CHECK_EQ_INT(err_exit_status(&ranked[0].err), 75);
    CHECK_EQ_INT(err_exit_status(&ranked[2].err), 75);
    CHECK_CONTAINS(ranked[1].err.text,
                   "is not the same on the 3 ranks that hold it: the odd one is "
                   "rank 1 (");
    int64_t step = strtoll(strstr(ranked[1].err.text, "step ") + 5, NULL, 10);
    CHECK(step >= 10 && step <= 15);
    char name[128];
    const char *flip = strstr(ranks_lines.data, "an element of ");
    CHECK(flip && sscanf(flip, "an element of %127s", name) == 1);
    CHECK_CONTAINS(ranked[1].err.text, name);
    ranks_run("two", 2, replicas(WORDS("guard.on_corruption=leave", "train.micro_batch=2")));
    CHECK_EQ_INT(err_exit_status(&ranked[0].err), 76); // either may be the one
    CHECK_EQ_INT(err_exit_status(&ranked[1].err), 76);
    CHECK_CONTAINS(ranked[0].err.text, "rank 0 (");
    CHECK_CONTAINS(ranked[0].err.text, "or rank 1 (");
}

TEST(r78_of_two_replicas_a_replay_tells_the_wrong_one) {
    ranks_run_to_end("two", 2, replicas(WORDS("train.micro_batch=2", "checkpoint.keep_last=9")));
    CHECK_CONTAINS(ranks_lines.data, "the run went back to step 4");
    CHECK_CONTAINS(ranks_lines.data, "done again, shows that rank 1 (");
    struct ranks_outcome back = ranks_outcome(20);
    ranks_run_to_end("clean", 2, replicas(WORDS("train.micro_batch=2", "fault.kind=")));
    CHECK_STR(ranks_lines.data, "");
    CHECK_SAME(back, ranks_outcome(20));
}

// ---- no alarm ----------------------------------------------------------------------------------

// Small models, small batches, large rates, no warm-up: noise at its worst.
TEST(clean_runs_do_not_alarm) {
    static const char *const kinds[][4] = {
        {"optimizer.learning_rate=0.001", "train.batch=1", "train.micro_batch=1"},
        {"optimizer.learning_rate=0.02", "train.batch=1", "train.micro_batch=1"},
        {"optimizer.learning_rate=0.01", "schedule.warmup=100", "model.family=gpt2",
         "model.kv_heads=4"},
        {"optimizer.learning_rate=0.005", "optimizer.clip=0"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const char *words[16] = {"train.steps=300", "checkpoint.every=0", "eval.at_end=false",
                                 "data.context=16"};
        for (int k = 0; k < 4 && kinds[i][k]; k++) words[4 + k] = kinds[i][k];
        char name[32];
        snprintf(name, sizeof name, "run %zu", i);
        ranks_run_to_end(name, 1, words);
        CHECK_STR(ranks_lines.data, "");
        CHECK_EQ_INT(ranks_skipped_step(), 0);
    }
}
