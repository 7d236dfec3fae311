// See launch_keeper.h.
//
// Signals. The user's Ctrl-C reaches `weft launch`, which hands it to mpirun as SIGUSR1, because
// mpirun passes that one on and takes SIGINT as the order to end everything at once. Here it
// becomes SIGINT again: the rank finishes its step and saves. SIGTERM is mpirun ending the run.
#include "cli/launch_keeper.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include "operate/launch_report.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FLUSH_MILLISECONDS = 200, GRACE_MILLISECONDS = 1000 };

struct keeper {
    int rank;
    pid_t child;
    _Atomic int64_t *step; // shared with the child: the one it is in; NULL: not known
    int output, signals;   // the child's standard error; signalfd
    bool told_to_end;
    struct text records, rest;
};

static void send_records(struct keeper *k) {
    size_t sent = 0;
    while (sent < k->records.size) {
        ssize_t n = write(STDERR_FILENO, k->records.data + sent, k->records.size - sent);
        if (n < 0 && errno != EINTR) break; // nobody listens any more
        if (n > 0) sent += (size_t)n;
    }
    k->records.size = 0;
}

// Returns false at the end of the output.
static bool take_output(struct keeper *k) {
    char bytes[4096];
    ssize_t n = read(k->output, bytes, sizeof bytes);
    if (n < 0) return errno == EINTR;
    // What a rank says while mpirun ends it is of no use, and hides what is.
    if (!k->told_to_end) report_lines(&k->records, &k->rest, k->rank, bytes, (size_t)n, n == 0);
    send_records(k);
    return n > 0;
}

static void flush_output(struct keeper *k) {
    report_lines(&k->records, &k->rest, k->rank, "", 0, true);
    send_records(k);
}

static void take_signal(struct keeper *k) {
    struct signalfd_siginfo info;
    if (read(k->signals, &info, sizeof info) != sizeof info) return;
    if (info.ssi_signo == SIGUSR1 && k->child > 0) kill(k->child, SIGINT);
    if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
        k->told_to_end = true;
        if (k->child > 0) kill(k->child, SIGTERM);
    }
}

// Until the child is gone; returns its wait status.
static int keep(struct keeper *k) {
    int status = 0;
    struct pollfd watch[2] = {{k->output, POLLIN, 0}, {k->signals, POLLIN, 0}};
    for (;;) {
        int ready = poll(watch, 2, FLUSH_MILLISECONDS);
        if (ready == 0) flush_output(k);
        if (ready > 0 && watch[1].revents) take_signal(k);
        if (ready > 0 && watch[0].revents && !take_output(k)) watch[0].fd = -1;
        if (waitpid(k->child, &status, WNOHANG) == k->child) break;
    }
    k->child = 0;
    // mpirun signals the whole process group, and the child may have been the quicker one.
    struct pollfd signals = {k->signals, POLLIN, 0};
    while (poll(&signals, 1, 0) > 0) take_signal(k);
    // What it wrote last. A grandchild may hold the pipe open, so nothing is waited for.
    struct pollfd last = {k->output, POLLIN, 0};
    while (watch[0].fd >= 0 && poll(&last, 1, 0) > 0 && take_output(k)) continue;
    flush_output(k);
    return status;
}

// mpirun ends all other ranks as soon as one left with a fault. When all found the same fault,
// each at its own pace, that would cut off the one that has the message. They get a moment.
static void give_grace(struct keeper *k) {
    struct pollfd watch = {k->signals, POLLIN, 0};
    if (!k->told_to_end) poll(&watch, 1, GRACE_MILLISECONDS);
}

static void run_child(char **words, int output, const sigset_t *signals, pid_t keeper) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); // a rank does not outlive its keeper
    if (getppid() != keeper) _exit(127);
    signal(SIGUSR1, SIG_IGN); // is for the keeper, but reaches the whole process group (train
                              // takes it for itself only where it is not ignored)
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, signals, NULL);
    if (dup2(output, STDERR_FILENO) < 0) _exit(127);
    cli_execute(words);
    _exit(127);
}

// A word of memory in which the rank says what step it is in. How far it came is known then however
// it ends.
static void share_step(struct keeper *k) {
    char text[16];
    int file = memfd_create("weft-step", 0); // the child inherits it
    if (file < 0) return;
    void *word = MAP_FAILED;
    if (ftruncate(file, sizeof *k->step) == 0)
        word = mmap(NULL, sizeof *k->step, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    snprintf(text, sizeof text, "%d", file);
    if (word == MAP_FAILED || setenv("WEFT_STEP_FD", text, 1) != 0) {
        close(file);
        return;
    }
    k->step = word;
    *k->step = -1;
}

static int start(struct keeper *k, char **words, struct err *err) {
    int ends[2];
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM); // nor the keeper mpirun
    k->signals = signalfd(-1, &signals, SFD_CLOEXEC);
    if (k->signals < 0 || pipe2(ends, O_CLOEXEC) != 0)
        return err_set_errno(err, "rank %d cannot be started", k->rank);
    share_step(k);
    pid_t self = getpid();
    k->child = fork();
    if (k->child == 0) run_child(words, ends[1], &signals, self);
    close(ends[1]);
    k->output = ends[0];
    if (k->child < 0) return err_set_errno(err, "rank %d cannot be started", k->rank);
    return 0;
}

int launch_keeper(char **words) {
    struct err err = {0};
    struct launch_environment launched;
    struct keeper k = {0};
    if (cli_launched(&launched, false, &err) != 0) return cli_fail(&err);
    bool alone =
        launched.launcher == LAUNCHER_NONE && getenv("WEFT_RUN") != NULL; // see LAUNCH_KEEP
    if (!alone && (launched.launcher == LAUNCHER_NONE || launched.rank < 0)) {
        err_set(&err, ERR_USAGE, "launch: %s is for mpirun; see weft launch --help", "--keep-rank");
        return cli_fail(&err);
    }
    k.rank = alone ? 0 : launched.rank;
    if (start(&k, words, &err) != 0) return cli_fail(&err);
    int status = keep(&k);
    int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    int left = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (!k.told_to_end || (!signal && left == 0)) {
        report_end(&k.records, k.rank, left, signal, launched.host, clock_wall_seconds(),
                   k.step ? *k.step : -1);
        send_records(&k);
    }
    if (left != 0) give_grace(&k);
    text_free(&k.records);
    text_free(&k.rest);
    close(k.output);
    close(k.signals);
    return signal ? 128 + signal : left;
}
