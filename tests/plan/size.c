// Sizes around a training: worked figures.
#include "plan/size.h"
#include "model/flops.h"
#include "plan/inputs.h"
#include "plan/size_parts.h"
#include "test.h"
#include <math.h>
#include <string.h>

static double value(const struct size_sheet *sheet, const char *section, const char *name) {
    const struct size_line *line = size_find(sheet, section, name);
    if (!line) test_fail(__FILE__, __LINE__, "no line %s/%s", section, name);
    return line->value;
}

static struct model_config model(const char *name) {
    struct model_config config;
    struct err err = {0};
    CHECK_OK(plan_read_model(name, &config, &err), err);
    return config;
}

// Batch 2048 x 4096 tokens, half a step per second.
static const struct size_data textbook = {.tokens_per_second = 2048 * 4096 * 0.5,
                                          .vocab = 128256,
                                          .shard_tokens = 1e6,
                                          .workers = 10000,
                                          .operations = 1,
                                          .metadata_limit = 50000};

TEST(size_data_worked) {
    struct size_data in = textbook;
    struct size_sheet sheet = {0};
    struct err err = {0};
    in.products_per_token = 6 * 70e9;
    in.rate = 512 * 989e12;
    CHECK_OK(size_data(&in, &sheet, &err), err);
    CHECK_CLOSE(value(&sheet, "data", "tokens_per_second"), 4.19e6, 0.002);
    CHECK_CLOSE(value(&sheet, "data", "token_bytes"), 4, 0);
    CHECK_CLOSE(value(&sheet, "data", "read_bandwidth"), 16.8e6, 0.002);
    CHECK_CLOSE(size_find(&sheet, "data", "read_bandwidth")->chapter, 8.4e6, 0.002);
    CHECK_CLOSE(value(&sheet, "data", "metadata_operations"), 4.2, 0.002);
    CHECK_CLOSE(value(&sheet, "data", "if_every_worker_opens_all"), 41943, 0.001);
    CHECK_CLOSE(value(&sheet, "data", "share_if_every_worker_opens_all"), 0.839, 0.001);
    CHECK_CLOSE(value(&sheet, "data", "mfu_6n"), 3.48, 0.002);
    CHECK_CLOSE(value(&sheet, "operations by shard size", "100M_tokens"), 0.042, 0.001);
    CHECK_CONTAINS(size_find(&sheet, "data", "mfu_6n")->note, "no machine");
}

TEST(size_token_bytes_of_vocabularies) {
    CHECK_EQ_INT(size_token_bytes(50257), 2);
    CHECK_EQ_INT(size_token_bytes(65536), 2);
    CHECK_EQ_INT(size_token_bytes(65537), 4);
    CHECK_EQ_INT(size_token_bytes(128256), 4);
}

TEST(size_packing_worked) {
    struct model_config llama = model("llama3-70b");
    struct size_packing in = {.model = &llama,
                              .context = 4096,
                              .document_tokens = 600,
                              .accelerators = 512,
                              .run_dollars = 121856};
    struct size_sheet sheet = {0};
    struct err err = {0};
    CHECK_OK(size_packing(&in, &sheet, &err), err);
    CHECK_CLOSE(value(&sheet, "packing", "padding_waste"), 0.85, 0.005);
    CHECK_CLOSE(value(&sheet, "packing", "gain_over_padding_tokens"), 4096.0 / 600 - 1, 1e-9);
    CHECK_CLOSE(value(&sheet, "packing", "gain_over_concatenate_and_chunk"), 0.03, 0.005);
    in.context = 131072;
    sheet.count = 0;
    CHECK_OK(size_packing(&in, &sheet, &err), err);
    CHECK_CLOSE(1 + value(&sheet, "packing", "gain_over_concatenate_and_chunk"), 2.2, 0.02);
    CHECK_CLOSE(size_saving(121856, 0.2), 20309, 1e-4);
    // a document longer than a row: two rows, the second one half full
    in.context = 400;
    in.document_tokens = 600;
    sheet.count = 0;
    CHECK_OK(size_packing(&in, &sheet, &err), err);
    CHECK_CLOSE(value(&sheet, "packing", "padding_waste"), 0.25, 1e-12);
    CHECK_CLOSE(value(&sheet, "packing", "gain_over_concatenate_and_chunk"), 0, 1e-12);
}

