// What a saver's thread does: this rank's files into staging, the manifest and the name, or away
// with it. See saver.h.
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/checkpoint_parts.h"
#include "checkpoint/saver_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { AT_ONCE_BYTES = 8 << 20, LARGE_BYTES = 1 << 20, PAGE_BYTES = 4096 };
static const double staging_limit_seconds = 600;
static const char token_prefix[] = "save-";

static int stopped(struct err *err) {
    return err_set(err, ERR_IO, "another rank has failed");
}

// ---- staging

static int path_in(const char *folder, const char *name, char out[CHECKPOINT_PATH_BYTES],
                   struct err *err) {
    return file_join(out, CHECKPOINT_PATH_BYTES, folder, name, err);
}

static int token_path(const struct saver *s, char out[CHECKPOINT_PATH_BYTES], struct err *err) {
    char name[64];
    snprintf(name, sizeof name, "%s%" PRIx64 "-%" PRIu64, token_prefix, s->session, s->number);
    return path_in(s->staging, name, out, err);
}

static int list_path(const struct saver *s, int rank, char out[CHECKPOINT_PATH_BYTES],
                     struct err *err) {
    char name[64];
    snprintf(name, sizeof name, "rank-%05d.list", rank);
    return path_in(s->staging, name, out, err);
}

static int make_staging(struct saver *s, const char *token, struct err *err) {
    if (file_make_folders(s->folder, err) != 0) return -1;
    if (file_exists(s->staging) && file_remove_tree(s->staging, err) != 0)
        return -1; // of an attempt that was killed
    if (file_make_folder(s->staging, err) != 0) return -1;
    return file_replace(token, "", 0, err);
}

// Not before it is fresh: what an earlier attempt left is removed by rank 0.
static int await_staging(struct saver *s, const char *token, struct err *err) {
    double begin = clock_seconds(), pause = 0.001;
    while (!file_exists(token)) {
        struct timespec moment = {0, (long)(pause * 1e9)};
        if (s->stop) return stopped(err);
        if (clock_seconds() - begin > staging_limit_seconds)
            return err_set(err, ERR_IO,
                           "%s: not found, though rank 0 should have made it; all ranks must see "
                           "one folder",
                           token);
        nanosleep(&moment, NULL);
        pause = pause < 0.1 ? 1.5 * pause : pause;
    }
    return 0;
}

static int prepare(struct saver *s, struct err *err) {
    char token[CHECKPOINT_PATH_BYTES];
    if (checkpoint_step_path(s->folder, s->step, s->final, err) != 0) return -1;
    snprintf(s->staging, sizeof s->staging, "%s.tmp", s->final);
    if (token_path(s, token, err) != 0) return -1;
    return s->options.rank == 0 ? make_staging(s, token, err) : await_staging(s, token, err);
}

// ---- from memory

// Large files go past the system's cache: it would push out what the run reads, and copying there
// takes a core's time.
static int put_part(struct saver *s, struct file_writer *w, const char *data, uint64_t bytes,
                    struct err *err) {
    bool direct = bytes >= LARGE_BYTES && (uintptr_t)data % PAGE_BYTES == 0;
    uint64_t whole = direct ? bytes / PAGE_BYTES * PAGE_BYTES : bytes;
    if (direct && whole % AT_ONCE_BYTES < LARGE_BYTES) // smaller ones go through a buffer
        whole -= whole % AT_ONCE_BYTES;
    if (direct && file_writer_direct(w, true, err) != 0) return -1;
    for (uint64_t at = 0; at < whole; at += AT_ONCE_BYTES) {
        uint64_t now = whole - at < AT_ONCE_BYTES ? whole - at : AT_ONCE_BYTES;
        if (s->stop) return stopped(err);
        if (file_writer_put(w, data + at, now, err) != 0) return -1;
    }
    if (direct && file_writer_direct(w, false, err) != 0) return -1;
    return file_writer_put(w, data + whole, bytes - whole, err);
}

static int write_part(struct saver *s, const struct snapshot_part *part, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    struct file_writer w;
    if (path_in(s->staging, part->name, path, err) != 0 || file_writer_open(&w, path, err) != 0)
        return -1;
    if (put_part(s, &w, part->data, part->bytes, err) == 0) return file_writer_close(&w, true, err);
    file_writer_abandon(&w);
    return -1;
}

