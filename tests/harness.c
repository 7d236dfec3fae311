// The runner behind test.h. Each test runs in a child process and a process group of its own, under
// its time limit, with its output caught in a file that is shown only when the test fails. Tests
// run in the order of their names.
//
//   test_base [part of a name ...]      runs the tests whose names contain one of the parts
//   WEFT_TEST_DATA=DIR                  folder of external data; without it the tests that need it
//   are skipped WEFT_TEST_SHOW=1                    shows the output of all tests
#include "test.h"
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef WEFT_SANITIZED
enum { LIMIT_FACTOR = 8 }; // an instrumented program is that much slower
#else
enum { LIMIT_FACTOR = 1 };
#endif

enum outcome { PASSED, FAILED, SKIPPED };

// What the child tells its parent, in memory that both map.
struct verdict {
    enum outcome outcome;
    int finished; // the test reached its end or said why not
    char why[2000];
};

static struct test_case *tests;
static struct verdict *verdict;
static char scratch_root[256]; // of this program
static char scratch[600];      // of the running test
static volatile pid_t running;

void test_register(struct test_case *test) {
    struct test_case **at = &tests;
    while (*at && strcmp((*at)->name, test->name) < 0) at = &(*at)->next;
    test->next = *at;
    *at = test;
}

// ---- what a test calls -------------------------------------------------------------------------

void test_fail(const char *file, int line, const char *format, ...) {
    const char *short_file = strstr(file, "tests/");
    int at = snprintf(verdict->why, sizeof verdict->why, "%s:%d: ", short_file ? short_file : file,
                      line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->why + at, sizeof verdict->why - (size_t)at, format, arguments);
    va_end(arguments);
    verdict->outcome = FAILED;
    verdict->finished = 1;
    fflush(NULL);
    _exit(1); // no leak report: a failed check leaves its test in the middle
}

void test_skip(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->why, sizeof verdict->why, format, arguments);
    va_end(arguments);
    verdict->outcome = SKIPPED;
    verdict->finished = 1;
    fflush(NULL);
    _exit(0);
}

void test_check_int(const char *file, int line, const char *text, long long found,
                    long long expected) {
    if (found != expected)
        test_fail(file, line, "%s is %lld, expected %lld", text, found, expected);
}

void test_check_str(const char *file, int line, const char *text, const char *found,
                    const char *expected) {
    if (!found || !expected ? found != expected : strcmp(found, expected) != 0)
        test_fail(file, line, "%s is \"%s\", expected \"%s\"", text, found ? found : "(NULL)",
                  expected ? expected : "(NULL)");
}

void test_check_close(const char *file, int line, const char *text, double found, double expected,
                      double tolerance) {
    double allowed = tolerance * fmax(1.0, fabs(expected));
    if (!(fabs(found - expected) <= allowed)) // also catches NaN
        test_fail(file, line, "%s is %.9g, expected %.9g within %.3g (off by %.3g)", text, found,
                  expected, allowed, found - expected);
}

void test_check_bytes(const char *file, int line, const char *text, const void *found,
                      const void *expected, size_t bytes) {
    const unsigned char *a = found, *b = expected;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            test_fail(file, line, "%s: byte %zu of %zu is 0x%02x, expected 0x%02x", text, i, bytes,
                      a[i], b[i]);
}

const char *test_data_dir(void) {
    const char *folder = getenv("WEFT_TEST_DATA");
    return folder && folder[0] ? folder : NULL;
}

const char *test_golden_dir(void) {
    return WEFT_SOURCE_DIR "/tests/golden";
}

const char *test_weft(void) {
    return WEFT_TEST_PROGRAM;
}

const char *test_temp_dir(void) {
    if (mkdir(scratch, 0700) != 0 && errno != EEXIST)
        test_fail(__FILE__, __LINE__, "%s: %s", scratch, strerror(errno));
    return scratch;
}

const char *test_path(const char *name) {
    static char path[4][4200];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[0], "%s/%s", test_temp_dir(), name);
    return path[turn];
}

int test_shell(char *output, size_t bytes, const char *format, ...) {
    char *command = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&command, format, arguments);
    va_end(arguments);
    if (length < 0) test_fail(__FILE__, __LINE__, "out of memory");
    fflush(NULL);
    char *both = NULL;
    if (asprintf(&both, "{ %s\n} 2>&1", command) < 0)
        test_fail(__FILE__, __LINE__, "out of memory");
    FILE *pipe = popen(both, "r");
    if (!pipe) test_fail(__FILE__, __LINE__, "popen: %s", strerror(errno));
    size_t used = 0;
    char spill[4096];
    for (;;) { // reads to the end, or the command would die of a closed pipe
        size_t room = bytes > used + 1 ? bytes - 1 - used : 0;
        size_t got =
            room ? fread(output + used, 1, room, pipe) : fread(spill, 1, sizeof spill, pipe);
        if (got == 0) break;
        if (room) used += got;
    }
    if (bytes) output[used] = 0;
    int status = pclose(pipe);
    free(both);
    free(command);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// ---- running -----------------------------------------------------------------------------------

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)place;
    if (kind == FTW_DNR) chmod(path, 0700);
    return remove(path);
}

