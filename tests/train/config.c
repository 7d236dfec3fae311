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
        {"train.seed: 99999999999999999999999\n", "expected 0 or more"},
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
