// weft launch as the supervisor of a run: what it does about ranks that die and crash again, and
// what its operator can say to it. What it finds by itself: launch_detect.c.
#include "supervised.h"
#include <sys/stat.h>

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
    check_same_run("run", "whole", 20);
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

// A planned restart goes through memory: it needs no disk and loses no step. A run that has to make
// room is on disk before it leaves, whatever restart came before.
TEST_LIMIT(restart_on_the_operators_word_needs_no_disk, 60) {
    char words[9000], resumed[100];
    int left = 0;
    write_inputs(100000000);
    pid_t launcher = start("fault.kind=disk_fail", "fault.rank=-1");
    wait_for("step 3/");
    snprintf(words, sizeof words, "--reload %s train.steps=99999999", test_path("run"));
    CHECK_STATUS(order(words), 0);
    wait_for("/99999999  loss");
    const char *log = read_log(), *in_memory = strstr(log, " is in memory after ");
    CHECK(in_memory != NULL);
    while (in_memory > log && in_memory[-1] >= '0' && in_memory[-1] <= '9') in_memory--;
    left = atoi(in_memory);
    snprintf(resumed, sizeof resumed, "resumed from snapshot of step %d in memory: step %d,", left,
             left);
    CHECK_CONTAINS(log, resumed);
    kill(launcher, SIGTERM);
    CHECK_EQ_INT(finish(launcher), 75);
    const char *leaves = NULL;
    for (const char *at = read_log(); (at = strstr(at, "asked to leave after step ")); at++)
        leaves = at;
    CHECK(leaves != NULL);
    CHECK_CONTAINS(leaves, "which is saved");
    snprintf(words, sizeof words, "%s/checkpoints/step_%08d", test_path("run"), atoi(leaves + 26));
    CHECK(file_exists(words));
}

// What the configuration says of older states is for one start: the restart after it goes on from
// the newest one.
TEST_LIMIT(restart_goes_back_once, 60) {
    write_inputs(20);
    CHECK_STATUS(launch("", "train.stop_at=10"), 0);
    CHECK_STATUS(launch("--accept-changes", "checkpoint.back=1 fault.kind=kill fault.rank=1 "
                                            "fault.step=13 fault.attempt=1"),
                 0);
    const char *back = strstr(out, "step_00000005: step 5, ");
    if (!back || !strstr(back, ": step 10, ") || strstr(back + 20, ": step 5, "))
        test_fail(__FILE__, __LINE__, "%s", out);
    CHECK_EQ_INT(launches(), 3);
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
    check_nothing_runs();
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
