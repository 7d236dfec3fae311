// Stacks of processes that hang, are stopped, compute, or are gone.
#include "operate/stacks.h"
#include "base/text.h"
#include "test.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))

static volatile int calls;

OWN_FRAME void stacks_test_hangs_here(void);
OWN_FRAME void stacks_test_hangs_here(void) {
    for (;;) {
        pause();
        calls++; // no tail call
    }
}

OWN_FRAME void stacks_test_calls(void);
OWN_FRAME void stacks_test_calls(void) {
    stacks_test_hangs_here();
    calls++;
}

OWN_FRAME void stacks_test_computes(void);
OWN_FRAME void stacks_test_computes(void) {
    for (;;) calls++;
}

static void *second_thread(void *context) {
    (void)context;
    stacks_test_hangs_here();
    return NULL;
}

// A child with `threads` more threads that runs `what`; returns when it is ready.
static pid_t start(void (*what)(void), int threads) {
    int ready[2];
    char byte;
    CHECK_EQ_INT(pipe(ready), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pthread_t thread;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        for (int i = 0; i < threads; i++) pthread_create(&thread, NULL, second_thread, NULL);
        if (write(ready[1], "", 1) == 1) what();
        _exit(1);
    }
    CHECK_EQ_INT(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void finish(pid_t child) {
    kill(child, SIGKILL);
    CHECK_EQ_INT(waitpid(child, NULL, 0), child);
}

static struct text out;

// Until the threads stand where they shall.
static void look_for(int pid, const char *what) {
    struct err err = {0};
    for (int tries = 0; tries < 200; tries++) {
        out.size = 0;
        CHECK_OK(stacks_text(&pid, 1, 20, &out, &err), err);
        if (strstr(out.data, "Operation not permitted")) SKIP("ptrace is not allowed here");
        if (strstr(out.data, what)) return;
        usleep(10000);
    }
    test_fail(__FILE__, __LINE__, "\"%s\" never came: %s", what, out.data);
}

static char state_of(pid_t pid) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(text, sizeof text, file));
    fclose(file);
    return strrchr(text, ')')[2];
}

TEST(stacks_of_a_process_that_hangs) {
    pid_t child = start(stacks_test_calls, 2);
    look_for(child, "stacks_test_calls");
    look_for(child, "threads ");
    CHECK_CONTAINS(out.data, ", 3 threads\n");
    CHECK_CONTAINS(out.data, "stacks_test_hangs_here+0x");
    CHECK_CONTAINS(out.data, "operate/stacks.c:");
    CHECK_CONTAINS(out.data, " _start+0x");
    CHECK(strstr(out.data, "stacks_test_hangs_here") < strstr(out.data, "stacks_test_calls"));
    CHECK_EQ_INT(state_of(child), 'S'); // goes on as it was
    finish(child);
}

TEST(stacks_of_a_stopped_process) {
    pid_t child = start(stacks_test_calls, 1);
    look_for(child, "stacks_test_calls");
    kill(child, SIGSTOP);
    while (state_of(child) != 'T') usleep(1000);
    look_for(child, "stacks_test_calls");
    CHECK_CONTAINS(out.data, "T (stopped), 2 threads");
    while (state_of(child) != 'T') usleep(1000); // the test's limit counts
    usleep(50000);
    CHECK_EQ_INT(state_of(child), 'T');
    kill(child, SIGCONT);
    while (state_of(child) == 'T') usleep(1000);
    finish(child);
}

TEST(stacks_of_a_process_that_computes) {
    pid_t child = start(stacks_test_computes, 0);
    look_for(child, "stacks_test_computes");
    finish(child);
}

TEST(stacks_of_several_and_of_none) {
    struct err err = {0};
    pid_t child = start(stacks_test_calls, 0), gone = start(stacks_test_calls, 0);
    look_for(child, "stacks_test_calls");
    finish(gone);
    int pids[] = {gone, child};
    out.size = 0;
    CHECK_OK(stacks_text(pids, 2, 20, &out, &err), err);
    char expected[64];
    snprintf(expected, sizeof expected, "process %d (), state not known: No such", (int)gone);
    CHECK_CONTAINS(out.data, expected);
    CHECK_CONTAINS(out.data, "stacks_test_hangs_here");
    finish(child);
}

// A look that is given up leaves nothing behind.
TEST(stacks_given_up) {
    struct err err = {0};
    struct stacks s;
    int pid = start(stacks_test_calls, 0);
    CHECK_OK(stacks_begin(&s, &pid, 1, 20, &err), err);
    stacks_end(&s);
    CHECK_EQ_INT(waitpid(-1, NULL, WNOHANG), 0); // the child alone
    out.size = 0;
    CHECK_OK(stacks_text(&pid, 1, 0, &out, &err), err); // no time at all
    CHECK(strstr(out.data, "could not be looked at") || strstr(out.data, "stacks_test_calls"));
    finish(pid);
}
