// weft layout: the layouts of two published runs, pinned; hosts, single ranks, and refusals.
#include "base/file.h"
#include "base/json.h"
#include "cli/layout_view.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 1 << 22 };

static char *page(const char *words, int status) {
    char *out = malloc(PAGE_BYTES);
    CHECK(out != NULL);
    CHECK_EQ_INT(
        test_shell(out, PAGE_BYTES, "cd %s && %s layout %s", WEFT_SOURCE_DIR, test_weft(), words),
        status);
    return out;
}

static json_t *facts(const char *words) {
    char *text = page(words, 0);
    struct err err = {0};
    json_t *root = json_parse(text, strlen(text), "weft layout", &err);
    if (!root) test_fail(__FILE__, __LINE__, "%s", err.text);
    free(text);
    return root;
}

static json_t *at(json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    if (!value) test_fail(__FILE__, __LINE__, "no key \"%s\"", key);
    return value;
}

static long long number(json_t *object, const char *key) {
    return json_integer_value(at(object, key));
}

// Size and number of the groups of a kind, and the members of one of them.
static void check_group(json_t *root, const char *kind, int size, int count, int which,
                        const char *members) {
    json_t *group = at(at(root, "groups"), kind);
    CHECK_EQ_INT(number(group, "size"), size);
    CHECK_EQ_INT(number(group, "count"), count);
    CHECK_EQ_INT(json_array_size(at(group, "members")), count);
    CHECK_STR(json_string_value(json_array_get(at(group, "members"), (size_t)which)), members);
}

// The states under the four stages of ZeRO against the formulas, FP32 gradients.
static void check_states(json_t *kind, const int shards) {
    for (size_t zero = 0; zero < 4; zero++) {
        json_t *s = json_array_get(at(kind, "zero"), zero);
        long long p = number(s, "matrix_elements"), shard = number(s, "shard_elements");
        if (shards > 0) CHECK_EQ_INT(shard * (zero ? shards : 1), p);
        CHECK_EQ_INT(number(s, "weights_bytes"), 2 * (zero == 3 ? shard : p));
        CHECK_EQ_INT(number(s, "gradients_bytes"), 4 * (zero >= 2 ? shard : p));
        CHECK_EQ_INT(number(s, "masters_bytes"), 4 * (zero >= 1 ? shard : p));
        CHECK_EQ_INT(number(s, "moments_bytes"), 8 * (zero >= 1 ? shard : p));
        CHECK_EQ_INT(number(s, "vectors_bytes"), 18 * number(s, "vector_elements"));
        CHECK(p >= number(kind, "parameters") - number(s, "vector_elements"));
    }
}

TEST(layout_of_llama3_405b) {
    json_t *root = facts("configs/layouts/llama3-405b.yaml -n 16384 --json");
    json_t *world = at(root, "world");
    CHECK_EQ_INT(number(world, "parameters"), 405853388800);
    CHECK_EQ_INT(number(world, "dp"), 128);
    CHECK_EQ_INT(json_array_size(at(root, "warnings")), 0);
    check_group(root, "tp", 8, 2048, 1, "8-15");
    check_group(root, "pp", 16, 1024, 3, "3:16387:1024");
    check_group(root, "data", 128, 128, 0, "0:1024:8");
    check_group(root, "data", 128, 128, 127, "15367:16391:8");
    check_group(root, "shard", 128, 128, 8, "1024:2048:8");
    check_group(root, "cp", 1, 16384, 5, "5");
    check_group(root, "kv", 1, 16384, 16383, "16383");
    CHECK_EQ_INT(number(at(at(root, "groups"), "tp"), "hosts"), 1);
    CHECK_EQ_INT(number(at(at(root, "groups"), "data"), "hosts"), 128);
    CHECK(json_is_true(at(at(at(root, "groups"), "data"), "rails")));

    json_t *stages = at(root, "stages");
    CHECK_EQ_INT(json_array_size(stages), 16);
    for (size_t s = 0; s < 16; s++)
        CHECK_EQ_INT(number(json_array_get(stages, s), "layers"), s == 0 || s == 15 ? 7 : 8);
    // Of a rank: qkv (2048 + 2 x 128) x 16384, out 16384 x 2048, gate and up 2 x 6656 x 16384, down
    // 16384 x 6656, two norms; at the ends 16064 rows of a table, at the last a norm.
    const long long layer = (2048 + 256 + 2048 + 3 * 6656 + 2) * 16384ll;
    json_t *kinds = at(root, "kinds");
    CHECK_EQ_INT(json_array_size(kinds), 3);
    CHECK_EQ_INT(number(json_array_get(kinds, 0), "parameters"), 7 * layer + 16064 * 16384ll);
    CHECK_EQ_INT(number(json_array_get(kinds, 1), "parameters"), 8 * layer);
    CHECK_EQ_INT(number(json_array_get(kinds, 1), "last_pp"), 14);
    CHECK_EQ_INT(number(json_array_get(kinds, 2), "parameters"),
                 7 * layer + 16064 * 16384ll + 16384);
    for (size_t i = 0; i < 3; i++) check_states(json_array_get(kinds, i), 128);
    json_decref(root);
}

