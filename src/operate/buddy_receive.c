// The receiving end: keeps what another host sends; see buddy.h.
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/snapshot.h"
#include "operate/buddy_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { WAIT_FOR_PART_SECONDS = 24 * 3600 };

struct offer {
    int generation, rank;
    const char *text;
    struct snapshot_image is;
    char part[4352], json[4352];
};

static int read_offer(const json_t *m, const char *folder, struct offer *o, struct err *err) {
    const json_t *generation = json_object_get(m, "generation"), *rank = json_object_get(m, "rank");
    o->text = json_string_value(json_object_get(m, "text"));
    o->generation = json_is_integer(generation) ? (int)json_integer_value(generation) : -1;
    o->rank = json_is_integer(rank) ? (int)json_integer_value(rank) : -1;
    if (o->generation < 0 || o->generation >= SNAPSHOT_GENERATIONS || !o->text)
        return err_set(err, ERR_DATA, "an offer of a copy that is none");
    if (snapshot_read_image(o->text, strlen(o->text), "offer", &o->is, err) != 0) return -1;
    if (o->is.rank != o->rank)
        return err_set(err, ERR_DATA, "a copy of rank %d is offered as one of rank %d", o->is.rank,
                       o->rank);
    snprintf(o->part, sizeof o->part, "%s/gen-%d/buddy-%05d.part", folder, o->generation, o->rank);
    snprintf(o->json, sizeof o->json, "%s/gen-%d/buddy-%05d.json", folder, o->generation, o->rank);
    return 0;
}

// Not to the last byte: messages between ranks and the host's own snapshots lie there too. What an
// older copy of this rank has taken already is not needed again, and stays when there is no room.
static int check_room(const struct offer *o, const char *folder, struct err *err) {
    enum { KEPT_BYTES = 32 << 20 };
    struct stat old;
    struct statvfs fs;
    char need[32], has[32];
    uint64_t taken = stat(o->part, &old) == 0 ? (uint64_t)old.st_blocks * 512 : 0;
    uint64_t missing = o->is.bytes > taken ? o->is.bytes - taken : 0;
    uint64_t left = snapshot_available_bytes(), kept = KEPT_BYTES;
    if (missing == 0) return 0;
    if (statvfs(folder, &fs) == 0 && fs.f_blocks > 0) { // 0: without a limit
        uint64_t all = (uint64_t)fs.f_blocks * fs.f_frsize, free = fs.f_bavail * fs.f_frsize;
        if (kept > all / 16) kept = all / 16;
        if (left == 0 || free < left) left = free;
    }
    if (left == 0 || missing + kept <= left) return 0;
    return err_set(err, ERR_MEMORY, "%s: no room for %s of another host: %s are left", folder,
                   text_bytes(missing, need), text_bytes(left, has));
}

