// See program.h.
#include "operate/program.h"
#include "base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// The supervisor waits, and takes what it has not heard for 5 s for lost.
static const double ANSWER_SECONDS = 3;

void program_mark(const char *path, char mark[PROGRAM_MARK_BYTES]) {
    struct stat file;
    mark[0] = 0;
    if (stat(path, &file) == 0)
        snprintf(mark, PROGRAM_MARK_BYTES, "%lld %lld %lld.%09ld", (long long)file.st_ino,
                 (long long)file.st_size, (long long)file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
}

static _Noreturn void become(const char *path, int output, pid_t parent) {
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int input = open("/dev/null", O_RDONLY);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execl(path, path, "--version", (char *)NULL);
    dprintf(STDERR_FILENO, "%s\n", strerror(errno));
    _exit(127);
}

// All that comes until the end of the pipe; false: that did not come in time.
static bool read_all(int from, char *text, size_t bytes) {
    double until = clock_seconds() + ANSWER_SECONDS;
    size_t used = 0;
    for (;;) {
        char more[512];
        struct pollfd watch = {from, POLLIN, 0};
        double left = until - clock_seconds();
        int ready = left > 0 ? poll(&watch, 1, (int)(left * 1000) + 1) : 0;
        if (ready < 0 && errno == EINTR) continue;
        ssize_t n = ready > 0 ? read(from, more, sizeof more) : -1;
        if (ready > 0 && n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            text[used] = 0;
            return n == 0;
        }
        size_t room = bytes - 1 - used, kept = (size_t)n < room ? (size_t)n : room;
        memcpy(text + used, more, kept);
        used += kept;
    }
}

int program_digest(const char *path, char digest[PROGRAM_DIGEST_BYTES], struct err *err) {
    int ends[2], status;
    char said[4096];
    if (pipe2(ends, O_CLOEXEC) != 0) return err_set_errno(err, "no pipe to %.400s", path);
    pid_t self = getpid(), child = fork();
    if (child == 0) become(path, ends[1], self);
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return err_set_errno(err, "%.400s cannot be started", path);
    }
    bool ended = read_all(ends[0], said, sizeof said);
    close(ends[0]);
    if (!ended) kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    const char *sources = strstr(said, "\nsources ");
    if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 0 && strncmp(said, "weft ", 5) == 0 &&
        sources && sscanf(sources, "\nsources %23s", digest) == 1)
        return 0;
    said[strcspn(said, "\n")] = 0;
    return err_set(err, ERR_USAGE,
                   "%.400s is no weft that runs here; asked for its --version it %s%.200s", path,
                   !ended    ? "did not answer"
                   : said[0] ? "said: "
                             : "said nothing",
                   ended ? said : "");
}
