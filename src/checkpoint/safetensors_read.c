// Reading safetensors; see safetensors.h. Every number of the header is checked before it is used,
// in 64 bits.
#include "checkpoint/safetensors.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static int read_header(json_t *header, const char *path, const unsigned char *data,
                       uint64_t data_bytes, struct safetensors *st, struct err *err) {
    if (!json_is_object(header))
        return err_set(err, ERR_DATA, "%s: the header is not an object", path);
    size_t most = json_object_size(header), count = 0;
    struct entry *list = calloc(most + 1, sizeof *list);
    if (!list) return err_set(err, ERR_MEMORY, "%s: no memory for %zu tensors", path, most);
    int result = 0;
    const char *key;
    json_t *value;
    json_object_foreach(header, key, value) {
        if (strcmp(key, "__metadata__") == 0)
            result = read_metadata(value, path, st, err);
        else
            result = read_entry(value, path, key, data_bytes, &list[count++], err);
        if (result != 0) break;
    }
    if (result == 0) {
        qsort(list, count, sizeof *list, by_offset);
        result = check_layout(list, count, path, data_bytes, err);
    }
    if (result == 0 && !(st->tensors = calloc(count + 1, sizeof *st->tensors)))
        result = err_set(err, ERR_MEMORY, "%s: no memory for %zu tensors", path, count);
    for (size_t i = 0; result == 0 && i < count; i++) {
        st->tensors[i] = list[i].tensor;
        if (list[i].tensor.type != DTYPE_COUNT)
            st->tensors[i].data = (void *)(uintptr_t)(data + list[i].begin);
        st->count = (int)(i + 1);
    }
    free(list);
    return result;
}

int safetensors_open(const char *path, struct safetensors *out, struct err *err) {
    struct safetensors st = {0};
    if (file_map_open(&st.map, path, err) != 0) return -1;
    uint64_t header_bytes = 0;
    json_t *header = NULL;
    int result = -1;
    if (st.map.size < 8) {
        err_set(err, ERR_DATA,
                "%s: %zu bytes are too short for a safetensors file; it is truncated or of another "
                "kind",
                path, st.map.size);
        goto done;
    }
    for (int i = 7; i >= 0; i--) header_bytes = header_bytes << 8 | st.map.data[i];
    if (header_bytes > SAFETENSORS_LARGEST_HEADER || header_bytes > st.map.size - 8) {
        err_set(err, ERR_DATA,
                "%s: the header's length is given as %" PRIu64
                " bytes in a file of %zu; it is truncated or no safetensors file",
                path, header_bytes, st.map.size);
        goto done;
    }
    header = json_parse((const char *)st.map.data + 8, (size_t)header_bytes, path, err);
    if (header)
        result = read_header(header, path, st.map.data + 8 + header_bytes,
                             st.map.size - 8 - header_bytes, &st, err);
done:
    json_decref(header);
    if (result != 0)
        safetensors_close(&st);
    else
        *out = st;
    return result;
}

void safetensors_close(struct safetensors *st) {
    json_decref(st->metadata);
    free(st->tensors);
    file_map_close(&st->map);
    *st = (struct safetensors){0};
}

const struct tensor *safetensors_find(const struct safetensors *st, const char *name) {
    for (int i = 0; i < st->count; i++)
        if (strcmp(st->tensors[i].name, name) == 0) return &st->tensors[i];
    return NULL;
}

enum { PIECE = 4096 };

void safetensors_to_float(const struct tensor *t, int64_t first, int64_t count, float *out) {
    size_t bytes = dtype_bytes(t->type);
    const unsigned char *from = (const unsigned char *)t->data + (uint64_t)first * bytes;
    if ((uintptr_t)from % bytes == 0) {
        dtype_convert(out, DTYPE_F32, from, t->type, (size_t)count);
        return;
    }
    double aligned[PIECE]; // for the largest type
    for (int64_t i = 0; i < count; i += PIECE) {
        size_t now = (size_t)(count - i < PIECE ? count - i : PIECE);
        memcpy(aligned, from + (uint64_t)i * bytes, now * bytes);
        dtype_convert(out + i, DTYPE_F32, aligned, t->type, now);
    }
}

int64_t safetensors_not_finite(const struct tensor *t) {
    float piece[PIECE];
    int64_t count = tensor_elements(t);
    for (int64_t i = 0; i < count; i += PIECE) {
        int64_t now = count - i < PIECE ? count - i : PIECE;
        safetensors_to_float(t, i, now, piece);
        // x - x is 0 for finite values, else NaN; the sum lets the compiler work on whole vectors
        uint32_t bad = 0;
        for (int64_t k = 0; k < now; k++) bad |= !(piece[k] - piece[k] == 0.0f);
        for (int64_t k = 0; bad && k < now; k++)
            if (!isfinite(piece[k])) return i + k;
    }
    return -1;
}
