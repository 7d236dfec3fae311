// Pools of accelerators for reinforcement learning: whole replicas of a wanted split, and a split
// in which all pools take about equally long. See size.h.
#include "model/flops.h"
#include "plan/size_parts.h"
#include <math.h>
#include <stdio.h>

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
    if (size_check("accelerators", in->accelerators, 1, 1e6, err) != 0 ||
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
        snprintf(name, sizeof name, "accelerators of one %s replica",
                 size_pool_name((enum size_pool)p));
        if (size_check(name, in->replica[p], 1, in->accelerators, err) != 0) return -1;
        sum += in->share[p];
    }
    if (!(sum > 0) || sum > 1 + 1e-9)
        return err_set(err, ERR_USAGE,
                       "size: the pools' shares add up to %.4g: expected more than 0, 1 at most",
                       sum);
    return 0;
}

// What the models of the pools weigh, counted once.
struct pools {
    const struct size_rlhf *in;
    bool lora; // policy and value train adapters; the reference is the policy's base, at its update
    double products[SIZE_POOLS], params[SIZE_POOLS], adapters[SIZE_POOLS];
    struct size_generator generator;
};

static void pools_of(const struct size_rlhf *in, bool lora, struct pools *out) {
    *out = (struct pools){.in = in, .lora = lora};
    for (int p = 0; p < SIZE_POOLS; p++) {
        const struct model_config *m = p == POOL_REWARD  ? in->reward
                                       : p == POOL_VALUE ? in->value
                                                         : in->policy;
        out->products[p] = (double)flops_matmul_params(m);
        out->params[p] = (double)flops_all_params(m);
        if (lora && (p == POOL_VALUE || p == POOL_UPDATE))
            out->adapters[p] = size_lora_params(m, in->lora_rank);
    }
    size_generator_of(in, &out->generator);
}

static bool trains(enum size_pool pool) {
    return pool == POOL_VALUE || pool == POOL_UPDATE;
}

// Bytes that a replica must hold at least: weights, or a training's states, which the whole pool
// shares.
static double least_bytes(const struct pools *w, enum size_pool pool) {
    bool whole = trains(pool) && !w->lora;
    return (whole ? 18.0 : 2.0) * w->params[pool] + 18 * w->adapters[pool];
}

static double replica_memory(const struct pools *w, enum size_pool pool) {
    return 0.9 * w->in->replica[pool] * w->in->accelerator->memory_bytes.value;
}

// A frozen model lies whole in each replica. States of a trained one are sharded over its pool.
static int least_replicas(const struct pools *w, enum size_pool pool, struct err *err) {
    double need = least_bytes(w, pool), room = replica_memory(w, pool);
    if (w->lora && pool == POOL_REFERENCE) return 0;
    if (trains(pool)) return (int)ceil(need / room);
    if (need <= room) return 1;
    double one = room / w->in->replica[pool];
    return err_set(
        err, ERR_USAGE,
        "size: a %s replica of %d %s holds %.3g GB, its weights are %.3g GB: expected %d "
        "accelerators at least",
        size_pool_name(pool), w->in->replica[pool], w->in->accelerator->name, room / 1e9,
        need / 1e9, (int)ceil(need / one));
}

static double rollout_seconds(const struct pools *w, double replicas) {
    double each = ceil(w->in->samples / replicas), most = fmax(1, w->generator.most_sequences);
    double waves = ceil(each / most);
    return waves * size_wave_seconds(w->in, &w->generator, each / waves);
}

// Seconds of an iteration's samples on so many accelerators: whole replicas of a pool. Frozen
// weights need no gradients of their own, 4 N instead of 6 N.
static double pool_seconds(const struct pools *w, enum size_pool pool, double accelerators) {
    const struct size_rlhf *in = w->in;
    if (pool == POOL_ROLLOUT) return rollout_seconds(w, accelerators / in->replica[pool]);
    double tokens = (double)in->samples * (in->prompt_tokens + in->response_tokens);
    double rate = accelerators * in->accelerator->dense[HARDWARE_BF16].value;
    double forward = 2 * w->products[pool] * tokens / (rate * in->forward_mfu);
    double train =
        (w->lora ? 4 : 6) * w->products[pool] * tokens * in->epochs / (rate * in->train_mfu);
    switch (pool) {
    case POOL_UPDATE:
        return train + (w->lora ? forward : 0);
    case POOL_VALUE:
        return train + forward;
    default:
        return forward;
    }
}

// ---- sheets -------------------------------------------------------------------------------------

enum { TEXTBOOK = 512 }; // accelerators of the example whose split users may know

static int put_wanted(const struct pools *w, struct size_sheet *out, struct err *err) {
    const struct size_rlhf *in = w->in;
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
        int least = least_replicas(w, pool, err);
        if (least < 0) return -1;
        size_note(line, in->accelerators == TEXTBOOK ? round(wanted) : NAN,
                  "%d whole replicas of %d, %.0f wanted%s", replicas, in->replica[p], wanted,
                  replicas < least ? "; too few to hold the states" : "");
        used += replicas * in->replica[p];
    }
    size_put(out, "split as wanted", "idle", in->accelerators - used, "");
    return 0;
}

