// weft plan MODEL CLUSTER: the report as text and JSON, the configuration that it writes, refusals.
#include "base/file.h"
#include "base/json.h"
#include "plan/emit.h"
#include "test.h"
#include "train/config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 1 << 20 };

static char *page(const char *words, int status) {
    char *out = malloc(PAGE_BYTES);
    CHECK(out != NULL);
    CHECK_EQ_INT(
        test_shell(out, PAGE_BYTES, "cd %s && %s plan %s", WEFT_SOURCE_DIR, test_weft(), words),
        status);
    return out;
}

static void check_page(const char *words, int status, const char *const parts[]) {
    char *text = page(words, status);
    for (int i = 0; parts[i]; i++) CHECK_CONTAINS(text, parts[i]);
    if (status != 0) CHECK(strchr(text, '\n') == text + strlen(text) - 1); // one line
    free(text);
}

static json_t *facts(const char *words) {
    char *text = page(words, 0);
    struct err err = {0};
    json_t *root = json_parse(text, strlen(text), "weft plan", &err);
    if (!root) test_fail(__FILE__, __LINE__, "%s", err.text);
    free(text);
    return root;
}

static json_t *at(json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    if (!value) test_fail(__FILE__, __LINE__, "no key \"%s\"", key);
    return value;
}

static double number(json_t *object, const char *key) {
    return json_number_value(at(object, key));
}

#define SMALL "llama3-8b h100-sxm:16 --global-batch 128 --context 8192 --tokens 1e12 "

TEST(plan_prints_its_reasons) {
    check_page(SMALL, 0,
               (const char *[]){"8.03 B parameters", "16 in all", "a run of 1 T tokens", "Searched",
                                "The first:", "Memory in GB", "Where the peak goes",
                                "T_fwd + max(T_bwd, T_comm) + T_opt", "by formula",
                                "Why: this key alone", "What the others lose", "Rules of thumb",
                                "The figures rest on", "assumed", "stated", NULL});
}

static void check_plan(json_t *plan, int index, double limit) {
    json_t *layout = at(plan, "layout"), *waterfall = at(plan, "waterfall");
    double share = 1;
    CHECK_EQ_INT(number(plan, "rank"), index + 1);
    CHECK_EQ_INT(number(layout, "tp") * number(layout, "pp") * number(layout, "cp") *
                     number(layout, "dp"),
                 16);
    CHECK_EQ_INT(number(layout, "micro_batch") * number(layout, "micro_batches") *
                     number(layout, "dp"),
                 128);
    CHECK(number(plan, "memory_bytes") <= limit);
    CHECK(number(plan, "step_seconds") > 0);
    CHECK_CLOSE(number(plan, "tokens_per_second") * number(plan, "step_seconds"), 128 * 8192, 1e-6);
    CHECK_EQ_INT(number(plan, "steps"), ceil(1e12 / (128 * 8192)));
    CHECK_CLOSE(number(plan, "run_seconds"), number(plan, "steps") * number(plan, "step_seconds"),
                1e-6);
    CHECK_CLOSE(number(plan, "accelerator_hours"), number(plan, "run_seconds") / 3600 * 16, 1e-6);
    CHECK_CLOSE(number(plan, "cost"), 2 * number(plan, "accelerator_hours"), 1e-6);
    for (size_t i = 0; i < json_array_size(waterfall); i++)
        share -= number(json_array_get(waterfall, i), "share");
    CHECK_CLOSE(share, number(plan, "mfu_causal"), 1e-6);
    CHECK_EQ_INT(json_array_size(at(plan, "memory")), number(layout, "pp"));
    if (index > 0) CHECK(number(plan, "slower_by_seconds") >= 0);
}

TEST(plan_json_has_all_figures) {
    json_t *root = facts(SMALL "--json --top 6"), *plans = at(root, "plans");
    json_t *search = at(root, "search"), *rejected = at(search, "rejected");
    double limit = number(at(root, "cluster"), "memory_limit_bytes"), layouts = 0;
    CHECK(limit < number(at(root, "cluster"), "memory_bytes"));
    CHECK_EQ_INT(json_array_size(plans), 6);
    for (size_t i = 0; i < json_array_size(plans); i++)
        check_plan(json_array_get(plans, i), (int)i, limit);
    for (size_t i = 0; i < json_array_size(rejected); i++) {
        json_t *reason = json_array_get(rejected, i);
        layouts += number(reason, "layouts");
        CHECK(json_string_length(at(reason, "reason")) > 0);
        CHECK(number(at(reason, "example"), "tp") > 0);
    }
    CHECK_EQ_INT(layouts + 6, number(search, "layouts"));
    json_t *inputs = at(root, "inputs");
    CHECK(json_array_size(inputs) > 8);
    for (size_t i = 0; i < json_array_size(inputs); i++)
        CHECK(json_string_length(at(json_array_get(inputs, i), "source")) > 0);
    CHECK(json_array_size(at(root, "trail")) >= 6);
    json_decref(root);
}

