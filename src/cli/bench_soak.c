// weft bench soak: what a run made of the faults that scripts/soak threw at it, beside what the
// formula of whole runs (simulate/runs.h) says of the same faults.
#include "base/file.h"
#include "base/json.h"
#include "base/numbers.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "simulate/runs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: weft bench soak FOLDER [--json]\n\n"
    "FOLDER is what scripts/soak has left: soak.tsv (when each fault was made, and its kind) and\n"
    "run/ with metrics.jsonl and incidents.jsonl. Prints a line for each kind, the effective\n"
    "training time (seconds of the steps that count over wall seconds from launch to end), and\n"
    "beside it what two formulas give: the clock of simulate/runs.h with the very times and kinds\n"
    "of these faults, the steps between checkpoints and the recovery times of each kind; and its\n"
    "closed form, which knows only their mean distance. Differences are in points of per cent.\n";

enum { MOST_FAULTS = 1000, KIND_BYTES = 32, MOST_GAPS = 1 << 16 };

struct soak_fault {
    double time; // seconds since the launch
    char kind[KIND_BYTES];
    bool restarted, incident;
    double recovery_seconds, detection_seconds; // until the first step; of these, unnoticed
};
struct soak {
    struct soak_fault fault[MOST_FAULTS];
    int fault_count;
    double begin, wall_seconds;
    int64_t steps; // that count
    double useful_seconds, start_seconds;
    double stall_seconds;   // mean of a checkpoint
    int64_t interval;       // steps between checkpoints
    double gaps[MOST_GAPS]; // as they were asked for; odd ones stand at restarts
    int gap_count;
    int64_t asked; // the last one read
    int saves;
    bool json;
};

// ---- reading ------------------------------------------------------------------------------------

static int read_faults(struct soak *s, const char *folder, struct err *err) {
    char path[4096], *text;
    size_t bytes;
    double end = 0;
    if (file_join(path, sizeof path, folder, "soak.tsv", err) != 0 ||
        file_read(path, 0, &text, &bytes, err) != 0)
        return -1;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        double time;
        char kind[KIND_BYTES];
        if (sscanf(line, "%lf %31s", &time, kind) != 2) continue;
        if (strcmp(kind, "begin") == 0)
            s->begin = time;
        else if (strcmp(kind, "end") == 0)
            end = time;
        else if (s->fault_count < MOST_FAULTS) {
            struct soak_fault *f = &s->fault[s->fault_count++];
            f->time = time - s->begin;
            memcpy(f->kind, kind, sizeof kind);
        }
    }
    free(text);
    s->wall_seconds = end - s->begin;
    if (s->begin > 0 && s->wall_seconds > 0) return 0;
    return err_set(err, ERR_DATA, "%s: expected lines \"TIME begin\" and \"TIME end\"", path);
}

typedef int soak_line(struct soak *s, json_t *line, const char *path, struct err *err);

static int each_line(struct soak *s, const char *folder, const char *name, soak_line *take,
                     struct err *err) {
    char path[4096], *text;
    size_t bytes;
    int result = 0;
    if (file_join(path, sizeof path, folder, name, err) != 0 ||
        file_read(path, 0, &text, &bytes, err) != 0)
        return -1;
    for (char *line = strtok(text, "\n"); line && result == 0; line = strtok(NULL, "\n")) {
        json_t *object = json_parse(line, strlen(line), path, err);
        result = object ? take(s, object, path, err) : -1;
        json_decref(object);
    }
    free(text);
    return result;
}

