// See ranks.h.
#include "ranks.h"
#include "base/file.h"
#include "base/json.h"
#include "guard/heartbeat.h"
#include "run_fixture.h"
#include "test.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ranked ranked[RANKS_MOST];
struct text ranks_lines;
struct ranks_ways ranks_ways = {.watchdog_seconds = 60};

const char *const ranks_layouts[RANKS_LAYOUTS][4] = {
    {"parallel.dp=2", "parallel.zero=0"},
    {"parallel.dp=2", "parallel.zero=1"},
    {"parallel.dp=2", "parallel.zero=3"},
    {"parallel.tp=2"},
    {"parallel.pp=2"},
};

static void gather(enum log_level level, const char *line, void *context) {
    (void)context;
    if (level >= LOG_WARN) text_printf(&ranks_lines, "%s\n", line);
    if (ranks_ways.listener) ranks_ways.listener(level, line);
}

static void *train(void *context) {
    struct ranked *r = context;
    struct run_control control = {.comm = r->comm, .stop = &ranks_ways.stop_is_raised};
    struct heartbeat_options nobody = {.address = "127.0.0.1", .port = 1, .host = "here"};
    struct err err = {0};
    if (ranks_ways.supervised) CHECK_OK(heartbeat_open(&control.heartbeat, &nobody, &err), err);
    r->status = train_run(r->config, &control, &r->result, &r->err);
    heartbeat_close(control.heartbeat);
    if (r->comm && !r->result.broken) comm_close(r->comm);
    return NULL;
}

static const char *const *at_once(const char *const *words) {
    static const char *all[48];
    int count = 0;
    all[count++] = "checkpoint.snapshot=false";
    while (*words) all[count++] = *words++;
    all[count] = NULL;
    return all;
}

void ranks_run(const char *name, int ranks, const char *const *words) {
    struct comm *ends[RANKS_MOST] = {NULL};
    struct comm_options options = {.watchdog_seconds = ranks_ways.watchdog_seconds};
    pthread_t thread[RANKS_MOST];
    struct err err = {0};
    ranks_lines.size = 0;
    text_puts(&ranks_lines, "");
    ranks_ways.stop_is_raised = 0;
    if (ranks > 1) CHECK_OK(comm_open_threads(ends, ranks, &options, &err), err);
    log_to(gather, NULL, LOG_INFO);
    for (int i = 0; i < ranks; i++) {
        free(ranked[i].config);
        ranked[i] = (struct ranked){.comm = ends[i], .config = calloc(1, sizeof *ranked[i].config)};
        fixture_config(ranked[i].config, test_temp_dir(), name, at_once(words));
    }
    for (int i = 0; i < ranks; i++)
        CHECK_EQ_INT(pthread_create(&thread[i], NULL, train, &ranked[i]), 0);
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    log_to(NULL, NULL, LOG_INFO);
}

void ranks_run_to_end(const char *name, int ranks, const char *const *words) {
    ranks_run(name, ranks, words);
    for (int i = 0; i < ranks; i++)
        if (ranked[i].status != 0)
            test_fail(__FILE__, __LINE__, "%s: %s\n%s", name, ranked[i].err.text, ranks_lines.data);
}

void ranks_check_statuses(int line, const char *file, const int *expected, int ranks) {
    for (int i = 0; i < ranks; i++) {
        int status = ranked[i].status == 0 ? 0 : err_exit_status(&ranked[i].err);
        if (status != expected[i])
            test_fail(file, line, "rank %d: %d, expected %d: %s\n%s", i, status, expected[i],
                      ranked[i].err.text, ranks_lines.data);
    }
}

struct ranks_outcome ranks_outcome(int64_t step) {
    return (struct ranks_outcome){strdup(fixture_column(ranked[0].config, "loss_hex")),
                                  strdup(fixture_column(ranked[0].config, "grad_norm_hex")),
                                  fixture_checkpoint_hash(ranked[0].config, step)};
}

void ranks_check_same(int line, const char *file, struct ranks_outcome a, struct ranks_outcome b) {
    test_check_str(file, line, "losses", a.losses, b.losses);
    test_check_str(file, line, "norms", a.norms, b.norms);
    test_check_bytes(file, line, "last state", &a.hash, &b.hash, sizeof a.hash);
}

static int find_events(const char *event, int *rank) {
    char path[4096], *text, *rest, *line;
    size_t size;
    int count = 0;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", ranked[0].config->folder);
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    *rank = -1;
    for (rest = text; (line = strsep(&rest, "\n")) != NULL;) {
        json_t *object = *line ? json_parse(line, strlen(line), path, &err) : NULL;
        const char *found = json_string_value(json_object_get(object, "event"));
        if (found && strcmp(found, event) == 0) {
            json_t *value = json_object_get(object, "rank");
            *rank = value ? (int)json_integer_value(value) : -1;
            count++;
        }
        json_decref(object);
    }
    free(text);
    return count;
}

int ranks_events(const char *event) {
    int rank;
    return find_events(event, &rank);
}

int ranks_event_rank(const char *event) {
    int rank;
    find_events(event, &rank);
    return rank;
}

int64_t ranks_skipped_step(void) {
    const char *flags = fixture_column(ranked[0].config, "skipped");
    int64_t step = 0, found = 0;
    for (const char *at = flags; *at; at += strcspn(at, " "), at += *at == ' ') {
        step++;
        if (strncmp(at, "true", 4) == 0) found = found ? -1 : step;
    }
    return found;
}
