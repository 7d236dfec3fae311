// Traps that a layout runs into, each with its figure and a remedy. See trail.h.
#include "cost/network.h"
#include "model/flops.h"
#include "plan/size.h"
#include "plan/trail_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void say_hosts(const struct trail_subject *s, struct trail *out) {
    const struct cluster *c = s->request->cluster;
    const int *v = s->entry->choice.value;
    double ratio =
        c->slow.bandwidth.value > 0 ? c->fast.bandwidth.value / c->slow.bandwidth.value : 0;
    if (v[SEARCH_TP] > c->domain)
        trail_say(out, TRAIL_TRAP, "tp_across_hosts",
                  "tensor parallelism crosses hosts: tp %d, but %d accelerators share a fast link; "
                  "four messages per layer and micro-batch pass a link %.0f times as slow "
                  "(exposed: %.3g s of the step). tp %d stays inside",
                  v[SEARCH_TP], c->domain, ratio, s->estimate->exposed_tensor, c->domain);
    if (v[SEARCH_EP] > 1 && (int64_t)v[SEARCH_EP] * v[SEARCH_TP] > c->domain)
        trail_say(out, TRAIL_TRAP, "experts_across_hosts",
                  "expert groups cross hosts: ep %d x tp %d is more than the %d accelerators of a "
                  "fast domain, so that tokens travel to their experts and back over the slow "
                  "link (exposed: %.3g s of the step)",
                  v[SEARCH_EP], v[SEARCH_TP], c->domain, s->estimate->exposed_expert);
    if (v[SEARCH_CP] > 1 && (int64_t)v[SEARCH_CP] * v[SEARCH_TP] > c->domain)
        trail_say(out, TRAIL_TRAP, "context_across_hosts",
                  "context groups cross hosts: cp %d x tp %d is more than the %d accelerators of a "
                  "fast domain; keys and values go round over the slow link (exposed: %.3g s of "
                  "the step)",
                  v[SEARCH_CP], v[SEARCH_TP], c->domain, s->estimate->exposed_context);
}

// A dimension of a product as a rank sees it: 16 is what the matrix units take, 64 what tiles and
// rows in memory like.
static void say_dimension(const char *name, int64_t whole, int parts, int64_t held,
                          struct trail *out) {
    int64_t near = (held + 63) / 64 * 64;
    if (held % 64 == 0) return;
    trail_say(out, TRAIL_TRAP, "dimension",
              "%s is %lld%s%s%lld on a rank, no multiple of %d: %s; the next that is: %lld", name,
              (long long)whole, parts > 1 ? " and, cut, " : "", parts > 1 ? "" : ": ",
              (long long)held, held % 16 == 0 ? 64 : 16,
              held % 16 == 0 ? "tiles at its edge are partly empty"
                             : "products fall back to slower kernels",
              (long long)near * parts);
}

static void say_dimensions(const struct trail_subject *s, struct trail *out) {
    const struct model_config *c = s->request->model;
    int tp = s->entry->choice.value[SEARCH_TP];
    bool dense = c->experts == 0;
    for (int i = 0; i < c->layers && !dense; i++) dense = c->layer_dense[i];
    say_dimension("hidden", c->hidden, 1, c->hidden, out);
    if (dense) say_dimension("ffn", c->ffn, tp, c->ffn / tp, out);
    if (c->experts > 0) say_dimension("expert_ffn", c->expert_ffn, tp, c->expert_ffn / tp, out);
    if (c->head_dim % 16 != 0) say_dimension("head_dim", c->head_dim, 1, c->head_dim, out);
    int64_t step = 64 * (int64_t)tp, padded = (c->vocab + step - 1) / step * step;
    if (padded > c->vocab)
        trail_say(out, TRAIL_TRAP, "vocabulary",
                  "the vocabulary of %d is padded to %lld (a multiple of 64 on each of %d tensor "
                  "ranks): %.2g %% of the head's work is for ids that do not exist",
                  c->vocab, (long long)padded, tp,
                  100.0 * (double)(padded - c->vocab) / (double)padded);
}