TEST(layout_of_deepseek_v3) {
    json_t *root = facts("configs/layouts/deepseek-v3.yaml -n 2048 --json");
    check_group(root, "ep", 64, 32, 1, "64-127");
    check_group(root, "expert_data", 2, 1024, 0, "0,64");
    check_group(root, "expert_shard", 2, 1024, 65, "129,193");
    check_group(root, "data", 128, 16, 15, "1920-2047");
    check_group(root, "pp", 16, 128, 7, "7:2055:128");
    check_group(root, "tp", 1, 2048, 0, "0");
    CHECK_EQ_INT(number(at(at(root, "groups"), "ep"), "hosts"), 8);
    // 4 layers: latent attention, router, 4 of 256 experts, the shared expert, and the norms
    json_t *middle = json_array_get(at(root, "kinds"), 1);
    const long long latent =
        (1536 + 576 + 16384) * 7168ll + 128 * 192 * 1536ll + 128 * 256 * 512ll + 1536 + 512;
    const long long layer = latent + (256 + 5 * 3 * 2048 + 2) * 7168ll;
    CHECK_EQ_INT(number(middle, "parameters"), 4 * layer);
    check_states(middle, 0);
    // dense parameters over 128 ranks, experts over the 2 that hold the same
    json_t *zero1 = json_array_get(at(middle, "zero"), 1);
    const long long experts = 4 * 4 * 3 * 2048 * 7168ll, dense = 4 * layer - experts;
    CHECK(number(zero1, "shard_elements") >= dense / 128 + experts / 2 - 1000);
    CHECK(number(zero1, "shard_elements") <= (dense / 128 + experts / 2) * 101 / 100);
    json_decref(root);

    root = facts("configs/layouts/deepseek-v3.yaml -n 2048 --rank 700 --json");
    json_t *rank = at(root, "rank");
    CHECK_EQ_INT(number(rank, "host"), 87);
    CHECK_EQ_INT(number(rank, "pp"), 5);
    CHECK_EQ_INT(number(rank, "dp"), 60);
    CHECK_EQ_INT(number(rank, "parameters"), 4 * layer);
    CHECK_STR(json_string_value(at(at(at(rank, "groups"), "ep"), "members")), "640-703");
    CHECK_EQ_INT(number(at(at(rank, "groups"), "ep"), "index"), 60);
    // behind two norms, six tensors of latent attention, out and the router
    json_t *tensor = json_array_get(at(rank, "tensors"), 10);
    CHECK_STR(json_string_value(at(tensor, "name")), "layers.20.experts.240.up.weight");
    json_decref(root);
}

static const char small[] = "model: {family: llama, layers: 4, hidden: 64, heads: 8, kv_heads: 2, "
                            "vocab: 250, context: 64, tied_head: true, qk_norm: head}\n"
                            "train: {batch: 16, micro_batch: 1}\n";

static char *small_page(const char *words, int status) {
    char path[4096], command[8192];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/small.yaml", test_temp_dir());
    CHECK_OK(file_replace(path, small, strlen(small), &err), err);
    snprintf(command, sizeof command, "%s %s", path, words);
    return page(command, status);
}

