// weft launch as the supervisor of a run: what it does about ranks that die, hang and crash again,
// and what its operator can say to it. Runs are of two ranks and a fraction of a second.
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "comm/comm.h"
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char out[1 << 18];

#define WITHOUT_LAUNCHER                                                                           \
    "env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u SLURM_NTASKS -u SLURM_JOB_ID -u SLURM_STEP_ID "    \
    "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive "

static void write_inputs(int steps) {
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

static int launch(const char *options, const char *settings) {
    return test_shell(out, sizeof out, WITHOUT_LAUNCHER "%s launch -n 2 %s train %s %s 2>&1",
                      test_weft(), options, test_path("c.yaml"), settings);
}

static json_t *state_of(const char *folder) {
    char path[4300];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/launch/state.json", test_path(folder));
    json_t *state = json_parse_file(path, &err);
    if (!state) test_fail(__FILE__, __LINE__, "%s", err.text);
    return state;
}

static int launches(void) {
    json_t *state = state_of("run");
    int count = (int)json_integer_value(json_object_get(state, "attempts"));
    json_decref(state);
    return count;
}

// Records of a kind in the log of incidents; the last one into *last. "restart": the second lines.
static int incidents(const char *kind, json_t **last) {
    char path[4300], line[65536];
    struct err err = {0};
    int count = 0;
    snprintf(path, sizeof path, "%s/incidents.jsonl", test_path("run"));
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        json_t *record = json_parse(line, strlen(line), path, &err);
        if (!record) test_fail(__FILE__, __LINE__, "%s", err.text);
        const char *found = json_string_value(json_object_get(record, "kind"));
        bool is_it = found ? strcmp(found, kind) == 0
                           : strcmp(kind, "restart") == 0 && json_object_get(record, "restart");
        count += is_it;
        if (is_it && last) {
            json_decref(*last);
            *last = json_incref(record);
        }
        json_decref(record);
    }
    fclose(file);
    return count;
}

static void show_failure(int line, int status) {
    test_fail(__FILE__, line, "status %d:\n%s", status, out);
}
#define CHECK_STATUS(call, expected)                                                               \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        if (status_ != (expected)) show_failure(__LINE__, status_);                                \
    } while (0)

// Losses and norms with all their digits, one a step.
static int read_journal(const char *folder, char hex[64][80]) {
    char path[4300], line[65536];
    int count = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", test_path(folder));
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) {
        json_t *record = json_loads(line, 0, NULL);
        const json_t *loss = json_object_get(record, "loss");
        const json_t *norm = json_object_get(record, "gradient_norm");
        if (!norm) norm = json_object_get(record, "grad_norm");
        if (loss && !json_object_get(record, "event") && count < 64)
            snprintf(hex[count++], 80, "%lld %a %a",
                     (long long)json_integer_value(json_object_get(record, "step")),
                     json_number_value(loss), json_number_value(norm));
        json_decref(record);
    }
    fclose(file);
    return count;
}

// ---- requirement: what is tried again, and how often

TEST(restart_crash_at_start_is_not_tried_again) {
    write_inputs(20);
    CHECK_STATUS(launch("", "fault.kind=exit fault.rank=1 fault.step=1 fault.attempt=-1"), 1);
    CHECK_EQ_INT(launches(), 1);
    CHECK_EQ_INT(incidents("restart", NULL), 0);
    CHECK_CONTAINS(out, "before any step");
    CHECK_CONTAINS(out, "weft: rank 1 on ");
}

// And ends as a run that nothing happened to, in every bit.
TEST(restart_after_one_crash_completes) {
    static char whole[64][80], broken[64][80];
    json_t *record = NULL;
    write_inputs(20);
    CHECK_STATUS(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER
                            "mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 %s train %s "
                            "train.folder=%s 2>&1 || %s launch -n 2 train %s train.folder=%s 2>&1",
                            test_weft(), test_path("c.yaml"), test_path("whole"), test_weft(),
                            test_path("c.yaml"), test_path("whole")),
                 0);
    CHECK_STATUS(launch("", "fault.kind=kill fault.rank=1 fault.step=12"), 0);
    CHECK_EQ_INT(launches(), 2);
    CHECK_EQ_INT(incidents("exit", &record), 1);
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "step")), 12);
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "rank")), 1);
    json_decref(record);
    record = NULL;
    CHECK_EQ_INT(incidents("restart", &record), 1);
    const json_t *phases = json_object_get(json_object_get(record, "restart"), "phases");
    static const char *const names[] = {"detect", "evict", "launch", "load", "first_step"};
    for (int i = 0; i < 5; i++) CHECK(json_is_real(json_object_get(phases, names[i])));
    json_decref(record);
    CHECK_EQ_INT(read_journal("whole", whole), 20);
    CHECK_EQ_INT(read_journal("run", broken), 20);
    for (int i = 0; i < 20; i++) CHECK_STR(broken[i], whole[i]);
}