static struct cluster h100s(struct catalogue **catalogue) {
    struct cluster cluster;
    struct err err = {0};
    CHECK_OK(catalogue_open(catalogue, &err), err);
    CHECK_OK(catalogue_cluster(*catalogue, "h100-sxm:512", &cluster, &err), err);
    return cluster;
}

TEST(size_checkpoint_worked) {
    struct size_checkpoint in = {.params = 70e9, .seconds = 60, .host_bandwidth = 25e9};
    struct size_sheet sheet = {0};
    struct err err = {0};
    CHECK_OK(size_checkpoint(&in, &sheet, &err), err);
    CHECK_CLOSE(value(&sheet, "checkpoint", "bytes"), 980e9, 1e-9);
    CHECK_CLOSE(size_find(&sheet, "checkpoint", "bytes")->chapter, 500e9, 1e-9);
    CHECK_CLOSE(value(&sheet, "checkpoint", "without_bf16_weights"), 840e9, 1e-9);
    CHECK_CLOSE(value(&sheet, "checkpoint", "burst_bandwidth"), 16.33e9, 0.001);
    CHECK(!size_find(&sheet, "checkpoint", "blocking_seconds"));
    struct catalogue *catalogue;
    struct cluster cluster = h100s(&catalogue);
    in.cluster = &cluster;
    sheet.count = 0;
    CHECK_OK(size_checkpoint(&in, &sheet, &err), err);
    CHECK_CLOSE(value(&sheet, "checkpoint", "snapshot_of_an_accelerator"), 980e9 / 512, 1e-9);
    CHECK_CLOSE(value(&sheet, "checkpoint", "blocking_seconds"), 980.0 / 512 / 25, 1e-9);
    CHECK_CLOSE(value(&sheet, "checkpoint", "written_to_parallel"),
                980e9 / cluster.storage[STORAGE_PARALLEL].write.value, 1e-9);
    CHECK_CLOSE(value(&sheet, "checkpoint", "written_to_nodes"),
                980e9 / 64 / cluster.storage[STORAGE_NODE].write.value, 1e-9);
    catalogue_close(catalogue);
}

TEST(size_run_of_a_cluster) {
    struct catalogue *catalogue;
    struct cluster cluster = h100s(&catalogue);
    struct runs runs;
    struct err err = {0};
    size_run(&cluster, 70e9, 2, 1000, &runs);
    CHECK_OK(runs_check(&runs, &err), err);
    CHECK_EQ_INT(runs.nodes, 64);
    CHECK_CLOSE(runs.blocking_seconds, 980.0 / 512 / 25, 1e-9);
    CHECK_CLOSE(runs.persist_seconds, 980e9 / cluster.storage[STORAGE_PARALLEL].write.value, 1e-9);
    CHECK_CLOSE(runs.price_per_hour, cluster.price_per_hour.value, 0);
    CHECK(runs.spares > 0);
    memset(cluster.storage, 0, sizeof cluster.storage);
    cluster.failures_per_node_day = cluster.repair_seconds = (struct figure){0};
    size_run(&cluster, 70e9, 2, 1000, &runs); // what is not described is usual
    CHECK_CLOSE(runs.persist_seconds, 90, 0);
    CHECK_CLOSE(runs.failures_per_node_day, RUNS_FAILURES_PER_NODE_DAY, 0);
    catalogue_close(catalogue);
}

TEST(size_storage_counts) {
    struct catalogue *catalogue;
    struct cluster cluster = h100s(&catalogue);
    struct size_storage in = {.params = 70e9,
                              .run_seconds = 30 * 86400,
                              .interval_seconds = 600,
                              .keep = 3,
                              .archive_every = 100,
                              .dataset_tokens = 15e12,
                              .vocab = 128256,
                              .cluster = &cluster};
    struct size_sheet sheet = {0};
    struct err err = {0};
    CHECK_OK(size_storage(&in, &sheet, &err), err);
    CHECK_CLOSE(value(&sheet, "checkpoints", "saves"), 4320, 0);
    CHECK_CLOSE(value(&sheet, "data", "token_shards"), 60e12, 1e-9);
    CHECK_CLOSE(value(&sheet, "parallel file system", "needed"), 60e12 + 3 * 980e9, 1e-9);
    CHECK_CLOSE(value(&sheet, "object store", "archived_checkpoints"), 44, 0);
    CHECK_CLOSE(value(&sheet, "object store", "needed"), 60e12 + 44 * 980e9, 1e-9);
    CHECK_CLOSE(value(&sheet, "host memory of a node", "two_generations_own_and_buddy"),
                4 * 980e9 / 64, 1e-9);
    catalogue_close(catalogue);
}