// Room is taken before anything is sent: memory that is short shows here, and nowhere else.
static int open_part(const struct offer *o, const char *folder, int *file, struct err *err) {
    char path[4352];
    snprintf(path, sizeof path, "%s/gen-%d", folder, o->generation);
    if (file_make_folders(path, err) != 0 || check_room(o, path, err) != 0) return -1;
    if (unlink(o->json) != 0 && errno != ENOENT) return err_set_errno(err, "%s", o->json);
    int fd = open(o->part, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return err_set_errno(err, "%s", o->part);
    int error =
        ftruncate(fd, (off_t)o->is.bytes) != 0 ? errno : posix_fallocate(fd, 0, (off_t)o->is.bytes);
    if (error) {
        close(fd);
        unlink(o->part);
        errno = error;
        return err_set_errno(err, "%s: no room for %llu bytes of another host", o->part,
                             (unsigned long long)o->is.bytes);
    }
    *file = fd;
    return 0;
}

static int write_all(int file, const unsigned char *data, size_t bytes, uint64_t at,
                     const char *path, struct err *err) {
    while (bytes > 0) {
        ssize_t n = pwrite(file, data, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return err_set_errno(err, "%s", path);
        data += n;
        bytes -= (size_t)n;
        at += (uint64_t)n;
    }
    return 0;
}

// Errors of the connection are -1; *kept says whether the image is whole and right.
static int take_pieces(struct wire *w, struct buddy_pieces *pieces, int file, const struct offer *o,
                       unsigned char *piece, bool *kept, struct err *why, struct err *err) {
    unsigned char tag[BUDDY_TAG_BYTES], expected[BUDDY_TAG_BYTES];
    bool written = true;
    for (uint64_t at = 0; at < o->is.bytes;) {
        size_t size =
            o->is.bytes - at < BUDDY_PIECE_BYTES ? (size_t)(o->is.bytes - at) : BUDDY_PIECE_BYTES;
        if (buddy_read(w, piece, size, err) != 0 || buddy_read(w, tag, sizeof tag, err) != 0)
            return -1;
        buddy_tag(pieces, piece, size, expected);
        if (memcmp(tag, expected, sizeof tag) != 0)
            return err_set(err, ERR_DATA, "%s: a piece of rank %d is forged or damaged",
                           wire_peer(w), o->rank);
        written = written && write_all(file, piece, size, at, o->part, why) == 0;
        at += size;
    }
    *kept = written && snapshot_check_image(o->text, strlen(o->text), o->part, NULL, why) == 0;
    return 0;
}

// It counts from now on, unless the run went back behind it meanwhile. In memory nothing has to be
// synced.
static int publish(const struct offer *o, const char *folder, struct err *err) {
    char path[4400];
    struct file_writer w;
    snprintf(path, sizeof path, "%s.new", o->json);
    if (file_writer_open(&w, path, err) != 0) return -1;
    if (file_writer_put(&w, o->text, strlen(o->text), err) != 0) {
        file_writer_abandon(&w);
        return -1;
    }
    if (file_writer_close(&w, false, err) != 0) return -1;
    if (rename(path, o->json) != 0) return err_set_errno(err, "%s", o->json);
    if (!snapshot_is_discarded(folder, &o->is)) return 0;
    unlink(o->json);
    return err_set(err, ERR_DATA, "the run went back behind step %lld", (long long)o->is.step);
}

static int take_image(struct wire *w, struct buddy_pieces *pieces, const json_t *message,
                      const char *folder, unsigned char *piece, struct err *err) {
    struct offer o;
    struct err why = {0};
    bool kept = false;
    int file;
    if (read_offer(message, folder, &o, err) != 0) return -1;
    if (open_part(&o, folder, &file, &why) != 0)
        return buddy_say(w, json_pack("{s:s, s:s}", "type", "no", "why", why.text), err);
    int result = buddy_say(w, json_pack("{s:s}", "type", "go"), err);
    if (result == 0) result = take_pieces(w, pieces, file, &o, piece, &kept, &why, err);
    close(file);
    if (result != 0) return -1;
    if (kept && publish(&o, folder, &why) == 0)
        return buddy_say(w, json_pack("{s:s}", "type", "stored"), err);
    return buddy_say(w, json_pack("{s:s, s:s}", "type", "dropped", "why", why.text), err);
}

int buddy_receive(struct wire *w, const json_t *hello, const char *folder,
                  const struct wire_key *key, struct err *err) {
    struct buddy_pieces pieces = {.key = key};
    char session[BUDDY_SESSION_TEXT];
    if (buddy_session_parse(hello, pieces.sessions[0]) != 0)
        return err_set(err, ERR_DATA, "%s: a hello without a session", wire_peer(w));
    buddy_session_make(pieces.sessions[1], session);
    unsigned char *piece = malloc(BUDDY_PIECE_BYTES);
    if (!piece) return err_set(err, ERR_MEMORY, "no memory for a copy");
    int result = buddy_say(w, json_pack("{s:s, s:s}", "type", "welcome", "session", session), err);
    while (result == 0) {
        json_t *message = buddy_hear(w, WAIT_FOR_PART_SECONDS, err);
        result = message ? take_image(w, &pieces, message, folder, piece, err) : -1;
        json_decref(message);
    }
    free(piece);
    return result;
}