// A word written as an option may stand anywhere; small sources count where there are no others.
TEST(plan_validate_as_an_option) {
    json_t *root = facts("--json --summary --validate tests/plan/published.csv");
    CHECK(json_integer_value(at(root, "used")) > 60);
    CHECK_EQ_INT(json_integer_value(at(root, "counted_from")), 1);
    double median = json_real_value(at(root, "median_source_mape"));
    CHECK(median > 0.01 && median < 0.2);
    json_decref(root);
}

TEST(plan_takes_batch_and_context_from_a_configuration) {
    json_t *root = facts("configs/models/llama3-70b.yaml configs/clusters/512xh100.yaml --json "
                         "--fix tp=8,pp=4,micro=1,recompute=none --top 1");
    json_t *batch = at(root, "batch");
    CHECK_EQ_INT(number(batch, "sequences"), 512);
    CHECK_EQ_INT(number(batch, "context"), 8192);
    CHECK(json_is_true(at(batch, "sequences_given")));
    CHECK(json_is_false(at(batch, "run_tokens_given")));
    json_t *layout = at(json_array_get(at(root, "plans"), 0), "layout");
    CHECK_EQ_INT(number(layout, "tp"), 8);
    CHECK_EQ_INT(number(layout, "pp"), 4);
    CHECK_EQ_INT(number(layout, "micro_batch"), 1);
    json_decref(root);
}

// ---- the file

static struct train_config *load(const char *path, struct layout *layout, int ranks) {
    struct train_config *config = calloc(1, sizeof *config);
    struct err err = {0};
    CHECK(config != NULL);
    CHECK_OK(config_load(config, path, NULL, 0, &err), err);
    if (layout) CHECK_OK(config_layout(config, ranks, layout, &err), err);
    return config;
}

static void check_emitted(json_t *root, const char *path, int ranks) {
    json_t *plan = json_array_get(at(root, "plans"), 0), *l = at(plan, "layout");
    struct layout layout;
    struct err err = {0};
    struct emit_plan head;
    char *text;
    size_t bytes;
    struct train_config *read = load(path, NULL, 0), *config = load(path, &layout, ranks);
    CHECK_EQ_INT(layout.mesh.size[MESH_TP], number(l, "tp"));
    CHECK_EQ_INT(layout.mesh.size[MESH_PP], number(l, "pp"));
    CHECK_EQ_INT(layout.mesh.size[MESH_CP], number(l, "cp"));
    CHECK_EQ_INT(layout.mesh.size[MESH_DP], number(l, "dp"));
    CHECK_EQ_INT(layout.mesh.ep, number(l, "ep"));
    CHECK_EQ_INT(layout.chunks, number(l, "chunks"));
    CHECK_EQ_INT(layout.zero, number(l, "zero"));
    CHECK_EQ_INT(layout.sequence_parallel, json_is_true(at(l, "sequence")));
    CHECK_EQ_INT(config->micro_batch, number(l, "micro_batch"));
    CHECK_EQ_INT(config->batch, number(at(root, "batch"), "sequences"));
    CHECK_EQ_INT(config->context, number(at(root, "batch"), "context"));
    CHECK_EQ_INT(config->steps, number(plan, "steps"));
    CHECK_OK(file_read(path, 1 << 20, &text, &bytes, &err), err);
    CHECK_EQ_INT(emit_read_head(text, path, &head, &err), 0);
    CHECK(head.digest == config_digest(read));
    CHECK_EQ_INT(head.ranks, ranks);
    CHECK_CLOSE(head.step_seconds, number(plan, "step_seconds"), 1e-8);
    char start[64];
    snprintf(start, sizeof start, "weft launch -n %d train ", ranks);
    CHECK_CONTAINS(json_string_value(at(root, "start")), start);
    free(text);
    free(read);
    free(config);
}

