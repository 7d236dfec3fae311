// Pools of accelerators for reinforcement learning: whole replicas of a wanted split, and a split
// in which all pools take about equally long. See size.h.
#include "model/flops.h"
#include "plan/size_parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *size_pool_name(enum size_pool pool) {
    static const char *const names[SIZE_POOLS] = {"rollout", "reward", "reference", "value",
                                                  "update"};
    return names[pool];
}

void size_rlhf_defaults(struct size_rlhf *in) {
    // the textbook's example: it has no value model
    *in = (struct size_rlhf){.share = {0.40, 0.15, 0.25, 0, 0.20},
                             .replica = {8, 4, 8, 8, 16},
                             .samples = 1024,
                             .prompt_tokens = 512,
                             .response_tokens = 1024,
                             .epochs = 1,
                             .lora_rank = 16,
                             .forward_mfu = 0.5,
                             .train_mfu = 0.4,
                             .host_bandwidth = SIZE_HOST_BANDWIDTH};
}

static int check(const struct size_rlhf *in, struct err *err) {
    double sum = 0;
    if (size_check("accelerators", in->accelerators, 1, 1e8, err) != 0 ||
        size_check("samples", in->samples, 1, 1e8, err) != 0 ||
        size_check("prompt tokens", in->prompt_tokens, 1, 1e7, err) != 0 ||
        size_check("response tokens", in->response_tokens, 1, 1e7, err) != 0 ||
        size_check("epochs", in->epochs, 1, 1000, err) != 0 ||
        size_check("LoRA rank", in->lora_rank, 1, 65536, err) != 0 ||
        size_check("forward MFU", in->forward_mfu, 0.001, 1, err) != 0 ||
        size_check("training MFU", in->train_mfu, 0.001, 1, err) != 0 ||
        size_check("host bandwidth", in->host_bandwidth, 1e3, 1e15, err) != 0)
        return -1;
    for (int p = 0; p < SIZE_POOLS; p++) {
        char name[64];
        snprintf(name, sizeof name, "share of %s", size_pool_name((enum size_pool)p));
        if (size_check(name, in->share[p], 0, 1, err) != 0) return -1;
        snprintf(name, sizeof name, "accelerators of a %s replica",
                 size_pool_name((enum size_pool)p));
        if (size_check(name, in->replica[p], 1, in->accelerators, err) != 0) return -1;
        sum += in->share[p];
    }
    if (sum > 1 + 1e-9)
        return err_set(err, ERR_USAGE, "size: the pools' shares add up to %.4g: expected 1 at most",
                       sum);
    return 0;
}

static const struct model_config *model_of(const struct size_rlhf *in, enum size_pool pool) {
    return pool == POOL_REWARD ? in->reward : pool == POOL_VALUE ? in->value : in->policy;
}

// Bytes that a replica must hold at least: weights, or a training's states, which the whole pool
// shares.
static double least_bytes(const struct size_rlhf *in, enum size_pool pool) {
    bool trains = pool == POOL_VALUE || pool == POOL_UPDATE;
    return (trains ? 18.0 : 2.0) * (double)flops_all_params(model_of(in, pool));
}

static double replica_memory(const struct size_rlhf *in, enum size_pool pool) {
    return 0.9 * in->replica[pool] * in->accelerator->memory_bytes.value;
}

// A frozen model lies whole in each replica. States of a trained one are sharded over its pool.
static int least_replicas(const struct size_rlhf *in, enum size_pool pool, struct err *err) {
    double need = least_bytes(in, pool), room = replica_memory(in, pool);
    if (pool == POOL_VALUE || pool == POOL_UPDATE) return (int)ceil(need / room);
    if (need <= room) return 1;
    double one = room / in->replica[pool];
    return err_set(
        err, ERR_USAGE,
        "size: a %s replica of %d %s holds %.3g GB, its weights are %.3g GB: expected %d "
        "accelerators at least",
        size_pool_name(pool), in->replica[pool], in->accelerator->name, room / 1e9, need / 1e9,
        (int)ceil(need / one));
}

// Seconds of an iteration over `replicas` of a pool.
static double pool_seconds(const struct size_rlhf *in, enum size_pool pool, int replicas) {
    double tokens = (double)in->samples * (in->prompt_tokens + in->response_tokens);
    double n = (double)flops_matmul_params(model_of(in, pool));
    double rate =
        (double)replicas * in->replica[pool] * in->accelerator->dense[HARDWARE_BF16].value;
    double forward = 2 * n * tokens / (rate * in->forward_mfu);
    double train = 6 * n * tokens * in->epochs / (rate * in->train_mfu);
    if (pool == POOL_ROLLOUT) {
        struct size_generator g;
        size_generator_of(in, &g);
        double each = ceil((double)in->samples / replicas);
        double most = fmax(1, g.most_sequences), waves = ceil(each / most);
        return waves * size_wave_seconds(in, &g, each / waves);
    }
    if (pool == POOL_UPDATE) return train;
    return pool == POOL_VALUE ? forward + train : forward;
}

