// What cannot be right, gathered from all ranks, see run_guard.h. A key of the exchange says how
// serious the worst finding is and on which rank; its details follow by broadcast.
#include "base/hash.h"
#include "train/run_guard.h"
#include "train/run_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Larger is more serious; of equals the lowest rank.
static int64_t key_of(const struct run *run, int level) {
    return (int64_t)(level - 1) * run->ranks + (run->ranks - 1 - run->rank) + 1;
}

static int rank_of(const struct run *run, int64_t key) {
    return run->ranks - 1 - (int)((key - 1) % run->ranks);
}

static int64_t own_key(const struct run *run) {
    struct engine_finding f;
    if (engine_findings(run->engine, &f, 1) == 0) return 0;
    return key_of(run, FOUND_KINDS - (int)f.kind);
}

void run_guard_exchange(struct run *run) {
    struct run_guard *g = &run->guard;
    struct engine_finding f;
    g->own_findings = engine_findings(run->engine, &f, 1);
    g->found[0] = own_key(run);
    g->found[1] = g->odd.of > 0 ? key_of(run, 1) : 0;
    g->found[2] = g->why[0] ? key_of(run, 1) : 0;
    if (run->world) comm_max_integers(run->world, g->found, 3);
}

// What the hook saw has led to a decision already.
int64_t run_guard_found(struct run *run) {
    return run->guard.own_findings > 0 ? 0 : own_key(run);
}

int64_t run_guard_hardware(struct run *run) {
    struct run_guard *g = &run->guard;
    if (!g->counters) return 0;
    char why[300];
    int level = counters_watch_take(g->counters, why);
    if (level == 0) return 0;
    g->hardware = level;
    memcpy(g->hardware_why, why, sizeof why);
    return key_of(run, level);
}

// ---- replicas ----------------------------------------------------------------------------------

// Of this rank's FP32 pieces of a parameter.
static uint64_t master_hash(struct run *run, const char *parameter) {
    struct tensor_slice *slices;
    struct hash_stream h;
    int count;
    if (engine_slices(run->engine, ENGINE_MASTER, &slices, &count, NULL) != 0) return 0;
    hash_begin(&h);
    for (int i = 0; i < count; i++) {
        const struct tensor_slice *s = &slices[i];
        if (strcmp(s->name, parameter) != 0) continue;
        for (int64_t r = 0; r < s->rows; r++)
            hash_put(&h, (const float *)s->data + r * s->stride,
                     (size_t)s->columns * sizeof(float));
    }
    free(slices);
    return hash_end(&h);
}

// Two ranks differed and nothing said which was right; the same step, reached again from an older
// state, does.
static void decide_trial(struct run *run) {
    struct run_guard *g = &run->guard;
    if (!g->trial.waits || g->trial.step != run->step + 1) return;
    g->trial.waits = false;
    bool wrong = master_hash(run, g->trial.parameter) != g->trial.hash;
    int64_t seen[2] = {wrong ? run->rank + 1 : 0, wrong ? run->ranks - run->rank : 0};
    if (run->world) comm_max_integers(run->world, seen, 2);
    int highest = (int)seen[0] - 1, lowest = run->ranks - (int)seen[1];
    char text[400];
    if (highest < 0 || highest != lowest) {
        snprintf(text, sizeof text,
                 "%s: step %lld, done again, does not tell which rank was wrong: %s",
                 g->trial.parameter, (long long)g->trial.step,
                 highest < 0 ? "masters are as they were" : "several have changed");
        run_guard_tell(run, "replay_decided", "noted", run->step + 1, -1, text, NULL);
        return;
    }
    snprintf(text, sizeof text, "%s: step %lld, done again, shows that rank %d (%s) was wrong",
             g->trial.parameter, (long long)g->trial.step, highest, run_host(run, highest));
    run_guard_count_fault(run, highest);
    run_guard_tell(run, "silent_corruption", "noted", run->step + 1, highest, text, NULL);
}

void run_guard_look_at_replicas(struct run *run) {
    struct run_guard *g = &run->guard;
    int every = run->config->replicas_every;
    g->odd = (struct engine_difference){.of = 0};
    if (!run->world || every <= 0) return;
    decide_trial(run);
    int part = (int)(run->step % every);
    if (engine_compare_replicas(run->engine, part, every, &g->odd, 1, &g->failed) < 0 &&
        g->failed.kind == ERR_NONE)
        err_set(&g->failed, ERR_INTERNAL, "replicas could not be compared");
}

// ---- in words ----------------------------------------------------------------------------------

