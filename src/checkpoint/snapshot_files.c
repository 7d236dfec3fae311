// Where snapshots lie, whose they are, and images as files. See snapshot.h.
#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/snapshot_parts.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- the run

static const char id_name[] = "run-id";

// Somebody else may make it at the same time: what lies there in the end counts.
static int read_or_make_id(const char *path, char id[17], struct err *err) {
    uint64_t value, found;
    char *text;
    size_t bytes;
    if (!file_exists(path)) {
        if (getrandom(&value, sizeof value, 0) != sizeof value)
            return err_set_errno(err, "the system gives no random bytes");
        hash_text(value, id);
        if (file_replace(path, id, 16, err) != 0) return -1;
    }
    if (file_read(path, 1000, &text, &bytes, err) != 0) return -1;
    text[strcspn(text, "\n")] = 0;
    int result = hash_parse(text, &found);
    free(text);
    if (result != 0)
        return err_set(err, ERR_DATA, "%s: expected 16 hex digits; remove the file", path);
    hash_text(found, id);
    return 0;
}

int snapshot_run_id(const char *run_folder, char out[SNAPSHOT_RUN_BYTES], struct err *err) {
    char path[CHECKPOINT_PATH_BYTES], id[17], both[PATH_MAX + 32];
    char *real = realpath(run_folder, NULL);
    if (!real) return err_set_errno(err, "%s: cannot find the run folder", run_folder);
    int result = file_join(path, sizeof path, real, id_name, err);
    if (result == 0) result = read_or_make_id(path, id, err);
    if (result == 0) {
        snprintf(both, sizeof both, "%s %s", real, id);
        hash_text(hash_string(both), out);
    }
    free(real);
    return result;
}

static int home_folder(const char *folder, char out[CHECKPOINT_PATH_BYTES], struct err *err) {
    char name[64];
    snprintf(name, sizeof name, "weft-%lu", (unsigned long)getuid());
    return file_join(out, CHECKPOINT_PATH_BYTES, folder, name, err);
}

// Not through a link: what it leads to may be anybody's.
static int check_home(const char *path, struct err *err) {
    struct stat s;
    const char *wrong = NULL;
    if (lstat(path, &s) != 0) return err_set_errno(err, "%s: cannot be looked at", path);
    if (!S_ISDIR(s.st_mode))
        wrong = "is no folder";
    else if (s.st_uid != geteuid())
        wrong = "belongs to another user";
    else if (s.st_mode & (S_IWGRP | S_IWOTH))
        wrong = "can be written by others";
    if (wrong)
        return err_set(err, ERR_USAGE,
                       "%s %s: what lies there is not to be trusted; remove it, or give another "
                       "checkpoint.snapshot_folder",
                       path, wrong);
    if ((s.st_mode & 0777) != 0700 && chmod(path, 0700) != 0) // of an earlier version
        return err_set_errno(err, "%s: cannot be kept from others", path);
    return 0;
}

int snapshot_home(const char *folder, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    if (file_make_folders(folder, err) != 0 || home_folder(folder, path, err) != 0) return -1;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return err_set_errno(err, "%s: cannot make the folder", path);
    return check_home(path, err);
}

int snapshot_run_folder(const char *folder, const char *run, char out[CHECKPOINT_PATH_BYTES],
                        struct err *err) {
    char home[CHECKPOINT_PATH_BYTES], name[SNAPSHOT_RUN_BYTES];
    snprintf(name, sizeof name, "%.16s", run);
    if (home_folder(folder, home, err) != 0) return -1;
    return file_join(out, CHECKPOINT_PATH_BYTES, home, name, err);
}

int snapshot_forget(const char *folder, const char *run, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    if (snapshot_run_folder(folder, run, path, err) != 0) return -1;
    if (!file_exists(path)) return 0;
    return snapshot_home(folder, err) == 0 ? file_remove_tree(path, err) : -1;
}

// Calls for every .json of a run's folder.
static void each_image(const char *folder, void (*call)(const char *json, const void *argument),
                       const void *argument) {
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        char path[CHECKPOINT_PATH_BYTES], file[CHECKPOINT_PATH_BYTES], name[32], **names;
        size_t count;
        snprintf(name, sizeof name, SNAPSHOT_GENERATION, g);
        if (file_join(path, sizeof path, folder, name, NULL) != 0 ||
            file_list(path, &names, &count, NULL) != 0)
            continue;
        for (size_t i = 0; i < count; i++)
            if (text_ends_with(names[i], ".json") &&
                file_join(file, sizeof file, path, names[i], NULL) == 0)
                call(file, argument);
        file_list_free(names, count);
    }
}

