// The order of things in a run, see run.h.
#include "train/run.h"
#include "base/clock.h"
#include "base/log.h"
#include "observe/trace.h"
#include "train/run_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A save that fails costs nothing but itself.
static void try_to_save(struct run *run) {
    struct err err = {0};
    if (run_save(run, &err) == 0) return;
    log_line(LOG_WARN, "checkpoint of step %lld failed, training goes on: %s", (long long)run->step,
             err.text);
    metrics_put_event(&run->metrics, "checkpoint_failed", run->step, "%s", "");
}

static int last_save(struct run *run, struct err *err) {
    if (run->saved_step == run->step) return 0;
    if (run_save(run, err) == 0) return 0;
    return err_context(err, "the state of step %lld could not be saved", (long long)run->step);
}

static int interrupted(struct run *run, struct err *err) {
    if (run->step == 0)
        return err_set(err, ERR_INTERRUPT, "interrupted before the first step; nothing to save");
    if (last_save(run, err) != 0) return -1;
    return err_set(
        err, ERR_INTERRUPT,
        "interrupted after step %lld, which is saved; the same command goes on from there",
        (long long)run->step);
}

static int walk(struct run *run, struct err *err) {
    const struct train_config *c = run->config;
    int64_t last = c->stop_at ? c->stop_at : c->steps;
    if (run->step >= last)
        log_line(LOG_INFO, "nothing to do: step %lld of %lld is done already", (long long)run->step,
                 (long long)last);
    bool worked = run->step < last;
    while (run->step < last && !run_is_stopped(run)) {
        if (run_one_step(run, err) != 0) return -1;
        if (run_is_stopped(run)) break;
        bool ends = run->step == last;
        if (run->validation &&
            ((c->eval_every > 0 && run->step % c->eval_every == 0) ||
             (run->step == c->steps && c->eval_at_end)) &&
            run_evaluate(run, err) != 0)
            return -1;
        if (!ends && c->checkpoint_every > 0 && run->step % c->checkpoint_every == 0)
            try_to_save(run);
    }
    if (run_is_stopped(run)) return interrupted(run, err);
    return worked && c->checkpoint_at_end ? last_save(run, err) : 0;
}

// One row for the compute thread, one for each reader.
static void write_trace(struct run *run) {
    enum { MOST_READERS = 256 };
    const struct record_lane *lanes[1 + MOST_READERS] = {&run->lane};
    struct err err = {0};
    int count = 1;
    if (run->loader) {
        loader_stop(run->loader);
        for (int i = 0; i < run->config->readers; i++) lanes[count++] = loader_lane(run->loader, i);
    }
    if (trace_write(run->config->trace, lanes, count, &err) != 0)
        log_line(LOG_WARN, "the trace was not written: %s", err.text);
    else
        log_line(LOG_INFO, "trace: %s", run->config->trace);
}

// The ratio says something only where the plan outweighs the program itself and its libraries.
static void say_end(const struct run *run) {
    enum { LEAST_BYTES = 256000000 };
    char planned[32], peak[32], ratio[32] = "";
    uint64_t plan = run->result->planned_bytes, most = run->result->peak_resident_bytes;
    if (plan >= LEAST_BYTES)
        snprintf(ratio, sizeof ratio, " (%.3f of planned)", (double)most / (double)plan);
    log_line(LOG_INFO, "memory: planned %s, peak resident of the whole process %s%s",
             text_bytes(plan, planned), text_bytes(most, peak), ratio);
}

int train_run(struct train_config *config, const struct run_control *control,
              struct run_result *result, struct err *err) {
    struct run *run = calloc(1, sizeof *run);
    if (!run) return err_set(err, ERR_MEMORY, "no memory for the run");
    *result = (struct run_result){.loss = NAN, .validation_loss = NAN};
    run->config = config;
    run->control = control;
    run->result = result;
    run->lock = -1;
    int status = config_check_run(config, err);
    if (status == 0) status = run_open(run, err);
    if (status == 0) {
        result->step = run->step;
        result->start_seconds = clock_since_exec_seconds();
        log_line(LOG_INFO, "start-up: %.2f s from exec to the first step", result->start_seconds);
        status = walk(run, err);
        if (result->peak_resident_bytes > 0) say_end(run);
        if (config->trace[0]) write_trace(run);
    }
    run_close(run);
    free(run);
    return status;
}
