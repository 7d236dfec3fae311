// The ranks of a run: how they come together, agree, and part. Rank 0 speaks and keeps the run
// folder; the others compute, and are silent unless they are the one that failed. See run_parts.h.
#include "base/file.h"
#include "base/log.h"
#include "train/parallel.h"
#include "train/run_parts.h"
#include <stdio.h>
#include <string.h>

int run_join(struct run *run, struct err *err) {
    const struct run_control *control = run->control;
    run->ranks = 1;
    run->comm = control ? control->comm : NULL;
    if (!run->comm && control) {
        uint64_t spans = run->config->trace[0] ? RUN_TRACE_SPANS : 0;
        if (parallel_join(run->config, control->launch, spans, &run->comm, err) != 0) return -1;
        run->owns_comm = run->comm != NULL;
    }
    if (!run->comm || comm_size(run->comm) == 1) return 0;
    run->rank = comm_rank(run->comm);
    run->ranks = comm_size(run->comm);
    if (run->control) heartbeat_watch(run->control->heartbeat, run->comm);
    run->world = parallel_world(run->comm, "run", err);
    if (run->world) comm_stream_lane(run->world, &run->lane);
    return run->world ? 0 : -1;
}

// Of the ranks that failed the lowest tells its message; the others get it too and end in silence.
// What was agreed on once is not asked again on the way up.
int run_agree(struct run *run, int status, struct err *err) {
    if (!run->world || (status != 0 && run->agreed)) return status;
    int64_t lowest = status != 0 ? -run->rank : -run->ranks;
    struct err told = {0}, broken = {0};
    comm_max_integers(run->world, &lowest, 1);
    int speaker = (int)-lowest;
    if (speaker == run->rank) told = *err;
    if (speaker < run->ranks)
        comm_wait(comm_broadcast(run->world, speaker, &told, sizeof told), NULL);
    if (comm_check(run->comm, &broken) != 0) {
        run->result->silent = comm_failed_elsewhere(run->comm);
        if (status == 0) *err = broken;
        run->agreed = true;
        return -1;
    }
    if (speaker == run->ranks) return 0;
    run->agreed = true;
    run->result->silent = speaker != run->rank;
    *err = told;
    return -1;
}

void run_forget_failure(struct run *run) {
    run->agreed = run->result->silent = false;
}

// A failure inside a step: peers that wait for this rank are told; a rank that was told is silent.
void run_fail(struct run *run, struct err *err) {
    struct err known = {0};
    if (!run->world || run->agreed || run->result->silent) return;
    if (comm_check(run->comm, &known) != 0)
        run->result->silent = comm_failed_elsewhere(run->comm);
    else
        comm_fail(run->comm, err);
}

static bool is_raised(const volatile sig_atomic_t *signal) {
    return signal && *signal;
}

void run_look_at_signals(struct run *run) {
    const struct run_control *control = run->control;
    if (control) {
        run->signals[SIGNAL_STOP] = is_raised(control->stop);
        run->signals[SIGNAL_LEAVE] =
            is_raised(control->preempted) ? BEAT_LEAVES : heartbeat_wants_leave(control->heartbeat);
    }
    run->signals[SIGNAL_FOUND] = run_guard_found(run);
    run->signals[SIGNAL_HARDWARE] = run_guard_hardware(run);
    run_saves_report(run);
    if (run->world) comm_max_integers(run->world, run->signals, RUN_SIGNALS);
    run->stopped = run->signals[SIGNAL_STOP] || run->signals[SIGNAL_LEAVE];
}

void run_phase(struct run *run, enum beat_phase phase, int64_t step) {
    char mark[COMM_MARK_BYTES];
    if (run->control) heartbeat_phase(run->control->heartbeat, phase, step);
    if (!run->comm) return;
    if (phase == BEAT_STEP)
        snprintf(mark, sizeof mark, "step %lld", (long long)step);
    else
        snprintf(mark, sizeof mark, "%s behind step %lld", beat_phase_name(phase), (long long)step);
    comm_mark(run->comm, mark);
}

double run_sum(struct run *run, double value) {
    if (run->world) comm_sum_doubles(run->world, &value, 1);
    return value;
}

int64_t run_most(struct run *run, int64_t value) {
    if (run->world) comm_max_integers(run->world, &value, 1);
    return value;
}

// ---- what is told of it
// --------------------------------------------------------------------------

