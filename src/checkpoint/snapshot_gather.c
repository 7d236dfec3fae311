// See snapshot_gather.h. One rank of each host looks; what it finds, all know. Images are hashed
// before they count, and the ranks of a host share that work.
#include "checkpoint/snapshot_gather.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/together.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- which hosts

// The same for ranks that see the same memory.
static int64_t host_identity(const char *folder) {
    struct stat status;
    char text[512] = "", host[256] = "";
    if (!folder || stat(folder, &status) != 0) return 0;
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "%s %llu %llu", host, (unsigned long long)status.st_dev,
             (unsigned long long)status.st_ino);
    return (int64_t)(hash_string(text) >> 1 | 1);
}

static int find_groups(struct gather *g, const char *folder, struct err *err) {
    int size = together_size(g->world), rank = together_rank(g->world);
    int64_t *all = calloc((size_t)size, sizeof *all);
    g->group = calloc((size_t)size, sizeof *g->group);
    int64_t lacking = !all || !g->group;
    if (size > 1) comm_max_integers(g->world, &lacking, 1);
    int result = lacking ? err_set(err, ERR_MEMORY, "no memory for %d ranks", size) : 0;
    if (result == 0) {
        all[rank] = host_identity(folder);
        if (size > 1) {
            int64_t own = all[rank];
            result = together_wait(g->world, comm_all_gather(g->world, &own, all, sizeof own), err);
        }
        for (int i = 0; i < size; i++) {
            int lowest = 0;
            while (all[lowest] != all[i]) lowest++;
            g->group[i] = all[i] != 0 ? lowest : -1 - i; // without memory: alone
        }
    }
    free(all);
    return result;
}

// ---- which images

struct scan {
    struct gather *g;
    struct gather_record *list;
    int64_t count;
};

static int add_record(struct scan *s, const struct gather_record *record, struct err *err) {
    void *more = realloc(s->list, (size_t)(s->count + 1) * sizeof *s->list);
    if (!more) return err_set(err, ERR_MEMORY, "no memory for the list of snapshots");
    s->list = more;
    s->list[s->count++] = *record;
    return 0;
}

// An image that is damaged or being replaced is as good as absent; only memory ends the search.
static int look_at(struct scan *s, int generation, const char *file, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES], name[128], *text;
    size_t bytes;
    struct gather_record r = {.leader = together_rank(s->g->world),
                              .group = s->g->group[together_rank(s->g->world)]};
    struct err why = {0};
    snprintf(name, sizeof name, SNAPSHOT_GENERATION "/%.100s", generation, file);
    if (strlen(name) - 5 >= sizeof r.name ||
        file_join(path, sizeof path, s->g->folder, name, err) != 0)
        return 0;
    memcpy(r.name, name, strlen(name) - 5);
    r.own = strncmp(file, "rank-", 5) == 0;
    if (file_read(path, 0, &text, &bytes, &why) != 0) return 0;
    r.text_hash = hash_bytes(text, bytes);
    json_t *tree = snapshot_read_tree(text, bytes, path, &r.image, &why);
    const char *run = json_string_value(json_object_get(tree, "run"));
    bool ours = run && strcmp(run, s->g->run) == 0;
    json_decref(tree);
    free(text);
    if (!tree) log_line(LOG_WARN, "a snapshot in memory is passed over: %s", why.text);
    return ours ? add_record(s, &r, err) : 0;
}

static int scan_folder(void *context, const atomic_bool *stop, struct err *err) {
    struct scan *s = context;
    (void)stop;
    for (int generation = 0; generation < SNAPSHOT_GENERATIONS; generation++) {
        char path[CHECKPOINT_PATH_BYTES], name[32], **names;
        size_t count;
        int result = 0;
        snprintf(name, sizeof name, SNAPSHOT_GENERATION, generation);
        if (file_join(path, sizeof path, s->g->folder, name, err) != 0 ||
            file_list(path, &names, &count, NULL) != 0)
            continue;
        for (size_t i = 0; result == 0 && i < count; i++)
            if (text_ends_with(names[i], ".json")) result = look_at(s, generation, names[i], err);
        file_list_free(names, count);
        if (result != 0) return -1;
    }
    return 0;
}

