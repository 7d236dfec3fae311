// Checkpoints of a run, both ways: what a checkpoint holds, how a run goes on from
// one, and what happens when saving fails. See run_parts.h.
#include "base/file.h"
#include "base/log.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_folder.h"
#include "train/config_table.h"
#include "train/run_fault.h"
#include "train/run_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// This rank's pieces of weights, moments and the experts' biases, under the names that the engine
// gives them.
static int state_slices(struct run *run, struct tensor_slice **out, int *out_count,
                        struct err *err) {
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

// Another shape cannot be loaded; other differences are told and do not hinder.
static int compare_configs(struct run *run, const struct checkpoint *c, struct err *err) {
    const struct checkpoint_state *state = checkpoint_state(c);
    struct train_config *then = malloc(sizeof *then);
    struct text lines = {0};
    int result = 0;
    if (!then) return err_set(err, ERR_MEMORY, "no memory for the configuration");
    memcpy(then, run->config, sizeof *then);
    then->model = *checkpoint_model(c);
    config_model_lists(then);
    if (config_differences(then, run->config, true, &lines) != 0) {
        for (size_t i = 0; i < lines.size; i++) // one line
            if (lines.data[i] == '\n') lines.data[i] = i + 1 < lines.size ? ';' : 0;
        result =
            err_set(err, ERR_USAGE,
                    "%s: the model there has another shape than the configuration (%s); choose "
                    "another train.folder or give the old values",
                    checkpoint_path(c), lines.data ? lines.data : "");
    } else if (config_load_text(then, state->config, strlen(state->config), "checkpoint", NULL) ==
                   0 &&
               config_differences(then, run->config, false, &lines) > 0) {
        for (char *line = strtok(lines.data, "\n"); line; line = strtok(NULL, "\n"))
            log_line(LOG_INFO, "changed since the checkpoint: %s", line);
    }
    text_free(&lines);
    free(then);
    return result;
}

static int load_state(struct run *run, struct checkpoint *c, struct err *err) {
    const struct checkpoint_state *state = checkpoint_state(c);
    struct tensor_slice *slices = NULL;
    int count = 0;
    int result = compare_configs(run, c, err);
    if (result == 0) result = state_slices(run, &slices, &count, err);
    result = run_agree(run, result, err); // loading is collective
    if (result == 0) result = checkpoint_load_slices(c, slices, count, run->world, err);
    free(slices);
    if (result != 0) return -1;
    engine_weights_changed(run->engine);
    int64_t bad = 0;
    struct json_at at = {(json_t *)state->extra, checkpoint_path(c)};
    run->step = run->saved_step = run->result->resumed_from = state->step;
    run->samples = state->samples;
    run->tokens = state->tokens;
    run->updates = state->step;
    if (state->extra && (json_get_int(at, "updates", true, 0, &run->updates, err) != 0 ||
                         json_get_int(at, "bad_steps", true, 0, &bad, err) != 0))
        return -1;
    run->bad_steps = (int)bad;
    if (run_guard_load(run, json_object_get(state->extra, "guard"), checkpoint_path(c), err) != 0)
        return -1;
    log_line(LOG_INFO, "resumed from %s: step %lld, %lld samples", checkpoint_path(c),
             (long long)run->step, (long long)run->samples);
    if (state->binary && strcmp(state->binary, version_digest()) != 0)
        log_line(LOG_WARN, "the checkpoint was written by another build of weft; what follows may "
                           "differ in the last bits from an unbroken run");
    return 0;
}

// Keys that change the shape cannot stand beside weights of another one.
static int same_shapes(const struct model *there, const struct model *here, struct err *err) {
    bool same = there->param_count == here->param_count;
    for (int i = 0; i < here->param_count && i < there->param_count; i++) {
        const struct param *a = &there->params[i], *b = &here->params[i];
        if (strcmp(a->name, b->name) != 0 || a->rows != b->rows || a->columns != b->columns)
            return err_set(
                err, ERR_USAGE,
                "the folder holds %s [%lld, %lld], the configuration makes %s [%lld, %lld]; "
                "leave the model's sizes away",
                a->name, (long long)a->rows, (long long)a->columns, b->name, (long long)b->rows,
                (long long)b->columns);
    }
    if (same) return 0;
    return err_set(err, ERR_USAGE, "the folder holds %d parameters, the configuration makes %d",
                   there->param_count, here->param_count);
}

// The rows of a slice, out of the folder's whole rows.
static int read_slice(const struct hf_folder *folder, int param, const struct tensor_slice *s,
                      float *row, struct err *err) {
    for (int64_t r = 0; r < s->rows; r++) {
        if (hf_folder_read_rows(folder, param, s->row + r, 1, row, err) != 0) return -1;
        memcpy((float *)s->data + r * s->stride, row + s->column, (size_t)s->columns * sizeof *row);
    }
    return 0;
}

static int param_named(const struct model *model, const char *name) {
    int i = 0;
    while (strcmp(model->params[i].name, name) != 0) i++;
    return i;
}

static int read_folder(struct run *run, const struct hf_folder *folder, struct err *err) {
    struct tensor_slice *slices = NULL;
    int count = 0;
    int64_t widest = 1;
    const struct model *model = &run->model;
    if (same_shapes(hf_folder_model(folder), model, err) != 0) return -1;
    for (int i = 0; i < model->param_count; i++)
        if (model->params[i].columns > widest) widest = model->params[i].columns;
    float *row = malloc((size_t)widest * sizeof *row);
    int result = row ? engine_slices(run->engine, ENGINE_MASTER, &slices, &count, err)
                     : err_set(err, ERR_MEMORY, "no memory for a row of a matrix");
    for (int i = 0; i < count && result == 0; i++) {
        int param = param_named(model, slices[i].name);
        bool whole = slices[i].stride == model->params[param].columns &&
                     slices[i].columns == slices[i].stride;
        result = whole ? hf_folder_read_rows(folder, param, slices[i].row, slices[i].rows,
                                             slices[i].data, err)
                       : read_slice(folder, param, &slices[i], row, err);
    }
    free(slices);
    free(row);
    return result;
}

static int load_model_folder(struct run *run, struct err *err) {
    struct hf_folder *folder;
    int result = hf_folder_open(run->config->from, &folder, err);
    if (result == 0) {
        result = read_folder(run, folder, err);
        hf_folder_close(folder);
    }
    if (result != 0) err_context(err, "model.from");
    if (run_agree(run, result, err) != 0) return -1;
    engine_weights_changed(run->engine);
    return 0;
}

int run_restore(struct run *run, struct err *err) {
    const struct train_config *config = run->config;
    struct checkpoint *c = NULL;
    // rank 0 decides whether there is a folder to look into
    bool there = run_most(run, run_leads(run) && file_is_folder(config->checkpoint_folder));
    if (there && checkpoint_open_newest_world(config->checkpoint_folder, run->world, &c, err) != 0)
        return -1;
    if (c) {
        int result =
            config->resume
                ? load_state(run, c, err)
                : err_set(err, ERR_USAGE,
                          "%s holds a checkpoint and train.resume is false; choose another "
                          "train.folder, or remove that folder",
                          config->checkpoint_folder);
        checkpoint_close(c);
        return result;
    }
    if (config->from[0]) return load_model_folder(run, err);
    engine_initialise(run->engine, (uint64_t)config->seed);
    return 0;
}

// The newest step of the folder that is not later than `most_step` (-1: any), `back` before it; -1:
// none. What is newer is not to be trusted, and goes.
static int64_t choose_step(const char *folder, int back, int64_t most_step) {
    int64_t *steps, chosen = -1;
    int count;
    if (checkpoint_list(folder, &steps, &count, NULL) != 0) return -1;
    for (int i = count - 1; i >= 0 && chosen < 0; i--)
        if ((most_step < 0 || steps[i] <= most_step) && back-- <= 0) chosen = steps[i];
    for (int i = 0; i < count; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        struct err err = {0};
        if (steps[i] <= chosen || checkpoint_step_path(folder, steps[i], path, &err) != 0) continue;
        log_line(LOG_WARN, "%s: removed, its step is above suspicion no more", path);
        if (file_remove_tree(path, &err) != 0) log_line(LOG_WARN, "%s", err.text);
    }
    free(steps);
    return chosen;
}

static int load_initial(struct run *run, struct err *err) {
    run->step = run->samples = run->tokens = run->updates = 0;
    run->bad_steps = 0;
    run->saved_step = -1;
    if (run_guard_load(run, NULL, "", err) != 0) return -1;
    if (run->config->from[0]) return load_model_folder(run, err);
    engine_initialise(run->engine, (uint64_t)run->config->seed);
    return 0;
}

int run_restore_older(struct run *run, int back, int64_t most_step, struct err *err) {
    const char *folder = run->config->checkpoint_folder;
    char path[CHECKPOINT_PATH_BYTES];
    struct checkpoint *c;
    int64_t resumed_from = run->result->resumed_from;
    int64_t step = run_most(run, run_leads(run) ? choose_step(folder, back, most_step) : -1);
    if (step < 0) return load_initial(run, err);
    if (checkpoint_step_path(folder, step, path, err) != 0 ||
        checkpoint_open_world(path, run->world, &c, err) != 0)
        return -1;
    int result = load_state(run, c, err);
    checkpoint_close(c);
    run->result->resumed_from = resumed_from;
    return result;
}

int run_save(struct run *run, struct err *err) {
    const struct train_config *config = run->config;
    struct tensor_slice *slices;
    int count;
    struct checkpoint_saved saved;
    run_fault_save(run);
    if (run_agree(run, state_slices(run, &slices, &count, err), err) != 0) return -1;
    json_t *extra = json_pack("{s:I,s:i,s:o}", "updates", (json_int_t)run->updates, "bad_steps",
                              run->bad_steps, "guard", run_guard_state(run));
    struct checkpoint_state state = {.step = run->step,
                                     .samples = run->samples,
                                     .tokens = run->tokens,
                                     .seed = (uint64_t)config->seed,
                                     .config = run->config_text.data,
                                     .binary = version_digest(),
                                     .gemm = version_recipe(),
                                     .isa = run->device.name,
                                     .extra = extra};
    double begin = record_begin(&run->lane);
    run_busy(run, "saves a checkpoint"); // disks may be slower than the watchdog
    int result = checkpoint_save_slices(config->checkpoint_folder, &config->model, slices, count,
                                        &state, config->part_bytes, run->world, &saved, err);
    run_busy(run, NULL);
    record_end(&run->lane, RECORD_CHECKPOINT, "checkpoint", run->step, begin);
    json_decref(extra);
    free(slices);
    if (result != 0) return -1;
    run->saved_step = run->step;
    char size[32];
    log_line(LOG_INFO, "saved %s, %s in %.2f s", saved.path, text_bytes(saved.bytes, size),
             saved.seconds);
    metrics_put_event(&run->metrics, "checkpoint", run->step, "\"bytes\":%llu,\"seconds\":%.3f",
                      (unsigned long long)saved.bytes, saved.seconds);
    struct checkpoint_retention keep = {
        .keep_last = config->keep_last, .keep_every = config->keep_every, .saved_step = run->step};
    if (run_leads(run)) checkpoint_retain(config->checkpoint_folder, &keep);
    return 0;
}
