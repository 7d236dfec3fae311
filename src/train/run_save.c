// A save that the run waits for, and what is reported of saves. See run_save.h.
#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "train/run_fault.h"
#include "train/run_parts.h"
#include <stdlib.h>
#include <string.h>

int run_state_slices(struct run *run, struct tensor_slice **out, int *out_count, struct err *err) {
    static const enum engine_part parts[] = {ENGINE_MASTER, ENGINE_MOMENTS, ENGINE_EXPERT_BIAS};
    struct tensor_slice *all = NULL;
    int count = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct tensor_slice *some = NULL;
        int more = 0, result = engine_slices(run->engine, parts[i], &some, &more, err);
        if (result == 0 && more > 0) {
            struct tensor_slice *grown = realloc(all, sizeof *all * (size_t)(count + more));
            if (grown) {
                all = grown;
                memcpy(all + count, some, sizeof *all * (size_t)more);
                count += more;
            } else {
                result = err_set(err, ERR_MEMORY, "no memory for the list of tensors");
            }
        }
        free(some);
        if (result != 0) {
            free(all);
            return -1;
        }
    }
    *out = all;
    *out_count = count;
    return 0;
}

struct checkpoint_state run_state(struct run *run) {
    return (struct checkpoint_state){
        .step = run->step,
        .samples = run->samples,
        .tokens = run->tokens,
        .seed = (uint64_t)run->config->seed,
        .config = run->config_text.data,
        .binary = version_digest(),
        .gemm = version_recipe(),
        .isa = run->device.name,
        .extra = json_pack("{s:I,s:i,s:o}", "updates", (json_int_t)run->updates, "bad_steps",
                           run->bad_steps, "guard", run_guard_state(run))};
}

void run_tell_persisted(struct run *run, int64_t step, const char *path, uint64_t bytes,
                        double seconds) {
    char size[32];
    struct snapshot *snapshot = run->saves.snapshot;
    run->saved_step = run->saves.durable_step = run->saves.wanted_copy = step;
    log_line(LOG_INFO, "saved %s, %s in %.2f s", path, text_bytes(bytes, size), seconds);
    metrics_put_event(&run->metrics, "checkpoint_persisted", step,
                      "\"bytes\":%llu,\"seconds\":%.3f,\"stall_seconds\":%.4f,"
                      "\"copy_seconds\":%.4f,\"memory_seconds\":%.4f",
                      (unsigned long long)bytes, seconds, run->saves.stall,
                      snapshot ? snapshot_copy_seconds(snapshot) : 0.0,
                      snapshot ? snapshot_seal_seconds(snapshot) : 0.0);
}

void run_tell_failed(struct run *run, int64_t step, const struct err *why, double seconds) {
    log_line(LOG_WARN, "checkpoint of step %lld failed, training goes on: %s", (long long)step,
             why->text);
    run_report_failed(run, step, why, seconds);
}

void run_report_failed(struct run *run, int64_t step, const struct err *why, double seconds) {
    json_t *text = json_string(why->text);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    metrics_put_event(&run->metrics, "checkpoint_failed", step, "\"seconds\":%.3f,\"why\":%s",
                      seconds, quoted ? quoted : "\"\"");
    free(quoted);
    json_decref(text);
    if (run_leads(run) && run->control && run->control->heartbeat)
        heartbeat_report(run->control->heartbeat, "checkpoint_failed",
                         json_pack("{s:s,s:I}", "text", why->text, "step", (json_int_t)step));
}

static void retain(struct run *run) {
    struct run_saves *s = &run->saves;
    struct checkpoint_retention keep = {.keep_last = run->config->keep_last,
                                        .keep_every = run->config->keep_every,
                                        .pinned = s->keep_steps,
                                        .pinned_count = s->keep_step_count,
                                        .saved_step = run->step};
    if (s->second && !saver_idle(s->second)) // it is being copied
        s->keep_steps[keep.pinned_count++] = s->copied_step;
    checkpoint_retain(run->config->checkpoint_folder, &keep);
    saver_remove_left_behind(run->config->checkpoint_folder, run->step);
    checkpoint_drop_aside(run->config->checkpoint_folder, run->step);
}

int run_save(struct run *run, struct err *err) {
    const struct train_config *config = run->config;
    struct tensor_slice *slices;
    int count;
    struct checkpoint_saved saved;
    run_fault_save(run);
    if (run_agree(run, run_state_slices(run, &slices, &count, err), err) != 0) return -1;
    metrics_put_event(&run->metrics, "checkpoint_requested", run->step, "%s", "\"behind\":false");
    struct checkpoint_state state = run_state(run);
    double begin = record_begin(&run->lane), clock = clock_seconds();
    run_busy(run, "saves a checkpoint"); // disks may be slower than the watchdog
    int result = checkpoint_save_slices(config->checkpoint_folder, &config->model, slices, count,
                                        &state, config->part_bytes, run->world, &saved, err);
    run_busy(run, NULL);
    record_end(&run->lane, RECORD_CHECKPOINT, "checkpoint", run->step, begin);
    json_decref((json_t *)state.extra);
    free(slices);
    if (result != 0) return -1;
    run->saves.stall = clock_seconds() - clock;
    run_saves_measure(run, run->saves.stall, saved.seconds);
    run_tell_persisted(run, run->step, saved.path, saved.bytes, saved.seconds);
    if (run_leads(run)) retain(run);
    return 0;
}