// Everybody's lists behind each other, in rank order.
static int share(struct gather *g, const struct scan *s, struct err *err) {
    int size = together_size(g->world);
    if (size == 1) {
        g->records = s->list;
        g->count = s->count;
        return 0;
    }
    int64_t most = s->count;
    comm_max_integers(g->world, &most, 1);
    if (most == 0) return comm_check(comm_stream_comm(g->world), err);
    struct gather_record *own = calloc((size_t)most, sizeof *own);
    g->records = calloc((size_t)(most * size), sizeof *g->records);
    int64_t lacking = !own || !g->records;
    comm_max_integers(g->world, &lacking, 1);
    int result = lacking ? err_set(err, ERR_MEMORY, "no memory for the list of snapshots") : 0;
    if (result == 0) {
        if (s->count > 0) memcpy(own, s->list, (size_t)s->count * sizeof *own);
        result = together_wait(
            g->world, comm_all_gather(g->world, own, g->records, (uint64_t)most * sizeof *own),
            err);
    }
    for (int64_t i = 0; result == 0 && i < most * size; i++)
        if (g->records[i].image.ranks > 0) g->records[g->count++] = g->records[i];
    free(own);
    return result;
}

static bool same_state(const struct snapshot_image *a, const struct snapshot_image *b) {
    return a->session == b->session && a->number == b->number && a->step == b->step &&
           a->ranks == b->ranks;
}

// Of a state `rank` has an image somewhere.
static bool has_rank(const struct gather *g, const struct snapshot_image *state, int rank) {
    for (int64_t i = 0; i < g->count; i++)
        if (same_state(&g->records[i].image, state) && g->records[i].image.rank == rank)
            return true;
    return false;
}

static int find_states(void *context, const atomic_bool *stop, struct err *err) {
    struct gather *g = context;
    (void)stop;
    g->states = calloc((size_t)g->count + 1, sizeof *g->states);
    if (!g->states) return err_set(err, ERR_MEMORY, "no memory for the list of states");
    for (int64_t i = 0; i < g->count; i++) {
        const struct snapshot_image *image = &g->records[i].image;
        int known = 0, rank = 0;
        while (known < g->state_count && !same_state(&g->states[known], image)) known++;
        if (known < g->state_count) continue;
        while (rank < image->ranks && has_rank(g, image, rank)) rank++;
        if (rank == image->ranks) g->states[g->state_count++] = *image;
    }
    return 0;
}

int gather_images(struct gather *g, const char *folder, const char *run, struct comm_stream *world,
                  struct err *err) {
    *g = (struct gather){.world = world, .run = run};
    if (folder) snprintf(g->folder, sizeof g->folder, "%s", folder);
    if (find_groups(g, folder, err) != 0) return -1;
    struct scan scan = {.g = g};
    bool leads = g->group[together_rank(world)] == together_rank(world);
    int result = together_run(world, "rank", leads ? scan_folder : NULL, &scan, err);
    if (result == 0) result = share(g, &scan, err);
    if (g->records != scan.list) free(scan.list);
    if (result == 0) result = together_run(world, "rank", find_states, g, err);
    return result;
}

void gather_close(struct gather *g) {
    free(g->group);
    free(g->records);
    free(g->states);
    *g = (struct gather){0};
}

bool gather_state(const struct gather *g, int index, struct snapshot_image *out) {
    if (index >= g->state_count) return false;
    *out = g->states[index];
    return true;
}

// ---- verifying

struct opening {
    struct gather *g;
    const struct snapshot_image *state;
    int64_t *valid;  // [records]
    char **texts;    // [records] of those that this rank has verified
    size_t *lengths; // [records]
    int64_t failed;  // a record that this rank found damaged, or -1
    struct err why;
    struct checkpoint *c;
    const int64_t *chosen; // [ranks of the state] record
    json_t **trees;        // [ranks of the state]
};