static int take_metrics(struct soak *s, json_t *line, const char *path, struct err *err) {
    struct json_at at = {line, path};
    const char *event;
    int64_t step;
    double seconds, time, stall;
    if (json_get_string(at, "event", false, "", &event, err) != 0 ||
        json_get_int(at, "step", true, 0, &step, err) != 0 ||
        json_get_double(at, "seconds", false, 0, &seconds, err) != 0 ||
        json_get_double(at, "time", false, 0, &time, err) != 0 ||
        json_get_double(at, "stall_seconds", false, 0, &stall, err) != 0)
        return -1;
    if (strcmp(event, "checkpoint_requested") == 0) {
        if (s->asked > 0 && step > s->asked && s->gap_count < MOST_GAPS)
            s->gaps[s->gap_count++] = (double)(step - s->asked);
        s->asked = step;
    }
    if (strcmp(event, "checkpoint_persisted") == 0 && json_object_get(line, "stall_seconds"))
        s->stall_seconds += (stall - s->stall_seconds) / ++s->saves;
    if (event[0]) return 0;
    if (s->steps == 0) s->start_seconds = fmax(time - seconds - s->begin, 0);
    s->steps++;
    s->useful_seconds += seconds;
    return 0;
}

// "2026-03-01T04:05:06.789Z" in seconds since 1970.
static double parse_time(const char *text) {
    struct tm t = {0};
    double seconds = 0;
    if (sscanf(text, "%d-%d-%dT%d:%d:%lf", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min,
               &seconds) != 6)
        return 0;
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    return (double)timegm(&t) + seconds;
}

static int take_incident(struct soak *s, json_t *line, const char *path, struct err *err) {
    struct json_at at = {line, path};
    const char *time;
    if (json_get_string(at, "time", true, NULL, &time, err) != 0) return -1;
    double when = parse_time(time) - s->begin;
    struct soak_fault *f = NULL; // the last one before it
    for (int i = 0; i < s->fault_count; i++)
        if (s->fault[i].time <= when) f = &s->fault[i];
    json_t *restart = json_object_get(line, "restart");
    if (!f) return 0;
    f->incident = true;
    if (!restart) return 0;
    // from the fault itself to the first step
    f->restarted = true;
    f->recovery_seconds = when - f->time;
    struct json_at phases = {json_object_get(restart, "phases"), path};
    return json_get_double(phases, "detect", false, 0, &f->detection_seconds, err);
}

// ---- formulas -----------------------------------------------------------------------------------

static double recovery_of_kind(const struct soak *s, const char *kind) {
    double all[MOST_FAULTS];
    size_t count = 0;
    for (int i = 0; i < s->fault_count; i++)
        if (s->fault[i].restarted && strcmp(s->fault[i].kind, kind) == 0)
            all[count++] = s->fault[i].recovery_seconds;
    return count ? numbers_median(all, count) : 0;
}

static bool goes_back(const char *kind) { // without a restart
    return strcmp(kind, "flip_optimizer") == 0 || strcmp(kind, "flip_weight") == 0;
}

static bool does_again(const char *kind) { // its step
    return strcmp(kind, "nan") == 0 || strcmp(kind, "flip_gradient") == 0;
}

// Walks the clock of a run through the faults: work, saved at every interval, until one strikes.
// Returns useful seconds at the end of the wall time.
static double by_times(const struct soak *s, double step) {
    double interval = (double)s->interval, pace = step + s->stall_seconds / interval;
    double now = s->start_seconds, done = 0; // steps
    for (int i = 0; i < s->fault_count; i++) {
        const struct soak_fault *f = &s->fault[i];
        double recovery = recovery_of_kind(s, f->kind);
        if (f->time > now) {
            done += (f->time - now) / pace;
            now = f->time;
        }
        if (recovery > 0 || goes_back(f->kind)) done = floor(done / interval) * interval;
        if (recovery == 0 && does_again(f->kind)) done = fmax(done - 1, 0);
        now += recovery;
    }
    if (s->wall_seconds > now) done += (s->wall_seconds - now) / pace;
    return done * step;
}