TEST(restart_crash_loop_stops_with_a_diagnosis) {
    json_t *record = NULL;
    write_inputs(20);
    CHECK_STATUS(launch("", "fault.kind=exit fault.rank=1 fault.step=12 fault.attempt=-1"), 1);
    CHECK_EQ_INT(launches(), 3); // two restarts
    CHECK_CONTAINS(out, "step 10");
    CHECK_CONTAINS(out, "from 1 state before the newest");
    CHECK_EQ_INT(incidents("exit", NULL), 3);
    CHECK_EQ_INT(incidents("given_up", &record), 1);
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "step")), 12);
    const char *evidence = json_string_value(json_object_get(record, "evidence"));
    CHECK_CONTAINS(evidence, "step 12 fails again and again; its samples: ");
    // a step has 8 of them
    int commas = 0;
    for (const char *p = evidence; *p; p++) commas += *p == ',';
    CHECK_EQ_INT(commas, 7);
    json_decref(record);
}

TEST(restart_crash_loop_may_skip_the_batch) {
    write_inputs(20);
    CHECK_STATUS(
        launch("--crash-loop skip", "fault.kind=exit fault.rank=1 fault.step=12 fault.attempt=-1"),
        0);
    CHECK_EQ_INT(launches(), 4);
    json_t *state = state_of("run");
    CHECK_STR(json_string_value(json_object_get(state, "skip_steps")), "12");
    json_decref(state);
}

TEST(restart_budget_is_global) {
    write_inputs(20);
    CHECK_STATUS(launch("--restarts 0", "fault.kind=kill fault.rank=1 fault.step=7"), 128 + 9);
    CHECK_EQ_INT(launches(), 1);
    CHECK_CONTAINS(out, "no restarts are allowed");
    CHECK_CONTAINS(out, " ended by signal 9 (killed); the others were stopped\n");
}

// Without mpirun.
TEST(restart_of_one_rank) {
    write_inputs(20);
    CHECK_STATUS(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "%s launch -n 1 train %s fault.kind=abort "
                                             "fault.step=12 2>&1",
                            test_weft(), test_path("c.yaml")),
                 0);
    CHECK_EQ_INT(launches(), 2);
    CHECK_EQ_INT(incidents("restart", NULL), 1);
}

// ---- one supervisor, one configuration

TEST(restart_changed_configuration_is_refused) {
    write_inputs(10);
    CHECK_STATUS(launch("", ""), 0);
    CHECK_STATUS(launch("", "optimizer.learning_rate=0.5 train.steps=12"), 2);
    CHECK_CONTAINS(out, "optimizer.learning_rate: ");
    CHECK_CONTAINS(out, ", now 0.5\n");
    CHECK_CONTAINS(out, "train.steps: 10, now 12\n");
    CHECK_CONTAINS(out, "--accept-changes");
    CHECK_STATUS(launch("", ""), 0);
    CHECK_CONTAINS(out, "nothing to do");
    CHECK_STATUS(launch("--accept-changes", "train.steps=12"), 0);
    CHECK_CONTAINS(out, "step 12/12");
}

// ---- a run that goes on

static pid_t start(const char *first, const char *second) {
    struct err err = {0};
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
    execl(test_weft(), "weft", "launch", "-n", "2", "train", test_path("c.yaml"),
          "train.log_every=1", first, second, (char *)NULL);
    _exit(127);
}