// The members of a host take turns.
static bool is_mine(const struct gather *g, int64_t record) {
    int size = together_size(g->world), rank = together_rank(g->world), members = 0, place = -1;
    if (g->records[record].group != g->group[rank]) return false;
    for (int i = 0; i < size; i++) {
        if (g->group[i] != g->group[rank]) continue;
        if (i == rank) place = members;
        members++;
    }
    return record % members == place;
}

static int record_path(const struct gather *g, int64_t record, const char *end,
                       char out[CHECKPOINT_PATH_BYTES], struct err *err) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", g->records[record].name, end);
    return file_join(out, CHECKPOINT_PATH_BYTES, g->folder, name, err);
}

static int verify_one(struct opening *o, int64_t record, const atomic_bool *stop, struct err *err) {
    char json[CHECKPOINT_PATH_BYTES], part[CHECKPOINT_PATH_BYTES];
    if (record_path(o->g, record, ".json", json, err) != 0 ||
        record_path(o->g, record, ".part", part, err) != 0 ||
        file_read(json, 0, &o->texts[record], &o->lengths[record], err) != 0)
        return -1;
    if (hash_bytes(o->texts[record], o->lengths[record]) != o->g->records[record].text_hash)
        return err_set(err, ERR_DATA, "%s: has just changed", json);
    return snapshot_check_image(o->texts[record], o->lengths[record], part, stop, err);
}

static int verify(void *context, const atomic_bool *stop, struct err *err) {
    struct opening *o = context;
    (void)err;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < o->g->count; i++) {
        struct err why = {0};
        if (!same_state(&o->g->records[i].image, o->state) || !is_mine(o->g, i)) continue;
        o->valid[i] = verify_one(o, i, stop, &why) == 0;
        if (o->valid[i]) continue;
#pragma omp critical(snapshot_verify)
        if (o->failed < 0) {
            o->failed = i;
            o->why = why;
        }
    }
    return 0;
}

// Everybody knows which images are good, and rank 0 says what is wrong with the first that is not.
static int share_verdicts(struct opening *o, struct err *err) {
    struct comm_stream *world = o->g->world;
    int size = together_size(world), rank = together_rank(world);
    int64_t lowest = o->failed >= 0 ? size - rank : 0;
    if (size > 1) {
        comm_max_integers(world, o->valid, (int)o->g->count);
        comm_max_integers(world, &lowest, 1);
        if (lowest > 0 &&
            together_wait(world, comm_broadcast(world, size - (int)lowest, &o->why, sizeof o->why),
                          err) != 0)
            return -1;
    }
    if (lowest > 0 && rank == 0)
        log_line(LOG_WARN, "an image of a snapshot is damaged (seen by rank %d): %s",
                 size - (int)lowest, o->why.text);
    return size > 1 ? comm_check(comm_stream_comm(world), err) : 0;
}

// Of each rank of the state one good image, its own host's if there is one.
static int choose(const struct opening *o, int64_t *chosen, bool *buddy, struct err *err) {
    *buddy = false;
    for (int rank = 0; rank < o->state->ranks; rank++) {
        chosen[rank] = -1;
        for (int64_t i = 0; i < o->g->count; i++) {
            const struct gather_record *r = &o->g->records[i];
            if (!o->valid[i] || !same_state(&r->image, o->state) || r->image.rank != rank) continue;
            if (chosen[rank] < 0 || (r->own && !o->g->records[chosen[rank]].own)) chosen[rank] = i;
        }
        if (chosen[rank] < 0)
            return err_set(err, ERR_DATA, "no undamaged image of rank %d%s%s", rank,
                           o->why.text[0] ? ": " : "", o->why.text);
        if (!o->g->records[chosen[rank]].own) *buddy = true;
    }
    return 0;
}

// ---- putting together

