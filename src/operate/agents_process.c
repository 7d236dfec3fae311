// The process behind a host's agent on this machine: the agent itself, or the remote shell that
// leads to it. See agents.h.
#include "base/log.h"
#include "operate/agents_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void become(char **words, int input, int output, pid_t supervisor) {
    // The marks of ranks are not for agents, which are to outlive them.
    static const char *const ranks_only[] = {"WEFT_RUN", "WEFT_CONTROL", "WEFT_CONTROL_KEY",
                                             "WEFT_ATTEMPT"};
    sigset_t none;
    setsid(); // Ctrl-C is the supervisor's
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor) _exit(127);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int i = 1; i < 32; i++)
        if (i != SIGKILL && i != SIGSTOP) signal(i, SIG_DFL);
    for (size_t i = 0; i < sizeof ranks_only / sizeof *ranks_only; i++) unsetenv(ranks_only[i]);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    close_range(3, ~0U, 0);
    execvp(words[0], words);
    dprintf(STDERR_FILENO, "%s: %s\n", words[0], strerror(errno));
    _exit(127);
}

int agents_spawn(struct agents *a, struct agents_host *h, struct err *err) {
    struct launch_command command;
    char key[WIRE_KEY_TEXT + 1];
    int in[2] = {-1, -1}, out[2];
    if (agents_command(&command, &a->options, h->view.host, h->view.here, err) != 0) return -1;
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        err_set_errno(err, "no pipe to the agent of %.200s", h->view.host);
        launch_command_free(&command);
        for (int i = 0; i < 2 && in[i] >= 0; i++) close(in[i]);
        return -1;
    }
    pid_t self = getpid(), child = fork();
    if (child == 0) become(command.words, in[0], out[1], self);
    close(in[0]);
    close(out[1]);
    launch_command_free(&command);
    if (child < 0) {
        close(in[1]);
        close(out[0]);
        return err_set_errno(err, "the agent of %.200s cannot be started", h->view.host);
    }
    wire_key_text(&a->options.key, key);
    key[WIRE_KEY_TEXT - 1] = '\n'; // a pipe holds so much without a reader
    ssize_t written = write(in[1], key, WIRE_KEY_TEXT);
    (void)written; // a child that has ended already is seen as such
    close(in[1]);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    h->starter = child;
    h->output = out[0];
    h->said[0] = 0;
    return 0;
}

// Lines of an agent that works are the operator's; before that they say why it does not.
static void take_lines(struct agents_host *h) {
    char *newline;
    while (h->line.size > 0 && (newline = memchr(h->line.data, '\n', h->line.size))) {
        size_t length = (size_t)(newline - h->line.data);
        *newline = 0;
        h->line.data[strcspn(h->line.data, "\r")] = 0;
        if (h->line.data[0]) {
            snprintf(h->said, sizeof h->said, "%s", h->line.data);
            if (h->view.state == AGENT_READY)
                log_line(LOG_WARN, "agent of %s: %s", h->view.host, h->said);
        }
        h->line.size -= length + 1;
        memmove(h->line.data, newline + 1, h->line.size);
    }
}

static void read_output(struct agents_host *h) {
    char bytes[2048];
    while (h->output >= 0) {
        ssize_t n = read(h->output, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            close(h->output);
            h->output = -1;
            return;
        }
        if (h->line.size > 4096) h->line.size = 0;
        if (text_put(&h->line, bytes, (size_t)n) == 0) take_lines(h);
    }
}

bool agents_look_after(struct agents_host *h, char *how, size_t how_bytes) {
    int status;
    read_output(h);
    if (h->starter == 0 || waitpid(h->starter, &status, WNOHANG) != h->starter) return false;
    read_output(h);
    h->starter = 0;
    if (h->output >= 0) close(h->output);
    h->output = -1;
    h->line.size = 0;
    char end[64];
    if (WIFSIGNALED(status))
        snprintf(end, sizeof end, "ended by signal %d", WTERMSIG(status));
    else
        snprintf(end, sizeof end, "left with status %d", WEXITSTATUS(status));
    snprintf(how, how_bytes, "%s%s%s", end, h->said[0] ? ": " : "", h->said);
    return true;
}

void agents_end_process(struct agents_host *h) {
    if (h->starter > 0) {
        kill(h->starter, SIGKILL);
        while (waitpid(h->starter, NULL, 0) < 0 && errno == EINTR) continue;
    }
    if (h->output >= 0) close(h->output);
    h->output = -1;
    h->starter = 0;
    h->line.size = 0;
}