static void check_page(const char *words, int status, const char *part, const char *other) {
    char *out = small_page(words, status);
    CHECK_CONTAINS(out, part);
    CHECK_CONTAINS(out, other);
    free(out);
}

TEST(layout_tells_who_is_where) {
    check_page("parallel.tp=2 parallel.pp=2 -n 8", 0, "rank = 4 pp + 2 dp + 2 cp + tp",
               "  rank 5   host 0, pp 1, dp 0, cp 0, tp 1\n");
    check_page("parallel.tp=2 parallel.pp=2 -n 8", 0,
               "  pp 1   ranks 4-7; stage 1: layers 2-3, head",
               "inside a host            0-1 | 2-3 | ...");
    check_page("parallel.pp=2 pipeline.schedule=zb-v", 0,
               "pp 0   ranks 0; stage 0: layer 0, embedding; stage 3: layer 3, head",
               "pp 1   ranks 1; stage 1: layer 1; stage 2: layer 2");
    check_page("parallel.tp=4 --rank 3 -n 8", 0, "  kv              number 1 of 2: 2-3",
               "layers.0.attention.qkv.weight            32 x 64 of 96 x 64: q rows 48 to 63; k "
               "rows 8 to 15; v rows 8 to 15, k and v copy 2 of 2");
}

// Every parameter has a rule, and the rules are those of the layout.
TEST(layout_audits_sums_of_gradients) {
    check_page("parallel.tp=4", 0,
               "layers.*.attention.qkv.weight        rows over tp        kv, then data",
               "layers.*.attention.q_norm.weight     replicated          tp, then data");
    check_page("parallel.tp=4 parallel.sequence=false", 0,
               "layers.*.mlp_norm.weight             replicated          data",
               "sequence parallelism off");
    check_page(
        "parallel.pp=2 -n 4", 0,
        "embedding.weight                     whole               first and last stage, then data",
        "final_norm.weight                    whole               data");
    check_page("parallel.cp=2", 0, "  data                 1 of      2 ranks,",
               "dp x cp = 2 ranks");
}

TEST(layout_warns_of_slow_places) {
    check_page("parallel.tp=4 --ranks-per-host 2", 0, "warning: tp (4) crosses hosts of 2 ranks",
               "put tp last in parallel.order");
    check_page("parallel.tp=2 parallel.order=[tp,pp,dp,cp] -n 8 --ranks-per-host 4", 0,
               "warning: tp (2) crosses hosts of 4 ranks", "rank = 4 tp + 4 pp + dp + cp");
    check_page("parallel.cp=2 parallel.tp=2 -n 12 --ranks-per-host 6 train.batch=12", 0, "no rails",
               "cp 2");
    char *out = small_page("parallel.tp=2 -n 8 --ranks-per-host 4", 0);
    CHECK(strstr(out, "warning") == NULL);
    free(out);
}

TEST(layout_refuses_what_does_not_fit) {
    check_page("parallel.tp=3 -n 8", 2, "tp (3) does not divide 8", "tp 2 or 4");
    check_page("parallel.tp=16 -n 16", 2, "tp (16) does not divide heads (8)",
               "nearest layouts that work on 16 ranks: dp 2 x tp 8");
    check_page("model.kv_heads=4 model.heads=12 model.head_dim=8 parallel.tp=6 -n 6 train.batch=6",
               2, "tp (6) neither divides kv_heads (4) nor is a multiple of it", "dp 3 x tp 2");
    check_page("parallel.pp=5 -n 5", 2, "layers (4) do not fill the 5 stages", "pp 4 or less");
    check_page("-n 3", 2, "train.batch (16) is not a multiple of the 3 replicas", "2 or 4");
    check_page("parallel.cp=64 -n 64", 2, "64 tokens is too short for cp (64)", "nearest layouts");
    check_page("parallel.ep=2 -n 2", 2, "no experts to spread", "use 1");
    check_page("model.experts=6 parallel.ep=4 -n 4", 2, "ep (4) does not divide experts (6)",
               "with ep 2");
    check_page("--rank 1", 2, "--rank 1: the world has the ranks 0 to 0", "weft: layout");
    check_page("--ranks 4", 2, "unknown option \"--ranks\"", "did you mean --rank");
    check_page("-n 0", 2, "expected a whole number from 1 up", "-n");
    free(page("--help", 0));
}

