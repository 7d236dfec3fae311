// Saving a checkpoint: staging folder, durable parts of every rank, manifest last, one atomic
// rename. See checkpoint.h.
#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/checkpoint_parts.h"
#include "checkpoint/manifest.h"
#include "checkpoint/parts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/together.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct save {
    const struct model_config *model;
    const struct tensor_slice *slices;
    int count;
    const struct checkpoint_state *state;
    uint64_t part_bytes;
    struct comm_stream *world;
    const char *folder;
    char final[CHECKPOINT_PATH_BYTES], staging[CHECKPOINT_PATH_BYTES + 8];
    struct part_list parts;
    json_t *lists;    // of this rank; at rank 0 at last of all
    char *lists_text; // of this rank
    char *gathered;   // rank 0: the lists of all ranks as text, one behind the other
    uint64_t *from;   // [ranks + 1] where each begins
    uint64_t *sizes;  // [4][ranks] of the gathering
    uint64_t own_bytes, bytes;
};

int checkpoint_step_path(const char *folder, int64_t step, char out[CHECKPOINT_PATH_BYTES],
                         struct err *err) {
    char name[64];
    snprintf(name, sizeof name, "step_%08" PRId64, step);
    return file_join(out, CHECKPOINT_PATH_BYTES, folder, name, err);
}

// ---- staging

static int list_all(struct save *s, struct err *err) {
    if ((s->count < 1 && together_size(s->world) == 1) || s->state->step < 0)
        return err_set(
            err, ERR_INTERNAL,
            "a checkpoint needs tensors and a step of 0 or more (%d tensors, step %" PRId64 ")",
            s->count, s->state->step);
    if (part_list_open(&s->parts, s->slices, s->count, together_rank(s->world),
                       together_size(s->world), s->part_bytes, err) != 0)
        return -1;
    s->lists = part_list_tensors(s->slices, s->count, err);
    return s->lists ? 0 : -1;
}

static int prepare(void *context, const atomic_bool *stop, struct err *err) {
    struct save *s = context;
    size_t ranks = (size_t)together_size(s->world);
    (void)stop;
    if (list_all(s, err) != 0 ||
        checkpoint_step_path(s->folder, s->state->step, s->final, err) != 0)
        return -1;
    snprintf(s->staging, sizeof s->staging, "%s.tmp", s->final);
    s->from = calloc(ranks + 1, sizeof *s->from);
    s->sizes = calloc(4 * ranks, sizeof *s->sizes);
    if (!s->from || !s->sizes) return err_set(err, ERR_MEMORY, "no memory for %zu ranks", ranks);
    if (together_rank(s->world) != 0) return 0;
    if (file_make_folders(s->folder, err) != 0) return -1;
    if (file_exists(s->staging) && file_remove_tree(s->staging, err) != 0)
        return -1; // of an attempt that was killed
    return file_make_folder(s->staging, err);
}

// ---- parts

static int put_piece(struct safetensors_writer *w, const struct part_piece *piece,
                     const atomic_bool *stop, struct err *err) {
    enum { AT_ONCE_BYTES = 8 << 20 }; // between two looks at `stop`
    struct part_rows r = part_piece_rows(piece);
    for (uint64_t row = 0; row < r.rows; row++)
        for (uint64_t done = 0; done < r.row_bytes;) {
            uint64_t now = r.row_bytes - done < AT_ONCE_BYTES ? r.row_bytes - done : AT_ONCE_BYTES;
            if (*stop) return err_set(err, ERR_IO, "another rank has failed");
            if (safetensors_write_put(w, r.from + row * r.stride_bytes + done, now, err) != 0)
                return -1;
            done += now;
        }
    return 0;
}