static int finish(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static const char *read_log(void) {
    static char *text;
    size_t size;
    struct err err = {0};
    free(text);
    CHECK_OK(file_read(test_path("log"), 0, &text, &size, &err), err);
    return text;
}

static void wait_for(const char *words) {
    while (!strstr(read_log(), words)) usleep(20000); // the test's limit counts
}

static int order(const char *words) {
    return test_shell(out, sizeof out, "%s launch %s 2>&1", test_weft(), words);
}

// In the table of --status; -1: not there.
static int stage_of(int rank) {
    for (const char *line = out; line; line = strchr(line, '\n')) {
        int found, stage;
        line += *line == '\n';
        if (sscanf(line, "%d %d", &found, &stage) == 2 && found == rank) return stage;
    }
    return -1;
}

TEST_LIMIT(restart_second_supervisor_is_refused, 60) {
    char words[4300], path[4300];
    struct stat file;
    write_inputs(100000000);
    pid_t launcher = start("checkpoint.every=0", "parallel.pp=2");
    wait_for("step 3/");
    CHECK_STATUS(launch("", ""), 2);
    snprintf(words, sizeof words, "process %d on ", (int)launcher);
    CHECK_CONTAINS(out, words);
    CHECK_CONTAINS(out, "runs in this folder already");
    snprintf(path, sizeof path, "%s/launch/supervisor.json", test_path("run"));
    CHECK_EQ_INT(stat(path, &file), 0);
    CHECK_EQ_INT(file.st_mode & 0777, 0600);
    snprintf(words, sizeof words, "--status %s", test_path("run"));
    CHECK_STATUS(order(words), 0);
    CHECK_CONTAINS(out, "running, step ");
    CHECK_EQ_INT(stage_of(1), 1);
    kill(launcher, SIGINT);
    CHECK_EQ_INT(finish(launcher), 130);
    CHECK(!file_exists(path));
    CHECK_STATUS(order(words), 2);
    CHECK_CONTAINS(out, "no weft launch is at work");
}

// A scheduler wants the machine: the state is saved, the status says so, and the run goes on later.
TEST_LIMIT(restart_preempted_run_goes_on, 60) {
    write_inputs(100000000);
    pid_t launcher = start("checkpoint.every=0", NULL);
    wait_for("step 3/");
    kill(launcher, SIGTERM);
    CHECK_EQ_INT(finish(launcher), 75);
    CHECK_CONTAINS(read_log(), "all ranks have saved and left");
    CHECK_EQ_INT(incidents("preempted", NULL), 1);
    launcher = start("checkpoint.every=0", NULL);
    wait_for("resumed from ");
    wait_for("step ");
    kill(launcher, SIGINT);
    CHECK_EQ_INT(finish(launcher), 130);
}

TEST_LIMIT(restart_on_the_operators_word, 60) {
    char words[9000];
    json_t *record = NULL;
    write_inputs(100000000);
    pid_t launcher = start("checkpoint.every=0", NULL);
    wait_for("step 3/");
    snprintf(words, sizeof words, "--reload %s train.stepz=3", test_path("run"));
    CHECK_STATUS(order(words), 2);
    CHECK_CONTAINS(out, "train.stepz");
    snprintf(words, sizeof words, "--reload %s train.folder=elsewhere", test_path("run"));
    CHECK_STATUS(order(words), 2);
    CHECK_EQ_INT(launches(), 1);
    snprintf(words, sizeof words, "--reload %s train.steps=99999999", test_path("run"));
    CHECK_STATUS(order(words), 0);
    CHECK_CONTAINS(out, "train.steps: 100000000, now 99999999");
    wait_for("/99999999  loss");
    CHECK_EQ_INT(incidents("reload", &record), 1);
    CHECK_CONTAINS(json_string_value(json_object_get(record, "evidence")), "now 99999999");
    json_decref(record);
    CHECK_CONTAINS(read_log(), "back in a step after");
    // a fault on demand is a restart like any other
    snprintf(words, sizeof words, "--inject %s kind=nonsense", test_path("run"));
    CHECK_STATUS(order(words), 2);
    snprintf(words, sizeof words, "--inject %s kind=kill rank=7", test_path("run"));
    CHECK_STATUS(order(words), 2);
    CHECK_CONTAINS(out, "ranks 0 to 1");
    snprintf(words, sizeof words, "--inject %s kind=kill rank=1", test_path("run"));
    CHECK_STATUS(order(words), 0);
    wait_for("rank 1 on ");
    while (incidents("restart", NULL) < 2) usleep(20000);
    kill(launcher, SIGINT);
    CHECK_EQ_INT(finish(launcher), 130);
    CHECK_EQ_INT(launches(), 3);
}

// The rank that stands still is named, all stacks are kept, and the run goes on.
TEST_LIMIT(restart_after_a_hang, 100) {
    json_t *record = NULL;
    write_inputs(20);
    CHECK_STATUS(launch("", "fault.kind=hang fault.rank=1 fault.step=12"), 0);
    CHECK_EQ_INT(launches(), 2);
    CHECK_EQ_INT(incidents("hang", &record), 1);
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "rank")), 1);
    char path[4300], *text;
    size_t size;
    struct err err = {0};
    const char *details = json_string_value(json_object_get(record, "details"));
    CHECK(details != NULL);
    snprintf(path, sizeof path, "%s/%s", test_path("run"), details);
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    CHECK_CONTAINS(text, "fault_strike"); // in the stack of the one that stands still
    CHECK_CONTAINS(text, "---- messages of rank 0");
    free(text);
    json_decref(record);
}

