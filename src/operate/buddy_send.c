// The sending end; see buddy.h.
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/snapshot.h"
#include "operate/buddy_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    LOOK_MICROSECONDS = 200000,
    AGAIN_MICROSECONDS = 1000000,
    ANSWER_SECONDS = 30,
    STORE_SECONDS = 120
};
static const double FIRST_PAUSE_SECONDS = 1, MOST_PAUSE_SECONDS = 60;

struct buddy_link {
    struct wire *w;
    struct buddy_target target;
    struct buddy_pieces pieces;
    unsigned char *piece;
};

struct buddy_link *buddy_connect(const struct buddy_target *target, struct err *err) {
    struct buddy_link *link = calloc(1, sizeof *link);
    char session[BUDDY_SESSION_TEXT];
    if (link) link->piece = malloc(BUDDY_PIECE_BYTES);
    if (!link || !link->piece) {
        free(link);
        err_set(err, ERR_MEMORY, "no memory for a copy");
        return NULL;
    }
    link->target = *target;
    link->pieces.key = &link->target.key;
    link->w = wire_connect(target->address, target->port, &target->key, 10, err);
    json_t *answer = NULL;
    if (link->w) {
        buddy_session_make(link->pieces.sessions[0], session);
        if (buddy_say(link->w,
                      json_pack("{s:s, s:s, s:s, s:s}", "type", "hello", "role", "buddy", "host",
                                target->own, "session", session),
                      err) == 0)
            answer = buddy_hear(link->w, ANSWER_SECONDS, err);
    }
    if (answer && buddy_session_parse(answer, link->pieces.sessions[1]) != 0) {
        const char *why = json_string_value(json_object_get(answer, "why"));
        err_set(err, ERR_DATA, "%s: does not take copies%s%s", wire_peer(link->w), why ? ": " : "",
                why ? why : "");
        json_decref(answer);
        answer = NULL;
    }
    if (!answer) {
        buddy_disconnect(link);
        return NULL;
    }
    json_decref(answer);
    return link;
}

void buddy_disconnect(struct buddy_link *link) {
    if (!link) return;
    wire_close(link->w);
    free(link->piece);
    free(link);
}

// ---- what is there ------------------------------------------------------------------------------

struct image {
    int generation;
    char name[32]; // "rank-00003"
    char *text;    // of its .json
    uint64_t digest;
    struct snapshot_image is;
};

// False: not complete, or being replaced.
static bool read_image(const char *folder, int generation, const char *file, struct image *out) {
    char path[4352];
    size_t size;
    struct image p = {.generation = generation};
    snprintf(p.name, sizeof p.name, "%.*s", (int)(strlen(file) - strlen(".json")), file);
    snprintf(path, sizeof path, "%s/gen-%d/%s", folder, generation, file);
    if (file_read(path, WIRE_MOST_BYTES / 2, &p.text, &size, NULL) != 0) return false;
    if (snapshot_read_image(p.text, size, path, &p.is, NULL) != 0) {
        free(p.text);
        return false;
    }
    p.digest = hash_bytes(p.text, size);
    *out = p;
    return true;
}

static struct buddy_image *find_known(const struct buddy_known *known, const struct image *p) {
    char name[64];
    snprintf(name, sizeof name, "gen-%d/%s", p->generation, p->name);
    for (int i = 0; i < known->count; i++)
        if (strcmp(known->list[i].name, name) == 0) return &known->list[i];
    return NULL;
}

// Nothing is to be done about it now.
static bool is_known(const struct buddy_known *known, const struct image *p) {
    const struct buddy_image *one = find_known(known, p);
    return one && one->digest == p->digest && (!one->why[0] || clock_seconds() < one->again);
}

