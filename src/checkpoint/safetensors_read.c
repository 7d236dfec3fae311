// Reading safetensors; see safetensors.h. Every number of the header is checked before it is used,
// in 64 bits.
#include "checkpoint/safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct type_name {
    const char *name;
    enum dtype type;
    uint64_t bytes;
} types[] = {
    {"F32", DTYPE_F32, 4},
    {"BF16", DTYPE_BF16, 2},
    {"F16", DTYPE_F16, 2},
    {"F64", DTYPE_F64, 8},
    {"I64", DTYPE_I64, 8},
    {"I32", DTYPE_I32, 4},
    {"U16", DTYPE_U16, 2},
    {"U8", DTYPE_U8, 1},
    // known to the format, without a use here
    {"BOOL", DTYPE_COUNT, 1},
    {"I8", DTYPE_COUNT, 1},
    {"F8_E4M3", DTYPE_COUNT, 1},
    {"F8_E5M2", DTYPE_COUNT, 1},
    {"F8_E8M0", DTYPE_COUNT, 1},
    {"I16", DTYPE_COUNT, 2},
    {"U32", DTYPE_COUNT, 4},
    {"U64", DTYPE_COUNT, 8},
    {"C64", DTYPE_COUNT, 8},
};

struct entry { // a tensor while it is checked
    struct tensor tensor;
    uint64_t begin, end;
};

static const struct type_name *find_type(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

static int unsigned_at(json_t *list, size_t index, uint64_t *out) {
    json_t *value = json_array_get(list, index);
    if (!json_is_integer(value) || json_integer_value(value) < 0) return -1;
    *out = (uint64_t)json_integer_value(value);
    return 0;
}

static int read_shape(json_t *list, const char *path, const char *name, struct tensor *t,
                      uint64_t *elements, struct err *err) {
    if (!json_is_array(list) || json_array_size(list) > TENSOR_MAX_DIMS)
        return err_set(err, ERR_DATA, "%s: tensor %s: shape: expected a list of at most %d sizes",
                       path, name, TENSOR_MAX_DIMS);
    t->dims = (int)json_array_size(list);
    *elements = 1;
    for (int i = 0; i < t->dims; i++) {
        uint64_t size;
        if (unsigned_at(list, (size_t)i, &size) != 0)
            return err_set(err, ERR_DATA,
                           "%s: tensor %s: shape: size %d is not a whole number of 0 or more", path,
                           name, i);
        t->shape[i] = (int64_t)size;
        if (__builtin_mul_overflow(*elements, size, elements) || *elements > INT64_MAX)
            return err_set(err, ERR_DATA,
                           "%s: tensor %s: shape: the number of elements does not fit into 64 bits",
                           path, name);
    }
    return 0;
}

static int read_entry(json_t *value, const char *path, const char *name, uint64_t data_bytes,
                      struct entry *e, struct err *err) {
    struct tensor *t = &e->tensor;
    if (!json_is_object(value))
        return err_set(err, ERR_DATA, "%s: tensor %.100s: expected an object", path, name);
    if (strlen(name) >= sizeof t->name)
        return err_set(err, ERR_DATA, "%s: the name of tensor %.100s... is longer than %d bytes",
                       path, name, TENSOR_NAME_BYTES - 1);
    strcpy(t->name, name);
    json_t *dtype = json_object_get(value, "dtype"),
           *offsets = json_object_get(value, "data_offsets");
    const struct type_name *type =
        json_is_string(dtype) ? find_type(json_string_value(dtype)) : NULL;
    if (!type)
        return err_set(err, ERR_DATA,
                       "%s: tensor %s: dtype: found \"%.20s\", which is no type of this format",
                       path, name, json_is_string(dtype) ? json_string_value(dtype) : "nothing");
    t->type = type->type;
    uint64_t elements, bytes;
    if (read_shape(json_object_get(value, "shape"), path, name, t, &elements, err) != 0) return -1;
    if (__builtin_mul_overflow(elements, type->bytes, &bytes))
        return err_set(err, ERR_DATA, "%s: tensor %s: its size does not fit into 64 bits", path,
                       name);
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        unsigned_at(offsets, 0, &e->begin) != 0 || unsigned_at(offsets, 1, &e->end) != 0)
        return err_set(err, ERR_DATA, "%s: tensor %s: data_offsets: expected two whole numbers",
                       path, name);
    if (e->end < e->begin || e->end > data_bytes)
        return err_set(err, ERR_DATA,
                       "%s: tensor %s: data_offsets [%" PRIu64 ", %" PRIu64
                       "] lie outside the %" PRIu64
                       " bytes of data; the file is truncated or damaged",
                       path, name, e->begin, e->end, data_bytes);
    if (e->end - e->begin != bytes)
        return err_set(err, ERR_DATA,
                       "%s: tensor %s: its shape and type need %" PRIu64
                       " bytes, its offsets hold %" PRIu64,
                       path, name, bytes, e->end - e->begin);
    return 0;
}