// Replica by replica to the pool that takes longest, while there are accelerators. Returns what is
// left, negative: what is missing. `replicas`: the least that each pool needs.
static int64_t balance(const struct pools *w, int replicas[SIZE_POOLS]) {
    const struct size_rlhf *in = w->in;
    int64_t left = in->accelerators;
    for (int p = 0; p < SIZE_POOLS; p++) left -= (int64_t)replicas[p] * in->replica[p];
    while (left >= 0) {
        int slowest = POOL_ROLLOUT;
        double longest = 0;
        for (int p = 0; p < SIZE_POOLS; p++) {
            if (replicas[p] == 0) continue;
            double seconds =
                pool_seconds(w, (enum size_pool)p, (double)replicas[p] * in->replica[p]);
            if (seconds > longest) longest = seconds, slowest = p;
        }
        if (in->replica[slowest] > left) break;
        replicas[slowest]++;
        left -= in->replica[slowest];
    }
    return left;
}

static int put_balanced(const struct pools *w, const char *section, struct size_sheet *out,
                        struct err *err) {
    int replicas[SIZE_POOLS];
    double longest = 0, sum = 0;
    for (int p = 0; p < SIZE_POOLS; p++) {
        replicas[p] = least_replicas(w, (enum size_pool)p, err);
        if (replicas[p] < 0) return -1;
    }
    int64_t idle = balance(w, replicas);
    if (idle < 0) {
        struct size_line *line =
            size_put(out, section, "needed", (double)(w->in->accelerators - idle), "");
        size_note(line, NAN, "%lld more than there are", (long long)-idle);
        return 0;
    }
    for (int p = 0; p < SIZE_POOLS; p++) {
        double used = (double)replicas[p] * w->in->replica[p];
        struct size_line *line =
            size_put(out, section, size_pool_name((enum size_pool)p), used, "");
        if (replicas[p] == 0) {
            size_note(line, NAN, "the policy's base without adapters: with the update");
            continue;
        }
        double seconds = pool_seconds(w, (enum size_pool)p, used);
        size_note(line, NAN, "%d replicas of %d, %.3g s an iteration", replicas[p],
                  w->in->replica[p], seconds);
        longest = fmax(longest, seconds);
        sum += seconds;
    }
    size_put(out, section, "idle", (double)idle, "");
    struct size_line *line = size_put(out, section, "iteration_overlapped", longest, "s");
    size_note(line, NAN, "pools work on different iterations: the policy lags behind by one");
    line = size_put(out, section, "iteration_in_turn", sum, "s");
    size_note(line, NAN, "strictly on-policy: one pool after the other");
    return 0;
}

// No pools: every model has all accelerators in turn, and lies in host memory otherwise. What a
// phase needs comes in before it; trained states go out as well.
static int put_in_turn(const struct pools *w, struct size_sheet *out, struct err *err) {
    static const char section[] = "all in turn, offloaded";
    const struct size_rlhf *in = w->in;
    double sum = 0, bytes = 0, room = 0.9 * in->accelerator->memory_bytes.value;
    double most = fmax(least_bytes(w, POOL_UPDATE), least_bytes(w, POOL_VALUE));
    if (most > room * in->accelerators)
        return err_set(
            err, ERR_USAGE,
            "size: a trained model's states are %.4g GB, %d %s hold %.4g GB: expected %.0f "
            "accelerators at least, even with the models in turn",
            most / 1e9, in->accelerators, in->accelerator->name, room * in->accelerators / 1e9,
            ceil(most / room));
    for (int p = 0; p < SIZE_POOLS; p++) {
        double seconds = pool_seconds(w, (enum size_pool)p, in->accelerators);
        size_put(out, section, size_pool_name((enum size_pool)p), seconds, "s");
        sum += seconds;
        double copies =
            trains((enum size_pool)p) ? 1 : floor((double)in->accelerators / in->replica[p]);
        bytes += least_bytes(w, (enum size_pool)p) * copies * (trains((enum size_pool)p) ? 2 : 1);
    }
    double moving = bytes / in->accelerators / in->host_bandwidth;
    struct size_line *line = size_put(out, section, "moving", moving, "s");
    size_note(line, NAN, "%.3g GB an accelerator at %.3g GB/s", bytes / in->accelerators / 1e9,
              in->host_bandwidth / 1e9);
    size_put(out, section, "iteration", sum + moving, "s");
    return 0;
}

