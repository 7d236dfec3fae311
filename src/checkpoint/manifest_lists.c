// The manifest's lists of tensors, parts and pieces: made by the ranks that save, merged by the
// first, read and checked by whoever opens. See manifest.h.
#include "base/hash.h"
#include "checkpoint/manifest_parts.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 10000000 };

// ---- making

json_t *manifest_lists(void) {
    return json_pack("{s:{}, s:[]}", "tensors", "parts");
}

static int no_memory(struct err *err) {
    return err_set(err, ERR_MEMORY, "no memory for the list of what is saved");
}

int manifest_lists_tensor(json_t *lists, const struct tensor *t, struct err *err) {
    json_t *tensors = json_object_get(lists, "tensors"), *known = json_object_get(tensors, t->name);
    json_t *value = json_array();
    json_array_append_new(value, json_string(dtype_name(t->type)));
    for (int i = 0; i < t->dims; i++) json_array_append_new(value, json_integer(t->shape[i]));
    bool same = !known || json_equal(known, value);
    int result = json_object_set_new(tensors, t->name, value);
    if (!same)
        return err_set(err, ERR_INTERNAL, "tensor %s is given with more than one type or shape",
                       t->name);
    return result == 0 ? 0 : no_memory(err);
}

int manifest_lists_part(json_t *lists, const struct manifest_part *part, uint64_t begin,
                        const struct tensor *pieces, int count, struct err *err) {
    char hash[17];
    hash_text(part->hash, hash);
    json_t *names = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(names, json_string(pieces[i].name));
    json_t *value = json_pack("{s:s, s:I, s:s, s:i, s:I, s:o}", "file", part->name, "bytes",
                              (json_int_t)part->bytes, "xxh3", hash, "rank", part->rank, "data",
                              (json_int_t)begin, "pieces", names);
    return json_array_append_new(json_object_get(lists, "parts"), value) == 0 ? 0 : no_memory(err);
}

int manifest_lists_merge(json_t *lists, json_t *more, int rank, struct err *err) {
    json_t *tensors = json_object_get(lists, "tensors"), *value;
    const char *name;
    json_object_foreach(json_object_get(more, "tensors"), name, value) {
        json_t *known = json_object_get(tensors, name);
        if (known && !json_equal(known, value))
            return err_set(err, ERR_INTERNAL,
                           "rank %d gives tensor %s with another type or shape than a rank before",
                           rank, name);
        if (!known && json_object_set(tensors, name, value) != 0) return no_memory(err);
    }
    if (json_array_extend(json_object_get(lists, "parts"), json_object_get(more, "parts")) != 0)
        return no_memory(err);
    return 0;
}

// ---- reading

static int read_part(json_t *value, const char *path, int version, struct manifest_part *part,
                     struct err *err) {
    struct json_at at = {value, path};
    const char *name, *hash;
    int64_t bytes, rank;
    if (json_get_string(at, "file", true, NULL, &name, err) != 0 ||
        json_get_string(at, "xxh3", true, NULL, &hash, err) != 0 ||
        json_get_int(at, "bytes", true, 0, &bytes, err) != 0 ||
        json_get_int(at, "rank", version > 1, 0, &rank, err) != 0)
        return -1;
    if (strlen(name) >= sizeof part->name || strchr(name, '/') || name[0] == '.' || name[0] == 0)
        return err_set(err, ERR_DATA, "%s: parts: \"%.80s\" is no plain file name", path, name);
    strcpy(part->name, name);
    part->bytes = (uint64_t)bytes;
    part->rank = (int)rank;
    if (bytes < 0 || rank < 0 || rank > INT32_MAX || hash_parse(hash, &part->hash) != 0)
        return err_set(err, ERR_DATA, "%s: parts: %s: size, rank or hash is malformed", path, name);
    return 0;
}

int manifest_read_parts(json_t *tree, const char *path, struct manifest *m, struct err *err) {
    json_t *list = json_object_get(tree, "parts");
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > MOST_PARTS)
        return err_set(err, ERR_DATA, "%s: parts: expected a list of files", path);
    m->part_count = (int)json_array_size(list);
    m->parts = calloc((size_t)m->part_count, sizeof *m->parts);
    if (!m->parts)
        return err_set(err, ERR_MEMORY, "%s: no memory for %d parts", path, m->part_count);
    for (int i = 0; i < m->part_count; i++)
        if (read_part(json_array_get(list, (size_t)i), path, m->version, &m->parts[i], err) != 0)
            return -1;
    return 0;
}

