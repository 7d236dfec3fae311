// Saves that ended with their process: a kill leaves a request without an outcome in metrics.jsonl,
// and staging. See run_save.h.
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "train/run_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct known { // of a step's last save
    int64_t step;
    double requested; // seconds since 1970; 0: not known
    // where the lines begin that ask for it and tell its end; -1: there is none
    int64_t request, outcome;
};
struct history {
    char *journal; // lines end with a NUL
    struct known *list;
    int count;
};

// From the end: what is told of a save stands close behind its request.
static struct known *find(const struct history *h, int64_t step) {
    for (int i = h->count - 1; i >= 0; i--)
        if (h->list[i].step == step) return &h->list[i];
    return NULL;
}

static void note(struct history *h, struct known now) {
    struct known *known = find(h, now.step);
    if (!known) {
        struct known *grown = realloc(h->list, ((size_t)h->count + 1) * sizeof *grown);
        if (!grown) return;
        h->list = grown;
        known = &grown[h->count++];
    } else if (now.request < 0) {
        known->outcome = now.outcome;
        return;
    }
    *known = now;
}

static bool is_outcome(const char *event) {
    return strcmp(event, "checkpoint_persisted") == 0 || strcmp(event, "checkpoint_failed") == 0 ||
           strcmp(event, "checkpoint_replaced") == 0;
}

static void take_line(struct history *h, const char *line, const char *path) {
    int64_t step = -1, place = line - h->journal;
    double time = 0;
    const char *event = "";
    json_t *object = json_parse(line, strlen(line), path, NULL);
    struct json_at at = {object, path};
    if (object && json_is_object(object) &&
        json_get_string(at, "event", false, "", &event, NULL) == 0 &&
        json_get_int(at, "step", true, -1, &step, NULL) == 0 &&
        json_get_int(at, "for_step", false, step, &step, NULL) == 0 &&
        json_get_double(at, "time", false, 0, &time, NULL) == 0) {
        if (strcmp(event, "checkpoint_requested") == 0)
            note(h, (struct known){step, time, place, -1});
        else if (is_outcome(event))
            note(h, (struct known){step, 0, -1, place});
    }
    json_decref(object);
}

static void read_journal(struct history *h, const char *path) {
    char *rest;
    size_t bytes;
    if (!file_exists(path) || file_read(path, 0, &h->journal, &bytes, NULL) != 0) return;
    for (char *line = strtok_r(h->journal, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (strstr(line, "\"checkpoint_")) take_line(h, line, path);
}

// Staging whose request the journal does not have: that was lost with the machine, or cut.
static void read_folder(struct history *h, const char *folder) {
    enum { MOST = 16 };
    int64_t steps[MOST];
    int count = saver_left_behind(folder, steps, MOST);
    for (int i = 0; i < count; i++)
        if (!find(h, steps[i])) note(h, (struct known){steps[i], 0, -1, -1});
}

static bool is_on_disk(const char *folder, int64_t step) {
    int64_t *steps;
    int count;
    bool found = false;
    if (checkpoint_list(folder, &steps, &count, NULL) != 0) return false;
    for (int i = 0; i < count; i++) found |= steps[i] == step;
    free(steps);
    return found;
}

// The journal holds no step above the one that the run goes on from, so "step" is at most that one
// and "for_step" names the save.
static void tell_interrupted(struct run *run, const struct known *save) {
    int64_t at = save->step < run->step ? save->step : run->step;
    char when[64] = "", requested[64] = "";
    if (save->requested > 0) {
        struct tm parts;
        time_t seconds = (time_t)save->requested;
        strftime(when, sizeof when, ", requested on %F at %T,", localtime_r(&seconds, &parts));
        snprintf(requested, sizeof requested, ",\"requested\":%.3f", save->requested);
    }
    if (is_on_disk(run->config->checkpoint_folder, save->step)) {
        log_line(LOG_INFO, "the save of step %lld%s is complete, though its process ended",
                 (long long)save->step, when);
        metrics_put_event(&run->metrics, "checkpoint_persisted", at,
                          "\"for_step\":%lld,\"found\":true%s", (long long)save->step, requested);
        return;
    }
    log_line(LOG_WARN,
             "the save of step %lld%s was interrupted: its process ended before it was "
             "on disk",
             (long long)save->step, when);
    metrics_put_event(&run->metrics, "checkpoint_failed", at,
                      "\"for_step\":%lld,\"why\":\"interrupted\"%s", (long long)save->step,
                      requested);
}

int run_open_journal(struct run *run, const char *path, struct err *err) {
    struct history h = {0};
    read_journal(&h, path);
    read_folder(&h, run->config->checkpoint_folder);
    int result = metrics_open(&run->metrics, path, run->step, err);
    int64_t kept = (int64_t)run->metrics.good_bytes;
    for (int i = 0; i < h.count && result == 0; i++) {
        const struct known *save = &h.list[i];
        if (save->outcome < 0)
            tell_interrupted(run, save);
        else if (save->request >= 0 && save->request < kept && save->outcome >= kept)
            metrics_put_line(&run->metrics, h.journal + save->outcome); // cut, with later steps
    }
    free(h.list);
    free(h.journal);
    return result;
}
