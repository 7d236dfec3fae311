// Who listens on a port of this machine, as far as this user may see; for messages. See
// wire_parts.h.
#include "base/file.h"
#include "base/wire_parts.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Inode of the listening socket in a table of /proc/net; 0: none.
static unsigned long find_socket(const char *table, int port) {
    enum { LISTENS = 10 };
    FILE *file = fopen(table, "re");
    unsigned long found = 0;
    for (char line[512]; file && !found && fgets(line, sizeof line, file);) {
        unsigned own, state;
        unsigned long inode;
        if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*u %*d %lu", &own,
                   &state, &inode) == 3 &&
            (int)own == port && state == LISTENS)
            found = inode;
    }
    if (file) fclose(file);
    return found;
}

static bool holds_socket(const char *pid, const char *name) {
    char folder[300], path[600], target[64];
    char **files;
    size_t count;
    bool found = false;
    snprintf(folder, sizeof folder, "/proc/%.200s/fd", pid);
    if (file_list(folder, &files, &count, NULL) != 0) return false;
    for (size_t i = 0; i < count && !found; i++) {
        snprintf(path, sizeof path, "%s/%.200s", folder, files[i]);
        ssize_t size = readlink(path, target, sizeof target - 1);
        target[size > 0 ? size : 0] = 0;
        found = strcmp(target, name) == 0;
    }
    file_list_free(files, count);
    return found;
}

int wire_port_holder(int port) {
    char name[64];
    char **pids;
    size_t count;
    int holder = 0;
    unsigned long inode = find_socket("/proc/net/tcp", port);
    if (!inode) inode = find_socket("/proc/net/tcp6", port);
    if (!inode || file_list("/proc", &pids, &count, NULL) != 0) return 0;
    snprintf(name, sizeof name, "socket:[%lu]", inode);
    for (size_t i = 0; i < count && !holder; i++)
        if (isdigit((unsigned char)pids[i][0]) && holds_socket(pids[i], name))
            holder = atoi(pids[i]);
    file_list_free(pids, count);
    return holder;
}
