// Finding the shards of a data set, see dataset.h.
#include "data/dataset.h"
#include "base/json.h"
#include "base/text.h"
#include <stdlib.h>
#include <string.h>

static int add_path(struct dataset *set, const char *path, struct err *err) {
    char **grown = realloc(set->paths, (set->count + 1) * sizeof *grown);
    if (grown) set->paths = grown;
    char *copy = grown ? strdup(path) : NULL;
    if (!copy) return err_set(err, ERR_MEMORY, "%s: no memory for the list of shards", path);
    set->paths[set->count++] = copy;
    return 0;
}

// The shards that dataset.json lists for a split.
static int add_listed(struct dataset *set, const char *folder, const char *json_path,
                      const char *split, struct err *err) {
    json_t *tree = json_parse_file(json_path, err);
    if (!tree) return -1;
    json_t *shards =
        json_object_get(json_object_get(json_object_get(tree, "splits"), split), "shards");
    int result = 0;
    if (!json_is_array(shards))
        result = err_set(err, ERR_DATA, "%s: splits.%s.shards: expected a list; found none",
                         json_path, split);
    for (size_t i = 0; i < json_array_size(shards) && result == 0; i++) {
        const char *file;
        char path[4096];
        result = json_get_string((struct json_at){json_array_get(shards, i), json_path}, "file",
                                 true, NULL, &file, err);
        if (result == 0 && (file[0] == '/' || strstr(file, "..")))
            result = err_set(err, ERR_DATA, "%s: shard \"%s\": expected a name inside the folder",
                             json_path, file);
        if (result == 0) result = file_join(path, sizeof path, folder, file, err);
        if (result == 0) result = add_path(set, path, err);
    }
    json_decref(tree);
    return result;
}

static int add_found(struct dataset *set, const char *folder, struct err *err) {
    char **names;
    size_t count;
    if (file_list(folder, &names, &count, err) != 0) return -1;
    bool own = false;
    int result = 0;
    for (size_t i = 0; i < count; i++) own |= text_ends_with(names[i], SHARD_SUFFIX);
    for (size_t i = 0; i < count && result == 0; i++) {
        char path[4096];
        if (text_ends_with(names[i], ".weft.tmp") || text_ends_with(names[i], ".bin.tmp"))
            result = err_set(err, ERR_DATA,
                             "%s: holds the unfinished shard %s: its preparation did not end; run "
                             "`weft data prepare` again",
                             folder, names[i]);
        if (result != 0 || !text_ends_with(names[i], own ? SHARD_SUFFIX : ".bin")) continue;
        result = file_join(path, sizeof path, folder, names[i], err);
        if (result == 0) result = add_path(set, path, err);
    }
    file_list_free(names, count);
    if (result == 0 && set->count == 0)
        result = err_set(err, ERR_DATA,
                         "%s: no dataset.json, *.weft or *.bin in this folder; `weft data prepare` "
                         "makes shards from text",
                         folder);
    return result;
}

// "a/b/" -> "a" and "b".
static int split_path(const char *path, char parent[4096], char name[256], struct err *err) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    size_t slash = length;
    while (slash > 0 && path[slash - 1] != '/') slash--;
    if (length >= 4000 || length - slash >= 256)
        return err_set(err, ERR_IO, "path too long: %.100s...", path);
    memcpy(name, path + slash, length - slash);
    name[length - slash] = 0;
    if (slash == 0)
        strcpy(parent, ".");
    else {
        memcpy(parent, path, slash);
        parent[slash] = 0;
    }
    return 0;
}

