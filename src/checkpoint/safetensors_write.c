// Writing safetensors; see safetensors.h.
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_ALIGN = 64 };

static const char *type_text(enum dtype type) {
    switch (type) {
    case DTYPE_F32:
        return "F32";
    case DTYPE_BF16:
        return "BF16";
    case DTYPE_F16:
        return "F16";
    case DTYPE_F64:
        return "F64";
    case DTYPE_I64:
        return "I64";
    case DTYPE_I32:
        return "I32";
    case DTYPE_U16:
        return "U16";
    case DTYPE_U8:
        return "U8";
    case DTYPE_COUNT:
        break;
    }
    return NULL;
}

static json_t *entry(const struct tensor *t, uint64_t begin) {
    uint64_t end = begin + tensor_bytes(t);
    json_t *shape = json_array();
    for (int i = 0; i < t->dims; i++) json_array_append_new(shape, json_integer(t->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_text(t->type), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

// Header text padded with spaces so that the data begins aligned; the length field itself is 8
// bytes.
static int make_header(const struct tensor *tensors, int count, json_t *metadata, const char *path,
                       struct text *out, uint64_t *data_bytes, struct err *err) {
    json_t *header = json_object();
    if (metadata) json_object_set(header, "__metadata__", metadata);
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        const struct tensor *t = &tensors[i];
        if (at % dtype_bytes(t->type) != 0) {
            json_decref(header);
            return err_set(err, ERR_INTERNAL,
                           "%s: tensor %s would not be aligned; wider types belong in front", path,
                           t->name);
        }
        if (json_object_get(header, t->name)) {
            json_decref(header);
            return err_set(err, ERR_INTERNAL, "%s: two tensors are named %s", path, t->name);
        }
        json_object_set_new(header, t->name, entry(t, at));
        at += tensor_bytes(t);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    int result = text ? text_puts(out, text) : -1;
    free(text);
    while (result == 0 && (out->size + 8) % HEADER_ALIGN != 0) result = text_puts(out, " ");
    if (result != 0) return err_set(err, ERR_MEMORY, "%s: no memory for the header", path);
    *data_bytes = at;
    return 0;
}

int safetensors_header(const struct tensor *tensors, int count, json_t *metadata, const char *path,
                       struct text *out, uint64_t *data_bytes, struct err *err) {
    struct text header = {0};
    unsigned char length[8];
    int result = make_header(tensors, count, metadata, path, &header, data_bytes, err);
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header.size >> 8 * i);
    if (result == 0 &&
        (text_put(out, length, sizeof length) != 0 || text_put(out, header.data, header.size) != 0))
        result = err_set(err, ERR_MEMORY, "%s: no memory for the header", path);
    text_free(&header);
    return result;
}

int safetensors_write_put(struct safetensors_writer *w, const void *data, uint64_t bytes,
                          struct err *err) {
    hash_put(&w->hash, data, (size_t)bytes);
    return file_writer_put(&w->file, data, (size_t)bytes, err);
}

int safetensors_write_begin(struct safetensors_writer *w, const char *path,
                            const struct tensor *tensors, int count, json_t *metadata,
                            struct err *err) {
    struct text header = {0};
    uint64_t data_bytes = 0;
    if (safetensors_header(tensors, count, metadata, path, &header, &data_bytes, err) != 0 ||
        file_writer_open(&w->file, path, err) != 0) {
        text_free(&header);
        return -1;
    }
    hash_begin(&w->hash);
    w->end_bytes = header.size + data_bytes;
    int result = safetensors_write_put(w, header.data, header.size, err);
    text_free(&header);
    if (result != 0) file_writer_abandon(&w->file);
    return result;
}

int safetensors_write_end(struct safetensors_writer *w, bool durable, uint64_t *hash,
                          struct err *err) {
    if (w->file.offset_bytes != w->end_bytes) {
        err_set(err, ERR_INTERNAL, "%s: %" PRIu64 " bytes were announced and %" PRIu64 " came",
                w->file.path, w->end_bytes, w->file.offset_bytes);
        file_writer_abandon(&w->file);
        return -1;
    }
    if (hash) *hash = hash_end(&w->hash);
    return file_writer_close(&w->file, durable, err);
}

void safetensors_write_abandon(struct safetensors_writer *w) {
    file_writer_abandon(&w->file);
}