static int open_folder(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)place;
    if (kind == FTW_D || kind == FTW_DNR) chmod(path, 0700); // a test may have closed it
    return 0;
}

static void remove_tree(const char *path) {
    nftw(path, open_folder, 16, FTW_PHYS);
    nftw(path, remove_entry, 16, FTW_PHYS | FTW_DEPTH);
}

static void stop_on_signal(int signal_number) {
    if (running > 0) kill(-running, SIGKILL);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void show(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return;
    char line[4096];
    while (fgets(line, sizeof line, file))
        printf("    | %s%s", line, strchr(line, '\n') ? "" : "\n");
    fclose(file);
}

static void child(struct test_case *test, const char *output) {
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (!freopen(output, "w", stdout) || dup2(fileno(stdout), 2) < 0) _exit(2);
    setvbuf(stdout, NULL, _IOLBF, 0);
    test->run();
    verdict->outcome = PASSED;
    verdict->finished = 1;
    exit(0); // with the leak report of a sanitized build, which turns the status
}

// Waits for `pid` at most `limit` seconds; the status, or -1 when the time was up and the test was
// killed.
static int wait_limited(pid_t pid, int limit) {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    double until = now_seconds() + limit;
    int status = 0, late = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        double left = until - now_seconds();
        if (left <= 0) {
            late = 1;
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            break;
        }
        struct timespec pause = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        sigtimedwait(&wanted, NULL, &pause);
    }
    kill(-pid, SIGKILL); // what the test may have left running
    return late ? -1 : status;
}

static enum outcome run_one(struct test_case *test) {
    char output[700];
    snprintf(scratch, sizeof scratch, "%s/%.200s", scratch_root, test->name);
    snprintf(output, sizeof output, "%s.out", scratch);
    memset(verdict, 0, sizeof *verdict);
    verdict->outcome = FAILED;
    fflush(NULL);
    int limit = test->limit_seconds * LIMIT_FACTOR;
    double begin = now_seconds();
    pid_t pid = fork();
    if (pid == 0) child(test, output);
    if (pid < 0) {
        printf("FAILED %s: fork: %s\n", test->name, strerror(errno));
        return FAILED;
    }
    setpgid(pid, pid);
    running = pid;
    int status = wait_limited(pid, limit);
    running = 0;
    double seconds = now_seconds() - begin;

    enum outcome outcome = verdict->outcome;
    const char *why = verdict->why;
    char reason[200] = "";
    if (status == -1)
        snprintf(reason, sizeof reason, "not done within %d s", limit);
    else if (WIFSIGNALED(status))
        snprintf(reason, sizeof reason, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (!verdict->finished || (outcome == PASSED && WEXITSTATUS(status) != 0))
        snprintf(reason, sizeof reason, "left with exit status %d", WEXITSTATUS(status));
    if (reason[0]) {
        outcome = FAILED;
        why = reason;
    }
    if (outcome == PASSED) printf("ok %s (%.2f s)\n", test->name, seconds);
    if (outcome == SKIPPED) printf("skipped %s: %s\n", test->name, why);
    if (outcome == FAILED) printf("FAILED %s: %s (%.2f s)\n", test->name, why, seconds);
    if (outcome == FAILED || getenv("WEFT_TEST_SHOW")) show(output);
    remove_tree(scratch);
    unlink(output);
    return outcome;
}

static int wanted(const struct test_case *test, int count, char **parts) {
    for (int i = 0; i < count; i++)
        if (strstr(test->name, parts[i])) return 1;
    return count == 0;
}

int main(int argc, char **argv) {
    const char *base = getenv("TMPDIR");
    snprintf(scratch_root, sizeof scratch_root, "%.200s/weft-test-XXXXXX",
             base && base[0] ? base : "/tmp");
    if (!mkdtemp(scratch_root)) {
        fprintf(stderr, "%s: %s: no place for scratch files\n", scratch_root, strerror(errno));
        return 2;
    }
    verdict =
        mmap(NULL, sizeof *verdict, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (verdict == MAP_FAILED) return 2;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    signal(SIGINT, stop_on_signal);
    signal(SIGTERM, stop_on_signal);
    setvbuf(stdout, NULL, _IOLBF, 0);

    int counts[3] = {0, 0, 0};
    for (struct test_case *test = tests; test; test = test->next)
        if (wanted(test, argc - 1, argv + 1)) counts[run_one(test)]++;
    remove_tree(scratch_root);
    printf("%s: %d passed, %d failed, %d skipped\n", WEFT_TEST_NAME, counts[PASSED], counts[FAILED],
           counts[SKIPPED]);
    return counts[FAILED] != 0;
}
