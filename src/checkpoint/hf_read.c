// Reading values of a Hugging Face folder into params, and counting what a cast does. See
// hf_folder.h.
#include "checkpoint/hf_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int not_finite(const struct hf_folder *f, const struct hf_tensor *t, int64_t index,
                      struct err *err) {
    return err_set(err, ERR_DATA,
                   "%s: tensor %s holds a value that is not finite at index %" PRId64
                   "; the checkpoint is not usable",
                   f->path, t->name, index);
}

// Rows `first` .. `first + rows` of a turned matrix, in strips of stored rows: each strip is read
// in one piece and written as short runs.
static int read_turned(const struct hf_folder *f, int index, int64_t first, int64_t rows,
                       float *out, struct err *err) {
    enum { STRIP = 16 };
    const struct hf_tensor *t = &f->tensors[index];
    const struct hf_source *source = &f->sources[index];
    float *strip = malloc((size_t)t->rows * STRIP * sizeof *strip);
    if (!strip)
        return err_set(err, ERR_MEMORY, "%s: no memory for a strip of %s", f->path, t->name);
    int result = 0;
    for (int64_t c = 0; c < t->columns && result == 0; c += STRIP) {
        int64_t now = t->columns - c < STRIP ? t->columns - c : STRIP;
        result = safetensors_read_floats(&f->files[source->file], source->index, c * t->rows,
                                         now * t->rows, strip, err);
        int64_t bad = result == 0 ? safetensors_not_finite(strip, DTYPE_F32, now * t->rows) : -1;
        if (bad >= 0) result = not_finite(f, t, c * t->rows + bad, err);
        for (int64_t r = 0; r < rows && result == 0; r++)
            for (int64_t k = 0; k < now; k++)
                out[r * t->columns + c + k] = strip[k * t->rows + first + r];
    }
    free(strip);
    return result;
}

static int read_plain(const struct hf_folder *f, int index, int64_t first, int64_t rows, float *out,
                      struct err *err) {
    const struct hf_tensor *t = &f->tensors[index];
    const struct hf_source *source = &f->sources[index];
    int64_t begin = first * t->columns, count = rows * t->columns;
    if (safetensors_read_floats(&f->files[source->file], source->index, begin, count, out, err) !=
        0)
        return -1;
    int64_t bad = safetensors_not_finite(out, DTYPE_F32, count);
    return bad < 0 ? 0 : not_finite(f, t, begin + bad, err);
}

int hf_folder_read_rows(const struct hf_folder *f, int param, int64_t first_row, int64_t rows,
                        float *out, struct err *err) {
    for (int i = 0; i < f->count; i++) {
        const struct hf_tensor *t = &f->tensors[i];
        if (t->param != param) continue;
        int64_t from = first_row > t->first_row ? first_row : t->first_row, end = first_row + rows;
        if (end > t->first_row + t->rows) end = t->first_row + t->rows;
        if (from >= end) continue;
        float *to = out + (from - first_row) * t->columns;
        int result = t->turned ? read_turned(f, i, from - t->first_row, end - from, to, err)
                               : read_plain(f, i, from - t->first_row, end - from, to, err);
        if (result != 0) return -1;
    }
    return 0;
}

int hf_folder_read(const struct hf_folder *f, int param, float *out, struct err *err) {
    return hf_folder_read_rows(f, param, 0, f->model.params[param].rows, out, err);
}

void hf_cast(const float *from, int64_t count, enum dtype type, void *to,
             struct hf_cast_counts *counts) {
    dtype_convert(to, type, from, DTYPE_F32, (size_t)count);
    if (!counts) return;
    counts->values += (uint64_t)count;
    if (type == DTYPE_F32) return;
    const float least = type == DTYPE_F16 ? 0x1p-14f : 0x1p-126f; // normal value of the type
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits = ((const uint16_t *)to)[i];
        float back = type == DTYPE_F16 ? f16_to_float(bits) : bf16_to_float(bits);
        if (back == from[i]) continue;
        counts->changed++;
        counts->became_inf += isinf(back) != 0;
        counts->became_zero += back == 0;
        counts->became_denormal += back != 0 && fabsf(back) < least;
    }
}

void hf_count_cast(const float *values, int64_t count, enum dtype type,
                   struct hf_cast_counts *counts) {
    enum { PIECE = 4096 };
    float cast[PIECE];
    for (int64_t at = 0; at < count; at += PIECE)
        hf_cast(values + at, count - at < PIECE ? count - at : PIECE, type, cast, counts);
}

const char *hf_dtype_text(enum dtype type) {
    return type == DTYPE_F32    ? "float32"
           : type == DTYPE_BF16 ? "bfloat16"
           : type == DTYPE_F16  ? "float16"
                                : "float64";
}

int hf_folder_count_cast(const struct hf_folder *f, enum dtype type, struct hf_cast_counts *counts,
                         struct err *err) {
    enum { PIECE = 1 << 20 };
    float *piece = malloc(PIECE * sizeof *piece);
    void *cast = malloc(PIECE * sizeof(float));
    int result = piece && cast ? 0 : err_set(err, ERR_MEMORY, "%s: no memory", f->path);
    for (int i = 0; i < f->count && result == 0; i++) {
        const struct safetensors *file = &f->files[f->sources[i].file];
        int64_t count = tensor_elements(&file->tensors[f->sources[i].index]);
        for (int64_t at = 0; at < count && result == 0; at += PIECE) {
            int64_t now = count - at < PIECE ? count - at : PIECE;
            result = safetensors_read_floats(file, f->sources[i].index, at, now, piece, err);
            int64_t bad = result == 0 ? safetensors_not_finite(piece, DTYPE_F32, now) : -1;
            if (bad >= 0) result = not_finite(f, &f->tensors[i], at + bad, err);
            if (result == 0 && type != DTYPE_COUNT) hf_cast(piece, now, type, cast, counts);
        }
    }
    free(piece);
    free(cast);
    return result;
}
