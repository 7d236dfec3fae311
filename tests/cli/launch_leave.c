// Signals that the supervisor of a run gets, locks that it and its ranks find taken, and what a
// relaunch knows of the run.
#include "supervised.h"
#include <sys/file.h>

static int64_t number_of_state(const char *key) {
    json_t *state = state_of("run");
    int64_t number = json_integer_value(json_object_get(state, key));
    json_decref(state);
    return number;
}

// ---- the terminal is gone

// The shell and the system both say so: that is no second Ctrl-C.
TEST_LIMIT(leave_on_a_hangup_saves, 60) {
    write_inputs(100000000);
    pid_t launcher = start("checkpoint.every=0", NULL);
    wait_for("step 3/");
    kill(launcher, SIGHUP);
    usleep(20000);
    kill(launcher, SIGHUP);
    CHECK_EQ_INT(finish(launcher), 75);
    CHECK_CONTAINS(read_log(), "all ranks have saved and left");
    CHECK_EQ_INT(incidents("preempted", NULL), 1);
    CHECK(number_of_state("newest_step") >= 3); // a relaunch knows that the program works
}

// As under nohup.
TEST_LIMIT(leave_not_where_hangups_are_ignored, 60) {
    write_inputs(100000000);
    signal(SIGHUP, SIG_IGN);
    pid_t launcher = start("checkpoint.every=0", NULL);
    wait_for("step 3/");
    kill(launcher, SIGHUP);
    kill(launcher, SIGHUP);
    const char *log = read_log();
    char next[64];
    int step = 3;
    for (const char *at = log; (at = strstr(at, "step ")); at++) sscanf(at, "step %d/", &step);
    snprintf(next, sizeof next, "step %d/", step + 20);
    wait_for(next);
    kill(launcher, SIGINT);
    CHECK_EQ_INT(finish(launcher), 130);
    CHECK(strstr(read_log(), "asked to leave") == NULL);
}

// ---- what was asked for once

// checkpoint.back is for the start that was given it; a restart goes on from the newest state.
TEST_LIMIT(leave_goes_back_once, 60) {
    write_inputs(20);
    CHECK_STATUS(launch("", ""), 0);
    CHECK_STATUS(
        launch("--accept-changes",
               "train.steps=30 checkpoint.back=1 checkpoint.snapshot=false fault.kind=kill "
               "fault.rank=1 fault.step=28 fault.attempt=1"),
        0);
    const char *first = strstr(out, "resumed from ");
    CHECK(first != NULL);
    CHECK_CONTAINS(first, "step 15, ");
    const char *second = strstr(first + 1, "resumed from ");
    CHECK(second != NULL);
    CHECK_CONTAINS(second, "step 25, "); // step 20 would be one back
}

// ---- locks

static int hold(const char *name) {
    char path[4300];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/launch", test_path("run"));
    CHECK_OK(file_make_folders(path, &err), err);
    snprintf(path, sizeof path, "%s/%s", test_path("run"), name);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    CHECK_EQ_INT(flock(file, LOCK_EX), 0);
    return file;
}

// A server of files may keep the lock of a rank whose host is lost: that is waited for, and no
// fault of the configuration.
TEST_LIMIT(leave_lock_of_a_lost_rank_is_waited_for, 60) {
    write_inputs(20);
    int file = hold("lock");
    pid_t launcher = start(NULL, NULL);
    wait_for("still holds the lock of this folder");
    close(file);
    CHECK_EQ_INT(finish(launcher), 0);
    CHECK_EQ_INT(launches(), 1);
    // and given up at once when the run is to leave
    test_shell(out, sizeof out, "rm -rf %s", test_path("run"));
    file = hold("lock");
    launcher = start(NULL, NULL);
    wait_for("still holds the lock of this folder");
    kill(launcher, SIGTERM);
    CHECK_EQ_INT(finish(launcher), 75);
    close(file);
}

// The same of a supervisor, where it is not known to live.
TEST_LIMIT(leave_lock_of_a_lost_supervisor_is_waited_for, 60) {
    static const char gone[] = "process 71 on nowhere.example\n";
    write_inputs(20);
    int file = hold("launch/lock");
    CHECK_EQ_INT(write(file, gone, sizeof gone - 1), sizeof gone - 1);
    pid_t launcher = start(NULL, NULL);
    wait_for("locked by process 71 on nowhere.example, which may be gone");
    close(file);
    CHECK_EQ_INT(finish(launcher), 0);
}