static double by_mean(const struct soak *s, double step) {
    struct runs runs;
    struct runs_closed closed;
    double detection = 0, recovery = 0;
    int restarts = 0;
    for (int i = 0; i < s->fault_count; i++) {
        if (!s->fault[i].restarted) continue;
        restarts++;
        detection += s->fault[i].detection_seconds;
        recovery += s->fault[i].recovery_seconds;
    }
    runs_defaults(&runs);
    runs.nodes = runs.per_node = 1;
    runs.step_seconds = step;
    runs.steps = s->steps;
    runs.failures_per_node_day = restarts / s->wall_seconds * 86400;
    runs.shape = 1;
    runs.detection_seconds = restarts ? detection / restarts : 0;
    runs.restart_seconds = restarts ? (recovery - detection) / restarts : 0;
    runs.load_seconds = runs.persist_seconds = 0; // in the above; memory counts at once
    runs.start_seconds = s->start_seconds;
    runs.blocking_seconds = s->stall_seconds;
    runs.interval_seconds = step * (double)s->interval;
    runs_closed(&runs, &closed);
    return closed.effective;
}

// ---- report -------------------------------------------------------------------------------------

static void report_kinds(const struct soak *s) {
    printf("%-16s %7s %10s %10s %22s\n", "kind", "faults", "incidents", "restarts",
           "back in a step, seconds");
    for (int i = 0; i < s->fault_count; i++) {
        int count = 0, incidents = 0, restarts = 0, before = 0;
        for (int j = 0; j < s->fault_count; j++) {
            const struct soak_fault *f = &s->fault[j];
            if (strcmp(f->kind, s->fault[i].kind) != 0) continue;
            before += j < i;
            count++;
            incidents += f->incident;
            restarts += f->restarted;
        }
        if (before > 0) continue;
        printf("%-16s %7d %10d %10d %22.2f\n", s->fault[i].kind, count, incidents, restarts,
               recovery_of_kind(s, s->fault[i].kind));
    }
}

static void report(const struct soak *s) {
    double step = s->useful_seconds / (double)s->steps;
    double measured = s->useful_seconds / s->wall_seconds;
    double times = by_times(s, step) / s->wall_seconds, mean = by_mean(s, step);
    if (s->json) {
        printf("{\"wall_seconds\":%.3f,\"useful_seconds\":%.3f,\"steps\":%lld,\"faults\":%d,"
               "\"effective\":%.5f,\"by_times\":%.5f,\"by_mean\":%.5f}\n",
               s->wall_seconds, s->useful_seconds, (long long)s->steps, s->fault_count, measured,
               times, mean);
        return;
    }
    report_kinds(s);
    printf("%lld steps of %.3f s that count, checkpoints every %lld, %.0f s from launch to end\n",
           (long long)s->steps, step, (long long)s->interval, s->wall_seconds);
    printf("effective training time: %.2f %%; formula with these faults' times and kinds %.2f %% "
           "(%+.2f points), closed form of their mean distance %.2f %% (%+.2f points)\n",
           100 * measured, 100 * times, 100 * (times - measured), 100 * mean,
           100 * (mean - measured));
}

int bench_soak(int argc, char **argv) {
    static struct soak s;
    const char *folder = NULL;
    char run[4096];
    int words;
    struct err err = {0};
    const struct option options[] = {{"--json", OPTION_FLAG, &s.json, 0}};
    int got = options_read(argc, argv, options, 1, &folder, 1, &words, &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0 && words != 1)
        got = err_set(&err, ERR_USAGE, "bench soak: the folder that scripts/soak left is needed");
    if (got == 0) got = read_faults(&s, folder, &err);
    if (got == 0) got = file_join(run, sizeof run, folder, "run", &err);
    if (got == 0) got = each_line(&s, run, "metrics.jsonl", take_metrics, &err);
    if (got == 0) got = each_line(&s, run, "incidents.jsonl", take_incident, &err);
    if (s.gap_count > 0) s.interval = (int64_t)numbers_median(s.gaps, (size_t)s.gap_count);
    if (got == 0 && (s.steps == 0 || s.interval == 0))
        got = err_set(&err, ERR_DATA, "%s/metrics.jsonl: no steps, or fewer than two checkpoints",
                      run);
    if (got == 0) report(&s);
    return got == 0 ? 0 : cli_fail(&err);
}
