// See marks.h.
#include "operate/marks.h"
#include "base/clock.h"
#include "base/file.h"
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct marks {
    char run[300], control[300]; // "WEFT_RUN=...", "WEFT_CONTROL=..." or ""
};

static bool holds(const char *text, size_t size, const char *line) {
    for (size_t at = 0; at < size; at += strlen(text + at) + 1)
        if (strcmp(text + at, line) == 0) return true;
    return false;
}

static bool is_marked(const char *pid, const struct marks *marks) {
    char path[300], *text;
    size_t size;
    snprintf(path, sizeof path, "/proc/%.200s/environ", pid);
    if (file_read(path, 0, &text, &size, NULL) != 0) return false;
    bool found =
        holds(text, size, marks->run) && (!marks->control[0] || holds(text, size, marks->control));
    free(text);
    return found;
}

// Containers and namespaces of one machine are hosts of their own.
static bool is_here(const char *pid) {
    char path[300], own[128], other[128];
    snprintf(path, sizeof path, "/proc/%.200s/ns/net", pid);
    ssize_t a = readlink("/proc/self/ns/net", own, sizeof own);
    ssize_t b = readlink(path, other, sizeof other);
    return a < 0 || b < 0 || (a == b && memcmp(own, other, (size_t)a) == 0);
}

// State and parent; false: it is gone.
static bool look(const char *pid, char *state, long *parent) {
    char path[300], *text;
    size_t size;
    snprintf(path, sizeof path, "/proc/%.200s/stat", pid);
    if (file_read(path, 0, &text, &size, NULL) != 0) return false;
    char *end = strrchr(text, ')'); // names may hold anything
    bool read = end && sscanf(end + 1, " %c %ld", state, parent) == 2;
    free(text);
    return read;
}

bool marks_lives(pid_t process) {
    char name[32], state;
    long parent;
    snprintf(name, sizeof name, "%ld", (long)process);
    return look(name, &state, &parent) && state != 'Z' && state != 'X';
}

// Kills what bears the mark and lives; returns how many.
static int kill_marked(const struct marks *marks, pid_t except, bool children_too) {
    char **names;
    size_t count;
    int found = 0;
    if (file_list("/proc", &names, &count, NULL) != 0) return 0;
    for (size_t i = 0; i < count; i++) {
        char state;
        long parent, pid = strtol(names[i], NULL, 10);
        if (!isdigit((unsigned char)names[i][0]) || pid == except || pid == getpid() ||
            !look(names[i], &state, &parent) || (children_too && parent == except) ||
            state == 'Z' || state == 'X' || !is_marked(names[i], marks) || !is_here(names[i]))
            continue;
        kill((pid_t)pid, SIGKILL);
        found++;
    }
    file_list_free(names, count);
    return found;
}

int marks_kill_of(const char *run, const char *control, pid_t except, bool children_too,
                  double seconds, int *left) {
    struct marks marks = {0};
    double until = clock_seconds() + seconds;
    snprintf(marks.run, sizeof marks.run, "WEFT_RUN=%.256s", run);
    if (control) snprintf(marks.control, sizeof marks.control, "WEFT_CONTROL=%.256s", control);
    int first = kill_marked(&marks, except, children_too);
    // Again until none is left: some may have been starting others.
    while ((*left = kill_marked(&marks, except, children_too)) > 0 && clock_seconds() < until)
        usleep(10000);
    return first;
}

int marks_kill(const char *run, pid_t except, bool children_too, double seconds, int *left) {
    return marks_kill_of(run, NULL, except, children_too, seconds, left);
}
