// See processes.h.
#include "processes.h"
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_FOUND = 256, TEXT_BYTES = 1 << 16 };

// A file of /proc/PID: texts that end with NUL. Returns its bytes, 0 when it is gone.
static size_t read_texts(int pid, const char *name, char *out) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t n, used = 0;
    while (used < TEXT_BYTES - 1 &&
           (n = read(file, out + used, (size_t)(TEXT_BYTES - 1 - used))) > 0)
        used += n;
    close(file);
    out[used] = 0;
    return (size_t)used;
}

static bool is_marked(int pid, const char *mark) {
    static char text[TEXT_BYTES];
    char wanted[128];
    snprintf(wanted, sizeof wanted, PROCESSES_MARK "=%s", mark);
    size_t bytes = read_texts(pid, "environ", text);
    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1)
        if (strcmp(text + at, wanted) == 0) return true;
    return false;
}

static bool is_rank(int pid) { // weft train ...
    static char text[TEXT_BYTES];
    size_t bytes = read_texts(pid, "cmdline", text);
    size_t first = strlen(text);
    return first + 1 < bytes && first >= 4 && strcmp(text + first - 4, "weft") == 0 &&
           strcmp(text + first + 1, "train") == 0;
}

static int find(const char *mark, bool ranks_only, int *found) {
    int count = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *entry; all && (entry = readdir(all)) && count < MOST_FOUND;) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        int pid = atoi(entry->d_name);
        if (pid == getpid() || !is_marked(pid, mark) || (ranks_only && !is_rank(pid))) continue;
        found[count++] = pid;
    }
    if (all) closedir(all);
    return count;
}

int processes_kill(const char *mark, enum processes_victim victim, uint64_t draw) {
    int found[MOST_FOUND], hit = 0;
    int count = find(mark, victim != PROCESSES_ALL, found);
    if (victim == PROCESSES_ONE_RANK && count > 0) {
        found[0] = found[draw % (uint64_t)count];
        count = 1;
    }
    for (int round = 0; count > 0 && round < 100; round++) {
        for (int i = 0; i < count; i++) hit += kill(found[i], SIGKILL) == 0;
        if (victim != PROCESSES_ALL) break;
        usleep(2000); // some may have been about to start others
        count = find(mark, false, found);
    }
    return hit;
}
