// weft bench step on a tiny model: every figure is there, and the sums fit together.
#include "base/json.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

static void write_config(char *path, size_t bytes) {
    snprintf(path, bytes, "%s/tiny.yaml", test_temp_dir());
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(
        "model:\n  family: llama\n  layers: 2\n  hidden: 32\n  heads: 4\n  kv_heads: 2\n  ffn: 64\n"
        "  vocab: 100\n  context: 32\ntrain:\n  batch: 4\n  micro_batch: 2\ndevice:\n  threads: "
        "1\n",
        file);
    fclose(file);
}

static double number(json_t *root, const char *key) {
    json_t *value = json_object_get(root, key);
    if (!json_is_number(value)) test_fail(__FILE__, __LINE__, "no figure \"%s\"", key);
    return json_number_value(value);
}

TEST(bench_step_figures) {
    char path[4096], output[16384];
    struct err err = {0};
    write_config(path, sizeof path);
    CHECK_EQ_INT(
        test_shell(output, sizeof output, "%s bench step %s --steps 3 --json", test_weft(), path),
        0);
    json_t *root = json_parse(output, strlen(output), "output", &err);
    if (!root) test_fail(__FILE__, __LINE__, "%s in %s", err.text, output);
    CHECK_EQ_INT(number(root, "tokens_per_step"), 128);
    CHECK_EQ_INT(number(root, "planned_bytes"), number(root, "allocated_bytes"));
    double rate = number(root, "gemm_rate_before"), after = number(root, "gemm_rate_after");
    if (after > rate) rate = after;
    CHECK_CLOSE(number(root, "mfu"), number(root, "model_flops_full") / rate, 1e-4);
    CHECK_CLOSE(number(root, "mfu_causal"), number(root, "model_flops_causal") / rate, 1e-4);
    CHECK(number(root, "mfu_causal") < number(root, "mfu") && number(root, "mfu_causal") > 0);
    CHECK_CLOSE(number(root, "tokens_per_second"), 128 / number(root, "step_seconds"), 1e-3);
    json_t *kinds = json_object_get(root, "planned_by_kind");
    double sum = 0;
    for (void *at = json_object_iter(kinds); at; at = json_object_iter_next(kinds, at))
        sum += json_number_value(json_object_iter_value(at));
    CHECK_EQ_INT(sum, number(root, "planned_bytes"));
    static const char *const kinds_of_work[] = {"forward", "backward",  "optimizer",
                                                "gemm",    "attention", "kernel"};
    json_t *seconds = json_object_get(root, "seconds");
    for (size_t i = 0; i < sizeof kinds_of_work / sizeof kinds_of_work[0]; i++)
        CHECK(number(seconds, kinds_of_work[i]) > 0);
    CHECK(number(seconds, "gemm") + number(seconds, "attention") <
          number(seconds, "forward") + number(seconds, "backward"));
    // The loss of random tokens under initial weights is near that of even odds.
    CHECK_CLOSE(number(root, "loss"), 4.605, 0.15);
    json_decref(root);
}

TEST(bench_step_refuses) {
    char path[4096], output[4096];
    write_config(path, sizeof path);
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench step", test_weft()), 2);
    CHECK_CONTAINS(output, "no configuration");
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench step %s --steps 0", test_weft(), path),
                 2);
    CHECK_EQ_INT(
        test_shell(output, sizeof output, "%s bench step %s model.layers=x", test_weft(), path), 2);
    CHECK_CONTAINS(output, "model.layers");
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench step --help", test_weft()), 0);
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench step --step 3", test_weft()), 2);
    CHECK_CONTAINS(output, "did you mean --steps?; weft bench step --help");
}

// What a message tells the user to type is there.
TEST(bench_help_that_messages_name) {
    static const char *const names[] = {"gemm", "ranks", "checkpoint", "guards", "soak"};
    char output[4096];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench %s --none", test_weft(), names[i]),
                     2);
        char *from = strstr(output, "; weft "), *to = from ? strstr(from, " --help") : NULL;
        CHECK(to);
        *to = 0;
        char said[200];
        snprintf(said, sizeof said, "%.100s", from + strlen("; weft "));
        CHECK_EQ_INT(test_shell(output, sizeof output, "%s %s --help", test_weft(), said), 0);
        CHECK_CONTAINS(output, said);
    }
}