struct two_models {
    struct model_config policy, reward;
};

static void rlhf_textbook(struct size_rlhf *in, struct two_models *models,
                          struct catalogue **catalogue, struct accelerator *accelerator) {
    models->policy = model("llama3-70b");
    models->reward = model("llama2-13b");
    const struct cluster cluster = h100s(catalogue);
    *accelerator = cluster.accelerator;
    size_rlhf_defaults(in);
    in->policy = &models->policy;
    in->reward = in->value = &models->reward;
    in->accelerator = accelerator;
    in->accelerators = 512;
}

TEST(size_rlhf_textbook_split) {
    struct size_rlhf in;
    struct two_models models;
    struct catalogue *catalogue;
    struct accelerator accelerator;
    struct size_sheet sheet = {0};
    struct err err = {0};
    rlhf_textbook(&in, &models, &catalogue, &accelerator);
    CHECK_OK(size_rlhf(&in, &sheet, &err), err);
    static const struct {
        const char *pool;
        double whole, textbook;
    } pools[] = {
        {"rollout", 200, 205}, {"reward", 76, 77}, {"reference", 128, 128}, {"update", 96, 102}};
    for (size_t i = 0; i < 4; i++) {
        CHECK_CLOSE(value(&sheet, "split as wanted", pools[i].pool), pools[i].whole, 0);
        CHECK_CLOSE(size_find(&sheet, "split as wanted", pools[i].pool)->chapter, pools[i].textbook,
                    0);
    }
    CHECK_CLOSE(value(&sheet, "split as wanted", "idle"), 12, 0);
    CHECK_CONTAINS(size_find(&sheet, "split as wanted", "value")->note, "missing");
    // ours has all five, whole replicas, and uses no more than there are
    double sum = value(&sheet, "balanced split", "idle");
    for (int p = 0; p < SIZE_POOLS; p++) {
        double used = value(&sheet, "balanced split", size_pool_name((enum size_pool)p));
        CHECK(used > 0);
        CHECK_CLOSE(fmod(used, in.replica[p]), 0, 0);
        sum += used;
    }
    CHECK_CLOSE(sum, 512, 0);
    CHECK(value(&sheet, "balanced split", "iteration_overlapped") <
          value(&sheet, "balanced split", "iteration_in_turn"));
    catalogue_close(catalogue);
}

// A token of Mixtral visits 2 of 8 experts; 64 tokens nearly all.
TEST(size_decoding_reads_visited_experts) {
    struct size_rlhf in;
    struct two_models models;
    struct model_config mixtral = model("mixtral-8x7b");
    struct catalogue *catalogue;
    struct accelerator accelerator;
    struct size_generator g;
    rlhf_textbook(&in, &models, &catalogue, &accelerator);
    size_generator_of(&in, &g);
    CHECK_CLOSE(size_weights_read(&g, 1), g.weight_bytes, 1e-12); // dense: all
    in.policy = &mixtral;
    size_generator_of(&in, &g);
    CHECK_CLOSE(size_weights_read(&g, 1), 2 * (double)flops_active_params(&mixtral), 1e-9);
    double experts = 32.0 * 8 * 3 * 4096 * 14336 * 2;
    CHECK_CLOSE(g.expert_bytes, experts, 1e-9);
    CHECK_CLOSE(size_weights_read(&g, 2), g.weight_bytes - experts * 0.75 * 0.75, 1e-9);
    CHECK_CLOSE(size_weights_read(&g, 64), g.weight_bytes, 1e-6);
    catalogue_close(catalogue);
}

