// Reading configurations: what is refused and how, where values come from, and that what is printed
// reads back as the same.
#include "train/config.h"
#include "base/file.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char base[] = "model:\n"
                           "  family: llama\n"
                           "  layers: 2\n"
                           "  hidden: 64\n"
                           "  heads: 4\n"
                           "  vocab: 256\n"
                           "  context: 128\n"
                           "train:\n"
                           "  batch: 8\n"
                           "  steps: 100\n";

static int load(struct train_config *c, const char *more, char *word, struct err *err) {
    char text[4096], path[4200];
    struct err write_error = {0};
    snprintf(text, sizeof text, "%s%s", base, more);
    snprintf(path, sizeof path, "%s/c.yaml", test_temp_dir());
    CHECK_OK(file_replace(path, text, strlen(text), &write_error), write_error);
    *err = (struct err){0};
    return config_load(c, path, &word, word != NULL, err);
}

static struct train_config config, other; // too large for a stack frame

TEST(values_and_what_follows_from_them) {
    struct err err;
    CHECK_OK(load(&config, "optimizer.learning_rate: 3e-4\n", NULL, &err), err);
    CHECK_EQ_INT(config.model.kv_heads, 4);
    CHECK_EQ_INT(config.model.head_dim, 16);
    CHECK_EQ_INT(config.model.ffn, 192); // 8/3 of 64, up to a multiple of 64
    CHECK_EQ_INT(config.context, 128);
    CHECK_EQ_INT(config.micro_batch, 8);
    CHECK_CLOSE(config.learning_rate, 3e-4, 0);
    CHECK_STR(config.folder, "runs/c");
    CHECK_STR(config.checkpoint_folder, "runs/c/checkpoints");
    CHECK_OK(load(&config, "", "train.seed=7", &err), err);
    CHECK_EQ_INT(config.seed, 7);
}