void run_say_world(const struct run *run) {
    const struct mesh *m = &run->layout.mesh;
    char zero[64] = "";
    if (!run->world) return;
    if (run->layout.zero > 0)
        snprintf(zero, sizeof zero, ", ZeRO-%d over %d ranks", run->layout.zero, m->shard);
    log_line(
        LOG_INFO,
        "ranks: %d as pp %d x dp %d x cp %d x tp %d%s%s; pipeline %s, %d stage%s; messages: %s",
        run->ranks, m->size[MESH_PP], m->size[MESH_DP], m->size[MESH_CP], m->size[MESH_TP],
        run->layout.sequence_parallel ? " with sequence parallelism" : "", zero,
        pipeline_kind_name(run->config->pipeline), layout_stages(&run->layout),
        layout_stages(&run->layout) == 1 ? "" : "s", comm_library());
}

// Of the streams that carry most: between tp, cp and ep ranks, and gradients and weights of data
// ranks.
void run_say_streams(const struct run *run) {
    static const char *const told[] = {
        "tp", "cp", "ep", "reduce", "gather", "expert_reduce", "expert_gather"};
    char line[1024] = "";
    for (int i = 0; i < engine_stream_count(run->engine); i++) {
        struct comm_counts unused;
        int ranks = 0;
        const char *gather = engine_stream_algorithm(run->engine, i, COMM_ALL_GATHER, &ranks);
        const char *sum = engine_stream_algorithm(run->engine, i, COMM_ALL_REDUCE, &ranks);
        const char *name = engine_stream_counts(run->engine, i, COMM_ALL_GATHER, &unused);
        size_t known = 0, count = sizeof told / sizeof told[0];
        if (run->config->model.experts == 0) count -= 2;
        while (known < count && strcmp(told[known], name) != 0) known++;
        if (!gather || !sum || known == count) continue;
        snprintf(line + strlen(line), sizeof line - strlen(line),
                 "%s%s of %d ranks (gathers: %s; sums: %s)", line[0] ? ", " : "", name, ranks,
                 gather, sum);
    }
    if (line[0]) log_line(LOG_INFO, "algorithms of large messages: %s", line);
    if (!pipeline_ascending(engine_pipeline(run->engine)))
        log_line(LOG_WARN,
                 "the schedule of pipeline.file does not run backward over micro-batches in "
                 "ascending order: this run is close to that of other layouts, not equal "
                 "to the bit");
}

// Waiting and in flight, by stream and kind: what was hidden behind compute.
void run_say_messages(struct run *run) {
    for (int i = 0; run->engine && i < engine_stream_count(run->engine); i++)
        for (int k = 0; k < COMM_KIND_COUNT; k++) {
            struct comm_counts c;
            const char *name = engine_stream_counts(run->engine, i, (enum comm_kind)k, &c);
            if (c.operations == 0) continue;
            char bytes[32];
            log_line(LOG_INFO,
                     "messages: %s %s: %llu operations, %s sent, in flight %.3f s, exposed %.3f s, "
                     "queued %.3f s",
                     comm_kind_name((enum comm_kind)k), name, (unsigned long long)c.operations,
                     text_bytes(c.bytes, bytes), c.in_flight_seconds, c.exposed_seconds,
                     c.queued_seconds);
            metrics_put_event(
                &run->metrics, "messages", run->step,
                "\"stream\":\"%s\",\"kind\":\"%s\",\"operations\":%llu,\"bytes\":%llu,"
                "\"in_flight_seconds\":%.6f,\"exposed_seconds\":%.6f,"
                "\"queued_seconds\":%.6f",
                name, comm_kind_name((enum comm_kind)k), (unsigned long long)c.operations,
                (unsigned long long)c.bytes, c.in_flight_seconds, c.exposed_seconds,
                c.queued_seconds);
        }
}

// One row for the compute thread, one for messages, one for each reader; a file for each rank.
void run_write_trace(struct run *run) {
    enum { MOST_READERS = 256 };
    const struct record_lane *lanes[2 + MOST_READERS] = {&run->lane};
    struct err err = {0};
    int count = 1;
    char path[4096];
    if (run->comm) lanes[count++] = comm_lane(run->comm);
    if (run->loader) {
        loader_stop(run->loader);
        for (int i = 0; i < run->config->readers; i++) lanes[count++] = loader_lane(run->loader, i);
    }
    if (parallel_write_trace(run->config->trace, run->comm, lanes, count, path, sizeof path,
                             &err) != 0)
        log_line(LOG_WARN, "the trace was not written: %s", err.text);
    else
        log_line(LOG_INFO, "trace: %s", path);
}

bool run_is_broken(const struct run *run) {
    return run->comm && comm_check(run->comm, NULL) != 0;
}

void run_leave(struct run *run) {
    if (run->control) heartbeat_watch(run->control->heartbeat, NULL);
    if (run_is_broken(run)) {
        run->result->broken = run->owns_comm ? run->comm : NULL;
        return;
    }
    comm_stream_close(run->world);
    if (run->owns_comm) comm_close(run->comm);
}
