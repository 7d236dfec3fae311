// The GGUF writer: row orders, settings, tokenizer, alignment, quantization. A small reader of the
// format stands here.
#include "checkpoint/gguf.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/gguf_parts.h"
#include "checkpoint/hf_folder.h"
#include "model/families.h"
#include "model/rope.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    char *data;
    size_t size, at;
    uint64_t tensors, pairs;
    size_t first_pair, first_tensor, first_data;
};

static uint64_t take(struct reader *r, int bytes) {
    uint64_t value = 0;
    CHECK(r->at + (size_t)bytes <= r->size);
    memcpy(&value, r->data + r->at, (size_t)bytes);
    r->at += (size_t)bytes;
    return value;
}

static void take_string(struct reader *r, char out[256]) {
    uint64_t length = take(r, 8);
    CHECK(r->at + length <= r->size);
    snprintf(out, 256, "%.*s", (int)length, r->data + r->at);
    r->at += length;
}

static int width(uint32_t type) {
    switch (type) {
    case 7:
        return 1;
    case 4:
    case 5:
    case 6:
        return 4;
    default:
        test_fail(__FILE__, __LINE__, "value type %u", type);
    }
}

static void skip(struct reader *r, uint32_t type) {
    char text[256];
    if (type == 8) {
        take_string(r, text);
    } else if (type == 9) {
        uint32_t inner = (uint32_t)take(r, 4);
        for (uint64_t n = take(r, 8); n > 0; n--) skip(r, inner);
    } else {
        r->at += (size_t)width(type);
    }
}

// Stands at the value of a key; returns its type, or 0.
static uint32_t seek(struct reader *r, const char *key) {
    r->at = r->first_pair;
    for (uint64_t i = 0; i < r->pairs; i++) {
        char name[256];
        take_string(r, name);
        uint32_t type = (uint32_t)take(r, 4);
        if (strcmp(name, key) == 0) return type;
        skip(r, type);
    }
    return 0;
}

static int64_t number(struct reader *r, const char *key) {
    uint32_t type = seek(r, key);
    return type ? (int64_t)take(r, width(type)) : -1;
}

static const char *string(struct reader *r, const char *key) {
    static char text[256];
    CHECK_EQ_INT(seek(r, key), 8);
    take_string(r, text);
    return text;
}

// Data of a tensor, or NULL.
static const char *tensor(struct reader *r, const char *name, uint32_t *type, uint64_t shape[2]) {
    r->at = r->first_tensor;
    for (uint64_t i = 0; i < r->tensors; i++) {
        char found[256];
        take_string(r, found);
        uint32_t dims = (uint32_t)take(r, 4);
        shape[1] = 1;
        for (uint32_t k = 0; k < dims; k++) shape[k] = take(r, 8);
        *type = (uint32_t)take(r, 4);
        uint64_t offset = take(r, 8);
        CHECK_EQ_INT(offset % 32, 0);
        if (strcmp(found, name) == 0) return r->data + r->first_data + offset;
    }
    return NULL;
}

static void open_file(struct reader *r, const char *path) {
    struct err err = {0};
    *r = (struct reader){0};
    CHECK_OK(file_read(path, 0, &r->data, &r->size, &err), err);
    CHECK_BYTES(r->data, "GGUF", 4);
    r->at = 4;
    CHECK_EQ_INT(take(r, 4), 3);
    r->tensors = take(r, 8);
    r->pairs = take(r, 8);
    r->first_pair = r->at;
    CHECK_EQ_INT(seek(r, "no such key"), 0);
    r->first_tensor = r->at;
    uint32_t type;
    uint64_t shape[2];
    CHECK(tensor(r, "no such tensor", &type, shape) == NULL);
    r->first_data = (r->at + 31) / 32 * 32;
}

// --- a model and a tokenizer of its own ---

static const char chat[] =
    "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}";

static struct tokenizer *make_tokenizer(void) {
    const char *specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    const char *text = "the cat sat on the mat and the dog sat on the log; the end of the tale of "
                       "the cat and the dog";
    struct tokenizer_train_text one = {text, strlen(text)};
    struct tokenizer_train_options options = {
        .vocab_size = 270, .specials = specials, .special_count = 3, .split = TOKENIZER_SPLIT_GPT2};
    struct err err = {0};
    struct tokenizer *tok = tokenizer_train(&one, 1, &options, &err);
    CHECK(tok != NULL);
    char path[4096];
    CHECK_OK(tokenizer_save_hf(tok, test_temp_dir(), &err), err);
    tokenizer_free(tok);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", test_temp_dir());
    json_t *tree = json_parse_file(path, &err);
    json_object_set_new(tree, "chat_template", json_string(chat));
    char *dump = json_dumps(tree, 0);
    CHECK_OK(file_replace(path, dump, strlen(dump), &err), err);
    free(dump);
    json_decref(tree);
    tok = tokenizer_load(test_temp_dir(), &err);
    if (!tok) test_fail(__FILE__, __LINE__, "%s", err.text);
    return tok;
}