TEST(every_kind_of_wrong_value_is_named) {
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"trian:\n  steps: 3\n",
         "line 12: unknown key \"trian.steps\"; did you mean \"train.steps\"?"},
        {"optimizer:\n  learning_rat: 1\n", "did you mean \"optimizer.learning_rate\"?"},
        {"learning_rat: 1e-3\n", "did you mean \"optimizer.learning_rate\"?"},
        {"zzzzzzzzz: 1\n", "\"weft config\" lists the keys"},
        {"train.seed: 1.5\n", "line 11: train.seed: expected an integer, found \"1.5\""},
        {"train.seed: 1e3\n", "expected an integer"},
        {"train.seed: 0x10\n", "expected an integer"},
        {"train.seed: \"7\"\n", "leave the quotes away"},
        {"train.seed: [1, 2]\n", "expected an integer, found a list"},
        {"train.seed:\n", "expected an integer, found nothing"},
        {"train.seed: 99999999999999999999999\n", "expected 9007199254740992 or less"},
        {"train.seed: -1\n", "expected 0 or more, found -1"},
        {"train.log_every: 0\n", "expected 1 or more, found 0"},
        {"data.readers: 1000\n", "expected a value from 1 to 256, found 1000"},
        {"optimizer.beta1: fast\n", "expected a number, found \"fast\""},
        {"optimizer.beta1: 1\n", "expected a value from 0 to 0.999999, found 1"},
        {"optimizer.eps: .nan\n", "expected a number"},
        {"optimizer.clip: 1e999\n", "expected a finite number"},
        {"train.resume: yes\n", "expected true or false, found \"yes\""},
        {"train.precision: fp8\n", "expected bf16 or fp32, found \"fp8\""},
        {"schedule.kind: cosin\n", "did you mean \"cosine\"?"},
        {"checkpoint.part_size: 5 XB\n", "expected a size like"},
        {"checkpoint.part_size: -5 MB\n", "expected a size like"},
        {"data.weights: [1, x]\n", "expected a number or a list of numbers, found \"x\""},
        {"data: {train: [a, b], weights: [1]}\n", "data.weights has 1 values for the 2 sets"},
        {"data: {train: [a, b], weights: [0, 0]}\n", "at least one must be above 0"},
        {"data.train: [a, '']\n", "an element of the list is empty"},
        {"checkpoint.keep_steps: [40, 2.5]\n", "checkpoint.keep_steps: 2.5 is not a whole number"},
        {"checkpoint.keep_steps: [-1]\n", "expected 0 or more, found -1"},
        {"checkpoint.keep_steps: best\n", "a number or a list of numbers, found \"best\""},
        {"model.preset: gpt2-124\n", "gpt2-124m"},
        {"model: {layers: 3}\n", "duplicate"},
        {"model.kv_heads: 3\n", "not a multiple of kv_heads"},
        {"model.head_dim: 15\n", "must be even"},
        {"model.window: [1, 2, 3]\n", "model.window has 3 values, the model only 2 layers"},
        {"model.eos: 256\n", "must be below model.vocab (256)"},
        {"model.from: /nowhere\n", "model.from"},
        {"data.context: 129\n", "data.context (129) is longer than the model's context (128)"},
        {"train.micro_batch: 3\n",
         "use a micro-batch of 2 or 4, or with this micro-batch a batch of 6 or 9"},
        {"train.micro_batch: 16\n", "with this micro-batch a batch of 16"},
        {"train.batch_ramp: [8]\n", "train.batch_ramp: expected a list like"},
        {"train.batch_ramp: [3@9]\n", "must be a multiple of train.micro_batch (8)"},
        {"train.stop_at: 101\n", "lies behind train.steps"},
        {"schedule.warmup: 101\n",
         "schedule.warmup (101 steps) is longer than the run (100 steps)"},
        {"schedule.decay: 5\n", "for schedule.kind wsd only"},
        {"schedule: {kind: wsd, warmup: 60, decay: 60}\n", "together are longer than the run"},
        {"data.tokenizer: /nowhere/tokenizer.json\nmodel.x: 1\n", "unknown key \"model.x\""},
        {"parallel.order: [pp, dp, tp]\n", "parallel.order: mesh: the order \"pp,dp,tp\" names 3"},
        {"parallel.order: [pp, dp, tp, tp]\n", "names tp twice and leaves out cp"},
        {"parallel.zero: 4\n", "expected a value from 0 to 3, found 4"},
        {"parallel.pp: 3\n", "layers (2) do not fill the 3 stages"},
        {"parallel: {pp: 2}\npipeline.layers: [1, 2]\n", "3 layers to 2 stages"},
        {"parallel: {pp: 2}\npipeline.layers: [1]\n", "has 1 numbers"},
        {"parallel: {pp: 2}\npipeline.layers: [1.5, 1]\n", "1.5 is not a number of layers"},
        {"pipeline.layers: [0, 2]\n", "pipeline.layers: expected a value from 1"},
        {"pipeline: {schedule: zb-v, chunks: 3}\n", "zb-v has two stages on each rank"},
        {"pipeline: {schedule: interleaved, chunks: 1}\n", "interleaved needs 2 or more"},
        {"pipeline: {schedule: gpipe, chunks: 2}\n", "gpipe has one stage on each rank"},
        {"pipeline: {schedule: interleaved, placement: v}\n", "as a loop"},
        {"pipeline: {schedule: zb-v, placement: loop}\n", "as a v"},
        {"pipeline.schedule: file\n", "pipeline.file names none"},
        {"pipeline.file: x.csv\n", "pipeline.schedule is not file"},
        {"pipeline: {schedule: file, file: x.csv}\ntrain.micro_batch: 4\ntrain.batch_ramp: [4@8]\n",
         "is for one number of them"},
        {"pipeline.schedule: zb-h1\ntrain.recompute: full\n",
         "train.recompute is full, but the weight halves of backward in pipeline.schedule zb-h1"},
        {"pipeline.schedule: zb-v\ntrain.recompute: selective\n", "set it to none"},
        {"zero.bucket_size: 1e15\n", "expected 1000000000000 or less"},
        {"zero.bucket_size: 1 kB\n", "expected 4096 or more"},
        {"zero.gather_precision: fp32\n", "but the weights are bf16"},
        {"parallel.ep: 2\n", "parallel.ep is 2, but the model has no experts"},
        {"moe.aux: 0.1\n", "moe.aux is for models with experts"},
        {"model.top_k: 2\n", "model.top_k is for models with experts"},
        {"model.experts: 4\nmodel.top_k: 5\n", "top_k is 5"},
        {"model.experts: 4\nmodel.dense_layers: [2]\n", "2 is not one of the 2 layers"},
        {"model.experts: 4\nmodel.dense_layers: [0, 1]\n", "every layer is dense"},
        {"parallel.dp: 3\n", "train.batch (8) is not a multiple of the 3 replicas"},
        {"parallel.dp: 2\ntrain.micro_batch: 8\n", "a replica's share of train.batch (4"},
        {"parallel.dp: 2\ntrain.micro_batch: 2\ntrain.batch_ramp: [2@8]\n", "times the replicas"},
        {"\tx: 1\n", "line 11"},
        {"data: &a {readers: 1}\n", "anchors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err;
        if (load(&config, cases[i].line, NULL, &err) == 0)
            test_fail(__FILE__, __LINE__, "accepted: %s", cases[i].line);
        if (!strstr(err.text, cases[i].message))
            test_fail(__FILE__, __LINE__, "%s: \"%s\" does not contain \"%s\"", cases[i].line,
                      err.text, cases[i].message);
        bool is_input = strstr(cases[i].line, "model.from") != NULL;
        if (!is_input) CHECK_EQ_INT(err_exit_status(&err), 2);
    }
}

