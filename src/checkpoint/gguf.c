// Tensors of a GGUF file: names, order of rows, types, and the writing of all of it. See gguf.h.
#include "checkpoint/gguf.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/gguf_parts.h"
#include "checkpoint/hf_parts.h"
#include "model/rope.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 32, VERSION = 3 };
static const uint32_t type_codes[] = {
    [GGUF_F32] = 0, [GGUF_F16] = 1, [GGUF_BF16] = 30, [GGUF_Q8_0] = 8};

struct target { // a tensor of the file
    char name[64];
    int param; // -1: the rotary factors
    int64_t first_row, rows, columns;
    bool interleave; // rows of each head in pairs
    bool vector;
    enum gguf_type type;
    uint64_t offset;
};

static const char *const names[PARAM_ROLE_COUNT][MODEL_MAX_PARTS] = {
    [PARAM_EMBEDDING] = {"token_embd.weight"},
    [PARAM_POSITION] = {"position_embd.weight"},
    [PARAM_FINAL_NORM] = {"output_norm.weight"},
    [PARAM_FINAL_NORM_BIAS] = {"output_norm.bias"},
    [PARAM_HEAD] = {"output.weight"},
    [PARAM_ATTENTION_NORM] = {"attn_norm.weight"},
    [PARAM_ATTENTION_NORM_BIAS] = {"attn_norm.bias"},
    [PARAM_QKV] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"},
    [PARAM_QKV_BIAS] = {"attn_q.bias", "attn_k.bias", "attn_v.bias"},
    [PARAM_Q_NORM] = {"attn_q_norm.weight"},
    [PARAM_K_NORM] = {"attn_k_norm.weight"},
    [PARAM_OUT] = {"attn_output.weight"},
    [PARAM_OUT_BIAS] = {"attn_output.bias"},
    [PARAM_MLP_NORM] = {"ffn_norm.weight"},
    [PARAM_MLP_NORM_BIAS] = {"ffn_norm.bias"},
    [PARAM_UP] = {"ffn_gate.weight", "ffn_up.weight"},
    [PARAM_UP_BIAS] = {"ffn_gate.bias", "ffn_up.bias"},
    [PARAM_DOWN] = {"ffn_down.weight"},
    [PARAM_DOWN_BIAS] = {"ffn_down.bias"},
};

static const char *name_of(const struct model_config *c, enum param_role role, int part) {
    if (c->family == FAMILY_GPT2) {
        if (role == PARAM_QKV) return "attn_qkv.weight";
        if (role == PARAM_QKV_BIAS) return "attn_qkv.bias";
        if (role == PARAM_UP) return "ffn_up.weight";
        if (role == PARAM_UP_BIAS) return "ffn_up.bias";
    }
    if (c->norm_place == NORM_AFTER && role == PARAM_ATTENTION_NORM)
        return "post_attention_norm.weight";
    if (c->norm_place == NORM_AFTER && role == PARAM_MLP_NORM) return "post_ffw_norm.weight";
    return names[role][part];
}

static enum gguf_type type_of(const struct param *p, enum gguf_type wanted) {
    if (!param_is_matrix(p) || p->role == PARAM_POSITION) return GGUF_F32;
    if (wanted == GGUF_Q8_0 && p->columns % GGUF_Q8_VALUES != 0) return GGUF_BF16;
    return wanted;
}

static uint64_t row_bytes(enum gguf_type type, int64_t columns) {
    if (type == GGUF_Q8_0) return (uint64_t)columns / GGUF_Q8_VALUES * GGUF_Q8_BYTES;
    return (uint64_t)columns * (type == GGUF_F32 ? 4 : 2);
}