static int by_offset(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->tensor.name, y->tensor.name);
}

// The data must be used up without holes and overlaps: nothing hides in the file, and no two
// tensors share bytes.
static int check_layout(const struct entry *list, size_t count, const char *path,
                        uint64_t data_bytes, struct err *err) {
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (list[i].begin < at)
            return err_set(err, ERR_DATA, "%s: tensors %s and %s overlap", path,
                           list[i - 1].tensor.name, list[i].tensor.name);
        if (list[i].begin > at)
            return err_set(err, ERR_DATA,
                           "%s: %" PRIu64 " bytes in front of tensor %s belong to no tensor", path,
                           list[i].begin - at, list[i].tensor.name);
        at = list[i].end;
    }
    if (at != data_bytes)
        return err_set(err, ERR_DATA, "%s: %" PRIu64 " bytes at the end belong to no tensor", path,
                       data_bytes - at);
    return 0;
}

static int read_metadata(json_t *value, const char *path, struct safetensors *st, struct err *err) {
    const char *key;
    json_t *text;
    if (!json_is_object(value))
        return err_set(err, ERR_DATA, "%s: __metadata__: expected an object", path);
    json_object_foreach(value, key, text) {
        if (!json_is_string(text))
            return err_set(err, ERR_DATA,
                           "%s: __metadata__: the value of \"%.60s\" is not a string", path, key);
    }
    st->metadata = json_incref(value);
    return 0;
}

static int read_header(json_t *header, uint64_t data_begin, struct safetensors *st,
                       struct err *err) {
    if (!json_is_object(header))
        return err_set(err, ERR_DATA, "%s: the header is not an object", st->path);
    size_t most = json_object_size(header), count = 0;
    uint64_t data_bytes = st->file_bytes - data_begin;
    struct entry *list = calloc(most + 1, sizeof *list);
    if (!list) return err_set(err, ERR_MEMORY, "%s: no memory for %zu tensors", st->path, most);
    int result = 0;
    const char *key;
    json_t *value;
    json_object_foreach(header, key, value) {
        if (strcmp(key, "__metadata__") == 0)
            result = read_metadata(value, st->path, st, err);
        else
            result = read_entry(value, st->path, key, data_bytes, &list[count++], err);
        if (result != 0) break;
    }
    if (result == 0) {
        qsort(list, count, sizeof *list, by_offset);
        result = check_layout(list, count, st->path, data_bytes, err);
    }
    if (result == 0) {
        st->tensors = calloc(count + 1, sizeof *st->tensors);
        st->offsets = calloc(count + 1, sizeof *st->offsets);
        if (!st->tensors || !st->offsets)
            result = err_set(err, ERR_MEMORY, "%s: no memory for %zu tensors", st->path, count);
    }
    for (size_t i = 0; result == 0 && i < count; i++) {
        st->tensors[i] = list[i].tensor;
        st->offsets[i] = data_begin + list[i].begin;
        st->count = (int)(i + 1);
    }
    if (result == 0) st->offsets[count] = st->file_bytes;
    free(list);
    return result;
}

int safetensors_read_file(const struct safetensors *st, uint64_t offset, uint64_t bytes, void *out,
                          struct err *err) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t got = pread(st->fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return err_set_errno(err, "%s: read failed at byte %" PRIu64, st->path, offset + done);
        if (got == 0)
            return err_set(err, ERR_DATA,
                           "%s: ends at byte %" PRIu64 " while it is read; somebody truncated it",
                           st->path, offset + done);
        done += (uint64_t)got;
    }
    return 0;
}

static int open_file(const char *path, struct safetensors *st, struct err *err) {
    struct stat status;
    st->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (st->fd < 0) return err_set_errno(err, "%s: cannot open for reading", path);
    if (fstat(st->fd, &status) != 0) return err_set_errno(err, "%s: cannot look at the file", path);
    if (!S_ISREG(status.st_mode)) return err_set(err, ERR_IO, "%s: expected a file", path);
    st->file_bytes = (uint64_t)status.st_size;
    st->path = strdup(path);
    return st->path ? 0 : err_set(err, ERR_MEMORY, "%s: no memory", path);
}