// Who has verified it has its text.
static int verifier(const struct gather *g, int64_t record) {
    int members = 0, last = 0;
    for (int i = 0; i < together_size(g->world); i++)
        if (g->group[i] == g->records[record].group) members++;
    int64_t place = record % members;
    for (int i = 0; i < together_size(g->world); i++)
        if (g->group[i] == g->records[record].group && place-- == 0) last = i;
    return last;
}

static int share_text(struct opening *o, int rank, struct err *err) {
    struct gather *g = o->g;
    int64_t record = o->chosen[rank], bytes = (int64_t)o->lengths[record];
    int from = verifier(g, record), size = together_size(g->world);
    char *text = o->texts[record];
    if (size > 1) {
        if (together_wait(g->world, comm_broadcast(g->world, from, &bytes, sizeof bytes), err) != 0)
            return -1;
        if (together_rank(g->world) != from) text = malloc((size_t)bytes + 1);
        int64_t lacking = !text;
        comm_max_integers(g->world, &lacking, 1);
        int result =
            lacking ? err_set(err, ERR_MEMORY, "no memory for the lists of a snapshot")
                    : together_wait(g->world, comm_broadcast(g->world, from, text, (uint64_t)bytes),
                                    err);
        if (result != 0) {
            if (text != o->texts[record]) free(text);
            return -1;
        }
    }
    struct snapshot_image image;
    o->trees[rank] = snapshot_read_tree(text, (size_t)bytes, g->records[record].name, &image, err);
    if (text != o->texts[record]) free(text);
    return 0; // a text that cannot be read fails in merge, on all ranks alike
}

// Where the images of the state lie, by rank: copies of one have the same number as it.
static json_t *list_generations(const struct opening *o) {
    json_t *all = json_array();
    for (int rank = 0; rank < o->state->ranks; rank++) {
        int generation = 0;
        sscanf(o->g->records[o->chosen[rank]].name, SNAPSHOT_GENERATION, &generation);
        json_array_append_new(all, json_integer(generation));
    }
    return all;
}

static json_t *merge(const struct opening *o, struct err *err) {
    json_t *lists = manifest_lists();
    int result = lists ? 0 : err_set(err, ERR_MEMORY, "no memory for the lists of a snapshot");
    for (int rank = 0; result == 0 && rank < o->state->ranks; rank++)
        result = o->trees[rank] ? manifest_lists_merge(lists, o->trees[rank], rank, err)
                                : err_set(err, ERR_DATA, "the lists of rank %d are damaged", rank);
    json_t *tree = result == 0 ? json_copy(o->trees[0]) : NULL;
    if (tree) json_object_update(tree, lists);
    if (tree) json_object_set_new(tree, SNAPSHOT_GENERATIONS_KEY, list_generations(o));
    json_decref(lists);
    return tree;
}

// This host's good image of a rank of the state, or -1.
static int64_t image_here(const struct opening *o, int rank) {
    const struct gather *g = o->g;
    for (int64_t i = 0; i < g->count; i++)
        if (o->valid[i] && g->records[i].group == g->group[together_rank(g->world)] &&
            same_state(&g->records[i].image, o->state) && g->records[i].image.rank == rank)
            return i;
    return -1;
}

// The ranks of the chosen image's host take turns in reading for others.
static int provider(const struct opening *o, int rank, int part) {
    const struct gather *g = o->g;
    int members = 0, size = together_size(g->world);
    int64_t group = g->records[o->chosen[rank]].group;
    for (int i = 0; i < size; i++) members += g->group[i] == group;
    int place = part % members;
    for (int i = 0; i < size; i++)
        if (g->group[i] == group && place-- == 0) return i;
    return -1;
}