TEST(command_line_words) {
    struct err err;
    CHECK(load(&config, "", "learning_rat=1e-3", &err) != 0);
    CHECK_CONTAINS(err.text, "command line: unknown key \"learning_rat\"; did you mean "
                             "\"optimizer.learning_rate\"?");
    CHECK(load(&config, "", "train.steps", &err) != 0);
    CHECK_CONTAINS(err.text, "expected key=value");
    CHECK(load(&config, "", "train.steps=", &err) != 0);
    CHECK(load(&config, "", "train.steps=1 ", &err) != 0);
    CHECK_OK(load(&config, "", "data.train=[a.weft, b.weft]", &err), err);
    CHECK_STR(config.train_sets, "a.weft,b.weft");
    CHECK_OK(load(&config, "data.train: x\n", "data.train=y", &err), err);
    CHECK_STR(config.train_sets, "y");
}

TEST(a_model_must_be_described) {
    struct err err = {0};
    char *words[] = {"model.family=gpt2", "model.layers=2"};
    CHECK(config_load(&config, NULL, NULL, 0, &err) != 0);
    CHECK_CONTAINS(err.text, "no model is described");
    err = (struct err){0};
    CHECK(config_load(&config, NULL, words, 2, &err) != 0);
    CHECK_CONTAINS(err.text, "model.hidden is not given");
}

TEST(presets_with_changes) {
    struct err err = {0};
    char *words[] = {"model.preset=gpt2-124m", "model.layers=3"};
    CHECK_OK(config_load(&config, NULL, words, 2, &err), err);
    CHECK_EQ_INT(config.model.layers, 3);
    CHECK_EQ_INT(config.model.hidden, 768);
    CHECK_EQ_INT(config.model.ffn, 3072);
    CHECK_EQ_INT(config.micro_batch, 8);
    char *wider[] = {"model.preset=gpt2-124m", "model.hidden=384"};
    CHECK_OK(config_load(&config, NULL, wider, 2, &err), err);
    CHECK_EQ_INT(config.model.head_dim, 32);
    CHECK_EQ_INT(config.model.ffn, 1536);
    char *both[] = {"model.preset=gpt2-124m", "model.family=llama"};
    CHECK(config_load(&config, NULL, both, 2, &err) != 0);
    CHECK_CONTAINS(err.text, "other family");
}