// The states that are printed are those that the engine plans.
TEST(layout_states_are_those_of_the_plan) {
    static const char *const layouts[] = {"parallel.dp=4",
                                          "parallel.dp=2 parallel.zero=1 parallel.tp=2",
                                          "parallel.dp=2 parallel.zero=2 parallel.pp=2",
                                          "parallel.dp=2 parallel.zero=3 parallel.cp=2",
                                          "parallel.dp=4 parallel.zero=1 zero.shard=2",
                                          "parallel.dp=2 zero.reduce=per_micro_batch",
                                          "parallel.dp=2 zero.accumulate_precision=bf16",
                                          "parallel.dp=4 parallel.zero=2 parallel.ep=2 "
                                          "model.experts=4 model.expert_ffn=32",
                                          "train.precision=fp32 parallel.dp=3 train.batch=12"};
    struct device device;
    struct err err = {0};
    const struct device_cpu_options device_options = {.threads = 1};
    CHECK_OK(device_cpu_open(&device, &device_options, &err), err);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct train_config *config = calloc(1, sizeof *config);
        char text[1024], *words[16];
        int count = 0;
        snprintf(text, sizeof text,
                 "model.family=llama model.layers=4 model.hidden=64 model.heads=8 model.vocab=250 "
                 "model.context=64 train.batch=8 train.micro_batch=1 %s",
                 layouts[i]);
        for (char *word = strtok(text, " "); word && count < 16; word = strtok(NULL, " "))
            words[count++] = word;
        struct layout_view view;
        CHECK_OK(config_load(config, NULL, words, count, &err), err);
        CHECK_OK(layout_view_open(&view, config, 0, 8, &err), err);
        for (int k = 0; k < view.kind_count; k++) {
            struct engine_options options;
            struct engine_parallel parallel;
            struct memory_plan plan;
            config_engine(config, &options);
            config_parallel(config, &parallel);
            parallel.layout = &view.layout;
            parallel.rank = view.kinds[k].local.rank;
            options.parallel = &parallel;
            CHECK_OK(engine_plan(&plan, &view.whole, &device, &options, &err), err);
            uint64_t planned = memory_plan_kind_bytes(&plan, BUFFER_WEIGHT) +
                               memory_plan_kind_bytes(&plan, BUFFER_GRADIENT) +
                               memory_plan_kind_bytes(&plan, BUFFER_MASTER) +
                               memory_plan_kind_bytes(&plan, BUFFER_MOMENT);
            const struct state_bytes *s = &view.kinds[k].states[view.layout.zero];
            CHECK_EQ_INT(s->weights + s->gradients + s->masters + s->moments + s->vector_bytes,
                         planned);
            memory_plan_free(&plan);
        }
        layout_view_close(&view);
        free(config);
    }
    device.close(&device);
}

TEST(layout_lists_of_ranks) {
    static const struct {
        int ranks[8], count, pieces;
        const char *text;
    } cases[] = {
        {{0, 1, 2, 3}, 4, 9, "0-3"},
        {{5}, 1, 9, "5"},
        {{0, 1}, 2, 9, "0-1"},
        {{0, 4}, 2, 9, "0,4"},
        {{0, 4, 8}, 3, 9, "0:12:4"},
        {{0, 1, 8, 9, 16, 17}, 6, 9, "0-1,8-9,16-17"},
        {{0, 1, 8, 9, 16, 17}, 6, 2, "0-1,..."},
        {{0, 1, 8, 9}, 4, 2, "0-1,8-9"},
        {{0, 4, 5, 6, 20}, 5, 9, "0,4-6,20"},
        {{9, 7, 8}, 3, 9, "9,7-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct text out = {0};
        CHECK_EQ_INT(layout_ranges(&out, cases[i].ranks, cases[i].count, cases[i].pieces), 0);
        CHECK_STR(out.data, cases[i].text);
        text_free(&out);
    }
}
