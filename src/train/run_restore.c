// How a run goes on: from the newest state in memory or on disk, from an older one, from a model's
// folder, or from initial weights. See run_save.h.
#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "checkpoint/hf_folder.h"
#include "train/config_table.h"
#include "train/run_parts.h"
#include <stdlib.h>
#include <string.h>

// Snapshots of a run whose model was changed since are no use.
static bool model_fits(void *context, const struct checkpoint *c) {
    struct run *run = context;
    struct train_config *then = malloc(sizeof *then);
    struct text lines = {0};
    if (!then) return false;
    memcpy(then, run->config, sizeof *then);
    then->model = *checkpoint_model(c);
    config_model_lists(then);
    bool fits = config_differences(then, run->config, true, &lines) == 0;
    text_free(&lines);
    free(then);
    return fits;
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

static int load_state(struct run *run, struct checkpoint *c, const char *from, struct err *err) {
    const struct checkpoint_state *state = checkpoint_state(c);
    struct tensor_slice *slices = NULL;
    int count = 0;
    double begin = clock_seconds();
    int result = compare_configs(run, c, err);
    if (result == 0) result = run_state_slices(run, &slices, &count, err);
    result = run_agree(run, result, err); // loading is collective
    if (result == 0) result = checkpoint_load_slices(c, slices, count, run->world, err);
    free(slices);
    if (result != 0) return -1;
    engine_weights_changed(run->engine);
    if (run->saves.snapshot) snapshot_keep(run->saves.snapshot, c);
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
    // "snapshot of step 30 in memory" and a path of the run speak for themselves
    bool durable = strcmp(from, "disk") == 0, plain = durable || strcmp(from, "memory") == 0;
    run->saves.durable_step = durable ? run->step : -1;
    log_line(LOG_INFO, "resumed from %s%s%s%s: step %lld, %lld samples, in %.2f s",
             checkpoint_path(c), plain ? "" : " (", plain ? "" : from, plain ? "" : ")",
             (long long)run->step, (long long)run->samples, clock_seconds() - begin);
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

static int load_initial(struct run *run, struct err *err) {
    run->step = run->samples = run->tokens = run->updates = 0;
    run->bad_steps = 0;
    run->saved_step = run->saves.durable_step = -1;
    if (run_guard_load(run, NULL, "", err) != 0) return -1;
    if (run->config->from[0]) return load_model_folder(run, err);
    engine_initialise(run->engine, (uint64_t)run->config->seed);
    return 0;
}

static int set_aside_here(struct run *run, struct err *err) {
    const struct run_saves *s = &run->saves;
    const char *second = run->config->second_folder;
    struct err why = {0};
    if (s->memory[0] &&
        snapshot_discard_newer(s->memory, run->step, s->session, s->number, &why) != 0)
        log_line(LOG_WARN, "copies of snapshots that are on their way here may count: %s",
                 why.text);
    if (!run_leads(run)) return 0;
    if (checkpoint_set_aside(run->config->checkpoint_folder, run->step, err) != 0) return -1;
    return second[0] ? checkpoint_set_aside(second, run->step, err) : 0;
}

// States newer than the one that was loaded shall not be taken for the newest again. Copies may lie
// on hosts that have no ranks: the supervisor tells their agents, when no rank's host has any more.
static int set_aside_newer(struct run *run, struct err *err) {
    if (run_agree(run, set_aside_here(run, err), err) != 0) return -1;
    if (run_leads(run) && run->control)
        heartbeat_report(run->control->heartbeat, "set_aside",
                         json_pack("{s:I,s:I,s:I}", "step", (json_int_t)run->step, "session",
                                   (json_int_t)run->saves.session, "number",
                                   (json_int_t)run->saves.number));
    return 0;
}

// What this process may go on from. Without train.resume only the disk matters, which must be
// empty.
static struct snapshot_places places_of(struct run *run) {
    const struct train_config *c = run->config;
    return (struct snapshot_places){.memory = c->resume && run->saves.memory[0] ? run->saves.memory
                                                                                : NULL,
                                    .run = c->resume ? run->saves.id : NULL,
                                    .disk = c->checkpoint_folder,
                                    .second = c->second_folder[0] ? c->second_folder : NULL,
                                    .fits = model_fits,
                                    .context = run};
}

// What this process saves is newer than what any has saved before it, whatever clocks say.
static void come_after(struct run *run, uint64_t session) {
    if (session < run->saves.session) return;
    run->saves.session = session + 1;
    if (run->saves.snapshot) snapshot_set_session(run->saves.snapshot, session + 1);
}

int run_restore(struct run *run, struct err *err) {
    const struct train_config *config = run->config;
    struct snapshot_places places = places_of(run);
    struct snapshot_choice choice = {.back = config->states_back, .most_step = -1};
    struct checkpoint *c = NULL;
    const char *from = "";
    uint64_t before;
    places.newest_session = &before;
    if (snapshot_open_newest(&places, &choice, run->world, &c, &from, err) != 0) return -1;
    come_after(run, before);
    if (!c && config->states_back > 0)
        log_line(LOG_WARN,
                 "there is no state so far back as checkpoint.back=%d; the run begins anew",
                 config->states_back);
    if (!c) return load_initial(run, err);
    int result = config->resume
                     ? load_state(run, c, from, err)
                     : err_set(err, ERR_USAGE,
                               "%s holds a checkpoint and train.resume is false; choose another "
                               "train.folder, or remove that folder",
                               config->checkpoint_folder);
    checkpoint_close(c);
    if (result != 0 || config->states_back == 0) return result;
    return set_aside_newer(run, err);
}

int run_restore_older(struct run *run, int back, int64_t most_step, struct err *err) {
    struct snapshot_places places = places_of(run);
    struct snapshot_choice choice = {.back = back, .most_step = most_step};
    struct checkpoint *c = NULL;
    const char *from = "";
    int64_t resumed_from = run->result->resumed_from;
    if (run_saves_finish(run, true, err) != 0) return -1;
    run_busy(run, "goes back to an older state");
    if (snapshot_open_newest(&places, &choice, run->world, &c, &from, err) != 0) return -1;
    engine_clear_state(run->engine);
    int result = c ? load_state(run, c, from, err) : load_initial(run, err);
    checkpoint_close(c);
    run->result->resumed_from = resumed_from;
    return result == 0 ? set_aside_newer(run, err) : -1;
}
