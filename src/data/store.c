// Open shards and their local copies, see store.h. One lock guards all entries; copying and reading
// happen outside it.
#include "data/store.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_OPEN = 1024 };
#define CACHE_PREFIX "weft-cache-"

enum copy_state { COPY_NONE, COPY_WANTED, COPY_RUNNING, COPY_READY, COPY_REFUSED };

struct entry {
    const char *path;
    struct shard_info info;
    struct shard *shard; // NULL: closed
    bool is_copy;        // what is open is the copy
    int users;
    uint64_t used_at;
    enum copy_state copy;
    char name[40]; // of the copy
};

struct store {
    struct entry *entries;
    uint32_t count, open_count;
    uint64_t tick;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    // cache; folder NULL: none
    char *folder;
    uint64_t limit_bytes, held_bytes;
    bool evict, closing, broken;
    pthread_t copier;
    bool copier_runs;
    uint32_t *queue; // ring of `count` ids
    uint32_t queue_first, queue_count;
};

static void copy_path(const struct store *store, const struct entry *e, const char *suffix,
                      char out[4096 + 64]) {
    snprintf(out, 4096 + 64, "%s/%s%s", store->folder, e->name, suffix);
}

static void close_entry(struct store *store, struct entry *e) {
    if (!e->shard) return;
    shard_close(e->shard);
    free(e->shard);
    e->shard = NULL;
    e->is_copy = false;
    store->open_count--;
}

// Called with the lock held.
static struct entry *least_recent(struct store *store, bool copies) {
    struct entry *best = NULL;
    for (uint32_t i = 0; i < store->count; i++) {
        struct entry *e = &store->entries[i];
        if (e->users || (copies ? e->copy != COPY_READY : !e->shard)) continue;
        if (!best || e->used_at < best->used_at) best = e;
    }
    return best;
}

// ---- the cache ---------------------------------------------------------------------------------

static int name_copy(struct entry *e, struct err *err) {
    struct stat status;
    if (stat(e->path, &status) != 0) return err_set_errno(err, "%s: cannot look at it", e->path);
    uint64_t facts[5] = {hash_string(e->path), (uint64_t)status.st_size,
                         (uint64_t)status.st_mtim.tv_sec, (uint64_t)status.st_mtim.tv_nsec,
                         e->info.content_hash};
    char text[17];
    hash_text(hash_bytes(facts, sizeof facts), text);
    snprintf(e->name, sizeof e->name, CACHE_PREFIX "%s", text);
    return 0;
}

static void drop_copy(struct store *store, struct entry *e) {
    char path[4096 + 64];
    copy_path(store, e, "", path);
    if (e->is_copy) close_entry(store, e);
    unlink(path);
    store->held_bytes -= e->info.file_bytes;
    e->copy = COPY_NONE;
}

// Leftovers in the folder: copies of these shards are taken over, half copies of dead processes and
// copies of other data are removed.
static void adopt(struct store *store, char *const *names, size_t count) {
    size_t prefix = strlen(CACHE_PREFIX), whole = prefix + 16;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(names[i], CACHE_PREFIX, prefix) != 0 || strlen(names[i]) < whole) continue;
        char path[4096 + 64];
        snprintf(path, sizeof path, "%s/%.200s", store->folder, names[i]);
        if (strncmp(names[i] + whole, ".tmp.", 5) == 0) {
            long pid = strtol(names[i] + whole + 5, NULL, 10);
            if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH) unlink(path);
            continue;
        }
        struct entry *owner = NULL;
        for (uint32_t e = 0; e < store->count && !owner; e++)
            if (strcmp(store->entries[e].name, names[i]) == 0) owner = &store->entries[e];
        uint64_t bytes = 0;
        bool good = owner && file_size(path, &bytes, NULL) == 0 &&
                    bytes == owner->info.file_bytes &&
                    store->held_bytes + bytes <= store->limit_bytes;
        if (!good) {
            unlink(path);
        } else if (owner->copy != COPY_READY) {
            owner->copy = COPY_READY;
            store->held_bytes += bytes;
        }
    }
}

static void give_up_cache(struct store *store, const char *why) {
    pthread_mutex_lock(&store->lock);
    bool first = !store->broken;
    store->broken = true;
    pthread_mutex_unlock(&store->lock);
    if (first)
        log_line(LOG_WARN, "shard cache %s: %s; shards are read where they lie", store->folder,
                 why);
}