// Printed, read, printed: the same text and digest, with and without the comments.
static void check_round_trip(const char *more) {
    struct err err;
    for (int origins = 0; origins < 2; origins++) {
        struct text first = {0}, second = {0};
        CHECK_OK(load(&config, more, NULL, &err), err);
        CHECK_EQ_INT(config_print(&config, origins, &first), 0);
        CHECK_OK(config_load_text(&other, first.data, first.size, "printed", &err), err);
        CHECK(config_digest(&config) == config_digest(&other));
        CHECK_EQ_INT(config_print(&config, false, &second), 0);
        first.size = 0;
        CHECK_EQ_INT(config_print(&other, false, &first), 0);
        CHECK_STR(first.data, second.data);
        text_free(&first);
        text_free(&second);
    }
}

TEST(printed_configurations_read_back) {
    check_round_trip("parallel: {tp: 2, pp: 2, cp: 2, order: [tp, pp, dp, cp], sequence: false, "
                     "zero: 3}\npipeline: {schedule: zb-h1, layers: [1, 1]}\n"
                     "zero: {bucket_size: 25 MB, reduce: per_micro_batch, prefetch: 2}\n"
                     "comm: {link_rate: 1.25e9, watchdog: 2.5}\n");
    check_round_trip("model.experts: 4\nmodel.shared_ffn: 32\nmodel.dense_layers: [0]\n"
                     "moe: {aux: 0.002, z: 1e-3, aux_scope: global, capacity: 1.25}\n");
    check_round_trip("");
    check_round_trip(
        "data: {train: [a b, 'c#d', \"e: f\", 'true', '12', \"q\\\"u\"], weights: [1, 2.5, "
        "0.1, 1, 1, 3]}\n");
    check_round_trip("optimizer: {learning_rate: 0.0033333333333333335, eps: 1e-9}\n");
    check_round_trip("model.rope: {scaling: yarn, factor: 4, beta_fast: 32, beta_slow: 1, "
                     "original_context: 32}\n");
    check_round_trip("model.window: [32, 0]\n");
    check_round_trip(
        "checkpoint.part_size: 1536 kB\ndata.cache: '~/cache'\ndata.cache_size: 3 GiB\n");
    check_round_trip("train.folder: 'null'\ntrain.trace: '- x'\ntrain.batch_ramp: [8@16]\n");
}

TEST(experts_follow) {
    struct err err;
    CHECK_OK(load(&config, "model.experts: 4\n", NULL, &err), err);
    CHECK_EQ_INT(config.model.top_k, 2);
    CHECK_EQ_INT(config.model.expert_ffn, config.model.ffn);
    CHECK_EQ_INT(config.model.shared_ffn, 0);
    CHECK(config.model.norm_top_k);
    CHECK_CLOSE(config.model.aux_coefficient, 0.01, 0);
    CHECK_OK(load(&config,
                  "model.experts: 4\nmodel.expert_ffn: 48\nmodel.norm_top_k: false\n"
                  "model.dense_layers: [1]\nmoe.aux: 0\n",
                  "model.top_k=1", &err),
             err);
    CHECK_EQ_INT(config.model.top_k, 1);
    CHECK_EQ_INT(config.model.expert_ffn, 48);
    CHECK(!config.model.norm_top_k);
    CHECK(!config.model.layer_dense[0] && config.model.layer_dense[1]);
    CHECK_CLOSE(config.model.aux_coefficient, 0, 0);
    struct engine_options engine;
    CHECK_OK(load(&config,
                  "model.experts: 4\nmoe: {aux: 0.02, z: 0.001, aux_scope: global, capacity: 1.5, "
                  "bias_rate: 0.01, wave: 100}\n",
                  NULL, &err),
             err);
    config_engine(&config, &engine);
    CHECK_CLOSE(engine.experts.aux_coefficient, 0.02, 0);
    CHECK_CLOSE(engine.experts.z_coefficient, 0.001, 0);
    CHECK(engine.experts.aux_global);
    CHECK_CLOSE(engine.experts.capacity_factor, 1.5, 0);
    CHECK_CLOSE(engine.experts.bias_rate, 0.01, 0);
    CHECK_EQ_INT(engine.experts.wave, 100);
    // a preset of experts keeps its own; without experts it is a dense model
    char *words[] = {"model.preset=mixtral-8x7b", "model.layers=2", "model.experts=0"};
    CHECK_OK(config_load(&config, NULL, words, 2, &err), err);
    CHECK_EQ_INT(config.model.experts, 8);
    CHECK_CLOSE(config.model.aux_coefficient, 0.02, 0);
    CHECK_OK(config_load(&config, NULL, words, 3, &err), err);
    CHECK_EQ_INT(config.model.top_k, 0);
    CHECK_EQ_INT(config.model.expert_ffn, 0);
}