// `why` "": it is kept.
static void remember(struct buddy_known *known, const struct image *p, const char *why) {
    struct buddy_image *one = find_known(known, p);
    if (!one) {
        void *list = realloc(known->list, sizeof *known->list * (size_t)(known->count + 1));
        if (!list) return; // it is sent once more
        known->list = list;
        one = &known->list[known->count++];
        *one = (struct buddy_image){.rank = p->is.rank};
        snprintf(one->name, sizeof one->name, "gen-%d/%s", p->generation, p->name);
    }
    bool more = one->digest == p->digest && one->why[0];
    one->pause = !more ? FIRST_PAUSE_SECONDS : one->pause * 2;
    if (one->pause > MOST_PAUSE_SECONDS) one->pause = MOST_PAUSE_SECONDS;
    one->again = clock_seconds() + one->pause;
    one->digest = p->digest;
    snprintf(one->why, sizeof one->why, "%s", why);
}

// Of the images that were kept: who hears now may not have them. Those of ranks that are gone.
static void forget(struct buddy_known *known, const char *folder, bool kept) {
    int left = 0;
    for (int i = 0; i < known->count; i++) {
        char part[4352];
        snprintf(part, sizeof part, "%s/%s.part", folder, known->list[i].name);
        bool stays = known->list[i].why[0] ? file_exists(part) : !kept;
        if (stays) known->list[left++] = known->list[i];
    }
    known->count = left;
}

const struct buddy_image *buddy_trouble(const struct buddy_known *known) {
    for (int i = 0; i < known->count; i++)
        if (known->list[i].why[0]) return &known->list[i];
    return NULL;
}

void buddy_known_free(struct buddy_known *known) {
    free(known->list);
    *known = (struct buddy_known){0};
}

// The newest complete image that is not known; false: none.
static bool find_new(const char *folder, struct buddy_known *known, struct image *best) {
    bool found = false;
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        char path[4200], **names;
        size_t count;
        snprintf(path, sizeof path, "%s/gen-%d", folder, g);
        if (file_list(path, &names, &count, NULL) != 0) continue;
        for (size_t i = 0; i < count; i++) {
            struct image p;
            if (strncmp(names[i], "rank-", 5) != 0 || strlen(names[i]) > 20 ||
                !text_ends_with(names[i], ".json") || !read_image(folder, g, names[i], &p))
                continue;
            if (is_known(known, &p) || (found && p.is.step <= best->is.step)) {
                free(p.text);
                continue;
            }
            if (found) free(best->text);
            *best = p;
            found = true;
        }
        file_list_free(names, count);
    }
    return found;
}

// ---- sending it ---------------------------------------------------------------------------------