static int add_folder(struct dataset *set, const char *path, struct err *err) {
    char json_path[4096], parent[4096], name[256];
    if (file_join(json_path, sizeof json_path, path, "dataset.json", err) != 0) return -1;
    if (file_exists(json_path)) return add_listed(set, path, json_path, "train", err);
    if (split_path(path, parent, name, err) != 0 ||
        file_join(json_path, sizeof json_path, parent, "dataset.json", err) != 0)
        return -1;
    bool split = strcmp(name, "train") == 0 || strcmp(name, "validation") == 0;
    if (split && file_exists(json_path)) return add_listed(set, parent, json_path, name, err);
    char unfinished[4096];
    for (int i = 0; i < 2; i++) {
        if (file_join(unfinished, sizeof unfinished, i ? path : parent, DATASET_UNFINISHED, err) !=
            0)
            return -1;
        if ((i || split) && file_exists(unfinished))
            return err_set(err, ERR_DATA,
                           "%s: its preparation did not end (%s is there); run `weft data prepare` "
                           "again",
                           path, unfinished);
    }
    return add_found(set, path, err);
}

static int compare_shards(const struct dataset *set, size_t i, struct err *err) {
    const struct shard_info *a = &set->infos[0], *b = &set->infos[i];
    if (a->kind == b->kind && a->fingerprint == b->fingerprint && a->vocab_size == b->vocab_size)
        return 0;
    return err_set(err, ERR_DATA,
                   "%s (%s, vocabulary %llu, tokenizer %016llx) and %s (%s, vocabulary %llu, "
                   "tokenizer %016llx) do not belong to one data set",
                   set->paths[0], shard_kind_name(a->kind), (unsigned long long)a->vocab_size,
                   (unsigned long long)a->fingerprint, set->paths[i], shard_kind_name(b->kind),
                   (unsigned long long)b->vocab_size, (unsigned long long)b->fingerprint);
}

static int look_at_all(struct dataset *set, struct err *err) {
    set->infos = calloc(set->count, sizeof *set->infos);
    if (!set->infos) return err_set(err, ERR_MEMORY, "no memory for %zu shards", set->count);
    for (size_t i = 0; i < set->count; i++) {
        if (shard_look(set->paths[i], &set->infos[i], err) != 0) return -1;
        if (compare_shards(set, i, err) != 0) return -1;
        set->tokens += set->infos[i].tokens;
        set->documents += set->infos[i].documents;
        set->text_bytes += set->infos[i].text_bytes;
    }
    if (set->tokens == 0) return err_set(err, ERR_DATA, "%s: holds no tokens", set->paths[0]);
    return 0;
}

int dataset_open(struct dataset *set, const char *path, struct err *err) {
    *set = (struct dataset){.count = 0};
    char ids[4096];
    int result;
    if (file_is_folder(path)) {
        result = add_folder(set, path, err);
    } else {
        result = shard_ids_path(path, ids, err);
        if (result == 0 && !file_exists(ids))
            result =
                err_set(err, ERR_IO,
                        "%s: no such data; expected a folder of shards, a shard, or the prefix "
                        "of a Megatron .bin/.idx pair",
                        path);
        if (result == 0) result = add_path(set, ids, err);
    }
    if (result == 0 && set->count == 0)
        result = err_set(err, ERR_DATA, "%s: this split holds no shards", path);
    if (result == 0) result = look_at_all(set, err);
    if (result != 0) dataset_close(set);
    return result;
}

void dataset_close(struct dataset *set) {
    for (size_t i = 0; i < set->count; i++) free(set->paths[i]);
    free(set->paths);
    free(set->infos);
    *set = (struct dataset){.count = 0};
}

int dataset_tokenizer(const char *path, char out[4096], struct err *err) {
    char folder[4096], parent[4096], name[256], ids[4096];
    if (file_is_folder(path)) {
        if (file_join(folder, sizeof folder, path, ".", err) != 0) return -1;
        if (split_path(path, parent, name, err) != 0) return -1;
    } else { // a shard: its folder and the one above
        if (shard_ids_path(path, ids, err) != 0 || split_path(ids, folder, name, err) != 0 ||
            split_path(folder, parent, name, err) != 0)
            return -1;
    }
    const char *const places[] = {folder, parent};
    for (int i = 0; i < 2; i++) {
        if (file_join(out, 4096, places[i], "tokenizer", err) != 0) return -1;
        if (file_is_folder(out)) return 0;
    }
    return err_set(err, ERR_DATA,
                   "%s: no folder \"tokenizer\" in it or beside it; name the tokenizer explicitly",
                   path);
}
