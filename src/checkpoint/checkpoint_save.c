// Saving a checkpoint: staging folder, durable parts, manifest last, one atomic rename. See
// checkpoint.h.
#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const uint64_t default_part_bytes = 512000000;

int checkpoint_step_path(const char *folder, int64_t step, char out[CHECKPOINT_PATH_BYTES],
                         struct err *err) {
    char name[64];
    snprintf(name, sizeof name, "step_%08" PRId64, step);
    return file_join(out, CHECKPOINT_PATH_BYTES, folder, name, err);
}

// How many tensors from `first` on share one part: as many as fit, at least one.
static int tensors_of_part(const struct tensor *tensors, int first, int count,
                           uint64_t part_bytes) {
    uint64_t sum = tensor_bytes(&tensors[first]);
    int used = 1;
    while (first + used < count && sum + tensor_bytes(&tensors[first + used]) <= part_bytes)
        sum += tensor_bytes(&tensors[first + used++]);
    return used;
}

static int write_part(const char *folder, const struct tensor *tensors, int count,
                      struct manifest_part *part, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    struct safetensors_writer w;
    if (file_join(path, sizeof path, folder, part->name, err) != 0 ||
        safetensors_write_begin(&w, path, tensors, count, NULL, err) != 0)
        return -1;
    for (int i = 0; i < count; i++)
        if (safetensors_write_put(&w, tensors[i].data, tensor_bytes(&tensors[i]), err) != 0) {
            safetensors_write_abandon(&w);
            return -1;
        }
    part->bytes = w.end_bytes;
    return safetensors_write_end(&w, true, &part->hash, err);
}

static int write_all(const char *staging, const struct model_config *model,
                     const struct tensor *tensors, int count, const struct checkpoint_state *state,
                     uint64_t part_bytes, uint64_t *bytes, struct err *err) {
    struct manifest_part *parts = calloc((size_t)count + 1, sizeof *parts);
    if (!parts) return err_set(err, ERR_MEMORY, "no memory for the list of parts");
    int used = 0, result = 0;
    for (int first = 0; first < count && result == 0;) {
        int now = tensors_of_part(tensors, first, count, part_bytes);
        snprintf(parts[used].name, sizeof parts[used].name, "part-%05d.safetensors", used + 1);
        result = write_part(staging, tensors + first, now, &parts[used], err);
        *bytes += parts[used].bytes;
        first += now;
        used++;
    }
    uint64_t manifest_bytes = 0;
    if (result == 0)
        result = manifest_write(staging, state, model, parts, used, &manifest_bytes, err);
    if (result == 0) result = file_sync_folder(staging, err);
    *bytes += manifest_bytes;
    free(parts);
    return result;
}

// Puts the finished staging folder in its place. What stands there (an earlier save of the step, or
// something without a manifest) changes places with it in one atomic call and is removed
// afterwards.
static int publish(const char *staging, const char *final, struct err *err) {
    if (!file_exists(final)) return file_rename(staging, final, err);
    if (renameat2(AT_FDCWD, staging, AT_FDCWD, final, RENAME_EXCHANGE) != 0) {
        if (errno != EINVAL && errno != ENOSYS)
            return err_set_errno(err, "%s: cannot take the place of %s", staging, final);
        // a file system without exchange: the old one makes room first; staging is complete and
        // stays until then
        if (file_remove_tree(final, err) != 0) return -1;
        return file_rename(staging, final, err);
    }
    struct err ignored = {0};
    file_remove_tree(staging,
                     &ignored); // the replaced one; a leftover is replaced by the next save
    char folder[CHECKPOINT_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", final);
    *strrchr(folder, '/') = 0;
    return file_sync_folder(folder, err);
}

static int check_request(const struct tensor *tensors, int count,
                         const struct checkpoint_state *state, struct err *err) {
    if (count < 1 || state->step < 0)
        return err_set(
            err, ERR_INTERNAL,
            "a checkpoint needs tensors and a step of 0 or more (%d tensors, step %" PRId64 ")",
            count, state->step);
    for (int i = 0; i < count; i++)
        if (!tensors[i].data && tensor_bytes(&tensors[i]) > 0)
            return err_set(err, ERR_INTERNAL, "tensor %s has no memory to save from",
                           tensors[i].name);
    return 0;
}

int checkpoint_save(const char *folder, const struct model_config *model,
                    const struct tensor *tensors, int count, const struct checkpoint_state *state,
                    uint64_t part_bytes, struct checkpoint_saved *saved, struct err *err) {
    double begin = clock_seconds();
    char final[CHECKPOINT_PATH_BYTES], staging[CHECKPOINT_PATH_BYTES + 8];
    if (check_request(tensors, count, state, err) != 0 ||
        checkpoint_step_path(folder, state->step, final, err) != 0)
        return -1;
    snprintf(staging, sizeof staging, "%s.tmp", final);
    struct err ignored = {0};
    uint64_t bytes = 0;
    int result = file_make_folders(folder, err);
    if (result == 0 && file_exists(staging))
        result = file_remove_tree(staging, err); // of an attempt that was killed
    if (result == 0 && mkdir(staging, 0777) != 0)
        result = err_set_errno(err, "%s: cannot make the folder", staging);
    if (result == 0) {
        result = write_all(staging, model, tensors, count, state,
                           part_bytes ? part_bytes : default_part_bytes, &bytes, err);
        if (result == 0) result = publish(staging, final, err);
        if (result != 0) file_remove_tree(staging, &ignored);
    }
    if (result != 0)
        return err_context(err, "the checkpoint of step %" PRId64 " was not saved", state->step);
    if (saved) {
        snprintf(saved->path, sizeof saved->path, "%s", final);
        saved->bytes = bytes;
        saved->seconds = clock_seconds() - begin;
    }
    return 0;
}
