// weft bench checkpoint on a tiny model: every figure is there, and nothing is left behind.
#include "base/file.h"
#include "base/json.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

static const char config[] = "model: {family: llama, layers: 2, hidden: 32, heads: 4, vocab: 100, "
                             "context: 32}\ntrain: {batch: 4, micro_batch: 2}\n";

static double number(json_t *root, const char *name) {
    json_t *value = json_object_get(root, name);
    if (!json_is_number(value)) test_fail(__FILE__, __LINE__, "%s is no number", name);
    return json_number_value(value);
}

TEST(bench_checkpoint_figures) {
    static const char *const positive[] = {"step_seconds",
                                           "stall_seconds",
                                           "copy_seconds",
                                           "memory_seconds",
                                           "persist_seconds",
                                           "copy_bytes_per_second",
                                           "memory_bytes_per_second",
                                           "load_memory_seconds",
                                           "load_disk_seconds"};
    char output[20000], path[4096];
    struct err err = {0};
    snprintf(path, sizeof path, "%s", test_path("tiny.yaml"));
    CHECK_OK(file_replace(path, config, strlen(config), &err), err);
    CHECK_EQ_INT(test_shell(output, sizeof output,
                            "cd %s && %s bench checkpoint %s device.threads=1 --steps 2 --rounds 1 "
                            "checkpoint.snapshot_folder=%s/memory --json",
                            test_temp_dir(), test_weft(), path, test_temp_dir()),
                 0);
    json_t *root = json_parse(output, strlen(output), "output", &err);
    CHECK(root != NULL);
    CHECK_EQ_INT(number(root, "tokens_per_step"), 128);
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        CHECK(number(root, positive[i]) > 0);
    CHECK_CLOSE(number(root, "stall_over_step"),
                number(root, "stall_seconds") / number(root, "step_seconds"), 1e-3);
    number(root, "longer_over_step");
    CHECK(number(root, "snapshot_bytes") > 2 * 12 * 30000.0);
    json_decref(root);
    char **names;
    size_t count;
    CHECK_OK(file_list(test_temp_dir(), &names, &count, &err), err);
    for (size_t i = 0; i < count; i++) CHECK(strstr(names[i], "weft-bench") == NULL);
    file_list_free(names, count);
}

TEST(bench_checkpoint_refuses) {
    char output[20000];
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench checkpoint", test_weft()), 2);
    CHECK_CONTAINS(output, "no configuration");
    CHECK_EQ_INT(
        test_shell(output, sizeof output, "%s bench checkpoint x.yaml --steps 0", test_weft()), 2);
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench checkpoint --help", test_weft()), 0);
    CHECK_CONTAINS(output, "blocking of a checkpoint");
}
