// Processes of its own: one that collects, and below it one per process that is looked at, because
// ptrace can wait for ever for a thread that sits in the kernel.
#include "operate/stacks.h"
#include "base/clock.h"
#include "operate/stacks_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_all(int descriptor, const struct text *t) {
    for (size_t done = 0; done < t->size;) {
        ssize_t n = write(descriptor, t->data + done, t->size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; // nobody reads any more
        done += (size_t)n;
    }
}

// Forked: stops what it inherited from mattering here.
static void be_child(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static pid_t fork_reader(int pid, int *descriptor) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    pid_t child = fork();
    if (child == 0) {
        struct text text = {0};
        be_child();
        stacks_of(pid, &text);
        write_all(ends[1], &text);
        _exit(0);
    }
    close(ends[1]);
    if (child < 0) close(ends[0]);
    *descriptor = ends[0];
    return child;
}

// Reads until the end or `until`; false: time is up.
static bool read_until(int descriptor, double until, struct text *out) {
    char bytes[65536];
    for (;;) {
        double left = until - clock_seconds();
        struct pollfd wait = {descriptor, POLLIN, 0};
        int ready = poll(&wait, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return false;
        ssize_t n = read(descriptor, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return true;
        text_put(out, bytes, (size_t)n);
    }
}

static void collect(const int *pids, int count, double seconds, int to) {
    enum { AT_ONCE = 16 };
    for (int first = 0; first < count; first += AT_ONCE) {
        int here = count - first < AT_ONCE ? count - first : AT_ONCE, from[AT_ONCE];
        pid_t readers[AT_ONCE];
        for (int i = 0; i < here; i++) readers[i] = fork_reader(pids[first + i], &from[i]);
        double until = clock_seconds() + seconds;
        for (int i = 0; i < here; i++) {
            struct text text = {0};
            if (readers[i] < 0) {
                text_printf(&text, "process %d: no process to look at it\n", pids[first + i]);
            } else {
                if (!read_until(from[i], until, &text))
                    text_printf(&text, "process %d: could not be looked at within %.0f s\n",
                                pids[first + i], seconds);
                kill(readers[i], SIGKILL);
                waitpid(readers[i], NULL, 0);
                close(from[i]);
            }
            write_all(to, &text);
            text_free(&text);
        }
    }
}

int stacks_begin(struct stacks *s, const int *pids, int count, double seconds, struct err *err) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return err_set_errno(err, "stacks: no pipe");
    pid_t child = fork();
    if (child == 0) {
        be_child();
        close(ends[0]);
        collect(pids, count, seconds, ends[1]);
        _exit(0);
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return err_set_errno(err, "stacks: no process to look from");
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *s = (struct stacks){ends[0], child};
    return 0;
}

bool stacks_read(struct stacks *s, struct text *out) {
    char bytes[65536];
    for (;;) {
        ssize_t n = read(s->descriptor, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno != EAGAIN;
        if (n == 0) return true;
        text_put(out, bytes, (size_t)n);
    }
}

void stacks_end(struct stacks *s) {
    if (s->child <= 0) return;
    kill(s->child, SIGKILL);
    while (waitpid(s->child, NULL, 0) < 0 && errno == EINTR) continue;
    close(s->descriptor);
    *s = (struct stacks){-1, 0};
}

int stacks_text(const int *pids, int count, double seconds, struct text *out, struct err *err) {
    struct stacks s;
    if (stacks_begin(&s, pids, count, seconds, err) != 0) return -1;
    struct pollfd wait = {s.descriptor, POLLIN, 0};
    while (!stacks_read(&s, out))
        if (poll(&wait, 1, -1) < 0 && errno != EINTR) break;
    stacks_end(&s);
    return 0;
}