struct discarded { // saves up to this one, of newer states than `step`
    int64_t step, session, number;
};

static bool is_discarded(const struct discarded *d, const struct snapshot_image *image) {
    uint64_t session = (uint64_t)d->session;
    bool before =
        image->session != session ? image->session < session : image->number <= (uint64_t)d->number;
    return before && image->step > d->step;
}

static void discard(const char *json, const void *discarded) {
    struct snapshot_image image;
    char *text;
    size_t bytes;
    if (file_read(json, 0, &text, &bytes, NULL) != 0) return; // another rank was quicker
    if (snapshot_read_image(text, bytes, json, &image, NULL) != 0 ||
        is_discarded(discarded, &image))
        file_remove(json, NULL);
    free(text);
}

static const char discarded_name[] = "discarded";

// First it is written down, then what lies there goes: what comes in between is seen by one of the
// two.
int snapshot_discard_newer(const char *run_folder, int64_t step, uint64_t session, uint64_t number,
                           struct err *err) {
    char path[CHECKPOINT_PATH_BYTES], text[128];
    struct discarded d = {step, (int64_t)session, (int64_t)number};
    if (!file_is_folder(run_folder)) return 0; // nor is there anything in it
    int result = file_join(path, sizeof path, run_folder, discarded_name, err);
    int size = snprintf(text, sizeof text,
                        "{\"step\":%" PRId64 ",\"session\":%" PRId64 ",\"number\":%" PRId64 "}\n",
                        d.step, d.session, d.number);
    if (result == 0) result = file_replace(path, text, (size_t)size, err);
    each_image(run_folder, discard, &d);
    return result;
}

bool snapshot_is_discarded(const char *run_folder, const struct snapshot_image *image) {
    char path[CHECKPOINT_PATH_BYTES];
    struct discarded d;
    if (file_join(path, sizeof path, run_folder, discarded_name, NULL) != 0 || !file_exists(path))
        return false;
    json_t *tree = json_parse_file(path, NULL);
    struct json_at at = {tree, path};
    bool read = tree && json_get_int(at, "step", true, 0, &d.step, NULL) == 0 &&
                json_get_int(at, "session", true, 0, &d.session, NULL) == 0 &&
                json_get_int(at, "number", true, 0, &d.number, NULL) == 0;
    json_decref(tree);
    return read && is_discarded(&d, image);
}

static void tidy(const char *json, const void *ranks) {
    char part[CHECKPOINT_PATH_BYTES];
    const char *name = strrchr(json, '/') + 1;
    int rank;
    if (sscanf(name, "rank-%d.json", &rank) != 1 || rank < *(const int *)ranks) return;
    file_remove(json, NULL);
    snprintf(part, sizeof part, "%.*s.part", (int)(strlen(json) - strlen(".json")), json);
    file_remove(part, NULL);
}

void snapshot_tidy(const char *run_folder, int ranks) {
    each_image(run_folder, tidy, &ranks);
}

static const char home_name[] = "run-folder";

void snapshot_mark(const char *memory, const char *run_folder) {
    char path[CHECKPOINT_PATH_BYTES];
    char *real = realpath(run_folder, NULL);
    if (real && file_join(path, sizeof path, memory, home_name, NULL) == 0 && !file_exists(path))
        file_replace(path, real, strlen(real), NULL);
    free(real);
}

// A file system that is not mounted just now lacks the folder above too.
static bool is_orphan(const char *memory) {
    char path[CHECKPOINT_PATH_BYTES], *home;
    size_t bytes;
    if (file_join(path, sizeof path, memory, home_name, NULL) != 0 ||
        file_read(path, CHECKPOINT_PATH_BYTES, &home, &bytes, NULL) != 0)
        return false;
    bool gone = home[0] == '/' && !file_exists(home);
    char *slash = strrchr(home, '/');
    if (slash && slash > home) *slash = 0;
    gone = gone && file_is_folder(home);
    free(home);
    return gone;
}

void snapshot_sweep(const char *folder) {
    char all[CHECKPOINT_PATH_BYTES], path[CHECKPOINT_PATH_BYTES], **names;
    size_t count;
    if (snapshot_run_folder(folder, "", all, NULL) != 0 ||
        file_list(all, &names, &count, NULL) != 0)
        return;
    for (size_t i = 0; i < count; i++)
        if (file_join(path, sizeof path, all, names[i], NULL) == 0 && is_orphan(path))
            file_remove_tree(path, NULL);
    file_list_free(names, count);
}