static int send_pieces(struct buddy_link *link, int file, uint64_t bytes, struct err *err) {
    unsigned char tag[BUDDY_TAG_BYTES];
    for (uint64_t at = 0; at < bytes;) {
        size_t size = bytes - at < BUDDY_PIECE_BYTES ? (size_t)(bytes - at) : BUDDY_PIECE_BYTES;
        ssize_t n = pread(file, link->piece, size, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        // shorter than it was: a hash will be wrong
        if (n < (ssize_t)size)
            memset(link->piece + (n > 0 ? n : 0), 0, size - (n > 0 ? (size_t)n : 0));
        buddy_tag(&link->pieces, link->piece, size, tag);
        if (buddy_write(link->w, link->piece, size, err) != 0 ||
            buddy_write(link->w, tag, sizeof tag, err) != 0)
            return -1;
        at += size;
    }
    return 0;
}

static json_t *announce(struct buddy_link *link, const struct image *p, struct err *err) {
    json_t *message = json_pack("{s:s, s:i, s:i, s:s}", "type", "image", "generation",
                                p->generation, "rank", p->is.rank, "text", p->text);
    return buddy_say(link->w, message, err) == 0 ? buddy_hear(link->w, ANSWER_SECONDS, err) : NULL;
}

static bool says(const json_t *message, const char *type) {
    const char *found = json_string_value(json_object_get(message, "type"));
    return found && strcmp(found, type) == 0;
}

// Another one, or none, has taken its place.
static bool has_changed(const char *folder, const struct image *p) {
    char file[64];
    struct image now;
    snprintf(file, sizeof file, "%s.json", p->name);
    if (!read_image(folder, p->generation, file, &now)) return true;
    free(now.text);
    return now.digest != p->digest;
}

// 1: stored; 0: it is not kept there, see `why`; -1: the connection is of no more use.
static int send_image(struct buddy_link *link, const struct image *p, char why[320],
                      struct err *err) {
    char path[4352];
    snprintf(path, sizeof path, "%s/gen-%d/%s.part", link->target.folder, p->generation, p->name);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) {
        snprintf(why, 320, "%.200s: %.100s", path, strerror(errno));
        return 0;
    }
    json_t *answer = announce(link, p, err), *end = NULL;
    if (answer && !says(answer, "go"))
        end = json_incref(answer);
    else if (answer && send_pieces(link, file, p->is.bytes, err) == 0)
        end = buddy_hear(link->w, STORE_SECONDS, err);
    int result = end ? says(end, "stored") : -1;
    const char *reason = end ? json_string_value(json_object_get(end, "why")) : err->text;
    snprintf(why, 320, "%.319s", result > 0 ? "" : reason ? reason : "no reason given");
    json_decref(answer);
    json_decref(end);
    close(file);
    return result;
}

// `more`: members of the line, or NULL; the reference is taken.
static void say(int report, const struct buddy_target *target, const struct buddy_known *known,
                json_t *more) {
    const struct buddy_image *bad = buddy_trouble(known);
    json_t *line = json_pack("{s:s}", "host", target->host);
    if (line && bad) {
        json_t *why = json_string(bad->why);
        json_object_set_new(line, "error", why ? why : json_string("it is not kept there"));
        json_object_set_new(line, "rank", json_integer(bad->rank));
    }
    if (line && more) json_object_update(line, more);
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (text && report >= 0) dprintf(report, "%s\n", text);
    free(text);
    json_decref(line);
    json_decref(more);
}

int buddy_send_new(struct buddy_link *link, struct buddy_known *known, int report, int *sent,
                   struct err *err) {
    struct image p;
    bool bad = buddy_trouble(known);
    *sent = 0;
    forget(known, link->target.folder, false);
    if (bad && !buddy_trouble(known)) say(report, &link->target, known, NULL);
    while (find_new(link->target.folder, known, &p)) {
        double begun = clock_seconds();
        char why[320];
        int result = send_image(link, &p, why, err);
        // what changed while it was read is no trouble: the next one is new
        if (result > 0 || !has_changed(link->target.folder, &p)) remember(known, &p, why);
        say(report, &link->target, known,
            result > 0 ? json_pack("{s:I, s:I, s:f}", "step", (json_int_t)p.is.step, "bytes",
                                   (json_int_t)p.is.bytes, "seconds", clock_seconds() - begun)
                       : NULL);
        *sent += result > 0;
        free(p.text);
        if (result < 0) return -1;
    }
    return 0;
}

_Noreturn void buddy_send_all(const struct buddy_target *target, int report) {
    struct buddy_known known = {0};
    // behind all that computes; the copy is not waited for
    int ignored = setpriority(PRIO_PROCESS, 0, 10);
    (void)ignored;
    for (;;) {
        struct err err = {0};
        struct buddy_link *link = buddy_connect(target, &err);
        int sent;
        if (link) say(report, target, &known, NULL);
        while (link && buddy_send_new(link, &known, report, &sent, &err) == 0)
            usleep(LOOK_MICROSECONDS);
        say(report, target, &known, json_pack("{s:s, s:i}", "error", err.text, "rank", -1));
        buddy_disconnect(link);
        forget(&known, target->folder, true);
        usleep(AGAIN_MICROSECONDS);
    }
}