static uint64_t target_bytes(const struct target *t) {
    return (uint64_t)t->rows * row_bytes(t->type, t->columns);
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

// All tensors in the order of the params, and the rotary factors, where there are some, behind
// them.
static struct target *list_targets(const struct model *model, const char *arch, enum gguf_type type,
                                   int *count) {
    const struct model_config *c = &model->config;
    struct target *list = calloc((size_t)model->param_count * MODEL_MAX_PARTS + 1, sizeof *list);
    int used = 0;
    for (int i = 0; list && i < model->param_count; i++) {
        const struct param *p = &model->params[i];
        int parts = c->family == FAMILY_GPT2 ? 1 : p->parts;
        int64_t row = 0;
        for (int part = 0; part < parts; part++) {
            struct target *t = &list[used++];
            *t = (struct target){
                .param = i, .first_row = row, .columns = p->columns, .vector = !param_is_matrix(p)};
            t->rows = parts == 1 ? p->rows : p->part_rows[part];
            t->type = type_of(p, type);
            t->interleave = strcmp(arch, "llama") == 0 &&
                            (p->role == PARAM_QKV || p->role == PARAM_QKV_BIAS) && part < 2;
            if (p->layer < 0)
                snprintf(t->name, sizeof t->name, "%s", name_of(c, p->role, part));
            else
                snprintf(t->name, sizeof t->name, "blk.%d.%s", p->layer, name_of(c, p->role, part));
            row += t->rows;
        }
    }
    if (list && gguf_has_rope_factors(c))
        list[used++] = (struct target){.name = "rope_freqs.weight",
                                       .param = -1,
                                       .rows = c->head_dim / 2,
                                       .columns = 1,
                                       .vector = true,
                                       .type = GGUF_F32};
    uint64_t offset = 0;
    for (int i = 0; list && i < used; i++) {
        list[i].offset = offset;
        offset += aligned(target_bytes(&list[i]));
    }
    *count = used;
    return list;
}

static int put_header(struct file_writer *w, const struct gguf_pairs *pairs,
                      const struct target *list, int count, struct err *err) {
    struct gguf_pairs head = {0};
    uint32_t version = VERSION;
    uint64_t tensors = (uint64_t)count;
    gguf_raw(&head, "GGUF", 4);
    gguf_raw(&head, &version, sizeof version);
    gguf_raw(&head, &tensors, sizeof tensors);
    gguf_raw(&head, &pairs->count, sizeof pairs->count);
    gguf_raw(&head, pairs->bytes.data, pairs->bytes.size);
    for (int i = 0; i < count; i++) {
        const struct target *t = &list[i];
        uint32_t dims = t->vector ? 1 : 2, type = type_codes[t->type];
        uint64_t shape[2] = {(uint64_t)(t->vector ? t->rows : t->columns),
                             (uint64_t)t->rows}; // innermost first
        gguf_raw_string(&head, t->name, strlen(t->name));
        gguf_raw(&head, &dims, sizeof dims);
        gguf_raw(&head, shape, dims * sizeof shape[0]);
        gguf_raw(&head, &type, sizeof type);
        gguf_raw(&head, &t->offset, sizeof t->offset);
    }
    static const char zeros[ALIGN];
    gguf_raw(&head, zeros, aligned(head.bytes.size) - head.bytes.size);
    int result = head.failed || pairs->failed
                     ? err_set(err, ERR_MEMORY, "%s: no memory for the header", w->path)
                     : file_writer_put(w, head.bytes.data, head.bytes.size, err);
    text_free(&head.bytes);
    return result;
}

void gguf_quantize_q8_0(const float *from, int64_t blocks, unsigned char *to) {
    for (int64_t b = 0; b < blocks; b++, from += GGUF_Q8_VALUES, to += GGUF_Q8_BYTES) {
        float largest = 0;
        for (int i = 0; i < GGUF_Q8_VALUES; i++) largest = fmaxf(largest, fabsf(from[i]));
        float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
        uint16_t half = f16_from_float(scale);
        memcpy(to, &half, 2);
        for (int i = 0; i < GGUF_Q8_VALUES; i++)
            to[2 + i] = (unsigned char)(int8_t)roundf(from[i] * inverse);
    }
}

static void count_q8_0(const float *from, const unsigned char *blocks, int64_t count,
                       struct hf_cast_counts *counts) {
    for (int64_t i = 0; i < count; i++) {
        const unsigned char *block = blocks + i / GGUF_Q8_VALUES * GGUF_Q8_BYTES;
        uint16_t half;
        memcpy(&half, block, 2);
        float back = f16_to_float(half) * (float)(int8_t)block[2 + i % GGUF_Q8_VALUES];
        counts->changed += back != from[i];
        counts->became_inf += isinf(back) != 0;
        counts->became_zero += back == 0 && from[i] != 0;
    }
    counts->values += (uint64_t)count;
}

// What llama.cpp divides each frequency by.
static void rotary_factors(const struct model_config *c, float *out) {
    struct model_rope plain = c->rope;
    double a[2048], b[2048]; // head_dim is at most 4096
    plain.scaling = ROPE_PLAIN;
    rope_inverse_frequencies(&plain, c->head_dim, c->context, a);
    rope_inverse_frequencies(&c->rope, c->head_dim, c->context, b);
    for (int i = 0; i < c->head_dim / 2; i++) out[i] = (float)(a[i] / b[i]);
}

// Rows that are held at once: whole heads, so that their rows can change places.
static int64_t rows_at_once(const struct target *t, int head_dim) {
    enum { ELEMENTS = 1 << 22 };
    int64_t rows = ELEMENTS / t->columns / head_dim * head_dim;
    if (rows < head_dim) rows = head_dim;
    return rows < t->rows ? rows : t->rows;
}

static int put_row(struct file_writer *w, const struct target *t, const float *from,
                   unsigned char *row, struct hf_cast_counts *counts, struct err *err) {
    static const enum dtype types[] = {[GGUF_F32] = DTYPE_F32,
                                       [GGUF_F16] = DTYPE_F16,
                                       [GGUF_BF16] = DTYPE_BF16,
                                       [GGUF_Q8_0] = DTYPE_COUNT};
    if (t->type == GGUF_Q8_0) {
        gguf_quantize_q8_0(from, t->columns / GGUF_Q8_VALUES, row);
        if (counts) count_q8_0(from, row, t->columns, counts);
    } else {
        hf_cast(from, t->columns, types[t->type], row, counts);
    }
    return file_writer_put(w, row, row_bytes(t->type, t->columns), err);
}

struct export {
    const struct model *model;
    hf_fill *fill;
    void *context;
    struct hf_cast_counts *counts;
    float *values;
    unsigned char *row;
};

static int put_target(struct file_writer *w, const struct export *e, const struct target *t,
                      struct err *err) {
    int head_dim = e->model->config.head_dim;
    int64_t most = rows_at_once(t, head_dim);
    for (int64_t first = 0; first < t->rows; first += most) {
        int64_t now = t->rows - first < most ? t->rows - first : most;
        if (t->param < 0)
            rotary_factors(&e->model->config, e->values);
        else if (e->fill(e->context, t->param, t->first_row + first, now, e->values, err) != 0)
            return -1;
        if (safetensors_not_finite(e->values, DTYPE_F32, now * t->columns) >= 0)
            return err_set(err, ERR_DATA, "%s: a value is not finite; the model is not exported",
                           t->name);
        for (int64_t r = 0; r < now; r++) {
            int64_t source = t->interleave ? rope_half_split_row(r, head_dim) : r;
            if (put_row(w, t, e->values + source * t->columns, e->row, e->counts, err) != 0)
                return -1;
        }
    }
    static const char zeros[ALIGN];
    return file_writer_put(w, zeros, aligned(target_bytes(t)) - target_bytes(t), err);
}

static int put_targets(struct file_writer *w, struct export *e, const struct target *list,
                       int count, struct err *err) {
    int64_t largest = 1, widest = 1;
    for (int i = 0; i < count; i++) {
        int64_t elements = rows_at_once(&list[i], e->model->config.head_dim) * list[i].columns;
        if (elements > largest) largest = elements;
        if (list[i].columns > widest) widest = list[i].columns;
    }
    e->values = malloc((size_t)largest * sizeof(float));
    e->row = malloc((size_t)widest * dtype_bytes(DTYPE_F32));
    int result =
        e->values && e->row
            ? 0
            : err_set(err, ERR_MEMORY, "%s: no memory for %" PRId64 " elements", w->path, largest);
    for (int i = 0; i < count && result == 0; i++) result = put_target(w, e, &list[i], err);
    free(e->values);
    free(e->row);
    return result;
}

int gguf_write(const char *path, const char *name, const struct model *model,
               const struct tokenizer *tokenizer, enum gguf_type type, hf_fill *fill, void *context,
               struct hf_cast_counts *counts, struct err *err) {
    char staging[CHECKPOINT_PATH_BYTES];
    struct gguf_pairs pairs = {0};
    struct target *list = NULL;
    struct file_writer w;
    struct export e = {.model = model, .fill = fill, .context = context, .counts = counts};
    int count, result = -1;
    if (snprintf(staging, sizeof staging, "%s.partial", path) >= (int)sizeof staging)
        return err_set(err, ERR_IO, "path too long: %.100s...", path);
    if (gguf_model_pairs(&pairs, name, &model->config, type, err) == 0 &&
        gguf_tokenizer_pairs(&pairs, tokenizer, &model->config, err) == 0) {
        list = list_targets(model, gguf_architecture(&model->config, NULL), type, &count);
        result = list ? file_writer_open(&w, staging, err)
                      : err_set(err, ERR_MEMORY, "%s: no memory", path);
    }
    if (result == 0) {
        result = put_header(&w, &pairs, list, count, err);
        if (result == 0) result = put_targets(&w, &e, list, count, err);
        if (result == 0)
            result = file_writer_close(&w, true, err);
        else
            file_writer_abandon(&w);
        if (result == 0) result = file_rename(staging, path, err);
        if (result != 0) unlink(staging);
    }
    text_free(&pairs.bytes);
    free(list);
    return result;
}