// (p-1)/(p-1+vm) < 10 % takes m > 9 (p-1) / v.
static void say_bubble(const struct trail_subject *s, struct trail *out) {
    const int *v = s->entry->choice.value;
    int pp = v[SEARCH_PP], m = s->job->micro_batches;
    double k = v[SEARCH_SCHEDULE] == PIPELINE_INTERLEAVED ? v[SEARCH_CHUNKS]
               : v[SEARCH_SCHEDULE] == PIPELINE_ZB_H1     ? 3
               : v[SEARCH_SCHEDULE] == PIPELINE_ZB_V      ? 6
                                                          : 1;
    double formula = s->estimate->bubble_formula;
    if (pp == 1 || formula <= 0.1) return;
    int wanted = (int)floor(9.0 * (pp - 1) / k) + 1;
    trail_say(out, TRAIL_TRAP, "micro_batches",
              "few micro-batches: %d in each pipeline of %d ranks leave a bubble of %.1f %% by "
              "formula, %.1f %% simulated; below 10 %% by formula takes at least %d, a batch of "
              "%lld sequences with this dp and micro-batch",
              m, pp, 100 * formula, 100 * s->estimate->bubble, wanted,
              (long long)wanted * v[SEARCH_DP] * v[SEARCH_MICRO]);
}

// Seconds per byte of a bucket against those of a gigabyte: what latency takes.
static double bucket_stretch(const struct trail_subject *s, double bytes) {
    const struct cluster *c = s->request->cluster;
    struct network_group group =
        network_group_of(c, &s->job->layout.mesh, GROUP_DATA, s->request->model->kv_heads);
    double large = 1e9;
    if (group.size < 2) return 1;
    return network_seconds(c, &group, NETWORK_REDUCE_SCATTER, bytes, NULL) / bytes * large /
           network_seconds(c, &group, NETWORK_REDUCE_SCATTER, large, NULL);
}

static void say_buckets(const struct trail_subject *s, struct trail *out) {
    double bytes =
        s->job->bucket_bytes ? (double)s->job->bucket_bytes : s->job->stack->bucket_bytes.value;
    int data = s->entry->choice.value[SEARCH_DP] * s->entry->choice.value[SEARCH_CP];
    if (data == 1 || !(bytes > 0)) return;
    double stretch = bucket_stretch(s, bytes), better = bytes;
    if (stretch < 1.5) return;
    while (better < 4e9 && bucket_stretch(s, better) > 1.2) better *= 2;
    trail_say(out, TRAIL_TRAP, "buckets",
              "buckets of %.0f MB are %.2g MB a message among %d data ranks: latency makes their "
              "reduction %.1f times as long as that of large ones; %.0f MB would do",
              bytes / 1e6, bytes / 1e6 / data, data, stretch, better / 1e6);
}

static double rank_work(const struct estimate *e, int rank) {
    double sum = 0;
    for (int i = 0; i < e->stage_count; i++)
        if (e->pipeline.stage_rank[i] == rank) sum += e->stages[i].forward + e->stages[i].backward;
    return sum;
}

struct balance {
    int busiest, idlest; // pipeline ranks
    double over;         // of the busiest against the mean
};

static struct balance balance_of(const struct estimate *e) {
    struct balance b = {0, 0, 0};
    double mean = 0;
    for (int r = 0; r < e->rank_count; r++) {
        mean += rank_work(e, r) / e->rank_count;
        if (rank_work(e, r) > rank_work(e, b.busiest)) b.busiest = r;
        if (rank_work(e, r) < rank_work(e, b.idlest)) b.idlest = r;
    }
    b.over = rank_work(e, b.busiest) / mean - 1;
    return b;
}

// A layer from one stage to another; those between move up or down.
static bool move_layer(struct layout *l, int from, int to) {
    if (l->layer_first[from + 1] - l->layer_first[from] < 2 || from == to) return false;
    for (int s = from + 1; s <= to; s++) l->layer_first[s]--;
    for (int s = to + 1; s <= from; s++) l->layer_first[s]++;
    return true;
}

// Layers from the busiest to the idlest stage as long as the step gets shorter. 0: none does.
static double better_layers(const struct trail_subject *s, struct job *job) {
    double best = s->estimate->step_seconds;
    struct balance b = balance_of(s->estimate);
    struct layout kept = s->job->layout;
    bool better = false;
    *job = *s->job;
    for (int moves = 0; moves < 8 && move_layer(&job->layout, b.busiest, b.idlest); moves++) {
        struct estimate e;
        if (estimate_step(job, true, &e, NULL) != 0) break;
        bool quicker = e.step_seconds < best * (1 - 1e-6);
        if (quicker) {
            best = e.step_seconds;
            kept = job->layout;
            better = true;
        }
        b = balance_of(&e);
        estimate_free(&e);
        if (!quicker) break;
    }
    job->layout = kept;
    return better ? best : 0;
}