// ---- sheets -------------------------------------------------------------------------------------

enum { TEXTBOOK = 512 }; // accelerators of the example whose split users may know

static int put_wanted(const struct size_rlhf *in, struct size_sheet *out, struct err *err) {
    int used = 0;
    for (int p = 0; p < SIZE_POOLS; p++) {
        enum size_pool pool = (enum size_pool)p;
        double wanted = in->share[p] * in->accelerators;
        int replicas = (int)floor(wanted / in->replica[p] + 1e-9);
        struct size_line *line = size_put(out, "split as wanted", size_pool_name(pool),
                                          (double)replicas * in->replica[p], "");
        if (wanted <= 0) {
            size_note(line, NAN,
                      pool == POOL_VALUE ? "missing: PPO's advantages need a value model"
                                         : "no pool");
            continue;
        }
        int least = least_replicas(in, pool, err);
        if (least < 0) return -1;
        size_note(line, in->accelerators == TEXTBOOK ? round(wanted) : NAN,
                  "%d whole replicas of %d, %.0f wanted%s", replicas, in->replica[p], wanted,
                  replicas < least ? "; too few to hold the states" : "");
        used += replicas * in->replica[p];
    }
    size_put(out, "split as wanted", "idle", in->accelerators - used, "");
    return 0;
}

// Replica by replica to the pool that takes longest, while there are accelerators.
static int balance(const struct size_rlhf *in, int replicas[SIZE_POOLS], struct err *err) {
    int left = in->accelerators;
    for (int p = 0; p < SIZE_POOLS; p++) {
        replicas[p] = least_replicas(in, (enum size_pool)p, err);
        if (replicas[p] < 0) return -1;
        left -= replicas[p] * in->replica[p];
    }
    if (left < 0)
        return err_set(err, ERR_USAGE,
                       "size: the five pools need %d accelerators at least, %d more than the %d "
                       "given; shared weights (LoRA), offload, or DPO need fewer",
                       in->accelerators - left, -left, in->accelerators);
    for (;;) {
        int slowest = 0;
        double seconds[SIZE_POOLS];
        for (int p = 0; p < SIZE_POOLS; p++) {
            seconds[p] = pool_seconds(in, (enum size_pool)p, replicas[p]);
            if (seconds[p] > seconds[slowest]) slowest = p;
        }
        if (in->replica[slowest] > left) return left;
        replicas[slowest]++;
        left -= in->replica[slowest];
    }
}

static int put_balanced(const struct size_rlhf *in, struct size_sheet *out, struct err *err) {
    int replicas[SIZE_POOLS], idle = balance(in, replicas, err);
    double longest = 0, sum = 0;
    if (idle < 0) return -1;
    for (int p = 0; p < SIZE_POOLS; p++) {
        double seconds = pool_seconds(in, (enum size_pool)p, replicas[p]);
        struct size_line *line = size_put(out, "balanced split", size_pool_name((enum size_pool)p),
                                          (double)replicas[p] * in->replica[p], "");
        size_note(line, NAN, "%d replicas of %d, %.3g s an iteration", replicas[p], in->replica[p],
                  seconds);
        longest = fmax(longest, seconds);
        sum += seconds;
    }
    size_put(out, "balanced split", "idle", idle, "");
    struct size_line *line = size_put(out, "balanced split", "iteration_overlapped", longest, "s");
    size_note(line, NAN, "pools work on different iterations: the policy lags behind by one");
    line = size_put(out, "balanced split", "iteration_in_turn", sum, "s");
    size_note(line, NAN, "strictly on-policy: one pool after the other");
    return 0;
}

static void put_rollout(const struct size_rlhf *in, struct size_sheet *out) {
    struct size_generator g;
    size_generator_of(in, &g);
    double replicas = floor(in->share[POOL_ROLLOUT] * in->accelerators / in->replica[POOL_ROLLOUT]);
    double each = ceil(in->samples / fmax(1, replicas)), most = fmax(1, g.most_sequences);
    double batch = fmin(each, most), prompt = in->prompt_tokens, end = prompt + in->response_tokens;
    size_put(out, "rollout", "weights", g.weight_bytes, "B");
    size_put(out, "rollout", "kv_cache_of_a_token", g.kv_bytes, "B");
    size_put(out, "rollout", "sequences_that_fit", g.most_sequences, "");
    struct size_line *line = size_put(out, "rollout", "sequences_of_a_replica", batch, "");
    size_note(line, NAN, "%d samples over %.0f replicas", in->samples, replicas);
    size_put(out, "rollout", "decode_one_sequence",
             size_decode_seconds(g.weight_bytes, g.kv_bytes, 1, prompt, g.bandwidth), "s");
    line =
        size_put(out, "rollout", "decode_first_token", size_token_seconds(&g, batch, prompt), "s");
    size_note(line, NAN, "(weights + cache read) / memory bandwidth of %d accelerators",
              in->replica[POOL_ROLLOUT]);
    line = size_put(out, "rollout", "decode_last_token", size_token_seconds(&g, batch, end), "s");
    size_note(line, NAN, "the cache has grown to %.0f tokens each", end);
    size_put(out, "rollout", "tokens_per_second_of_a_replica",
             batch * in->response_tokens / size_wave_seconds(in, &g, batch), "tok/s");
}