// On few accelerators the pools do not fit, adapters on a shared base do, and all models in turn.
TEST(size_rlhf_sharing) {
    struct size_rlhf in;
    struct two_models models;
    struct catalogue *catalogue;
    struct accelerator accelerator;
    struct size_sheet sheet = {0};
    struct err err = {0};
    static const char lora[] = "balanced split, LoRA on a shared base";
    rlhf_textbook(&in, &models, &catalogue, &accelerator);
    in.accelerators = 56;
    CHECK_OK(size_rlhf(&in, &sheet, &err), err);
    // rollout 8, reward 4, reference 8, value 8, update 2 x 16 for 1,270 GB of 1,236 at 16
    CHECK_CLOSE(value(&sheet, "balanced split", "needed"), 60, 0);
    CHECK(!size_find(&sheet, "balanced split", "update"));
    CHECK_CLOSE(value(&sheet, lora, "reference"), 0, 0);
    double sum = value(&sheet, lora, "idle");
    for (int p = 0; p < SIZE_POOLS; p++)
        sum += value(&sheet, lora, size_pool_name((enum size_pool)p));
    CHECK_CLOSE(sum, 56, 0);
    double turn = value(&sheet, "all in turn, offloaded", "moving");
    for (int p = 0; p < SIZE_POOLS; p++)
        turn += value(&sheet, "all in turn, offloaded", size_pool_name((enum size_pool)p));
    CHECK_CLOSE(value(&sheet, "all in turn, offloaded", "iteration"), turn, 1e-12);
    // an update of 6 N on all accelerators
    double tokens = 1024 * 1536.0, n = (double)flops_matmul_params(in.policy);
    CHECK_CLOSE(value(&sheet, "all in turn, offloaded", "update"),
                6 * n * tokens / (56 * accelerator.dense[HARDWARE_BF16].value * 0.4), 1e-9);
    catalogue_close(catalogue);
}

// 70B in BF16 over 8 H100: 141 GB / 26.8 TB/s = 5.3 ms for one sequence; a token's cache of 80
// layers with 8 heads of 128 is 327,680 bytes.
TEST(size_decoding) {
    struct model_config llama = model("llama3-70b");
    CHECK_CLOSE(size_kv_bytes(&llama), 327680, 0);
    CHECK_CLOSE(size_decode_seconds(141e9, 327680, 1, 0, 8 * 3.35e12), 5.26e-3, 0.001);
    CHECK_CLOSE(size_decode_seconds(141e9, 327680, 64, 2048, 8 * 3.35e12),
                (141e9 + 64 * 2048 * 327680.0) / (8 * 3.35e12), 1e-12);
    struct model_config latent = model("deepseek-v3"); // 512 + 64 for all heads together
    CHECK_CLOSE(size_kv_bytes(&latent), 2 * 576 * 61, 0);
    struct size_rlhf in;
    struct two_models models;
    struct catalogue *catalogue;
    struct accelerator accelerator;
    struct size_sheet sheet = {0};
    struct err err = {0};
    rlhf_textbook(&in, &models, &catalogue, &accelerator);
    CHECK_OK(size_rlhf(&in, &sheet, &err), err);
    double first = value(&sheet, "rollout", "decode_first_token");
    CHECK_CLOSE(value(&sheet, "rollout", "decode_last_token") - first,
                41 * 1024 * 327680.0 / (8 * accelerator.memory_bandwidth.value), 1e-9);
    catalogue_close(catalogue);
}

TEST(size_rlhf_states_worked) {
    struct size_rlhf_params p = {.policy = 1e9, .value = 1e9, .reward = 1e9};
    CHECK_CLOSE(size_rlhf_states(&p, SIZE_ALL) / 1e9, 40.0, 1e-12);
    CHECK_CLOSE(size_rlhf_states(&p, SIZE_PRECOMPUTED) / 1e9, 38.0, 1e-12);
    CHECK_CLOSE(size_rlhf_states(&p, SIZE_ALL) / 8 / 1e9, 5.0, 1e-12);
    CHECK_CLOSE(size_rlhf_states(&p, SIZE_OFFLOADED) / 1e9, 36.0, 1e-12);
    p.policy_adapters = p.value_adapters = 1e7;
    CHECK_CLOSE(size_rlhf_states(&p, SIZE_LORA) / 1e9, 6 + 0.36, 1e-12);
    p.value_shares_base = p.reward_shares_base = true; // one base, three sets of adapters
    CHECK_CLOSE(size_rlhf_states(&p, SIZE_LORA) / 1e9, 2 + 0.02 + 0.36, 1e-12);
    CHECK_CLOSE(size_dpo_states(1e9, false) / 1e9, 20, 1e-12);
    CHECK_CLOSE(size_dpo_states(1e9, true) / 1e9, 18, 1e-12);
}

