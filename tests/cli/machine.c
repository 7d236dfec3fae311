// Predictions on a measured machine as programs: weft plan --this-machine, weft train, weft plan
// explain.
#include "base/file.h"
#include "base/random.h"
#include "base/text.h"
#include "test.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *small_file(void) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/../plan/machine-small.yaml", test_golden_dir());
    return path;
}

static void write_text(const char *name, const char *text) {
    struct err err = {0};
    CHECK_OK(file_replace(test_path(name), text, strlen(text), &err), err);
}

// A model of 30,000 parameters over random tokens.
static void write_inputs(void) {
    struct err err = {0};
    char text[2048];
    uint16_t ids[6000];
    for (int i = 0; i < 6000; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_replace(test_path("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 32}\n"
             "data.train: %s\n"
             "train: {steps: 4, batch: 4, micro_batch: 2, gemm_seconds: 0, folder: %s}\n"
             "device.threads: 1\n"
             "checkpoint.at_end: false\n",
             test_path("train.bin"), test_path("run"));
    write_text("c.yaml", text);
}

static json_t *plan(const char *file, const char *words) {
    static char out[16384];
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s plan --this-machine %s %s --hardware %s --json",
                            test_weft(), test_path("c.yaml"), words, file),
                 0);
    json_t *root = json_loads(out, 0, NULL);
    CHECK(root);
    return root;
}

static double number(const json_t *root, const char *key) {
    return json_number_value(json_object_get(root, key));
}

static double of_stage(const json_t *root, const char *key) {
    return number(json_array_get(json_object_get(root, "stages"), 0), key);
}

// The committed file with every message `factor` times as long.
static void write_slower(const char *name, double factor) {
    char *text, *at;
    size_t bytes;
    struct err err = {0};
    struct text out = {0};
    CHECK_OK(file_read(small_file(), 0, &text, &bytes, &err), err);
    for (char *line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
        char kind[32];
        double ranks, size, seconds;
        if (strstr(line, "- \"") &&
            sscanf(line, " - \"%31s %lf %lf %lf\"", kind, &ranks, &size, &seconds) == 4)
            text_printf(&out, "      - \"%s %g %g %.9g\"\n", kind, ranks, size, factor * seconds);
        else
            text_printf(&out, "%s\n", line);
    }
    CHECK_OK(file_replace(test_path(name), out.data, out.size, &err), err);
    text_free(&out);
    free(text);
}

// Messages at half the rate: twice as long, and computing as before.
TEST(this_machine_slower_link) {
    write_inputs();
    write_slower("slow.yaml", 2);
    json_t *fast = plan(small_file(), "-n 2 parallel.dp=2");
    json_t *slow = plan(test_path("slow.yaml"), "-n 2 parallel.dp=2");
    CHECK(number(fast, "step_seconds") > 0 && !json_is_true(json_object_get(fast, "assumed")));
    CHECK(of_stage(fast, "reduce") > 0);
    const json_t *terms = json_object_get(fast, "terms");
    CHECK_STR(json_string_value(json_object_get(terms, "products")), "measured");
    CHECK_STR(json_string_value(json_object_get(terms, "messages")), "measured");
    CHECK_CLOSE(of_stage(slow, "reduce") / of_stage(fast, "reduce"), 2, 0.1);
    CHECK_CLOSE(number(slow, "exposed_seconds") / number(fast, "exposed_seconds"), 2, 0.1);
    CHECK_CLOSE(of_stage(slow, "forward") / of_stage(fast, "forward"), 1, 1e-12);
    CHECK_CLOSE(of_stage(slow, "backward") / of_stage(fast, "backward"), 1, 1e-12);
    json_decref(fast);
    json_decref(slow);
}

// The products of round figures: 6 N FLOP per token at 100 GFLOP/s of two threads. One rank of two
// threads is as quick as two of one.
TEST(this_machine_by_hand) {
    write_inputs();
    static const char larger[] = "model.hidden=512 model.vocab=8000 --threads %d";
    char words[2][80];
    for (int i = 0; i < 2; i++) snprintf(words[i], sizeof words[i], larger, i + 1);
    json_t *two = plan(small_file(), words[1]);
    json_t *again = plan(small_file(), words[1]);
    CHECK(number(two, "step_seconds") == number(again, "step_seconds"));
    json_t *one = plan(small_file(), words[0]);
    CHECK_CLOSE(number(one, "step_seconds") / number(two, "step_seconds"), 2, 0.1);
    CHECK_CLOSE(number(two, "tokens_per_second") * number(two, "step_seconds"), 4 * 32, 1e-3);
    // this is no machine of round figures: both digests are told
    const char *warning = json_string_value(json_object_get(two, "warning"));
    CHECK_CONTAINS(warning, "digest 0123456789abcdef");
    CHECK_CONTAINS(warning, "this one is");
    json_decref(one);
    json_decref(two);
    json_decref(again);
}