static void put_memory(const struct size_rlhf *in, struct size_sheet *out) {
    static const char *const names[SIZE_SHARINGS] = {"all_models", "reference_precomputed",
                                                     "lora_shared_base", "frozen_offloaded"};
    struct size_rlhf_params p = {
        .policy = (double)flops_all_params(in->policy),
        .value = (double)flops_all_params(in->value),
        .reward = (double)flops_all_params(in->reward),
        .policy_adapters = size_lora_params(in->policy, in->lora_rank),
        .value_adapters = size_lora_params(in->value, in->lora_rank),
        .value_shares_base = memcmp(in->value, in->policy, sizeof *in->value) == 0,
        .reward_shares_base = memcmp(in->reward, in->policy, sizeof *in->reward) == 0};
    for (int s = 0; s < SIZE_SHARINGS; s++)
        size_put(out, "states, all models", names[s], size_rlhf_states(&p, (enum size_sharing)s),
                 "B");
    struct size_line *line = size_put(out, "states, all models", "lora_parameters",
                                      p.policy_adapters + p.value_adapters, "");
    size_note(line, NAN, "rank %d beside every matrix of the layers", in->lora_rank);
    double frozen = size_rlhf_states(&p, SIZE_ALL) - size_rlhf_states(&p, SIZE_OFFLOADED);
    line = size_put(out, "states, all models", "offload_moves", frozen, "B");
    size_note(line, NAN, "%.3g s in and as long out over all accelerators at %.3g GB/s each",
              frozen / in->host_bandwidth / in->accelerators, in->host_bandwidth / 1e9);
    line = size_put(out, "states, all models", "dpo", size_dpo_states(p.policy, false), "B");
    size_note(line, NAN, "policy and reference; %.4g GB with the reference computed beforehand",
              size_dpo_states(p.policy, true) / 1e9);
}

// A pair of answers goes forward and backward through the policy, forward through the reference.
static void put_dpo(const struct size_rlhf *in, struct size_sheet *out) {
    double tokens = (double)in->samples * (in->prompt_tokens + in->response_tokens);
    double n = (double)flops_matmul_params(in->policy), v = (double)flops_matmul_params(in->value);
    double r = (double)flops_matmul_params(in->reward);
    double rate = in->accelerators * in->accelerator->dense[HARDWARE_BF16].value;
    double seconds = 2 * tokens * n * (6 / in->train_mfu + 2 / in->forward_mfu) / rate;
    double ppo = tokens * (2 * n + 2 * n + 2 * r + 2 * v + 6.0 * in->epochs * (n + v));
    struct size_line *line = size_put(out, "DPO beside PPO", "dpo_iteration", seconds, "s");
    size_note(line, NAN, "as many pairs as PPO has samples, all accelerators in one pool");
    line = size_put(out, "DPO beside PPO", "dpo_operations", 2 * tokens * 8 * n, "FLOP");
    line = size_put(out, "DPO beside PPO", "ppo_operations", ppo, "FLOP");
    size_note(line, NAN, "besides decoding, which memory bandwidth bounds");
    double least = ceil(size_dpo_states((double)flops_all_params(in->policy), false) /
                        (0.9 * in->accelerator->memory_bytes.value));
    double dpo = ceil(least / in->replica[POOL_UPDATE]) * in->replica[POOL_UPDATE], all = 0;
    for (int p = 0; p < SIZE_POOLS; p++)
        all += in->replica[p] * fmax(1, ceil(least_bytes(in, (enum size_pool)p) /
                                             replica_memory(in, (enum size_pool)p)));
    size_put(out, "DPO beside PPO", "least_accelerators_dpo", dpo, "");
    line = size_put(out, "DPO beside PPO", "least_accelerators_ppo", all, "");
    size_note(line, NAN, "%.2g times as many; five pools, one replica at least each", all / dpo);
}

int size_rlhf(const struct size_rlhf *in, struct size_sheet *out, struct err *err) {
    if (check(in, err) != 0 || put_wanted(in, out, err) != 0 || put_balanced(in, out, err) != 0)
        return -1;
    put_rollout(in, out);
    put_memory(in, out);
    put_dpo(in, out);
    return 0;
}
