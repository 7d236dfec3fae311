// A suspect step again, on the same and on other ranks, see run_guard.h and guard/replay.h. Nothing
// here changes weights or optimizer state.
#include "base/hash.h"
#include "train/run_guard.h"
#include "train/run_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The digest of this rank's gradients, before any sum over data ranks.
static uint64_t pass_digest(struct run *run) {
    return engine_gradient_digest(run->engine);
}

static bool same_values(const struct engine_step *a, const struct engine_step *b) {
    return memcmp(&a->loss, &b->loss, sizeof a->loss) == 0 &&
           memcmp(&a->gradient_norm, &b->gradient_norm, sizeof a->gradient_norm) == 0;
}

// Tokens of other data ranks take another way through experts that are spread over them, so the
// same work elsewhere adds up in another order.
static int data_ranks(const struct run *run) {
    return run->layout.mesh.ep > 1 ? 1 : run->layout.mesh.size[MESH_DP];
}

// The micro-batches of the next data rank, read by this one.
static int read_batches(struct run *run, struct batch **out, int count, void *memory,
                        struct err *err) {
    const struct train_config *c = run->config;
    int at[MESH_AXES], rows = c->micro_batch, dp = run->layout.mesh.size[MESH_DP];
    mesh_at(&run->layout.mesh, run->rank, at);
    int next = (at[MESH_DP] + 1) % dp;
    for (int m = 0; m < count; m++) {
        uint64_t sample = (uint64_t)run->samples +
                          ((uint64_t)next * (uint64_t)count + (uint64_t)m) * (uint64_t)rows;
        batch_place(out[m], (char *)memory + (size_t)m * batch_bytes(rows * c->context), rows,
                    c->context);
        if (loader_read(run->loader, sample, out[m], err) != 0) return -1;
    }
    return 0;
}

struct told { // by each rank
    uint64_t first, again, of_next;
    // a checksum complains of its own work again, and of the next one's; loss or norm is another
    int64_t found, found_of_next, differs;
};

static bool complains(const struct run *run) {
    struct engine_finding f;
    return engine_findings(run->engine, &f, 1) > 0;
}

// Every data rank does the work of the next one.
static int pass_elsewhere(struct run *run, int count, const struct engine_step *fresh,
                          struct told *own, struct err *err) {
    const struct train_config *c = run->config;
    struct engine_step step = *fresh;
    struct batch *batches = calloc((size_t)count, sizeof *batches),
                 **list = calloc((size_t)count, sizeof *list);
    void *memory = calloc((size_t)count, batch_bytes(c->micro_batch * c->context));
    int status = batches && list && memory
                     ? 0
                     : err_set(err, ERR_MEMORY, "no memory to compute another rank's step");
    for (int m = 0; m < count && status == 0; m++) list[m] = &batches[m];
    if (status == 0) status = read_batches(run, list, count, memory, err);
    status = run_agree(run, status, err);
    step.data_shift = 1;
    if (status == 0) status = run_guard_pass(run, list, count, &step, false, err);
    if (status == 0) {
        own->of_next = pass_digest(run);
        own->found_of_next = complains(run);
    }
    free(memory);
    free(list);
    free(batches);
    return status;
}

// Who did whose work: rank r did that of the rank that stands one further on the data axis and has
// the same place on all others.
static void join(const struct run *run, const struct told *all, bool elsewhere,
                 struct replay_part *parts) {
    for (int r = 0; r < run->ranks; r++) {
        parts[r] = (struct replay_part){.rank = r,
                                        .first = all[r].first,
                                        .again = all[r].again,
                                        .other = -1,
                                        .found = all[r].found > 0};
        int at[MESH_AXES];
        mesh_at(&run->layout.mesh, r, at);
        if (!elsewhere) continue;
        int dp = run->layout.mesh.size[MESH_DP];
        at[MESH_DP] = (at[MESH_DP] + dp - 1) % dp;
        parts[r].other = mesh_rank(&run->layout.mesh, at);
        parts[r].elsewhere = all[parts[r].other].of_next;
        parts[r].found_elsewhere = all[parts[r].other].found_of_next > 0;
    }
}

// Every rank's own gradients are the same again, and their sum or its norm is not.
static void judge_values(const struct run *run, const struct told *all,
                         struct replay_verdict *out) {
    int different = 0, one = -1;
    for (int r = 0; r < run->ranks; r++) {
        different += all[r].differs > 0;
        if (all[r].differs > 0) one = r;
    }
    if (out->cause != REPLAY_SOFTWARE || different == 0) return;
    out->cause = REPLAY_PASSING;
    out->rank = different == 1 ? one : -1; // all have what one of them got wrong
    snprintf(out->why, sizeof out->why,
             "loss or norm came out otherwise on %d of %d ranks, from the same gradients",
             different, run->ranks);
}

static int gather(struct run *run, const struct told *own, bool elsewhere,
                  struct replay_verdict *out, bool *found_again, struct err *err) {
    size_t ranks = (size_t)run->ranks;
    struct told *all = calloc(ranks, sizeof *all);
    struct replay_part *parts = calloc(ranks, sizeof *parts);
    int status = all && parts ? 0 : err_set(err, ERR_MEMORY, "no memory for digests of ranks");
    status = run_agree(run, status, err);
    if (status == 0) {
        all[0] = *own;
        if (run->world) comm_wait(comm_all_gather(run->world, own, all, sizeof *all), NULL);
        join(run, all, elsewhere, parts);
        *found_again = false;
        for (size_t r = 0; r < ranks; r++) *found_again = *found_again || parts[r].found;
        replay_decide(parts, run->ranks, out);
        judge_values(run, all, out);
    }
    free(all);
    free(parts);
    return status;
}

int run_replay(struct run *run, struct batch *const *batches, int count,
               const struct engine_step *fresh, const struct engine_step *first,
               struct replay_verdict *out, bool *found_again, struct err *err) {
    struct told own = {.first = pass_digest(run)};
    struct engine_step again = *fresh;
    bool elsewhere = data_ranks(run) > 1;
    run_phase(run, BEAT_REPLAY, run->step + 1);
    if (run_guard_pass(run, batches, count, &again, false, err) != 0) return -1;
    own.again = pass_digest(run);
    own.found = complains(run);
    own.differs = !same_values(first, &again);
    if (elsewhere && pass_elsewhere(run, count, fresh, &own, err) != 0) return -1;
    if (gather(run, &own, elsewhere, out, found_again, err) != 0) return -1;
    run_phase(run, BEAT_STEP, run->step + 1);
    return 0;
}