TEST(size_lora_counts_parts) {
    struct model_config llama = model("llama3-70b");
    // q 8192+8192, k and v 1024+8192, o 8192+8192, gate and up 28672+8192, down 8192+28672
    double layer = 16384 + 2 * 9216 + 16384 + 3 * 36864;
    CHECK_CLOSE(size_lora_params(&llama, 16), 16 * 80 * layer, 1e-12);
}

TEST(size_rlhf_refuses) {
    struct size_rlhf in;
    struct two_models models;
    struct catalogue *catalogue;
    struct accelerator accelerator;
    struct size_sheet sheet = {0};
    rlhf_textbook(&in, &models, &catalogue, &accelerator);
    struct size_rlhf bad = in;
    bad.replica[POOL_REFERENCE] = 1; // 141 GB into 80
    struct err err = {0};
    CHECK_EQ_INT(size_rlhf(&bad, &sheet, &err), -1);
    CHECK_CONTAINS(err.text, "reference replica of 1 h100-sxm");
    CHECK_CONTAINS(err.text, "expected 2 accelerators");
    bad = in;
    bad.accelerators = 16; // 18 bytes of 70.55B are 1,270 GB
    err = (struct err){0};
    CHECK_EQ_INT(size_rlhf(&bad, &sheet, &err), -1);
    CHECK_CONTAINS(err.text, "states are 1270 GB");
    CHECK_CONTAINS(err.text, "even with the models in turn");
    bad = in;
    bad.share[POOL_VALUE] = 0.1;
    err = (struct err){0};
    CHECK_EQ_INT(size_rlhf(&bad, &sheet, &err), -1);
    CHECK_CONTAINS(err.text, "add up to 1.1");
    int *const counts[] = {&bad.accelerators,    &bad.samples, &bad.prompt_tokens,
                           &bad.response_tokens, &bad.epochs,  &bad.lora_rank};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int k = 0; k < 2; k++) {
            bad = in;
            *counts[i] = -k;
            err = (struct err){0};
            CHECK_EQ_INT(size_rlhf(&bad, &sheet, &err), -1);
            CHECK_CONTAINS(err.text, "expected 1 to");
        }
    catalogue_close(catalogue);
}

TEST(size_refuses_absurd_figures) {
    static const double bad[] = {-1, 0, NAN, INFINITY, 1e30};
    struct size_sheet sheet = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {0};
        struct size_data data = textbook;
        data.tokens_per_second = bad[i];
        CHECK_EQ_INT(size_data(&data, &sheet, &err), -1);
        CHECK_CONTAINS(err.text, "tokens per second");
        err = (struct err){0};
        struct size_checkpoint checkpoint = {
            .params = bad[i], .seconds = 60, .host_bandwidth = 1e9};
        CHECK_EQ_INT(size_checkpoint(&checkpoint, &sheet, &err), -1);
        CHECK_CONTAINS(err.text, "parameters");
        err = (struct err){0};
        struct size_storage storage = {.params = 1e9, .run_seconds = bad[i]};
        CHECK_EQ_INT(size_storage(&storage, &sheet, &err), -1);
        CHECK_CONTAINS(err.text, "run seconds");
    }
    CHECK_EQ_INT(sheet.count, 0);
}

TEST(size_sheet_prints) {
    struct size_sheet sheet = {0};
    struct text out = {0};
    struct size_line *line = size_put(&sheet, "one", "read_bandwidth", 16.777e6, "B/s");
    size_note(line, 8e6, "why %d", 7);
    size_put(&sheet, "one", "price", 20309, "$");
    CHECK_EQ_INT(size_print(&sheet, &out), 0);
    CHECK_CONTAINS(out.data, "read bandwidth");
    CHECK_CONTAINS(out.data, "16.8 MB/s   textbook 8 MB/s   why 7");
    CHECK_CONTAINS(out.data, "$20,309");
    text_free(&out);
    json_t *json = size_json(&sheet);
    json_t *one = json_object_get(json_object_get(json, "one"), "read_bandwidth");
    CHECK_CLOSE(json_real_value(json_object_get(one, "value")), 16.777e6, 1e-12);
    CHECK_CLOSE(json_real_value(json_object_get(one, "textbook")), 8e6, 1e-12);
    json_decref(json);
}