TEST(plan_emits_what_train_reads) {
    static const char *const models[] = {"llama3-8b",     "mixtral-8x7b", "gpt2-1558m",
                                         "qwen3-30b-a3b", "mistral-7b",   "llama3.2-1b",
                                         "olmo2-1b"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char words[600];
        snprintf(words, sizeof words,
                 "%s h100-sxm:16 --global-batch 64 --context 1024 --json --top 1 --fix micro=1 "
                 "--emit %s",
                 models[i], test_path("run.yaml"));
        json_t *root = facts(words);
        check_emitted(root, test_path("run.yaml"), 16);
        json_decref(root);
    }
}

// The rest of a training configuration stays, its layout is replaced, and a later edit is seen.
TEST(plan_emits_upon_a_configuration) {
    char words[600], edited[PAGE_BYTES];
    const char *base = "model:\n  preset: llama3-8b\ndata:\n  context: 2048\n  train: [a, b]\n"
                       "train:\n  batch: 32\n  steps: 20\noptimizer:\n  learning_rate: 3.0e-4\n"
                       "parallel:\n  tp: 4\n  pp: 2\npipeline:\n  layers: [20, 12]\n";
    struct err err = {0};
    CHECK_OK(file_replace(test_path("base.yaml"), base, strlen(base), &err), err);
    snprintf(words, sizeof words, "%s h100-sxm:8 --json --top 1 --emit %s", test_path("base.yaml"),
             test_path("run.yaml"));
    json_t *root = facts(words);
    check_emitted(root, test_path("run.yaml"), 8);
    CHECK(strstr(json_string_value(at(root, "start")), "SHARDS") == NULL); // it has its data
    json_decref(root);
    struct train_config *config = load(test_path("run.yaml"), NULL, 0);
    CHECK_CLOSE(config->learning_rate, 3e-4, 1e-12);
    CHECK_STR(config->train_sets, "a,b");
    CHECK_EQ_INT(config->batch, 32);
    CHECK_EQ_INT(config->steps, 20);
    uint64_t digest = config_digest(config);
    free(config);
    CHECK_EQ_INT(test_shell(edited, sizeof edited,
                            "sed -i 's/learning_rate: .*/learning_rate: 0.1/' %s",
                            test_path("run.yaml")),
                 0);
    config = load(test_path("run.yaml"), NULL, 0);
    CHECK(config_digest(config) != digest);
    free(config);
}

TEST(plan_refuses_in_one_line) {
    check_page("llama3-70 h100-sxm:8", 2, (const char *[]){"llama3-70b", NULL});
    check_page("llama3-70b h100-sxn:8", 2, (const char *[]){"h100-sxm", NULL});
    check_page("llama3-70b", 2, (const char *[]){"the cluster is missing", NULL});
    check_page(SMALL "--fix tq=8", 2, (const char *[]){"did you mean tp", NULL});
    check_page(SMALL "--fix", 2, (const char *[]){"--fix needs a value", NULL});
    check_page(SMALL "--fix tp=16,pp=2", 2, (const char *[]){"tp=16", "pp=2", NULL});
    check_page(SMALL "--precision int8", 2, (const char *[]){"fp32, bf16, fp8", NULL});
    check_page(SMALL "--tokens many", 2, (const char *[]){"a number of tokens", NULL});
    check_page(SMALL "--imbalance 0.5", 2, (const char *[]){"1 or more", NULL});
    check_page(SMALL "--imbalance 1e18", 2, (const char *[]){"imbalance 1e+18", NULL});
    check_page("gpt3-1.3b a100-80:8 --precision fp8", 2,
               (const char *[]){"a100-80 has no rate for fp8 products", NULL});
    check_page("gpt3-175b h100-sxm:2048 --context 4096", 2,
               (const char *[]){"a table of 2048 positions", NULL});
    check_page(SMALL "--stack wefft", 2, (const char *[]){"weft", NULL});
    check_page(SMALL "--top 0", 2, (const char *[]){"--top", NULL});
    check_page(SMALL "--fill 2", 2, (const char *[]){"a share", NULL});
    check_page(SMALL "--data x", 2, (const char *[]){"--emit", NULL});
    check_page("llama3-8b h100-sxm:16 --global-batch 999999999", 2,
               (const char *[]){"global batch", NULL});
    check_page("llama3-70b h100-sxm:8 --context 8192 --global-batch 64", 2,
               (const char *[]){"does not fit", "GB short", "nodes of 8 would do", NULL});
}
