// A model with experts from training to a Hugging Face folder and back, as programs.
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char out[1 << 16];

static void write_inputs(void) {
    struct err err = {0};
    char text[2048];
    uint16_t ids[4000];
    for (int i = 0; i < 4000; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_replace(test_path("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 32, experts: 4, top_k: 2, expert_ffn: 24, norm_top_k: true}\n"
             "data.train: %s\n"
             "train: {steps: 4, batch: 4, micro_batch: 2, gemm_seconds: 0}\n"
             "device.threads: 1\n",
             test_path("train.bin"));
    CHECK_OK(file_replace(test_path("c.yaml"), text, strlen(text), &err), err);
}

static void train(const char *folder, const char *more) {
    int status = test_shell(out, sizeof out, "'%s' train '%s' train.folder='%s' %s 2>&1",
                            test_weft(), test_path("c.yaml"), test_path(folder), more);
    if (status != 0) test_fail(__FILE__, __LINE__, "%s", out);
}

// A figure of the last step in metrics.jsonl.
static double figure(const char *folder, const char *key) {
    CHECK_EQ_INT(test_shell(out, sizeof out, "grep '\"%s\"' '%s/metrics.jsonl' | tail -1", key,
                            test_path(folder)),
                 0);
    struct err err = {0};
    json_t *row = json_parse(out, strlen(out), "row", &err);
    CHECK(row != NULL);
    double value = json_number_value(json_object_get(row, key));
    json_decref(row);
    return value;
}

TEST(experts_train_and_go_to_a_folder_and_back) {
    write_inputs();
    train("run", "moe.capacity=1");
    CHECK(figure("run", "expert_balance") > 0.9 && figure("run", "expert_balance") < 2);
    CHECK(figure("run", "dropped_choices") > 0);
    CHECK(figure("run", "expert_max_load") >= 1);
    CHECK_EQ_INT(test_shell(out, sizeof out, "'%s' convert '%s' '%s' 2>&1", test_weft(),
                            test_path("run"), test_path("hf")),
                 0);
    CHECK_EQ_INT(test_shell(out, sizeof out, "grep -c mixtral '%s/config.json'", test_path("hf")),
                 0);
    CHECK_EQ_INT(test_shell(out, sizeof out, "'%s' convert --validate '%s' 2>&1", test_weft(),
                            test_path("hf")),
                 0);
    CHECK(test_shell(out, sizeof out, "'%s' convert '%s' '%s' 2>&1", test_weft(), test_path("run"),
                     test_path("m.gguf")) != 0);
    // a run that begins with the folder has its shape and weights
    snprintf(out, sizeof out,
             "data.train: %s\ntrain: {steps: 2, batch: 4, gemm_seconds: 0}\nmodel.from: %s\n"
             "device.threads: 1\n",
             test_path("train.bin"), test_path("hf"));
    struct err err = {0};
    CHECK_OK(file_replace(test_path("c.yaml"), out, strlen(out), &err), err);
    train("again", "");
    CHECK(figure("again", "loss") < 5);
}

TEST(experts_balanced_by_a_bias_do_not_leave_it_behind_unseen) {
    write_inputs();
    // an odd number of steps, or it might be back at zero
    train("run", "moe.bias_rate=0.01 moe.aux=0 train.steps=3");
    CHECK(test_shell(out, sizeof out, "'%s' convert '%s' '%s' 2>&1", test_weft(), test_path("run"),
                     test_path("hf")) != 0);
    CHECK_CONTAINS(out, "moe.bias_rate");
    CHECK_EQ_INT(test_shell(out, sizeof out, "'%s' convert --lossy '%s' '%s' 2>&1", test_weft(),
                            test_path("run"), test_path("hf")),
                 0);
    CHECK_CONTAINS(out, "left out");
}
