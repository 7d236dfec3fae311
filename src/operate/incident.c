// See incident.h. A record is one write, so that a reader, or a supervisor that died in the middle,
// never leaves half of two records in one line.
#include "operate/incident.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const kind_names[INCIDENT_KINDS] = {
    "exit",   "host_lost",  "hang",  "straggler", "memory_growth", "disk",   "clock",
    "link",   "corruption", "spike", "hardware",  "health",        "forged", "preempted",
    "reload", "shrink",     "grow",  "config",    "mismatch",      "copy",   "given_up"};
static const char *const phase_names[PHASES] = {"detect", "evict", "launch", "load", "first_step"};

struct incidents {
    char path[4096], folder[4096]; // the log; long texts
    int next;                      // number
    uint64_t bytes;                // whole lines that are in the file
    bool complained;
};

const char *incident_kind_name(enum incident_kind kind) {
    return kind_names[kind];
}

const char *restart_phase_name(enum restart_phase phase) {
    return phase_names[phase];
}

// The largest number in the file, and how many of its bytes are whole lines.
static void look_at(struct incidents *log, const char *text, size_t size) {
    size_t begin = 0;
    for (const char *end; (end = memchr(text + begin, '\n', size - begin)) != NULL;) {
        const char *number = strstr(text + begin, "\"number\":");
        if (number && number < end) {
            long found = strtol(number + 9, NULL, 10);
            if (found >= log->next && found < 1L << 30) log->next = (int)found + 1;
        }
        begin = (size_t)(end - text) + 1;
    }
    log->bytes = begin;
}

int incidents_open(struct incidents **out, const char *run_folder, struct err *err) {
    struct incidents *log = calloc(1, sizeof *log);
    if (!log) return err_set(err, ERR_MEMORY, "no memory for the log of incidents");
    log->next = 1;
    char *text;
    size_t size;
    int result = file_make_folders(run_folder, err);
    if (result == 0)
        result = file_join(log->path, sizeof log->path, run_folder, "incidents.jsonl", err);
    if (result == 0)
        result = file_join(log->folder, sizeof log->folder, run_folder, "incidents", err);
    if (result == 0 && file_exists(log->path)) {
        result = file_read(log->path, 0, &text, &size, err);
        if (result == 0) {
            look_at(log, text, size);
            free(text);
        }
    }
    if (result != 0) {
        free(log);
        return -1;
    }
    *out = log;
    return 0;
}

void incidents_close(struct incidents *log) {
    free(log);
}

static void append(struct incidents *log, json_t *record) {
    struct err err = {0};
    struct file_writer file;
    char *text = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(record);
    size_t size = text ? strlen(text) : 0;
    if (!text) err_set(&err, ERR_MEMORY, "no memory for a record");
    if (text) text[size] = '\n'; // in place of the end
    int result = text ? file_writer_append(&file, log->path, log->bytes, &err) : -1;
    if (result == 0 && file_writer_put(&file, text, size + 1, &err) != 0) {
        file_writer_abandon(&file);
        result = -1;
    } else if (result == 0) {
        result = file_writer_close(&file, false, &err);
    }
    free(text);
    if (result == 0) {
        log->bytes += size + 1;
        log->complained = false;
        return;
    }
    if (!log->complained)
        log_line(LOG_WARN, "incidents are not on disk from here on (the run goes on): %s",
                 err.text);
    log->complained = true;
}

static void stamp(double seconds, char out[40]) {
    time_t whole = (time_t)floor(seconds);
    int thousandths = (int)((seconds - floor(seconds)) * 1000);
    struct tm parts;
    char text[24];
    gmtime_r(&whole, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out, 40, "%s.%03dZ", text, thousandths);
}

// The file of a long text, or "" when it could not be written.
static void write_details(const struct incidents *log, int number, const char *text,
                          char name[64]) {
    char file[32], path[4160];
    struct err err = {0};
    snprintf(file, sizeof file, "%d.txt", number);
    snprintf(name, 64, "incidents/%s", file);
    if (file_make_folders(log->folder, &err) == 0 &&
        file_join(path, sizeof path, log->folder, file, &err) == 0 &&
        file_replace(path, text, strlen(text), &err) == 0)
        return;
    name[0] = 0;
    log_line(LOG_WARN, "details of incident %d are not on disk: %s", number, err.text);
}

// Text from ranks and machines may hold anything; JSON takes UTF-8 alone.
static json_t *plain(const char *text) {
    size_t size = strlen(text);
    if (text_utf8_valid_prefix(text, size) == size) return json_string(text);
    char *copy = strdup(text);
    json_t *string = NULL;
    if (copy) {
        for (char *p = copy; *p; p++)
            if ((unsigned char)*p >= 0x80) *p = '?';
        string = json_string(copy);
        free(copy);
    }
    return string ? string : json_string("");
}

int incidents_put(struct incidents *log, const struct incident *i) {
    int number = log->next++;
    char when[40], details[64] = "";
    double time = i->time > 0 ? i->time : clock_wall_seconds();
    stamp(time, when);
    if (i->details) write_details(log, number, i->details, details);
    json_t *record = json_pack("{s:i,s:s,s:s}", "number", number, "time", when, "kind",
                               incident_kind_name(i->kind));
    json_object_set_new(record, "rank", i->rank >= 0 ? json_integer(i->rank) : json_null());
    json_object_set_new(record, "host", i->host[0] ? plain(i->host) : json_null());
    json_object_set_new(record, "step", i->step >= 0 ? json_integer(i->step) : json_null());
    json_object_set_new(record, "attempt", json_integer(i->attempt));
    json_object_set_new(record, "evidence", plain(i->evidence));
    json_object_set_new(record, "action", plain(i->action));
    if (details[0]) json_object_set_new(record, "details", json_string(details));
    append(log, record);
    log_line(LOG_WARN, "incident %d, %s: %s; action: %s%s%s", number, incident_kind_name(i->kind),
             i->evidence, i->action[0] ? i->action : "none", details[0] ? "; see " : "",
             details[0] ? details : "");
    return number;
}

void incidents_restarted(struct incidents *log, int number, const double seconds[PHASES]) {
    json_t *phases = json_object();
    char line[256] = "", when[40];
    double all = 0;
    for (int phase = 0; phase < PHASES; phase++) {
        double rounded = round(seconds[phase] * 1000) / 1000;
        bool known = isfinite(seconds[phase]) && seconds[phase] >= 0;
        json_object_set_new(phases, phase_names[phase], known ? json_real(rounded) : json_null());
        if (!known) continue;
        if (phase != PHASE_FIRST_STEP) all += seconds[phase];
        size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, "%s%s %.2f s", used ? ", " : "",
                 phase == PHASE_FIRST_STEP ? "first step" : phase_names[phase], seconds[phase]);
    }
    stamp(clock_wall_seconds(), when);
    append(log, json_pack("{s:i,s:s,s:{s:f,s:o}}", "number", number, "time", when, "restart",
                          "seconds", round(all * 1000) / 1000, "phases", phases));
    log_line(LOG_INFO, "incident %d: back in a step after %.2f s (%s)", number, all, line);
}