static void put_layers(const struct layout *l, char out[160]) {
    int at = 0;
    for (int s = 0; s < layout_stages(l) && at < 150; s++)
        at += snprintf(out + at, 160 - (size_t)at, "%s%d", s ? "," : "",
                       l->layer_first[s + 1] - l->layer_first[s]);
}

static void say_imbalance(const struct trail_subject *s, struct trail *out) {
    const struct estimate *e = s->estimate;
    struct balance b = balance_of(e);
    if (e->rank_count == 1 || b.over < 0.03) return;
    const char *holds = b.busiest == e->pipeline.stage_rank[e->stage_count - 1]
                            ? ", it holds the head"
                        : b.busiest == 0 ? ", it holds the embedding"
                                         : "";
    struct job *job = e->stage_count == e->rank_count ? malloc(sizeof *job) : NULL;
    double better = job ? better_layers(s, job) : 0;
    char layers[160], remedy[240] = "a list of layers (pipeline.layers) can move some away";
    if (job && better > 0) {
        put_layers(&job->layout, layers);
        snprintf(remedy, sizeof remedy, "pipeline.layers=%s would take %.4g s, %+.1f %%", layers,
                 better, 100 * (better / e->step_seconds - 1));
    }
    trail_say(out, TRAIL_TRAP, "imbalance",
              "unequal stages: pipeline rank %d works %.1f %% longer than the mean%s; %s",
              b.busiest, 100 * b.over, holds, remedy);
    free(job);
}

static void say_checkpoints(const struct trail_subject *s, struct trail *out) {
    const struct cluster *c = s->request->cluster;
    struct runs runs;
    struct runs_closed best;
    if (!(s->checkpoint_seconds > 0)) return;
    size_run(c, (double)flops_all_params(s->request->model), s->estimate->step_seconds, s->steps,
             &runs);
    runs_closed(&runs, &best);
    if (s->checkpoint_seconds < 2 * best.interval.seconds) return;
    double mtbf = best.mtbf_seconds, lost = s->checkpoint_seconds / 2;
    trail_say(out, TRAIL_TRAP, "checkpoint_interval",
              "a checkpoint every %.0f s is rare for %d nodes, of which one fails every %.1f h: a "
              "failure loses %.0f s on average, %.2f %% of all time; best would be every %.0f s "
              "(%lld steps; a save blocks %.2g s)",
              s->checkpoint_seconds, c->nodes, mtbf / 3600, lost, 100 * lost / mtbf,
              best.interval.seconds, (long long)best.interval.steps, runs.blocking_seconds);
}

// What the program that is planned for cannot do, or does otherwise, on such an accelerator.
static void say_program(const struct trail_subject *s, struct trail *out) {
    const struct accelerator *a = &s->request->cluster->accelerator;
    if (!s->request->stack->own || a->cpu) return;
    trail_say(out, TRAIL_TRAP, "program",
              "weft computes on processors so far: on %s this is its own schedule, fusion and "
              "memory with the products and attention of the accelerator's libraries, which no "
              "run has shown; --stack megatron-core foretells a program that runs there today",
              a->name);
}

static void say_model(const struct trail_subject *s, struct trail *out) {
    const struct model_config *c = s->request->model;
    if (c->experts > 0 && s->job->imbalance == 1)
        trail_say(out, TRAIL_TRAP, "expert_balance",
                  "experts are taken as evenly loaded; a busiest rank with 1.2 times the mean "
                  "(--imbalance 1.2) makes their layers as much longer");
    if (s->request->context > c->context)
        trail_say(out, TRAIL_TRAP, "context",
                  "sequences of %d tokens are longer than the %d that the model was described for",
                  s->request->context, c->context);
}

void trail_traps(const struct trail_subject *subject, struct trail *out) {
    say_hosts(subject, out);
    say_dimensions(subject, out);
    say_bubble(subject, out);
    say_imbalance(subject, out);
    say_buckets(subject, out);
    say_checkpoints(subject, out);
    say_model(subject, out);
    say_program(subject, out);
}
