// See leftovers.h.
#include "operate/leftovers.h"
#include "base/file.h"
#include "operate/marks.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTACT_MOST_BYTES = 64 << 10 };

// "1247215616.0;tcp://...": the number of mpirun's own job; that of the ranks is the next one.
static unsigned long read_job(const char *folder) {
    char path[4096], *text;
    size_t size;
    if (file_join(path, sizeof path, folder, "contact.txt", NULL) != 0 ||
        file_read(path, CONTACT_MOST_BYTES, &text, &size, NULL) != 0)
        return 0;
    char *end;
    unsigned long job = strtoul(text, &end, 10);
    bool read = end != text && *end == '.' && job > 0 && job < 1UL << 32;
    free(text);
    return read ? job + 1 : 0;
}

static void remove_segments(const char *folder, const char *host, unsigned long job) {
    char begin[300], path[4096], **names;
    size_t count, length;
    snprintf(begin, sizeof begin, "vader_segment.%s.%u.%lx.", host, (unsigned)geteuid(), job);
    length = strlen(begin);
    if (file_list(folder, &names, &count, NULL) != 0) return;
    for (size_t i = 0; i < count; i++)
        if (strncmp(names[i], begin, length) == 0 &&
            file_join(path, sizeof path, folder, names[i], NULL) == 0)
            unlink(path);
    file_list_free(names, count);
}

void leftovers_remove(const char *temporary_folder, const char *memory_folder, pid_t starter) {
    char host[200] = "", name[300], folder[4096];
    if (starter <= 0 || marks_lives(starter)) return; // it lives, or another one has its number
    if (gethostname(host, sizeof host - 1) != 0) return;
    host[strcspn(host, ".")] = 0; // both names have its first part only
    snprintf(name, sizeof name, "ompi.%s.%u/pid.%ld", host, (unsigned)geteuid(), (long)starter);
    if (file_join(folder, sizeof folder, temporary_folder, name, NULL) != 0 ||
        !file_is_folder(folder))
        return;
    unsigned long job = read_job(folder);
    if (job > 0) remove_segments(memory_folder, host, job);
    file_remove_tree(folder, NULL);
}
