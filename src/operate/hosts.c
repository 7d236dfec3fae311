// See hosts.h.
#include "operate/hosts.h"
#include "base/file.h"
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FILE_BYTES = 16 << 20, MOST_SLOTS = 4096 };

// What a host's name may hold; anything else would become an option or a list for mpirun.
static bool is_name(const char *text) {
    if (!isalnum((unsigned char)text[0])) return false;
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && !strchr(".-_", *text)) return false;
    return true;
}

static int read_slots(const char *word, int *slots) {
    char *end;
    if (strncmp(word, "slots=", 6) != 0) return -1;
    errno = 0;
    long value = strtol(word + 6, &end, 10);
    if (end == word + 6 || *end || errno || value < 1 || value > MOST_SLOTS) return -1;
    *slots = (int)value;
    return 0;
}

static int add_line(struct hosts *hosts, char *line, const char *path, int number,
                    struct err *err) {
    char *rest = NULL;
    line[strcspn(line, "#")] = 0;
    char *name = strtok_r(line, " \t\r", &rest);
    char *word = name ? strtok_r(NULL, " \t\r", &rest) : NULL;
    char *more = word ? strtok_r(NULL, " \t\r", &rest) : NULL;
    int slots = 1;
    if (!name) return 0;
    if (!is_name(name))
        return err_set(err, ERR_USAGE, "%s: line %d: \"%.100s\" is no name of a host", path, number,
                       name);
    if (word && read_slots(word, &slots) != 0)
        return err_set(err, ERR_USAGE,
                       "%s: line %d: \"%.100s\" behind host %.100s: expected slots=N, N from 1 to "
                       "%d",
                       path, number, word, name, MOST_SLOTS);
    if (more)
        return err_set(err, ERR_USAGE,
                       "%s: line %d: unexpected \"%.100s\"; a line is \"HOST slots=N\"", path,
                       number, more);
    for (int i = 0; i < hosts->count; i++)
        if (strcmp(hosts->list[i].name, name) == 0)
            return err_set(err, ERR_USAGE,
                           "%s: line %d: host %.100s stands in the file already; give it one line "
                           "with all its slots",
                           path, number, name);
    struct host *list = realloc(hosts->list, sizeof *list * (size_t)(hosts->count + 1));
    if (list) hosts->list = list;
    char *copy = list ? strdup(name) : NULL;
    if (!copy) return err_set(err, ERR_MEMORY, "%s: no memory for the hosts", path);
    list[hosts->count++] = (struct host){copy, slots};
    hosts->slots += slots;
    return 0;
}

int hosts_read(struct hosts *hosts, const char *path, struct err *err) {
    char *text;
    size_t size;
    *hosts = (struct hosts){0};
    if (file_read(path, MOST_FILE_BYTES, &text, &size, err) != 0) {
        if (err) err->kind = ERR_USAGE;
        return -1;
    }
    int number = 1, result = 0;
    if (strlen(text) != size) result = err_set(err, ERR_USAGE, "%s: is no text", path);
    for (char *line = text; result == 0 && line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = 0;
        result = add_line(hosts, line, path, number++, err);
        line = next;
    }
    free(text);
    if (result == 0 && hosts->count == 0)
        result = err_set(err, ERR_USAGE, "%s: names no host; a line is \"HOST slots=N\"", path);
    if (result != 0) hosts_free(hosts);
    return result;
}

void hosts_free(struct hosts *hosts) {
    for (int i = 0; i < hosts->count; i++) free(hosts->list[i].name);
    free(hosts->list);
    *hosts = (struct hosts){0};
}