static int read_all(struct safetensors *st, struct err *err) {
    unsigned char length[8];
    uint64_t header_bytes = 0;
    if (st->file_bytes < 8)
        return err_set(
            err, ERR_DATA,
            "%s: %" PRIu64
            " bytes are too short for a safetensors file; it is truncated or of another kind",
            st->path, st->file_bytes);
    if (safetensors_read_file(st, 0, 8, length, err) != 0) return -1;
    for (int i = 7; i >= 0; i--) header_bytes = header_bytes << 8 | length[i];
    if (header_bytes > SAFETENSORS_LARGEST_HEADER || header_bytes > st->file_bytes - 8)
        return err_set(err, ERR_DATA,
                       "%s: the header's length is given as %" PRIu64 " bytes in a file of %" PRIu64
                       "; it is truncated or no safetensors file",
                       st->path, header_bytes, st->file_bytes);
    char *text = malloc((size_t)header_bytes + 1);
    if (!text)
        return err_set(err, ERR_MEMORY, "%s: no memory for a header of %" PRIu64 " bytes", st->path,
                       header_bytes);
    int result = safetensors_read_file(st, 8, header_bytes, text, err);
    json_t *header = result == 0 ? json_parse(text, (size_t)header_bytes, st->path, err) : NULL;
    free(text);
    if (!header) return -1;
    result = read_header(header, 8 + header_bytes, st, err);
    json_decref(header);
    return result;
}

int safetensors_open(const char *path, struct safetensors *out, struct err *err) {
    struct safetensors st = {.fd = -1};
    if (open_file(path, &st, err) != 0 || read_all(&st, err) != 0) {
        safetensors_close(&st);
        return -1;
    }
    *out = st;
    return 0;
}

void safetensors_close(struct safetensors *st) {
    if (st->fd >= 0) close(st->fd);
    json_decref(st->metadata);
    free(st->path);
    free(st->tensors);
    free(st->offsets);
    *st = (struct safetensors){.fd = -1};
}

int safetensors_find(const struct safetensors *st, const char *name) {
    for (int i = 0; i < st->count; i++)
        if (strcmp(st->tensors[i].name, name) == 0) return i;
    return -1;
}

uint64_t safetensors_bytes(const struct safetensors *st, int tensor) {
    return st->offsets[tensor + 1] - st->offsets[tensor];
}

int safetensors_read(const struct safetensors *st, int tensor, uint64_t first, uint64_t bytes,
                     void *out, struct err *err) {
    return safetensors_read_file(st, st->offsets[tensor] + first, bytes, out, err);
}

enum { PIECE = 1 << 16 };

int safetensors_read_floats(const struct safetensors *st, int tensor, int64_t first, int64_t count,
                            float *out, struct err *err) {
    enum dtype type = st->tensors[tensor].type;
    size_t bytes = dtype_bytes(type);
    if (type == DTYPE_F32)
        return safetensors_read(st, tensor, (uint64_t)first * 4, (uint64_t)count * 4, out, err);
    void *piece = malloc(PIECE * bytes);
    if (!piece) return err_set(err, ERR_MEMORY, "%s: no memory", st->path);
    int result = 0;
    for (int64_t i = 0; i < count && result == 0; i += PIECE) {
        size_t now = (size_t)(count - i < PIECE ? count - i : PIECE);
        result =
            safetensors_read(st, tensor, (uint64_t)(first + i) * bytes, now * bytes, piece, err);
        if (result == 0) dtype_convert(out + i, DTYPE_F32, piece, type, now);
    }
    free(piece);
    return result;
}

bool safetensors_is_floating(enum dtype type) {
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16 || type == DTYPE_F64;
}

// x - x is 0 for finite values, else NaN; looking at blocks lets the compiler work on whole
// vectors.
static int64_t first_not_finite(const float *x, int64_t count) {
    enum { BLOCK = 1024 };
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t end = count - i < BLOCK ? count : i + BLOCK;
        unsigned bad = 0;
        for (int64_t k = i; k < end; k++) bad |= !(x[k] - x[k] == 0.0f);
        for (int64_t k = i; bad && k < end; k++)
            if (!isfinite(x[k])) return k;
    }
    return -1;
}

int64_t safetensors_not_finite(const void *data, enum dtype type, int64_t count) {
    if (type == DTYPE_F32) return first_not_finite(data, count);
    float piece[1024];
    for (int64_t i = 0; i < count; i += 1024) {
        int64_t now = count - i < 1024 ? count - i : 1024;
        dtype_convert(piece, DTYPE_F32, (const char *)data + (size_t)i * dtype_bytes(type), type,
                      (size_t)now);
        int64_t at = first_not_finite(piece, now);
        if (at >= 0) return i + at;
    }
    return -1;
}