static int write_part(struct save *s, const struct part *part, const atomic_bool *stop,
                      struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    const struct tensor *stored = s->parts.stored + part->first;
    struct manifest_part written = {.rank = s->parts.rank};
    struct safetensors_writer w;
    memcpy(written.name, part->name, sizeof written.name);
    if (file_join(path, sizeof path, s->staging, part->name, err) != 0 ||
        safetensors_write_begin(&w, path, stored, part->count, NULL, err) != 0)
        return -1;
    uint64_t begin = w.file.offset_bytes;
    for (int i = 0; i < part->count; i++)
        if (put_piece(&w, &s->parts.pieces[part->first + i], stop, err) != 0) {
            safetensors_write_abandon(&w);
            return -1;
        }
    written.bytes = w.end_bytes;
    s->own_bytes += written.bytes;
    if (safetensors_write_end(&w, true, &written.hash, err) != 0) return -1;
    return manifest_lists_part(s->lists, &written, begin, stored, part->count, err);
}

static int write_parts(void *context, const atomic_bool *stop, struct err *err) {
    struct save *s = context;
    if (!file_is_folder(s->staging))
        return err_set(err, ERR_IO,
                       "%s: not found, though rank 0 has made it; all ranks must see one folder",
                       s->staging);
    for (int i = 0; i < s->parts.part_count; i++)
        if (write_part(s, &s->parts.parts[i], stop, err) != 0) return -1;
    s->lists_text = json_dumps(s->lists, JSON_COMPACT);
    if (!s->lists_text) return err_set(err, ERR_MEMORY, "no memory, or a name that is not UTF-8");
    return file_sync_folder(s->staging, err);
}

// ---- the manifest, and the rename

// Rank 0 gets the lists of all.
static int gather_lists(struct save *s, struct err *err) {
    size_t ranks = (size_t)together_size(s->world);
    bool first = together_rank(s->world) == 0;
    uint64_t *sizes = s->sizes, *zero = sizes + ranks, *send = sizes + 2 * ranks,
             *receive = sizes + 3 * ranks, own = strlen(s->lists_text);
    if (ranks == 1) return 0;
    if (together_wait(s->world, comm_all_gather(s->world, &own, sizes, sizeof own), err) != 0)
        return -1;
    send[0] = own;
    for (size_t i = 0; first && i < ranks; i++) {
        receive[i] = sizes[i];
        s->from[i + 1] = s->from[i] + sizes[i];
    }
    if (first) s->gathered = malloc(s->from[ranks] + 1);
    int64_t lacking = first && !s->gathered;
    comm_max_integers(s->world, &lacking, 1);
    if (lacking) return err_set(err, ERR_MEMORY, "rank 0: no memory for the lists of all ranks");
    return together_wait(s->world,
                         comm_all_to_all(s->world, s->lists_text, zero, send, s->gathered,
                                         first ? s->from : zero, receive),
                         err);
}

static int merge_lists(struct save *s, struct err *err) {
    for (int i = 1; s->gathered && i < together_size(s->world); i++) {
        char name[32];
        snprintf(name, sizeof name, "list of rank %d", i);
        json_t *more = json_parse(s->gathered + s->from[i], s->from[i + 1] - s->from[i], name, err);
        int result = more ? manifest_lists_merge(s->lists, more, i, err) : -1;
        json_decref(more);
        if (result != 0) return -1;
    }
    return 0;
}

// A file system without exchange: for a moment neither has the name, but what is old goes only when
// the new one is durable.
static int make_room(const char *staging, const char *final, const char *old, struct err *err) {
    if ((file_exists(old) && file_remove_tree(old, err) != 0) || file_rename(final, old, err) != 0)
        return -1;
    if (file_rename(staging, final, err) == 0) return 0;
    file_rename(old, final, NULL);
    return -1;
}

int checkpoint_publish(const char *staging, const char *final, struct err *err) {
    char old[CHECKPOINT_PATH_BYTES + sizeof CHECKPOINT_REMOVING];
    struct err why = {0};
    if (!file_exists(final)) return file_rename(staging, final, err);
    if (file_exchange(staging, final, &why) == 0) {
        snprintf(old, sizeof old, "%s", staging);
    } else {
        if (why.kind != ERR_INTERNAL) return err_set(err, why.kind, "%s", why.text);
        snprintf(old, sizeof old, "%s%s", final, CHECKPOINT_REMOVING);
        if (make_room(staging, final, old, err) != 0) return -1;
    }
    file_remove_tree(old, NULL); // what is left of it goes at the next save
    return 0;
}