static void put_rollout(const struct pools *w, struct size_sheet *out) {
    const struct size_rlhf *in = w->in;
    const struct size_generator g = w->generator;
    double replicas = floor(in->share[POOL_ROLLOUT] * in->accelerators / in->replica[POOL_ROLLOUT]);
    double each = ceil(in->samples / fmax(1, replicas)), most = fmax(1, g.most_sequences);
    double batch = fmin(each, most), prompt = in->prompt_tokens, end = prompt + in->response_tokens;
    size_put(out, "rollout", "weights", g.weight_bytes, "B");
    size_put(out, "rollout", "kv_cache_of_a_token", g.kv_bytes, "B");
    size_put(out, "rollout", "sequences_that_fit", g.most_sequences, "");
    struct size_line *line = size_put(out, "rollout", "sequences_of_a_replica", batch, "");
    size_note(line, NAN, "%d samples over %.0f replicas", in->samples, replicas);
    size_put(out, "rollout", "decode_one_sequence", size_token_seconds(&g, 1, prompt), "s");
    line =
        size_put(out, "rollout", "decode_first_token", size_token_seconds(&g, batch, prompt), "s");
    size_note(line, NAN, "(weights + cache read) / memory bandwidth of %d accelerators",
              in->replica[POOL_ROLLOUT]);
    line = size_put(out, "rollout", "decode_last_token", size_token_seconds(&g, batch, end), "s");
    size_note(line, NAN, "the cache has grown to %.0f tokens each", end);
    size_put(out, "rollout", "tokens_per_second_of_a_replica",
             batch * in->response_tokens / size_wave_seconds(in, &g, batch), "tok/s");
}

static bool same_shape(const struct model_config *a, const struct model_config *b) {
    return a->layers == b->layers && a->hidden == b->hidden && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->ffn == b->ffn &&
           a->vocab == b->vocab && a->experts == b->experts && a->expert_ffn == b->expert_ffn;
}

static void put_memory(const struct size_rlhf *in, struct size_sheet *out) {
    static const char *const names[SIZE_SHARINGS] = {"all_models", "reference_precomputed",
                                                     "lora_shared_base", "frozen_offloaded"};
    struct size_rlhf_params p = {.policy = (double)flops_all_params(in->policy),
                                 .value = (double)flops_all_params(in->value),
                                 .reward = (double)flops_all_params(in->reward),
                                 .policy_adapters = size_lora_params(in->policy, in->lora_rank),
                                 .value_adapters = size_lora_params(in->value, in->lora_rank),
                                 .value_shares_base = same_shape(in->value, in->policy),
                                 .reward_shares_base = same_shape(in->reward, in->policy)};
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
static void put_dpo(const struct pools *w, struct size_sheet *out) {
    const struct size_rlhf *in = w->in;
    double tokens = (double)in->samples * (in->prompt_tokens + in->response_tokens);
    double n = w->products[POOL_UPDATE], v = w->products[POOL_VALUE], r = w->products[POOL_REWARD];
    double rate = in->accelerators * in->accelerator->dense[HARDWARE_BF16].value;
    double seconds = 2 * tokens * n * (6 / in->train_mfu + 2 / in->forward_mfu) / rate;
    double ppo = tokens * (2 * n + 2 * n + 2 * r + 2 * v + 6.0 * in->epochs * (n + v));
    struct size_line *line = size_put(out, "DPO beside PPO", "dpo_iteration", seconds, "s");
    size_note(line, NAN, "as many pairs as PPO has samples, all accelerators in one pool");
    size_put(out, "DPO beside PPO", "dpo_operations", 2 * tokens * 8 * n, "FLOP");
    line = size_put(out, "DPO beside PPO", "ppo_operations", ppo, "FLOP");
    size_note(line, NAN, "besides decoding, which memory bandwidth bounds");
    double least = ceil(size_dpo_states(w->params[POOL_UPDATE], false) /
                        (0.9 * in->accelerator->memory_bytes.value));
    double dpo = ceil(least / in->replica[POOL_UPDATE]) * in->replica[POOL_UPDATE], all = 0;
    for (int p = 0; p < SIZE_POOLS; p++)
        all +=
            in->replica[p] *
            fmax(1, ceil(least_bytes(w, (enum size_pool)p) / replica_memory(w, (enum size_pool)p)));
    size_put(out, "DPO beside PPO", "least_accelerators_dpo", dpo, "");
    line = size_put(out, "DPO beside PPO", "least_accelerators_ppo", all, "");
    size_note(line, NAN, "%.2g times as many; five pools, one replica at least each", all / dpo);
}

int size_rlhf(const struct size_rlhf *in, struct size_sheet *out, struct err *err) {
    struct pools own, lora;
    if (check(in, err) != 0) return -1;
    pools_of(in, false, &own);
    pools_of(in, true, &lora);
    if (put_wanted(&own, out, err) != 0 || put_balanced(&own, "balanced split", out, err) != 0 ||
        put_balanced(&lora, "balanced split, LoRA on a shared base", out, err) != 0 ||
        put_in_turn(&own, out, err) != 0)
        return -1;
    put_rollout(&own, out);
    put_memory(in, out);
    put_dpo(&own, out);
    return 0;
}