static int find_sources(struct opening *o, struct err *err) {
    struct checkpoint *c = o->c;
    const json_t *parts = json_object_get(c->manifest.tree, "parts");
    c->sources = calloc((size_t)c->manifest.part_count, sizeof *c->sources);
    c->files = malloc((size_t)c->manifest.part_count * sizeof *c->files);
    if (!c->sources || !c->files)
        return err_set(err, ERR_MEMORY, "no memory for %d parts", c->manifest.part_count);
    for (int i = 0; i < c->manifest.part_count; i++) c->files[i] = -1;
    for (int i = 0; i < c->manifest.part_count; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        int rank = c->manifest.parts[i].rank;
        if (rank >= o->state->ranks)
            return err_set(err, ERR_DATA, "part %d is of a rank that there is not", i);
        int64_t here = image_here(o, rank), offset;
        struct json_at at = {json_array_get(parts, (size_t)i), c->path};
        if (json_get_int(at, "offset", true, 0, &offset, err) != 0) return -1;
        c->sources[i].offset = (uint64_t)offset;
        c->sources[i].provider = here < 0 ? provider(o, rank, i) : -1;
        if (here < 0) continue;
        if (record_path(o->g, here, ".part", path, err) != 0) return -1;
        c->sources[i].path = strdup(path);
        if (!c->sources[i].path) return err_set(err, ERR_MEMORY, "no memory");
    }
    return 0;
}

static int put_together(void *context, const atomic_bool *stop, struct err *err) {
    struct opening *o = context;
    (void)stop;
    struct checkpoint *c = o->c = calloc(1, sizeof *c);
    if (!c) return err_set(err, ERR_MEMORY, "no memory for a snapshot");
    pthread_mutex_init(&c->lock, NULL);
    snprintf(c->path, sizeof c->path, "snapshot of step %" PRId64 " in memory", o->state->step);
    json_t *tree = merge(o, err);
    int result = tree ? manifest_from_tree(tree, c->path, &c->manifest, err) : -1;
    json_decref(tree);
    return result == 0 ? find_sources(o, err) : -1;
}

static int allocate(void *context, const atomic_bool *stop, struct err *err) {
    struct opening *o = context;
    size_t records = (size_t)o->g->count + 1;
    (void)stop;
    o->valid = calloc(records, sizeof *o->valid);
    o->texts = calloc(records, sizeof *o->texts);
    o->lengths = calloc(records, sizeof *o->lengths);
    o->trees = calloc((size_t)o->state->ranks, sizeof *o->trees);
    if (o->valid && o->texts && o->lengths && o->trees) return 0;
    return err_set(err, ERR_MEMORY, "no memory to verify snapshots");
}

static int open_phases(struct opening *o, int64_t *chosen, bool *buddy, struct err *err) {
    struct comm_stream *world = o->g->world;
    if (together_run(world, "rank", allocate, o, err) != 0 ||
        together_run(world, "rank", verify, o, err) != 0 || share_verdicts(o, err) != 0 ||
        choose(o, chosen, buddy, err) != 0)
        return -1;
    for (int rank = 0; rank < o->state->ranks; rank++)
        if (share_text(o, rank, err) != 0) return -1;
    return together_run(world, "rank", put_together, o, err);
}

int gather_open(struct gather *g, const struct snapshot_image *wanted, struct checkpoint **out,
                bool *buddy, struct err *err) {
    struct snapshot_image state = {0};
    for (int i = 0; i < g->state_count; i++)
        if (g->states[i].session == wanted->session && g->states[i].number == wanted->number &&
            g->states[i].step == wanted->step)
            state = g->states[i];
    int64_t *chosen = calloc((size_t)state.ranks + 1, sizeof *chosen);
    struct opening o = {.g = g, .state = &state, .failed = -1, .chosen = chosen};
    int64_t lacking = !chosen;
    if (together_size(g->world) > 1) comm_max_integers(g->world, &lacking, 1);
    int result = lacking ? err_set(err, ERR_MEMORY, "no memory for a snapshot")
                         : open_phases(&o, chosen, buddy, err);
    for (int64_t i = 0; o.texts && i < g->count; i++) free(o.texts[i]);
    for (int i = 0; o.trees && i < state.ranks; i++) json_decref(o.trees[i]);
    free(o.texts);
    free(o.lengths);
    free(o.valid);
    free(o.trees);
    free(chosen);
    if (result == 0)
        *out = o.c;
    else
        checkpoint_close(o.c);
    return result;
}