// Makes room for `bytes`; called with the lock held.
static bool make_room(struct store *store, uint64_t bytes) {
    if (bytes > store->limit_bytes) return false;
    while (store->held_bytes + bytes > store->limit_bytes) {
        struct entry *victim = store->evict ? least_recent(store, true) : NULL;
        if (!victim) return false;
        drop_copy(store, victim);
    }
    return true;
}

static int copy_bytes(struct store *store, const struct entry *e, const char *temporary,
                      struct err *err) {
    struct file_map map;
    struct file_writer out;
    if (file_map_open(&map, e->path, err) != 0) return -1;
    int result = file_writer_open(&out, temporary, err);
    if (result == 0) {
        enum { PIECE_BYTES = 4 << 20 };
        for (size_t at = 0; at < map.size && result == 0; at += PIECE_BYTES) {
            size_t left = map.size - at;
            result =
                file_writer_put(&out, map.data + at, left < PIECE_BYTES ? left : PIECE_BYTES, err);
            if (__atomic_load_n(&store->closing, __ATOMIC_RELAXED))
                result = err_set(err, ERR_INTERRUPT, "closing");
        }
        if (result == 0)
            result = file_writer_close(&out, true, err);
        else
            file_writer_abandon(&out);
    }
    file_map_close(&map);
    return result;
}

static int make_copy(struct store *store, const struct entry *e, struct err *err) {
    char suffix[32], temporary[4096 + 64], path[4096 + 64];
    snprintf(suffix, sizeof suffix, ".tmp.%ld", (long)getpid());
    copy_path(store, e, suffix, temporary);
    copy_path(store, e, "", path);
    int result = copy_bytes(store, e, temporary, err);
    if (result == 0) result = file_rename(temporary, path, err);
    if (result != 0) unlink(temporary);
    return result;
}

static void *copier_main(void *argument) {
    struct store *store = argument;
    pthread_mutex_lock(&store->lock);
    for (;;) {
        while (store->queue_count == 0 && !store->closing)
            pthread_cond_wait(&store->wake, &store->lock);
        if (store->closing) break;
        struct entry *e = &store->entries[store->queue[store->queue_first]];
        store->queue_first = (store->queue_first + 1) % store->count;
        store->queue_count--;
        bool room = !store->broken && make_room(store, e->info.file_bytes);
        e->copy = room ? COPY_RUNNING : COPY_NONE;
        if (room) {
            store->held_bytes += e->info.file_bytes;
            pthread_mutex_unlock(&store->lock);
            struct err err = {ERR_NONE, ""};
            int result = make_copy(store, e, &err);
            if (result != 0 && err.kind != ERR_INTERRUPT) give_up_cache(store, err.text);
            pthread_mutex_lock(&store->lock);
            e->copy = result == 0 ? COPY_READY : COPY_NONE;
            e->used_at = ++store->tick;
            if (result != 0) store->held_bytes -= e->info.file_bytes;
        } else if (!store->evict || e->info.file_bytes > store->limit_bytes) {
            e->copy = COPY_REFUSED; // it will not fit later either
        }
    }
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

// Called with the lock held.
static void want_copy(struct store *store, uint32_t id) {
    struct entry *e = &store->entries[id];
    if (!store->folder || store->broken || e->copy != COPY_NONE) return;
    e->copy = COPY_WANTED;
    store->queue[(store->queue_first + store->queue_count++) % store->count] = id;
    pthread_cond_signal(&store->wake);
}

static int open_cache(struct store *store, const char *folder, struct err *err) {
    char **names;
    size_t count;
    store->queue = malloc(store->count * sizeof *store->queue);
    store->folder = strdup(folder);
    if (!store->queue || !store->folder)
        return err_set(err, ERR_MEMORY, "no memory for the shard cache");
    for (uint32_t i = 0; i < store->count; i++)
        if (name_copy(&store->entries[i], err) != 0) return -1;
    struct err trouble = {ERR_NONE, ""};
    if (file_make_folders(folder, &trouble) != 0 ||
        file_list(folder, &names, &count, &trouble) != 0) {
        give_up_cache(store, trouble.text);
        return 0;
    }
    adopt(store, names, count);
    file_list_free(names, count);
    if (pthread_create(&store->copier, NULL, copier_main, store) != 0)
        give_up_cache(store, "no thread for copying");
    else
        store->copier_runs = true;
    return 0;
}

// ---- open shards -------------------------------------------------------------------------------

struct store *store_open(const struct store_shard *shards, uint32_t count, const char *cache_folder,
                         uint64_t cache_bytes, bool evict, struct err *err) {
    struct store *store = calloc(1, sizeof *store);
    struct entry *entries = calloc(count, sizeof *entries);
    if (!store || !entries) {
        free(store);
        free(entries);
        err_set(err, ERR_MEMORY, "no memory for %u shards", count);
        return NULL;
    }
    store->entries = entries;
    store->count = count;
    store->evict = evict;
    store->limit_bytes = cache_bytes;
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->wake, NULL);
    for (uint32_t i = 0; i < count; i++) {
        entries[i].path = shards[i].path;
        entries[i].info = shards[i].info;
    }
    if (cache_folder && open_cache(store, cache_folder, err) != 0) {
        store_close(store);
        return NULL;
    }
    return store;
}