uint64_t snapshot_new_session(void) {
    unsigned char some = 0;
    if (getrandom(&some, sizeof some, 0) != sizeof some) some = (unsigned char)getpid();
    return (uint64_t)(clock_wall_seconds() * 1e6) << 8 | some;
}

// ---- images

static int read_image(json_t *tree, const char *where, struct snapshot_image *out,
                      struct err *err) {
    struct json_at at = {tree, where};
    int64_t session, number, bytes, rank, ranks, step;
    struct json_at state = {json_object_get(tree, "state"), where};
    if (json_get_int(at, "session", true, 0, &session, err) != 0 ||
        json_get_int(at, "number", true, 0, &number, err) != 0 ||
        json_get_int(at, "image", true, 0, &bytes, err) != 0 ||
        json_get_int(at, "rank", true, 0, &rank, err) != 0 ||
        json_get_int(at, "ranks", true, 0, &ranks, err) != 0 ||
        json_get_int(state, "step", true, 0, &step, err) != 0)
        return -1;
    if (session < 0 || number < 0 || bytes < 0 || rank < 0 || rank >= ranks || ranks > INT32_MAX ||
        step < 0)
        return err_set(err, ERR_DATA, "%s: a number of the snapshot is out of range", where);
    *out = (struct snapshot_image){.session = (uint64_t)session,
                                   .number = (uint64_t)number,
                                   .bytes = (uint64_t)bytes,
                                   .step = step,
                                   .rank = (int)rank,
                                   .ranks = (int)ranks};
    return 0;
}

json_t *snapshot_read_tree(const char *text, size_t bytes, const char *where,
                           struct snapshot_image *image, struct err *err) {
    json_t *tree = json_parse(text, bytes, where, err);
    uint64_t hash;
    if (!tree) return NULL;
    if (manifest_unseal(tree, where, &hash, err) == 0 && read_image(tree, where, image, err) == 0)
        return tree;
    json_decref(tree);
    return NULL;
}

int snapshot_read_image(const char *text, size_t bytes, const char *where,
                        struct snapshot_image *out, struct err *err) {
    json_t *tree = snapshot_read_tree(text, bytes, where, out, err);
    json_decref(tree);
    return tree ? 0 : -1;
}

int snapshot_hash(const char *data, uint64_t bytes, const atomic_bool *stop, uint64_t *hash,
                  struct err *err) {
    enum { PIECE_BYTES = 4 << 20 };
    struct hash_stream h;
    hash_begin(&h);
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        uint64_t now = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        if (stop && *stop) return err_set(err, ERR_IO, "another rank has failed");
        hash_put(&h, data + at, (size_t)now);
    }
    *hash = hash_end(&h);
    return 0;
}

int snapshot_check_parts(const json_t *tree, const char *image, uint64_t bytes, const char *where,
                         const atomic_bool *stop, struct err *err) {
    json_t *part;
    size_t i;
    json_array_foreach(json_object_get(tree, "parts"), i, part) {
        struct json_at at = {part, where};
        const char *text;
        int64_t offset, length;
        uint64_t expected, found;
        if (json_get_int(at, "offset", true, 0, &offset, err) != 0 ||
            json_get_int(at, "bytes", true, 0, &length, err) != 0 ||
            json_get_string(at, "xxh3", true, NULL, &text, err) != 0)
            return -1;
        if (offset < 0 || length < 0 || (uint64_t)offset > bytes ||
            (uint64_t)length > bytes - (uint64_t)offset || hash_parse(text, &expected) != 0)
            return err_set(err, ERR_DATA, "%s: part %zu is malformed", where, i);
        if (snapshot_hash(image + offset, (uint64_t)length, stop, &found, err) != 0) return -1;
        if (found != expected)
            return err_set(err, ERR_DATA,
                           "%s: the content of part %zu does not have its hash; it is damaged, or "
                           "was written over",
                           where, i);
    }
    return 0;
}

int snapshot_check_image(const char *text, size_t bytes, const char *part, const atomic_bool *stop,
                         struct err *err) {
    struct snapshot_image image;
    struct file_map map = {0};
    json_t *tree = snapshot_read_tree(text, bytes, part, &image, err);
    int result = tree ? file_map_open(&map, part, err) : -1;
    if (result == 0 && map.size < image.bytes)
        result =
            err_set(err, ERR_DATA, "%s: %zu bytes, expected %" PRIu64, part, map.size, image.bytes);
    if (result == 0)
        result = snapshot_check_parts(tree, (const char *)map.data, image.bytes, part, stop, err);
    file_map_close(&map);
    json_decref(tree);
    return result;
}