static struct model make_model(enum model_family family, int vocab) {
    struct model_config c;
    struct model model;
    struct err err = {0};
    model_family_defaults(family, &c);
    c.layers = 2, c.hidden = 32, c.heads = 4, c.kv_heads = family == FAMILY_GPT2 ? 4 : 2,
    c.head_dim = 8, c.ffn = 64, c.vocab = vocab, c.context = 128;
    CHECK_OK(model_describe(&model, &c, &err), err);
    return model;
}

static int fill(void *context, int param, int64_t first_row, int64_t rows, float *out,
                struct err *err) {
    const struct model *model = context;
    (void)err;
    int64_t columns = model->params[param].columns;
    for (int64_t i = 0; i < rows * columns; i++)
        out[i] = (float)(param * 10000 + first_row * columns + i);
    return 0;
}

static const char *write_one(const struct model *model, enum gguf_type type,
                             struct hf_cast_counts *counts) {
    static char path[4096];
    struct err err = {0};
    struct tokenizer *tok = make_tokenizer();
    snprintf(path, sizeof path, "%s/model.gguf", test_temp_dir());
    CHECK_OK(
        gguf_write(path, "tiny", model, tok, type, fill, (void *)(uintptr_t)model, counts, &err),
        err);
    CHECK(!file_exists("model.gguf.partial"));
    tokenizer_free(tok);
    return path;
}

TEST(rows_of_rotary_heads_change_places) {
    static const int64_t one_head[] = {0, 4, 1, 5, 2, 6, 3, 7},
                         two_heads[] = {0, 2, 1, 3, 4, 6, 5, 7};
    for (int64_t i = 0; i < 8; i++) {
        CHECK_EQ_INT(rope_half_split_row(i, 8), one_head[i]);
        CHECK_EQ_INT(rope_half_split_row(i, 4),
                     two_heads[i]); // 2 key heads, whatever the query heads
    }
    for (int head_dim = 2; head_dim <= 128; head_dim *= 2)
        for (int64_t i = 0; i < 1024; i++) {
            CHECK_EQ_INT(rope_interleaved_row(rope_half_split_row(i, head_dim), head_dim), i);
            CHECK_EQ_INT(rope_half_split_row(rope_interleaved_row(i, head_dim), head_dim), i);
        }
}

TEST(weights_of_the_llama_kind) {
    struct model model = make_model(FAMILY_LLAMA, 300);
    struct reader r;
    uint32_t type;
    uint64_t shape[2];
    open_file(&r, write_one(&model, GGUF_F32, NULL));
    int qkv = model_param(&model, 1, PARAM_QKV);
    for (int part = 0; part < 3; part++) {
        static const char *const names[] = {"blk.1.attn_q.weight", "blk.1.attn_k.weight",
                                            "blk.1.attn_v.weight"};
        static const int64_t first[] = {0, 32, 48}, rows[] = {32, 16, 16};
        const char *data = tensor(&r, names[part], &type, shape);
        CHECK(data != NULL);
        CHECK_EQ_INT(type, 0);
        CHECK_EQ_INT(shape[0], 32);
        CHECK_EQ_INT(shape[1], rows[part]);
        for (int64_t row = 0; row < rows[part]; row++) {
            float x;
            memcpy(&x, data + row * 32 * 4, 4);
            int64_t source = part < 2 ? row / 8 * 8 + row % 8 / 2 + row % 2 * 4 : row;
            CHECK_CLOSE(x, qkv * 10000 + (first[part] + source) * 32, 0);
        }
    }
    CHECK(tensor(&r, "output.weight", &type, shape) != NULL);
    CHECK(tensor(&r, "output_norm.weight", &type, shape) != NULL);
    CHECK_EQ_INT(shape[0], 32);
    CHECK(tensor(&r, "rope_freqs.weight", &type, shape) == NULL);
    CHECK_STR(string(&r, "general.architecture"), "llama");
    CHECK_STR(string(&r, "general.name"), "tiny");
    CHECK_EQ_INT(number(&r, "llama.attention.head_count_kv"), 2);
    CHECK_EQ_INT(number(&r, "llama.context_length"), 128);
    free(r.data);
    model_free(&model);
}