// What this rank adds to the manifest, as the file that rank 0 reads.
static int write_list(struct saver *s, const json_t *tree, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    json_t *list = json_object(), *parts, *part;
    size_t i;
    json_object_set_new(list, "session", json_integer((json_int_t)s->session));
    json_object_set_new(list, "number", json_integer((json_int_t)s->number));
    json_object_set(list, "tensors", json_object_get(tree, "tensors"));
    json_object_set_new(list, "parts", parts = json_deep_copy(json_object_get(tree, "parts")));
    json_array_foreach(parts, i, part) json_object_del(part, "offset");
    char *text = manifest_seal(list, true);
    json_decref(list);
    int result = text ? list_path(s, s->options.rank, path, err)
                      : err_set(err, ERR_MEMORY, "no memory, or a name that is not UTF-8");
    if (result == 0) result = file_replace(path, text, strlen(text), err);
    free(text);
    return result;
}

// Of the snapshot's description what belongs into a manifest.
static int keep_tree(struct saver *s, const json_t *tree, struct err *err) {
    static const char *const of_image[] = {"run", "session", "number", "rank", "ranks", "image"};
    json_decref(s->tree);
    s->tree = json_deep_copy(tree);
    if (!s->tree) return err_set(err, ERR_MEMORY, "no memory for the manifest");
    for (size_t i = 0; i < sizeof of_image / sizeof of_image[0]; i++)
        json_object_del(s->tree, of_image[i]);
    return 0;
}

static int write_from_memory(struct saver *s, struct err *err) {
    struct snapshot *snapshot = s->options.snapshot;
    struct snapshot_part part;
    if (snapshot_settle(snapshot, s->generation, &s->stop, err) != 0) return -1;
    const json_t *tree = snapshot_tree(snapshot, s->generation);
    if (s->options.rank == 0 && keep_tree(s, tree, err) != 0) return -1;
    if (prepare(s, err) != 0) return -1;
    for (int i = 0; snapshot_part(snapshot, s->generation, i, &part); i++)
        if (write_part(s, &part, err) != 0) return -1;
    return write_list(s, tree, err); // which makes the folder durable too
}

static int merge_list(struct saver *s, json_t *lists, int rank, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    uint64_t hash;
    int64_t session, number;
    if (list_path(s, rank, path, err) != 0) return -1;
    json_t *more = json_parse_file(path, err);
    int result = more ? manifest_unseal(more, path, &hash, err) : -1;
    if (result == 0 &&
        (json_get_int((struct json_at){more, path}, "session", true, 0, &session, err) != 0 ||
         json_get_int((struct json_at){more, path}, "number", true, 0, &number, err) != 0))
        result = -1;
    if (result == 0 && ((uint64_t)session != s->session || (uint64_t)number != s->number))
        result = err_set(err, ERR_IO, "%s: of another save", path);
    if (result == 0) result = manifest_lists_merge(lists, more, rank, err);
    json_decref(more);
    return result;
}

static int write_manifest(struct saver *s, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    json_t *lists = manifest_lists();
    int result = lists ? 0 : err_set(err, ERR_MEMORY, "no memory for the manifest");
    for (int rank = 0; result == 0 && rank < s->options.ranks; rank++)
        result = merge_list(s, lists, rank, err);
    if (result == 0 && json_object_update(s->tree, lists) != 0)
        result = err_set(err, ERR_MEMORY, "no memory for the manifest");
    json_decref(lists);
    if (result == 0) result = manifest_write_tree(s->staging, s->tree, &s->bytes, err);
    for (int rank = 0; result == 0 && rank < s->options.ranks; rank++) {
        result = list_path(s, rank, path, err);
        if (result == 0) result = file_remove(path, err);
    }
    return result;
}

// ---- from another folder

static int copy_bytes(struct saver *s, int64_t bytes, const struct file_map *from,
                      struct file_writer *w, uint64_t *hash, struct err *err) {
    struct hash_stream h;
    hash_begin(&h);
    for (int64_t at = 0; at < bytes; at += AT_ONCE_BYTES) {
        size_t now = (size_t)(bytes - at < AT_ONCE_BYTES ? bytes - at : AT_ONCE_BYTES);
        if (s->stop) return stopped(err);
        if (file_writer_put(w, from->data + at, now, err) != 0) return -1;
        hash_put(&h, from->data + at, now);
    }
    *hash = hash_end(&h);
    return 0;
}

static int copy_part(struct saver *s, const char *from, const struct manifest_part *part,
                     struct err *err) {
    char source[CHECKPOINT_PATH_BYTES], path[CHECKPOINT_PATH_BYTES];
    struct file_map map;
    struct file_writer w;
    uint64_t hash = 0;
    if (path_in(from, part->name, source, err) != 0 ||
        path_in(s->staging, part->name, path, err) != 0 || file_map_open(&map, source, err) != 0)
        return -1;
    int result = file_writer_open(&w, path, err);
    if (result == 0) {
        result = copy_bytes(s, (int64_t)map.size, &map, &w, &hash, err);
        if (result == 0 && (map.size != part->bytes || hash != part->hash))
            result = err_set(err, ERR_DATA,
                             "%s: the content does not have the hash that the manifest names; it "
                             "is not copied",
                             source);
        if (result == 0)
            result = file_writer_close(&w, true, err);
        else
            file_writer_abandon(&w);
    }
    file_map_close(&map);
    return result;
}