// Masters and moments: since the update before. Weights are compared with their masters by every
// update, so that the state before this step is sound.
static int64_t good_step(const struct run *run, enum engine_found kind, int64_t now) {
    bool state = kind == FOUND_MASTER || kind == FOUND_MOMENT;
    return state ? run->guard.good_step : now - 1;
}

static enum run_suspicion suspicion(enum engine_found kind, bool updated) {
    switch (kind) {
    case FOUND_WEIGHT:
    case FOUND_PACKED:
        return updated ? SUSPECT_STATE : SUSPECT_COPY;
    case FOUND_GRADIENT:
    case FOUND_PRODUCT:
        return updated ? SUSPECT_STATE : SUSPECT_RESULT;
    case FOUND_MASTER:
    case FOUND_MOMENT:
    case FOUND_KINDS:
        break;
    }
    return SUSPECT_STATE;
}

static void describe_found(struct run *run, int64_t found, int64_t now, bool updated,
                           struct run_suspect *out) {
    struct engine_finding f = {.update = 0};
    int rank = rank_of(run, found);
    if (rank == run->rank) engine_findings(run->engine, &f, 1);
    if (run->world) comm_wait(comm_broadcast(run->world, rank, &f, sizeof f), NULL);
    *out = (struct run_suspect){.kind = suspicion(f.kind, updated),
                                .rank = rank,
                                .other = -1,
                                .good_step = good_step(run, f.kind, now)};
    snprintf(out->parameter, sizeof out->parameter, "%s", f.parameter);
    snprintf(
        out->text, sizeof out->text,
        "step %lld: %s of %s on rank %d (%s) is not what it was: block %lld, checksum %016llx, "
        "expected %016llx",
        (long long)now, engine_found_name(f.kind), f.parameter, rank, run_host(run, rank),
        (long long)f.block, (unsigned long long)f.found, (unsigned long long)f.expected);
    if (f.kind == FOUND_PRODUCT)
        snprintf(out->text, sizeof out->text,
                 "step %lld: a matrix product with %s on rank %d (%s) is wrong: row %lld adds up "
                 "to another sum",
                 (long long)now, f.parameter, rank, run_host(run, rank), (long long)f.block);
}

void run_guard_describe_updated(struct run *run, int64_t found, struct run_suspect *out) {
    describe_found(run, found, run->step, true, out);
}

static void describe_difference(struct run *run, struct run_suspect *out) {
    struct run_guard *g = &run->guard;
    struct engine_difference d = g->odd;
    int speaker = rank_of(run, g->found[1]);
    int64_t now = run->step + 1, good = now - 1 - run->config->replicas_every;
    if (good < g->loaded_step) good = g->loaded_step;
    if (run->world) comm_wait(comm_broadcast(run->world, speaker, &d, sizeof d), NULL);
    *out =
        (struct run_suspect){.kind = SUSPECT_REPLICAS, .rank = -1, .other = -1, .good_step = good};
    snprintf(out->parameter, sizeof out->parameter, "%s", d.parameter);
    if (!d.undecided || d.rank_count == 2) out->rank = d.ranks[0];
    if (d.undecided && d.rank_count == 2) out->other = d.ranks[1];
    char ranks[200] = "";
    for (int i = 0; i < d.rank_count && i < 16; i++)
        snprintf(ranks + strlen(ranks), sizeof ranks - strlen(ranks), "%s%d (%s)", i ? ", " : "",
                 d.ranks[i], run_host(run, d.ranks[i]));
    snprintf(out->text, sizeof out->text,
             "step %lld: %s is not the same on the %d ranks that hold it: %s %s%s", (long long)now,
             d.parameter, d.of, d.undecided ? "ranks" : "the odd one is rank", ranks,
             d.undecided ? " differ" : "");
    if (!d.undecided) return;
    g->trial.waits = true;
    g->trial.step = now;
    memcpy(g->trial.parameter, d.parameter, sizeof d.parameter);
    g->trial.hash = master_hash(run, d.parameter);
}

void run_guard_describe(struct run *run, struct run_suspect *out) {
    struct run_guard *g = &run->guard;
    if (g->found[0] > 0) {
        describe_found(run, g->found[0], run->step + 1, false, out);
        return;
    }
    if (g->found[1] > 0) {
        describe_difference(run, out);
        return;
    }
    if (run->world)
        comm_wait(comm_broadcast(run->world, rank_of(run, g->found[2]), g->why, sizeof g->why),
                  NULL);
    *out = (struct run_suspect){
        .kind = SUSPECT_SPIKE, .rank = -1, .other = -1, .good_step = run->step};
    snprintf(out->text, sizeof out->text, "%s", g->why);
}
