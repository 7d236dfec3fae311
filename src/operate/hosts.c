// See hosts.h.
#include "operate/hosts.h"
#include "base/file.h"
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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
    list[hosts->count++] = (struct host){copy, slots, number};
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

// ---- who they are

// All addresses of a name; freeaddrinfo. NULL: *why says why not.
static struct addrinfo *addresses_of(const char *name, const char **why) {
    struct addrinfo want = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM}, *found = NULL;
    int status = getaddrinfo(name, NULL, &want, &found);
    if (why) *why = status == EAI_SYSTEM ? strerror(errno) : gai_strerror(status);
    return status == 0 ? found : NULL;
}

static bool text_of(const struct addrinfo *a, char *out, size_t bytes) {
    return getnameinfo(a->ai_addr, a->ai_addrlen, out, (socklen_t)bytes, NULL, 0, NI_NUMERICHOST) ==
           0;
}

struct known {
    char address[64]; // the first one of a name
    int host;
};
static int by_address(const void *a, const void *b) {
    const struct known *x = a, *y = b;
    int order = strcmp(x->address, y->address);
    return order ? order : x->host - y->host;
}

static int find_twins(const struct hosts *hosts, struct known *known, const char *path,
                      struct err *err) {
    qsort(known, (size_t)hosts->count, sizeof *known, by_address);
    for (int i = 1; i < hosts->count; i++)
        if (strcmp(known[i].address, known[i - 1].address) == 0) {
            const struct host *a = &hosts->list[known[i - 1].host];
            const struct host *b = &hosts->list[known[i].host];
            return err_set(
                err, ERR_USAGE,
                "%s: line %d: host %.100s is the same machine as %.100s of line %d (both "
                "are %s); give it one line with all its slots",
                path, b->line, b->name, a->name, a->line, known[i].address);
        }
    return 0;
}

int hosts_resolve(const struct hosts *hosts, const char *path, struct err *err) {
    struct known *known = calloc((size_t)hosts->count + 1, sizeof *known);
    int result = 0;
    if (!known) return err_set(err, ERR_MEMORY, "%s: no memory for the hosts", path);
    for (int i = 0; i < hosts->count && result == 0; i++) {
        const struct host *h = &hosts->list[i];
        const char *why;
        struct addrinfo *list = addresses_of(h->name, &why);
        known[i].host = i;
        if (!list || !text_of(list, known[i].address, sizeof known[i].address))
            result = err_set(err, ERR_USAGE,
                             "%s: line %d: host %.100s is not known (%s); correct its name, or "
                             "write its address",
                             path, h->line, h->name, why);
        if (list) freeaddrinfo(list);
    }
    if (result == 0) result = find_twins(hosts, known, path, err);
    free(known);
    return result;
}

// Only an address of this machine can be bound to.
static bool can_bind(const struct addrinfo *a) {
    int s = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool bound = s >= 0 && bind(s, a->ai_addr, a->ai_addrlen) == 0;
    if (s >= 0) close(s);
    return bound;
}

bool hosts_is_here(const char *name) {
    char own[256];
    if (gethostname(own, sizeof own) == 0 && strcmp(own, name) == 0) return true;
    struct addrinfo *list = addresses_of(name, NULL);
    bool here = false;
    for (const struct addrinfo *a = list; a && !here; a = a->ai_next) here = can_bind(a);
    if (list) freeaddrinfo(list);
    return here;
}

// No packet is sent: connecting a datagram socket only chooses the way.
int hosts_address_towards(const char *name, char *out, size_t out_bytes, struct err *err) {
    const char *why;
    struct addrinfo *list = addresses_of(name, &why);
    if (!list) return err_set(err, ERR_USAGE, "host %.100s is not known (%s)", name, why);
    bool found = false;
    for (struct addrinfo *a = list; a && !found; a = a->ai_next) {
        struct sockaddr_storage own;
        socklen_t size = sizeof own;
        struct addrinfo mine = {.ai_addr = (struct sockaddr *)&own};
        if (a->ai_family == AF_INET) ((struct sockaddr_in *)a->ai_addr)->sin_port = htons(9);
        if (a->ai_family == AF_INET6) ((struct sockaddr_in6 *)a->ai_addr)->sin6_port = htons(9);
        int s = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        found = s >= 0 && connect(s, a->ai_addr, a->ai_addrlen) == 0 &&
                getsockname(s, mine.ai_addr, &size) == 0;
        mine.ai_addrlen = size;
        found = found && text_of(&mine, out, out_bytes);
        if (s >= 0) close(s);
    }
    freeaddrinfo(list);
    if (!found) return err_set(err, ERR_IO, "no way from this machine to host %.100s", name);
    return 0;
}