TEST(this_machine_bad_input) {
    static char out[8192];
    write_inputs();
    write_text("bare.yaml", "accelerators:\n  bare: {title: bare, cpu: true, memory_bytes: 8e9, "
                            "memory_bandwidth: 20 GB/s, dense: {fp32: 100 GFLOP/s, bf16: 100 "
                            "GFLOP/s}}\nclusters:\n  bare: {accelerator: bare, nodes: 1, "
                            "per_node: 1, cores: 2}\n");
    json_t *bare = plan(test_path("bare.yaml"), "");
    CHECK(json_is_true(json_object_get(bare, "assumed")));
    CHECK_CONTAINS(json_string_value(json_object_get(bare, "assumed_because")),
                   "products, attention, kernels not measured");
    const json_t *terms = json_object_get(bare, "terms");
    CHECK_STR(json_string_value(json_object_get(terms, "products")), "assumed");
    CHECK_STR(json_string_value(json_object_get(terms, "messages")), "none");
    json_decref(bare);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s plan --this-machine %s --hardware %s 2>&1",
                            test_weft(), test_path("c.yaml"), test_path("none.yaml")),
                 4);
    CHECK_CONTAINS(out, "none.yaml");
    CHECK_EQ_INT(test_shell(out, sizeof out, "XDG_CONFIG_HOME=%s %s plan --this-machine %s 2>&1",
                            test_temp_dir(), test_weft(), test_path("c.yaml")),
                 2);
    CHECK_CONTAINS(out, "was not measured yet");
    CHECK_CONTAINS(out, "weft bench hardware");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s plan this-machine 2>&1", test_weft()), 2);
    CHECK_CONTAINS(out, "a training configuration is needed");
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s plan explain %s 2>&1", test_weft(), test_temp_dir()), 2);
    CHECK_CONTAINS(out, "nothing was foretold of this run");
    write_text("prediction.json", "{\"predicted\": {\"step_seconds\": 1}, \"measured\": {}}");
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s plan explain %s 2>&1", test_weft(), test_temp_dir()), 3);
    CHECK_CONTAINS(out, "prediction.json");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s --hardware %s 2>&1", test_weft(),
                            test_path("c.yaml"), test_path("none.yaml")),
                 2);
    CHECK_CONTAINS(out, "none.yaml is not there");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s bench hardware --folder %s 2>&1", test_weft(),
                            test_path("nowhere")),
                 2);
    CHECK_CONTAINS(out, "is no folder");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s bench hardware --out %s/file.yaml 2>&1",
                            test_weft(), test_path("c.yaml")),
                 4);
    CHECK_CONTAINS(out, "c.yaml");
}

// A run with a measured machine: the table, prediction.json, the timelines, and what explains them.
TEST(train_beside_prediction) {
    static char out[32768];
    write_inputs();
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s --hardware %s --trace %s 2>/dev/null",
                            test_weft(), test_path("c.yaml"), small_file(),
                            test_path("trace.json")),
                 0);
    CHECK_CONTAINS(out, "foretold from");
    CHECK_CONTAINS(out, "step time ");
    CHECK_CONTAINS(out, "tokens/s ");
    CHECK_CONTAINS(out, "memory of rank 0 ");
    CHECK_CONTAINS(out, "waiting for messages ");
    CHECK(file_exists(test_path("trace.json")) && file_exists(test_path("trace.predicted.json")));
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s plan explain %s --json", test_weft(), test_path("run")), 0);
    json_t *root = json_loads(out, 0, NULL);
    CHECK(root);
    const json_t *actions = json_object_get(root, "actions");
    // 2 micro-batches: as many forwards and backwards, one optimizer
    CHECK_EQ_INT(number(json_object_get(actions, "forward"), "count"), 2);
    CHECK_EQ_INT(number(json_object_get(actions, "backward"), "count"), 2);
    CHECK_EQ_INT(number(json_object_get(actions, "all"), "count"), 5);
    CHECK(number(json_object_get(root, "predicted"), "step_seconds") > 0);
    CHECK(number(json_object_get(root, "measured"), "step_seconds") > 0);
    json_decref(root);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s plan explain %s", test_weft(), test_path("run")),
                 0);
    CHECK_CONTAINS(out, "largest differences");
    CHECK_CONTAINS(out, "computing, rank 0");
}

// The result's JSON object holds the comparison too; without a machine there is none.
TEST(train_json_beside_prediction) {
    static char out[16384];
    write_inputs();
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s --hardware %s --json 2>/dev/null",
                            test_weft(), test_path("c.yaml"), small_file()),
                 0);
    json_t *root = json_loads(out, 0, NULL);
    CHECK(root && json_object_get(json_object_get(root, "prediction"), "predicted"));
    json_decref(root);
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "XDG_CONFIG_HOME=%s %s train %s train.folder=%s --json 2>/dev/null",
                            test_temp_dir(), test_weft(), test_path("c.yaml"), test_path("other")),
                 0);
    root = json_loads(out, 0, NULL);
    CHECK(root && !json_object_get(root, "prediction"));
    json_decref(root);
}

// A configuration that a plan emitted, and one that was edited afterwards.
TEST(train_knows_an_edited_plan) {
    static char out[16384];
    write_inputs();
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s plan %s epyc-9654-2s:1 --emit %s 2>&1",
                            test_weft(), test_path("c.yaml"), test_path("plan.yaml")),
                 0);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s train.steps=3 --hardware %s 2>/dev/null",
                            test_weft(), test_path("plan.yaml"), small_file()),
                 0);
    CHECK_CONTAINS(out, "as planned (digest");
    CHECK_CONTAINS(out, "but for keys of the command line");
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "sed -i 's/learning_rate: .*/learning_rate: 0.123/' %s",
                            test_path("plan.yaml")),
                 0);
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "%s train %s train.steps=3 train.folder=%s --hardware %s "
                            "2>/dev/null",
                            test_weft(), test_path("plan.yaml"), test_path("second"), small_file()),
                 0);
    CHECK_CONTAINS(out, "was edited after planning (digest ");
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s plan explain %s", test_weft(), test_path("second")), 0);
    CHECK_CONTAINS(out, "was edited after planning");
}