static int read_tensor(const char *name, json_t *value, const char *path, struct tensor *t,
                       struct err *err) {
    size_t count = json_array_size(value); // 0 for what is no array
    const char *type = json_string_value(json_array_get(value, 0));
    if (strlen(name) >= sizeof t->name || strchr(name, '@') || count < 1 ||
        count > TENSOR_MAX_DIMS + 1 || !type || dtype_from_name(type, &t->type) != 0)
        return err_set(err, ERR_DATA, "%s: tensors: %.120s: expected a type and sizes", path, name);
    strcpy(t->name, name);
    t->dims = (int)count - 1;
    int64_t bytes = (int64_t)dtype_bytes(t->type);
    for (int i = 0; i < t->dims; i++) {
        json_t *size = json_array_get(value, (size_t)i + 1);
        t->shape[i] = json_integer_value(size);
        if (!json_is_integer(size) || t->shape[i] < 0 ||
            __builtin_mul_overflow(bytes, t->shape[i], &bytes))
            return err_set(err, ERR_DATA, "%s: tensors: %s: size %d is malformed", path, name, i);
    }
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int read_tensors(json_t *tree, const char *path, struct manifest *m, struct err *err) {
    json_t *object = json_object_get(tree, "tensors"), *value;
    const char *name;
    if (!json_is_object(object))
        return err_set(err, ERR_DATA, "%s: tensors: expected an object", path);
    m->tensors = calloc(json_object_size(object) + 1, sizeof *m->tensors);
    if (!m->tensors) return err_set(err, ERR_MEMORY, "%s: no memory for the tensors", path);
    json_object_foreach(object, name, value) {
        if (read_tensor(name, value, path, &m->tensors[m->tensor_count], err) != 0) return -1;
        m->tensor_count++;
    }
    qsort(m->tensors, (size_t)m->tensor_count, sizeof *m->tensors, by_name);
    return 0;
}

int manifest_find(const struct manifest *m, const char *name) {
    int low = 0, high = m->tensor_count - 1;
    while (low <= high) {
        int middle = low + (high - low) / 2, order = strcmp(m->tensors[middle].name, name);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return -1;
}

// Tensor and box of a piece's name; -1 with what is wrong with it.
static int parse_piece(const struct manifest *m, const char *stored, int *tensor, struct box *box,
                       const char **fault) {
    char name[TENSOR_NAME_BYTES];
    bool has_box;
    int length = stored && strlen(stored) < sizeof name ? piece_parse(stored, &has_box, box) : -1;
    *fault = "is no name of a piece";
    if (length < 0) return -1;
    memcpy(name, stored, (size_t)length);
    name[length] = 0;
    *tensor = manifest_find(m, name);
    *fault = "is of no listed tensor";
    if (*tensor < 0) return -1;
    struct box whole = box_whole(&m->tensors[*tensor]);
    if (!has_box) *box = whole;
    *fault = "lies outside its tensor";
    return box_inside(*box, whole) ? 0 : -1;
}

// The pieces of one part fill it from "data" to its end.
static int read_pieces(json_t *value, const char *path, int part, struct manifest *m,
                       struct err *err) {
    json_t *names = json_object_get(value, "pieces");
    int64_t data;
    if (json_get_int((struct json_at){value, path}, "data", true, 0, &data, err) != 0) return -1;
    uint64_t at = (uint64_t)data;
    for (size_t i = 0; i < json_array_size(names); i++) {
        struct manifest_piece piece = {.part = part, .begin = at};
        const char *stored = json_string_value(json_array_get(names, i)), *fault;
        if (parse_piece(m, stored, &piece.tensor, &piece.box, &fault) != 0)
            return err_set(err, ERR_DATA, "%s: parts: %s: \"%.120s\" %s", path, m->parts[part].name,
                           stored ? stored : "", fault);
        at += (uint64_t)box_elements(piece.box) * dtype_bytes(m->tensors[piece.tensor].type);
        if (box_elements(piece.box) > 0) m->pieces[m->piece_count++] = piece;
    }
    if (json_is_array(names) && data >= 0 && at == m->parts[part].bytes) return 0;
    return err_set(err, ERR_DATA,
                   "%s: parts: %s: the pieces end at byte %" PRIu64 ", the file at %" PRIu64, path,
                   m->parts[part].name, at, m->parts[part].bytes);
}

static int read_all_pieces(json_t *tree, const char *path, struct manifest *m, struct err *err) {
    json_t *list = json_object_get(tree, "parts");
    size_t total = 0;
    if (read_tensors(tree, path, m, err) != 0) return -1;
    for (int i = 0; i < m->part_count; i++)
        total += json_array_size(json_object_get(json_array_get(list, (size_t)i), "pieces"));
    if (total < INT32_MAX) m->pieces = calloc(total + 1, sizeof *m->pieces);
    if (!m->pieces) return err_set(err, ERR_MEMORY, "%s: no memory for %zu pieces", path, total);
    for (int i = 0; i < m->part_count; i++)
        if (read_pieces(json_array_get(list, (size_t)i), path, i, m, err) != 0) return -1;
    return 0;
}

// ---- checking

static int by_place(const void *a, const void *b) {
    const struct manifest_piece *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->box.row != y->box.row) return x->box.row < y->box.row ? -1 : 1;
    return x->box.column == y->box.column ? 0 : x->box.column < y->box.column ? -1 : 1;
}

static int check_tensor(const struct manifest *m, int tensor, struct box *boxes, const char *where,
                        struct err *err) {
    const struct manifest_piece *pieces = m->pieces + m->first_piece[tensor];
    int count = m->first_piece[tensor + 1] - m->first_piece[tensor];
    char text[120];
    struct box fault;
    for (int i = 0; i < count; i++) boxes[i] = pieces[i].box;
    enum box_cover found = box_cover(boxes, count, box_whole(&m->tensors[tensor]), &fault);
    if (found == COVER_EXACT) return 0;
    return err_set(err, ERR_DATA, "%s: %s %s of tensor %s", where,
                   found == COVER_HOLE ? "no part holds" : "more than one part holds",
                   box_text(fault, text), m->tensors[tensor].name);
}

static int index_pieces(struct manifest *m, const char *where, struct err *err) {
    qsort(m->pieces, (size_t)m->piece_count, sizeof *m->pieces, by_place);
    m->first_piece = calloc((size_t)m->tensor_count + 1, sizeof *m->first_piece);
    struct box *boxes = calloc((size_t)m->piece_count + 1, sizeof *boxes);
    int result = m->first_piece && boxes ? 0 : err_set(err, ERR_MEMORY, "%s: no memory", where);
    for (int t = 0, i = 0; result == 0 && t < m->tensor_count; t++) {
        while (i < m->piece_count && m->pieces[i].tensor == t) i++;
        m->first_piece[t + 1] = i;
        result = check_tensor(m, t, boxes, where, err);
    }
    free(boxes);
    return result;
}

int manifest_complete(struct manifest *m, const char *where, struct err *err) {
    if (read_all_pieces(m->tree, where, m, err) != 0) return -1;
    return index_pieces(m, where, err);
}

const struct manifest_piece *manifest_find_piece(const struct manifest *m, const char *stored) {
    struct manifest_piece wanted = {0};
    const char *fault;
    if (parse_piece(m, stored, &wanted.tensor, &wanted.box, &fault) != 0) return NULL;
    const struct manifest_piece *found =
        bsearch(&wanted, m->pieces, (size_t)m->piece_count, sizeof wanted, by_place);
    return found && box_same(found->box, wanted.box) ? found : NULL;
}

// ---- version 1

int manifest_add_header(struct manifest *m, int part, const struct tensor *tensors, int count,
                        uint64_t begin, struct err *err) {
    json_t *value = json_array_get(json_object_get(m->tree, "parts"), (size_t)part);
    if (!json_object_get(m->tree, "tensors"))
        json_object_set_new(m->tree, "tensors", json_object());
    json_t *names = json_array();
    json_object_set_new(value, "data", json_integer((json_int_t)begin));
    json_object_set_new(value, "pieces", names);
    for (int i = 0; i < count; i++) {
        if (tensors[i].type == DTYPE_COUNT)
            return err_set(err, ERR_DATA, "%s: tensor %s has a type that is not read",
                           m->parts[part].name, tensors[i].name);
        json_array_append_new(names, json_string(tensors[i].name));
        if (manifest_lists_tensor(m->tree, &tensors[i], err) != 0) return -1;
    }
    return 0;
}
