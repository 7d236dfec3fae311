// weft launch of a verb that is started once: shows what its ranks say (operate/launch_report.h)
// and leaves with the status of the rank that failed first.
#include "base/text.h"
#include "cli/cli.h"
#include "cli/launch.h"
#include "operate/launch_report.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t interrupts;
static int wake[2]; // a signal makes the loop below look

static void on_signal(int number) {
    (void)number;
    interrupts++;
    int error = errno;
    ssize_t ignored = write(wake[1], "", 1);
    (void)ignored;
    errno = error;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

// In a process group of its own, so that Ctrl-C comes to this program alone.
static void run_starter(char *const *words, const int errors[2], pid_t launcher) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launcher) _exit(127);
    signal(SIGPIPE, SIG_DFL);
    if (isatty(STDIN_FILENO)) { // a group in the background must not read the terminal
        int none = open("/dev/null", O_RDONLY);
        if (none >= 0) dup2(none, STDIN_FILENO);
    }
    dup2(errors[1], STDERR_FILENO);
    execv(words[0], words);
    dprintf(STDERR_FILENO, "%s: %s\n", words[0], strerror(errno));
    _exit(127);
}

static void show_text(struct text *show) {
    if (show->size > 0) fwrite(show->data, 1, show->size, stderr);
    fflush(stderr);
    show->size = 0;
}

static void pass_interrupt(pid_t starter, int *passed) {
    char byte;
    ssize_t ignored = read(wake[0], &byte, 1);
    (void)ignored;
    if (*passed == interrupts) return;
    kill(starter, *passed == 0 ? SIGUSR1 : SIGTERM);
    *passed = interrupts;
}

static int follow(pid_t starter, int errors, struct report_reader *reader) {
    struct text show = {0};
    struct pollfd watch[2] = {{errors, POLLIN, 0}, {wake[0], POLLIN, 0}};
    char bytes[8192];
    int passed = 0, status = 0;
    for (;;) {
        if (poll(watch, 2, -1) < 0 && errno != EINTR) break;
        if (watch[1].revents & POLLIN) pass_interrupt(starter, &passed);
        if (!watch[0].revents) continue;
        ssize_t n = read(errors, bytes, sizeof bytes);
        if (n == 0 || (n < 0 && errno != EINTR)) break;
        if (n > 0) report_put(reader, bytes, (size_t)n, &show);
        show_text(&show);
    }
    while (waitpid(starter, &status, 0) < 0 && errno == EINTR) continue;
    int left = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    left = report_finish(reader, left, &show);
    show_text(&show);
    text_free(&show);
    return left;
}

int launch_simple(const struct launch_command *command, const struct launch_options *o,
                  struct err *err) {
    struct report_reader reader;
    int errors[2];
    if (report_open(&reader, o->ranks, o->verbose, err) != 0) return cli_fail(err);
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0 || pipe2(errors, O_CLOEXEC) != 0) {
        err_set_errno(err, "launch: no pipe to mpirun");
        return cli_fail(err);
    }
    catch_signals();
    pid_t self = getpid(), starter = fork();
    if (starter == 0) run_starter(command->words, errors, self);
    close(errors[1]);
    int status;
    if (starter < 0) {
        err_set_errno(err, "launch: mpirun cannot be started");
        status = cli_fail(err);
    } else {
        status = follow(starter, errors[0], &reader);
    }
    close(errors[0]);
    close(wake[0]);
    close(wake[1]);
    report_close(&reader);
    return status;
}