void store_close(struct store *store) {
    if (!store) return;
    pthread_mutex_lock(&store->lock);
    __atomic_store_n(&store->closing, true, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&store->wake);
    pthread_mutex_unlock(&store->lock);
    if (store->copier_runs) pthread_join(store->copier, NULL);
    for (uint32_t i = 0; i < store->count; i++) close_entry(store, &store->entries[i]);
    pthread_mutex_destroy(&store->lock);
    pthread_cond_destroy(&store->wake);
    free(store->queue);
    free(store->folder);
    free(store->entries);
    free(store);
}

static int open_shard(struct store *store, struct entry *e, struct err *err) {
    if (store->open_count >= MOST_OPEN) {
        struct entry *victim = least_recent(store, false);
        if (victim) close_entry(store, victim);
    }
    struct shard *shard = malloc(sizeof *shard);
    if (!shard) return err_set(err, ERR_MEMORY, "%s: no memory to open it", e->path);
    int result = -1;
    if (e->copy == COPY_READY) {
        char path[4096 + 64];
        copy_path(store, e, "", path);
        result = shard_open(shard, e->path, path, NULL);
        if (result == 0 && shard->info.content_hash != e->info.content_hash) {
            shard_close(shard);
            result = -1;
        }
        e->is_copy = result == 0;
        if (result != 0)
            drop_copy(store, e); // removed or damaged by somebody: the original will do
    }
    if (result != 0) result = shard_open(shard, e->path, NULL, err);
    if (result == 0 && shard->info.content_hash != e->info.content_hash) {
        shard_close(shard);
        e->is_copy = false;
        result = err_set(err, ERR_DATA, "%s: changed since this run began; start the run again",
                         e->path);
    }
    if (result != 0) {
        free(shard);
        return -1;
    }
    e->shard = shard;
    store->open_count++;
    return 0;
}

const struct shard *store_acquire(struct store *store, uint32_t id, struct store_counts *counts,
                                  struct record_lane *lane, struct err *err) {
    pthread_mutex_lock(&store->lock);
    struct entry *e = &store->entries[id];
    if (e->shard && !e->is_copy && e->copy == COPY_READY && e->users == 0) close_entry(store, e);
    int result = 0;
    if (!e->shard) {
        double begin = clock_seconds(), span = record_begin(lane);
        result = open_shard(store, e, err);
        record_end(lane, RECORD_SHARD_OPEN, "open shard", id, span);
        counts->open_seconds += clock_seconds() - begin;
        counts->opens++;
    }
    const struct shard *shard = NULL;
    if (result == 0) {
        e->users++;
        e->used_at = ++store->tick;
        shard = e->shard;
        if (store->folder) {
            counts->cache_hits += e->is_copy;
            counts->cache_misses += !e->is_copy;
            want_copy(store, id);
        }
    }
    pthread_mutex_unlock(&store->lock);
    return shard;
}

void store_release(struct store *store, uint32_t id) {
    pthread_mutex_lock(&store->lock);
    store->entries[id].users--;
    pthread_mutex_unlock(&store->lock);
}

void store_expect(struct store *store, uint32_t id) {
    if (!store->folder) return;
    pthread_mutex_lock(&store->lock);
    want_copy(store, id);
    pthread_mutex_unlock(&store->lock);
}