TEST(the_tokenizer_goes_along) {
    struct model model = make_model(FAMILY_LLAMA, 300);
    struct reader r;
    open_file(&r, write_one(&model, GGUF_F32, NULL));
    CHECK_STR(string(&r, "tokenizer.ggml.model"), "gpt2");
    CHECK_STR(string(&r, "tokenizer.chat_template"), chat);
    CHECK_EQ_INT(number(&r, "tokenizer.ggml.eos_token_id"), 0);
    CHECK_EQ_INT(number(&r, "tokenizer.ggml.eot_token_id"), 2);
    CHECK_EQ_INT(number(&r, "tokenizer.ggml.add_bos_token"), 0);
    CHECK_EQ_INT(seek(&r, "tokenizer.ggml.tokens"), 9);
    CHECK_EQ_INT(take(&r, 4), 8);
    CHECK_EQ_INT(take(&r, 8), 300); // rows of the embedding
    char text[256];
    take_string(&r, text);
    CHECK_STR(text, "<|endoftext|>");
    for (int i = 1; i <= 299; i++) take_string(&r, text);
    CHECK_STR(text, "[PAD299]");
    CHECK_EQ_INT(seek(&r, "tokenizer.ggml.token_type"), 9);
    CHECK_EQ_INT(take(&r, 4), 5);
    CHECK_EQ_INT(take(&r, 8), 300);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(take(&r, 4), TOKENIZER_CONTROL);
    CHECK_EQ_INT(take(&r, 4), TOKENIZER_NORMAL);
    CHECK_EQ_INT(seek(&r, "tokenizer.ggml.merges"), 9);
    CHECK_EQ_INT(take(&r, 4), 8);
    CHECK(take(&r, 8) >= 5);
    take_string(&r, text);
    CHECK_EQ_INT(strlen(text) - strlen(strchr(text, ' ') + 1) > 1, 1);
    free(r.data);
    // a tokenizer that is too large belongs to another model
    struct model small = make_model(FAMILY_LLAMA, 200);
    struct tokenizer *tok = make_tokenizer();
    struct err err = {0};
    CHECK(gguf_write("x.gguf", "x", &small, tok, GGUF_F32, fill, &small, NULL, &err) != 0);
    CHECK_CONTAINS(err.text, "200");
    tokenizer_free(tok);
    model_free(&small);
    model_free(&model);
}

TEST(settings_of_other_kinds) {
    struct reader r;
    uint32_t type;
    uint64_t shape[2];
    struct model model = make_model(FAMILY_GPT2, 300);
    open_file(&r, write_one(&model, GGUF_BF16, NULL));
    CHECK_STR(string(&r, "general.architecture"), "gpt2");
    const char *data = tensor(&r, "blk.0.attn_qkv.weight", &type, shape);
    CHECK(data != NULL);
    CHECK_EQ_INT(type, 30);
    CHECK_EQ_INT(shape[1], 96);
    CHECK(tensor(&r, "position_embd.weight", &type, shape) != NULL);
    CHECK_EQ_INT(type, 0);
    CHECK(tensor(&r, "blk.1.ffn_up.bias", &type, shape) != NULL);
    CHECK_EQ_INT(type, 0);
    CHECK(tensor(&r, "output.weight", &type, shape) == NULL); // tied
    free(r.data);
    model_free(&model);

    model = make_model(FAMILY_LLAMA, 300);
    model.config.rope = (struct model_rope){.scaling = ROPE_LLAMA3,
                                            .theta = 500000,
                                            .factor = 8,
                                            .low_freq_factor = 1,
                                            .high_freq_factor = 4,
                                            .original_context = 64};
    model.config.layer_window[0] = 0;
    open_file(&r, write_one(&model, GGUF_F32, NULL));
    data = tensor(&r, "rope_freqs.weight", &type, shape);
    CHECK(data != NULL);
    CHECK_EQ_INT(shape[0], 4);
    float factors[4];
    memcpy(factors, data, sizeof factors);
    CHECK_CLOSE(factors[0], 1, 1e-6);
    CHECK_CLOSE(factors[3], 8, 1e-6);
    free(r.data);

    model.config.rope = (struct model_rope){.scaling = ROPE_YARN,
                                            .theta = 10000,
                                            .factor = 4,
                                            .beta_fast = 32,
                                            .beta_slow = 1,
                                            .truncate = true,
                                            .original_context = 32};
    snprintf(model.config.variant, sizeof model.config.variant, "qwen2");
    model_free(&model);
    struct model_config c = model.config;
    c.qkv_bias = true;
    for (int i = 0; i < c.layers; i++) c.layer_window[i] = 48;
    struct err err = {0};
    CHECK_OK(model_describe(&model, &c, &err), err);
    open_file(&r, write_one(&model, GGUF_F32, NULL));
    CHECK_STR(string(&r, "general.architecture"), "qwen2");
    CHECK_STR(string(&r, "qwen2.rope.scaling.type"), "yarn");
    CHECK_EQ_INT(number(&r, "qwen2.rope.scaling.original_context_length"), 32);
    CHECK_EQ_INT(number(&r, "qwen2.context_length"),
                 48); // up to the window it is the same function
    CHECK(tensor(&r, "blk.0.attn_k.bias", &type, shape) != NULL);
    data = tensor(&r, "blk.0.attn_k.weight", &type, shape);
    float second;
    memcpy(&second, data + 32 * 4, 4);
    CHECK_CLOSE(second, model_param(&model, 0, PARAM_QKV) * 10000 + 33 * 32,
                0); // this architecture keeps half-split rows
    free(r.data);
    model_free(&model);
}