static void check_layout(const char *more, int ranks, const char *part) {
    struct err err;
    struct layout layout;
    CHECK_OK(load(&config, more, NULL, &err), err);
    CHECK_EQ_INT(config_layout(&config, ranks, &layout, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, part);
    CHECK_EQ_INT(config.replicas, 1);
}

TEST(layouts_that_do_not_fit_are_refused) {
    check_layout("parallel.tp: 3\n", 16,
                 "tp (3) does not divide 16; with the other sizes kept this would do: tp 2 or 4");
    check_layout("parallel: {tp: 2, dp: 2}\n", 16, "dp 8");
    check_layout("parallel.tp: 8\n", 8, "tp (8) does not divide heads (4)");
    check_layout("", 3, "train.batch (8) is not a multiple of the 3 replicas of dp");
    check_layout("train.micro_batch: 4\n", 4, "a replica's share of train.batch (2");
    check_layout("parallel.cp: 128\n", 128, "128 tokens is too short for cp (128)");
    check_layout("model.experts: 6\nparallel.ep: 4\n", 4, "ep (4) does not divide experts (6)");
    check_layout("zero.shard: 3\nparallel.zero: 1\n", 4, "the shard group (3)");
}

TEST(layouts_take_what_the_world_leaves_over) {
    struct err err;
    struct layout layout;
    struct engine_options engine;
    CHECK_OK(
        load(&config, "parallel: {tp: 2, pp: 2, zero: 2}\ntrain.precision: fp32\n", NULL, &err),
        err);
    CHECK_EQ_INT(config.micro_batch, 8);
    CHECK_OK(config_layout(&config, 16, &layout, &err), err);
    CHECK_EQ_INT(layout.mesh.size[MESH_DP], 4);
    CHECK_EQ_INT(layout.mesh.shard, 4);
    CHECK_EQ_INT(layout.zero, 2);
    CHECK_EQ_INT(layout.layer_first[1], 1);
    CHECK(layout.sequence_parallel);
    CHECK_EQ_INT(config.micro_batch, 2); // of a replica's 2 sequences
    CHECK_EQ_INT(config.replicas, 4);
    CHECK_EQ_INT(config_micro_batches(&config), 1);
    config_engine(&config, &engine);
    CHECK_EQ_INT(engine.micro_batches, 1);
    struct engine_parallel parallel;
    config_parallel(&config, &parallel);
    CHECK_EQ_INT(parallel.gather_type, DTYPE_F32);
    CHECK_EQ_INT(parallel.bucket_bytes, 32000000);
    CHECK_EQ_INT(parallel.schedule, PIPELINE_1F1B);

    CHECK_OK(load(&config, "parallel: {tp: 2, sequence: false}\npipeline.schedule: zb-v\n",
                  "train.micro_batch=1", &err),
             err);
    CHECK_OK(config_layout(&config, 2, &layout, &err), err);
    CHECK(!layout.sequence_parallel);
    CHECK_EQ_INT(layout.chunks, 2);
    CHECK_EQ_INT(layout.placement, PLACE_V);
    CHECK_EQ_INT(config_micro_batches(&config), 8);
    CHECK_OK(load(&config, "", NULL, &err), err);
    CHECK_OK(config_layout(&config, 1, &layout, &err), err);
    struct layout single = layout_single(&config.model);
    CHECK_EQ_INT(layout.chunks, single.chunks);
    CHECK_BYTES(layout.layer_first, single.layer_first, 2 * sizeof(int));
}

TEST(the_digest_sees_every_value) {
    struct err err;
    CHECK_OK(load(&config, "", NULL, &err), err);
    CHECK_OK(load(&other, "", "optimizer.beta2=0.951", &err), err);
    CHECK(config_digest(&config) != config_digest(&other));
}

TEST(origins_are_told) {
    struct err err;
    struct text out = {0};
    CHECK_OK(load(&config, "train.seed: 3\n", "train.log_every=5", &err), err);
    CHECK_EQ_INT(config_print(&config, true, &out), 0);
    CHECK_CONTAINS(out.data, "# command line");
    CHECK_CONTAINS(out.data, "c.yaml: line 11");
    CHECK_CONTAINS(out.data, "# model.hidden and model.heads");
    CHECK_CONTAINS(out.data, "# default");
    text_free(&out);
}

TEST(differences_of_shape) {
    struct err err;
    struct text out = {0};
    CHECK_OK(load(&config, "", NULL, &err), err);
    CHECK_OK(load(&other, "train.seed: 9\n", "model.ffn=100", &err), err);
    CHECK_EQ_INT(config_differences(&config, &other, true, &out), 1);
    CHECK_STR(out.data, "model.ffn: 192 in the checkpoint, 100 now\n");
    out.size = 0;
    CHECK_EQ_INT(config_differences(&config, &other, false, &out), 2);
    text_free(&out);
}

TEST(documentation_names_every_key_and_is_up_to_date) {
    struct text out = {0};
    const char *nearest = NULL;
    char path[4096], *page;
    size_t size;
    struct err err = {0};
    CHECK_EQ_INT(config_document(NULL, true, &out, &nearest), 0);
    snprintf(path, sizeof path, "%s/docs/config.md", WEFT_SOURCE_DIR);
    CHECK_OK(file_read(path, 0, &page, &size, &err), err);
    if (!strstr(page, out.data))
        test_fail(__FILE__, __LINE__, "%s is old; write it anew with: weft config --markdown",
                  path);
    free(page);
    text_free(&out);
    CHECK_EQ_INT(config_document("schedule", false, &out, &nearest), 0);
    CHECK_CONTAINS(out.data, "schedule.warmup");
    CHECK_EQ_INT(config_document("train.stepz", false, &out, &nearest), 1);
    CHECK_STR(nearest, "train.steps");
    text_free(&out);
}

// Damaged configurations must be refused or read, never worse; the sanitizer build watches.
TEST(damaged_files_are_survived) {
    static const char seed[] =
        "model: {family: llama, layers: 2, hidden: 64, heads: 4, vocab: 256, "
        "context: 128, window: [32, 0], stops: [1, 2]}\n"
        "data: {train: [a, b], weights: [1, 2], mode: pack, cache_size: 4 GiB}\n"
        "train: {batch: 8, batch_ramp: [8@16], steps: 100, micro_batch: 4}\n"
        "schedule: {kind: wsd, warmup: 3, decay: 5}\n";
    static const char alphabet[] = "0123456789-+.eE[]{}:,\"' \n\t#&*!|>%@ax~";
    uint64_t state = 12345;
    for (int round = 0; round < 3000; round++) {
        char text[sizeof seed + 8];
        memcpy(text, seed, sizeof seed);
        size_t size = sizeof seed - 1;
        for (int change = 0; change <= round % 4; change++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(state >> 33) % size;
            char letter = alphabet[(state >> 20) % (sizeof alphabet - 1)];
            if (state & 4096)
                memmove(text + at, text + at + 1, size - at), size--;
            else
                text[at] = letter;
        }
        struct err err = {0};
        if (config_load_text(&config, text, size, "fuzz", &err) != 0) CHECK(err.text[0] != 0);
    }
}