static int finish(void *context, const atomic_bool *stop, struct err *err) {
    struct save *s = context;
    (void)stop;
    if (merge_lists(s, err) != 0 ||
        manifest_write(s->staging, s->state, s->model, s->lists, &s->bytes, err) != 0 ||
        file_sync_folder(s->staging, err) != 0)
        return -1;
    return checkpoint_publish(s->staging, s->final, err);
}

static int remove_staging(void *context, const atomic_bool *stop, struct err *err) {
    struct save *s = context;
    (void)stop;
    return s->staging[0] ? file_remove_tree(s->staging, err) : 0;
}

// Staging exists from the first phase on; of a failure in that phase nothing is left but an empty
// folder.
static int run_phases(struct save *s, struct err *err) {
    bool first = together_rank(s->world) == 0;
    int same = together_same(s->world, (uint64_t)s->state->step, err);
    if (same < 0) return -1;
    if (!same)
        return err_set(err, ERR_INTERNAL, "the ranks are not at the same step (here %" PRId64 ")",
                       s->state->step);
    int result = together_run(s->world, "rank", prepare, s, err);
    if (result == 0) result = together_run(s->world, "rank", write_parts, s, err);
    if (result == 0) result = gather_lists(s, err);
    if (result == 0) result = together_run(s->world, "rank", first ? finish : NULL, s, err);
    if (result != 0) {
        struct err ignored = {0};
        together_run(s->world, NULL, first ? remove_staging : NULL, s, &ignored);
        return -1;
    }
    if (together_size(s->world) == 1) return 0;
    return together_wait(s->world, comm_broadcast(s->world, 0, &s->bytes, sizeof s->bytes), err);
}

int checkpoint_save_slices(const char *folder, const struct model_config *model,
                           const struct tensor_slice *slices, int count,
                           const struct checkpoint_state *state, uint64_t part_bytes,
                           struct comm_stream *world, struct checkpoint_saved *saved,
                           struct err *err) {
    double begin = clock_seconds();
    struct save s = {.folder = folder,
                     .model = model,
                     .slices = slices,
                     .count = count,
                     .state = state,
                     .part_bytes = part_bytes,
                     .world = world};
    int result = run_phases(&s, err);
    part_list_close(&s.parts);
    free(s.gathered);
    free(s.lists_text);
    free(s.from);
    free(s.sizes);
    json_decref(s.lists);
    if (result != 0)
        return err_context(err, "the checkpoint of step %" PRId64 " was not saved", state->step);
    if (saved) {
        snprintf(saved->path, sizeof saved->path, "%s", s.final);
        saved->bytes = s.bytes;
        saved->own_bytes = s.own_bytes;
        saved->seconds = clock_seconds() - begin;
    }
    return 0;
}

struct tensor_slice checkpoint_whole_slice(const struct tensor *t) {
    struct box whole = box_whole(t);
    struct tensor_slice s = {.type = t->type,
                             .dims = t->dims,
                             .shape = {t->shape[0], t->dims == 2 ? t->shape[1] : 0},
                             .rows = whole.rows,
                             .columns = whole.columns,
                             .stride = whole.columns,
                             .data = t->data,
                             .copies = 1};
    memcpy(s.name, t->name, sizeof s.name);
    return s;
}

int checkpoint_save(const char *folder, const struct model_config *model,
                    const struct tensor *tensors, int count, const struct checkpoint_state *state,
                    uint64_t part_bytes, struct checkpoint_saved *saved, struct err *err) {
    struct tensor_slice *slices = calloc((size_t)count + 1, sizeof *slices);
    if (!slices) return err_set(err, ERR_MEMORY, "no memory for the list of tensors");
    for (int i = 0; i < count; i++) slices[i] = checkpoint_whole_slice(&tensors[i]);
    int result =
        checkpoint_save_slices(folder, model, slices, count, state, part_bytes, NULL, saved, err);
    free(slices);
    return result;
}