TEST(yarn_with_its_own_thresholds_goes_by_factors) {
    struct model model = make_model(FAMILY_LLAMA, 300);
    struct model_rope *rope = &model.config.rope;
    *rope = (struct model_rope){.scaling = ROPE_YARN,
                                .theta = 100,
                                .factor = 4,
                                .beta_fast = 4,
                                .beta_slow = 0.25,
                                .truncate = true,
                                .original_context = 32};
    struct reader r;
    uint32_t type;
    uint64_t shape[2];
    open_file(&r, write_one(&model, GGUF_F32, NULL));
    CHECK_EQ_INT(seek(&r, "llama.rope.scaling.type"), 0);
    CHECK_EQ_INT(seek(&r, "llama.rope.scaling.attn_factor"), 6);
    float factor, factors[4];
    memcpy(&factor, r.data + r.at, 4);
    CHECK_CLOSE(factor, 0.1 * log(4) + 1, 1e-6);
    const char *data = tensor(&r, "rope_freqs.weight", &type, shape);
    CHECK(data != NULL);
    memcpy(factors, data, sizeof factors);
    double plain[4], scaled[4];
    rope_inverse_frequencies(rope, 8, 128, scaled);
    rope->scaling = ROPE_PLAIN;
    rope_inverse_frequencies(rope, 8, 128, plain);
    for (int i = 0; i < 4; i++) CHECK_CLOSE(factors[i], plain[i] / scaled[i], 1e-6);
    free(r.data);
    model_free(&model);
}

TEST(blocks_of_eight_bits) {
    float x[64];
    unsigned char out[2 * GGUF_Q8_BYTES];
    for (int i = 0; i < 64; i++) x[i] = i < 32 ? sinf((float)i) * 3 : 0;
    gguf_quantize_q8_0(x, 2, out);
    for (int i = 0; i < 64; i++) {
        uint16_t scale;
        memcpy(&scale, out + i / 32 * GGUF_Q8_BYTES, 2);
        float back = f16_to_float(scale) * (float)(int8_t)out[i / 32 * GGUF_Q8_BYTES + 2 + i % 32];
        CHECK(fabsf(back - x[i]) <= 3.0f / 127 * 0.502f);
    }
    struct model model = make_model(FAMILY_LLAMA, 300);
    struct hf_cast_counts counts = {0};
    struct reader r;
    uint32_t type;
    uint64_t shape[2];
    open_file(&r, write_one(&model, GGUF_Q8_0, &counts));
    CHECK(tensor(&r, "blk.0.ffn_down.weight", &type, shape) != NULL);
    CHECK_EQ_INT(type, 8);
    CHECK(tensor(&r, "blk.0.ffn_norm.weight", &type, shape) != NULL);
    CHECK_EQ_INT(type, 0);
    uint64_t values = 0;
    for (int i = 0; i < model.param_count; i++)
        values += (uint64_t)param_elements(&model.params[i]);
    CHECK_EQ_INT(counts.values, values);
    CHECK(counts.changed > values / 2);
    free(r.data);
    model_free(&model);
}

TEST(experts_are_refused_clearly) {
    struct model_config c;
    struct err err = {0};
    CHECK_OK(model_preset("mixtral-8x7b", &c, &err), err);
    CHECK(gguf_architecture(&c, &err) == NULL);
    CHECK_CONTAINS(err.text, "models with experts");
}
