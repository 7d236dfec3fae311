// Runs of two ranks under weft launch, for the tests of its supervisor: started to their end, or
// left running while the test does something to them; their records; what they must be equal in.
#pragma once
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "comm/comm.h"
#include "state_hash.h"
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char out[1 << 18];

// A launcher around these tests is not the one under test.
#define WITHOUT_LAUNCHER                                                                           \
    "env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u SLURM_NTASKS -u SLURM_JOB_ID -u SLURM_STEP_ID "    \
    "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive "

static inline void write_inputs(int steps) {
    struct err err = {0};
    char text[2048];
    uint16_t ids[6000];
    if (!comm_built_with_mpi()) SKIP("built without MPI");
    for (int i = 0; i < 6000; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_replace(test_path("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 32}\n"
             "data.train: %s\n"
             "train: {steps: %d, batch: 8, micro_batch: 2, gemm_seconds: 0, folder: %s, "
             "tensorboard: false}\n"
             "checkpoint: {every: 5, keep_last: 4}\n"
             "device.threads: 1\n",
             test_path("train.bin"), steps, test_path("run"));
    CHECK_OK(file_replace(test_path("c.yaml"), text, strlen(text), &err), err);
}

// ---- to the end

static inline int launch(const char *options, const char *settings) {
    return test_shell(out, sizeof out, WITHOUT_LAUNCHER "%s launch -n 2 %s train %s %s 2>&1",
                      test_weft(), options, test_path("c.yaml"), settings);
}

static inline void show_failure(int line, int status) {
    test_fail(__FILE__, line, "status %d:\n%s", status, out);
}
#define CHECK_STATUS(call, expected)                                                               \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        if (status_ != (expected)) show_failure(__LINE__, status_);                                \
    } while (0)

// The same run, left alone, in the folder "whole".
static inline void launch_whole(const char *settings) {
    char words[4400];
    snprintf(words, sizeof words, "train.folder=%s %s", test_path("whole"), settings);
    CHECK_STATUS(launch("", words), 0);
}

// ---- left running

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

// What it says goes to the file "log", a line for each step. NULL ends the words, and may stand for
// none.
static inline pid_t start_words(const char *const *options, const char *const *settings) {
    const char *words[32] = {"weft", "launch", "-n", "2"};
    int count = 4;
    struct err err = {0};
    while (options && *options) words[count++] = *options++;
    words[count++] = "train";
    words[count++] = test_path("c.yaml");
    words[count++] = "train.log_every=1";
    while (settings && *settings) words[count++] = *settings++;
    CHECK(count < 32);
    CHECK_OK(file_replace(test_path("log"), "", 0, &err), err);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    int file = open(test_path("log"), O_WRONLY | O_APPEND);
    dup2(file, 1);
    dup2(file, 2);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("SLURM_JOB_ID");
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv(test_weft(), (char *const *)words);
    _exit(127);
}

static inline pid_t start(const char *first, const char *second) {
    return start_words(NULL, WORDS(first, second));
}

static inline int finish(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline const char *read_log(void) {
    static char *text;
    size_t size;
    struct err err = {0};
    free(text);
    CHECK_OK(file_read(test_path("log"), 0, &text, &size, &err), err);
    return text;
}

static inline void wait_for(const char *words) {
    while (!strstr(read_log(), words)) usleep(20000); // the test's limit counts
}

static inline int order(const char *words) {
    return test_shell(out, sizeof out, "%s launch %s 2>&1", test_weft(), words);
}

// ---- what it leaves

static inline json_t *read_json(const char *path) {
    struct err err = {0};
    json_t *found = json_parse_file(path, &err);
    if (!found) test_fail(__FILE__, __LINE__, "%s", err.text);
    return found;
}

static inline json_t *state_of(const char *folder) {
    char path[4300];
    snprintf(path, sizeof path, "%s/launch/state.json", test_path(folder));
    return read_json(path);
}

static inline int launches(void) {
    json_t *state = state_of("run");
    int count = (int)json_integer_value(json_object_get(state, "attempts"));
    json_decref(state);
    return count;
}

// Records of a kind in the log of incidents, in their order, for the caller to release. "restart":
// the second lines; NULL: all.
static inline json_t *incident_list(const char *kind) {
    char path[4300], line[65536];
    struct err err = {0};
    json_t *list = json_array();
    snprintf(path, sizeof path, "%s/incidents.jsonl", test_path("run"));
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        json_t *record = json_parse(line, strlen(line), path, &err);
        if (!record) test_fail(__FILE__, __LINE__, "%s", err.text);
        const char *found = json_string_value(json_object_get(record, "kind"));
        if (!found && json_object_get(record, "restart")) found = "restart";
        if (!kind || (found && strcmp(found, kind) == 0)) json_array_append(list, record);
        json_decref(record);
    }
    if (file) fclose(file);
    return list;
}

// How many of a kind there are; the last one into *last.
static inline int incidents(const char *kind, json_t **last) {
    json_t *list = incident_list(kind);
    size_t count = json_array_size(list);
    if (last && count > 0) *last = json_incref(json_array_get(list, count - 1));
    json_decref(list);
    return (int)count;
}

static inline const char *evidence_of(const json_t *record) {
    const char *text = json_string_value(json_object_get(record, "evidence"));
    return text ? text : "";
}

// ---- what must be the same

// Losses and norms with all their digits, a line for each step, for the caller to free.
static inline char *read_journal(const char *folder, int *steps) {
    char path[4300], line[65536];
    char *text = NULL;
    size_t size;
    FILE *journal = open_memstream(&text, &size);
    snprintf(path, sizeof path, "%s/metrics.jsonl", test_path(folder));
    FILE *file = fopen(path, "r");
    CHECK(file != NULL && journal != NULL);
    for (*steps = 0; fgets(line, sizeof line, file);) {
        json_t *record = json_loads(line, 0, NULL);
        const json_t *loss = json_object_get(record, "loss");
        const json_t *norm = json_object_get(record, "grad_norm");
        if (loss && !json_object_get(record, "event")) {
            ++*steps;
            fprintf(journal, "%lld %a %a\n",
                    (long long)json_integer_value(json_object_get(record, "step")),
                    json_number_value(loss), json_number_value(norm));
        }
        json_decref(record);
    }
    fclose(file);
    fclose(journal);
    return text;
}

static inline uint64_t hash_of_state(const char *folder, int64_t step) {
    char checkpoints[4300];
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", test_path(folder));
    return state_hash(checkpoints, step);
}

// What weft launch --status says of the run.
static inline json_t *status_of_run(void) {
    char words[4300];
    struct err err = {0};
    snprintf(words, sizeof words, "--status %s --json", test_path("run"));
    CHECK_STATUS(order(words), 0);
    json_t *status = json_parse(out, strlen(out), "--status", &err);
    if (!status) test_fail(__FILE__, __LINE__, "%s: %s", err.text, out);
    return status;
}

// Both have done so many steps, with the same losses and norms, and hold the same state: to the
// bit.
static inline void check_same_run(const char *folder, const char *other, int steps) {
    int found, expected;
    char *own = read_journal(folder, &found), *whole = read_journal(other, &expected);
    CHECK_EQ_INT(found, steps);
    CHECK_EQ_INT(expected, steps);
    char *own_rest, *whole_rest;
    const char *a = strtok_r(own, "\n", &own_rest), *b = strtok_r(whole, "\n", &whole_rest);
    for (int i = 0; i < steps; i++) {
        CHECK_STR(a, b);
        a = strtok_r(NULL, "\n", &own_rest);
        b = strtok_r(NULL, "\n", &whole_rest);
    }
    free(own);
    free(whole);
    CHECK(hash_of_state(folder, steps) == hash_of_state(other, steps));
}

// Whoever belongs to the run has its name in the environment.
static inline void check_nothing_runs(void) {
    char mark[64];
    json_t *state = state_of("run");
    snprintf(mark, sizeof mark, "WEFT_RUN=%s", json_string_value(json_object_get(state, "run")));
    json_decref(state);
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "cat /proc/[0-9]*/environ 2>/dev/null | grep -c -a %s", mark),
        1);
    CHECK_STR(out, "0\n");
}