// Nothing of an attempt is left behind: no process, and no files of MPI's, even of an mpirun that
// was killed with all the rest. Other tests may run beside this one: the run's own files are looked
// for.
TEST_LIMIT(restart_leaves_nothing_behind, 60) {
    write_inputs(100000000);
    pid_t launcher = start("checkpoint.every=5", NULL);
    wait_for("step 6/");
    json_t *run = state_of("run");
    int starter = (int)json_integer_value(json_object_get(run, "starter"));
    json_decref(run);
    CHECK(starter > 0);
    kill(launcher, SIGKILL);
    kill(starter, SIGKILL);
    CHECK_EQ_INT(finish(launcher), 128 + SIGKILL);
    write_inputs(20);
    CHECK_STATUS(launch("--accept-changes", ""), 0);
    CHECK(test_shell(out, sizeof out, "ls -d ${TMPDIR:-/tmp}/ompi.*/pid.%d 2>/dev/null", starter) !=
          0);
    test_shell(out, sizeof out, "rm -rf %s", test_path("run"));
    CHECK_STATUS(launch("", "fault.kind=[kill,kill] fault.rank=[0,1] fault.step=[6,13] "
                            "fault.attempt=[0,1]"),
                 0);
    json_t *state = state_of("run");
    char mark[64];
    snprintf(mark, sizeof mark, "WEFT_RUN=%s", json_string_value(json_object_get(state, "run")));
    json_decref(state);
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "cat /proc/[0-9]*/environ 2>/dev/null | grep -c -a %s", mark),
        1);
    CHECK_STR(out, "0\n");
}

// An editor's mistake at night: the restart runs from the copy, and says what it did not take.
TEST_LIMIT(restart_takes_no_edited_file, 60) {
    char words[9000];
    json_t *record = NULL;
    write_inputs(100000000);
    pid_t launcher = start("checkpoint.every=0", NULL);
    wait_for("step 3/");
    write_inputs(777);
    snprintf(words, sizeof words, "--inject %s kind=kill rank=1", test_path("run"));
    CHECK_STATUS(order(words), 0);
    while (incidents("restart", NULL) < 1) usleep(20000);
    CHECK_EQ_INT(incidents("config", &record), 1);
    CHECK_CONTAINS(json_string_value(json_object_get(record, "evidence")),
                   "train.steps: 100000000, now 777");
    CHECK_CONTAINS(json_string_value(json_object_get(record, "action")), "not taken");
    json_decref(record);
    kill(launcher, SIGINT);
    CHECK_EQ_INT(finish(launcher), 130);
    CHECK(strstr(read_log(), "/777  loss") == NULL);
    // what a start always says is said once
    const char *first = strstr(read_log(), "device: ");
    CHECK(first != NULL && strstr(first + 1, "device: ") == NULL);
}

// Before any rank is there to be told, too.
TEST_LIMIT(restart_interrupted_at_once, 60) {
    write_inputs(100000000);
    for (int i = 0; i < 3; i++) {
        pid_t launcher = start("checkpoint.every=0", NULL);
        char path[4300];
        snprintf(path, sizeof path, "%s/launch/supervisor.json", test_path("run"));
        while (!file_exists(path)) usleep(1000);
        usleep((useconds_t)(60000 * i));
        kill(launcher, SIGINT);
        CHECK_EQ_INT(finish(launcher), 130);
    }
}