static int write_from_folder(struct saver *s, struct err *err) {
    char from[CHECKPOINT_PATH_BYTES];
    struct manifest m;
    if (checkpoint_step_path(s->from, s->step, from, err) != 0 || prepare(s, err) != 0 ||
        manifest_read(from, &m, err) != 0)
        return -1;
    int result = 0;
    for (int i = s->options.rank; result == 0 && i < m.part_count; i += s->options.ranks)
        result = copy_part(s, from, &m.parts[i], err);
    if (result == 0) result = file_sync_folder(s->staging, err);
    s->bytes = 0;
    for (int i = 0; i < m.part_count; i++) s->bytes += m.parts[i].bytes;
    manifest_free(&m);
    return result;
}

static int copy_manifest(struct saver *s, struct err *err) {
    char from[CHECKPOINT_PATH_BYTES], path[CHECKPOINT_PATH_BYTES], *text;
    size_t bytes;
    if (checkpoint_step_path(s->from, s->step, from, err) != 0 ||
        path_in(from, MANIFEST_NAME, path, err) != 0 || file_read(path, 0, &text, &bytes, err) != 0)
        return -1;
    int result = path_in(s->staging, MANIFEST_NAME, path, err);
    if (result == 0) result = file_replace(path, text, bytes, err);
    free(text);
    s->bytes += bytes;
    return result;
}

// ---- the jobs

int saver_write(struct saver *s, struct err *err) {
    return s->options.snapshot ? write_from_memory(s, err) : write_from_folder(s, err);
}

// Staging that an earlier process of this run left behind has a token. Its step and path; -1: it is
// something else.
static int64_t stale_step(const char *folder, const char *name, char path[CHECKPOINT_PATH_BYTES]) {
    char **inner;
    size_t inside;
    long long step;
    int end = 0;
    if (sscanf(name, "step_%lld.tmp%n", &step, &end) != 1 || end == 0 || name[end] != 0 ||
        path_in(folder, name, path, NULL) != 0 || file_list(path, &inner, &inside, NULL) != 0)
        return -1;
    bool ours = false;
    for (size_t k = 0; k < inside; k++)
        ours |= strncmp(inner[k], token_prefix, strlen(token_prefix)) == 0;
    file_list_free(inner, inside);
    return ours ? step : -1;
}

int saver_left_behind(const char *folder, int64_t *steps, int most) {
    char **names, path[CHECKPOINT_PATH_BYTES];
    size_t count;
    int found = 0;
    if (file_list(folder, &names, &count, NULL) != 0) return 0;
    for (size_t i = 0; i < count && found < most; i++) {
        steps[found] = stale_step(folder, names[i], path);
        found += steps[found] >= 0;
    }
    file_list_free(names, count);
    return found;
}

void saver_remove_left_behind(const char *folder, int64_t most_step) {
    char **names, path[CHECKPOINT_PATH_BYTES];
    size_t count;
    struct err err = {0};
    if (file_list(folder, &names, &count, NULL) != 0) return;
    for (size_t i = 0; i < count; i++) {
        int64_t step = stale_step(folder, names[i], path);
        if (step >= 0 && step <= most_step && file_remove_tree(path, &err) != 0)
            log_line(LOG_WARN, "the rest of an old save could not be removed: %s", err.text);
    }
    file_list_free(names, count);
}

static void clean_up(struct saver *s) {
    int count = s->options.keep_step_count;
    s->kept[count] = s->pinned;
    struct checkpoint_retention keep = {.keep_last = s->options.keep_last,
                                        .keep_every = s->options.keep_every,
                                        .pinned = s->kept,
                                        .pinned_count = count + (s->kept[count] >= 0),
                                        .saved_step = s->step};
    checkpoint_retain(s->folder, &keep);
    saver_remove_left_behind(s->folder, s->step);
}

int saver_publish(struct saver *s, struct err *err) {
    char token[CHECKPOINT_PATH_BYTES];
    if ((s->options.snapshot ? write_manifest(s, err) : copy_manifest(s, err)) != 0 ||
        token_path(s, token, err) != 0 || file_remove(token, err) != 0 ||
        file_sync_folder(s->staging, err) != 0 ||
        checkpoint_publish(s->staging, s->final, err) != 0)
        return -1;
    clean_up(s);
    checkpoint_drop_aside(s->folder, s->step);
    return 0;
}

int saver_drop(struct saver *s, struct err *err) {
    return s->staging[0] && file_exists(s->staging) ? file_remove_tree(s->staging, err) : 0;
}
