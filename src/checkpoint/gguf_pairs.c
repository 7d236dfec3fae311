// The settings of a GGUF file; see gguf_parts.h.
#include "base/log.h"
#include "checkpoint/gguf_parts.h"
#include "model/hf_config.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

void gguf_raw(struct gguf_pairs *p, const void *bytes, size_t count) {
    if (!p->failed && text_put(&p->bytes, bytes, count) != 0) p->failed = 1;
}

// The machine is little-endian, as the format is.
static void put_u64(struct gguf_pairs *p, uint64_t value) {
    gguf_raw(p, &value, sizeof value);
}

void gguf_raw_string(struct gguf_pairs *p, const char *text, size_t bytes) {
    put_u64(p, bytes);
    gguf_raw(p, text, bytes);
}

static void begin(struct gguf_pairs *p, const char *key, enum gguf_value type) {
    uint32_t code = type;
    gguf_raw_string(p, key, strlen(key));
    gguf_raw(p, &code, sizeof code);
    p->count++;
}

void gguf_put_u32(struct gguf_pairs *p, const char *key, uint32_t value) {
    begin(p, key, GGUF_VALUE_U32);
    gguf_raw(p, &value, sizeof value);
}

void gguf_put_f32(struct gguf_pairs *p, const char *key, float value) {
    begin(p, key, GGUF_VALUE_F32);
    gguf_raw(p, &value, sizeof value);
}

void gguf_put_bool(struct gguf_pairs *p, const char *key, bool value) {
    unsigned char byte = value;
    begin(p, key, GGUF_VALUE_BOOL);
    gguf_raw(p, &byte, 1);
}

void gguf_put_string(struct gguf_pairs *p, const char *key, const char *text, size_t bytes) {
    begin(p, key, GGUF_VALUE_STRING);
    gguf_raw_string(p, text, bytes);
}

void gguf_begin_array(struct gguf_pairs *p, const char *key, enum gguf_value type, uint64_t count) {
    uint32_t code = type;
    begin(p, key, GGUF_VALUE_ARRAY);
    gguf_raw(p, &code, sizeof code);
    put_u64(p, count);
}

const char *gguf_architecture(const struct model_config *c, struct err *err) {
    if (c->experts > 0) {
        err_set(err, ERR_USAGE,
                "GGUF files of models with experts are not written; export a Hugging Face folder, "
                "which llama.cpp's converter reads");
        return NULL;
    }
    const char *type = hf_config_type(c, err);
    if (type && strcmp(type, "mistral") == 0) return "llama";
    return type;
}

// The length up to which llama.cpp computes the same function.
static int stated_context(const struct model_config *c) {
    int context = c->context;
    if (c->rope.scaling == ROPE_DYNAMIC_NTK && c->rope.original_context < context) {
        context = c->rope.original_context;
        log_line(LOG_WARN,
                 "GGUF has no dynamic rope scaling: the file states a context of %d, where it does "
                 "not act",
                 context);
    }
    for (int i = 0; i < c->layers; i++) {
        if (c->layer_window[i] == 0 || c->layer_window[i] >= context) continue;
        context = c->layer_window[i];
        log_line(LOG_WARN,
                 "GGUF readers ignore this model's sliding window: the file states a context of "
                 "%d, where it does not act",
                 context);
    }
    return context;
}

// Readers take YaRN's usual thresholds and rounding whatever a file says; other ones go by a table
// of factors, which only the llama architecture has.
static bool usual_yarn(const struct model_rope *r) {
    return r->beta_fast == 32 && r->beta_slow == 1 && r->truncate;
}

bool gguf_has_rope_factors(const struct model_config *c) {
    if (c->learned_positions) return false;
    return c->rope.scaling == ROPE_LLAMA3 ||
           (c->rope.scaling == ROPE_YARN && !usual_yarn(&c->rope));
}

static void put_scaling(struct gguf_pairs *p, const char *arch, const struct model_config *c) {
    const struct model_rope *r = &c->rope;
    char key[96];
    double usual =
        r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1; // what readers multiply by under YaRN
    if (r->scaling != ROPE_LINEAR && r->scaling != ROPE_YARN) return;
    if (gguf_has_rope_factors(c)) {
        snprintf(key, sizeof key, "%s.rope.scaling.attn_factor", arch);
        gguf_put_f32(p, key, (float)(r->attention_factor > 0 ? r->attention_factor : usual));
        return;
    }
    const char *kind = r->scaling == ROPE_LINEAR ? "linear" : "yarn";
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    gguf_put_string(p, key, kind, strlen(kind));
    snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
    gguf_put_f32(p, key, (float)r->factor);
    if (r->scaling == ROPE_LINEAR) return;
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
    gguf_put_u32(p, key, (uint32_t)r->original_context);
    if (r->attention_factor > 0) {
        snprintf(key, sizeof key, "%s.rope.scaling.attn_factor", arch);
        gguf_put_f32(p, key, (float)(r->attention_factor / usual));
    }
}

int gguf_model_pairs(struct gguf_pairs *p, const char *name, const struct model_config *c,
                     enum gguf_type type, struct err *err) {
    static const uint32_t file_types[] = {
        [GGUF_F32] = 0, [GGUF_F16] = 1, [GGUF_BF16] = 32, [GGUF_Q8_0] = 7};
    const char *arch = gguf_architecture(c, err);
    if (!arch) return -1;
    if (gguf_has_rope_factors(c) && strcmp(arch, "llama") != 0)
        return err_set(err, ERR_USAGE,
                       "GGUF's %s architecture cannot express this model's rope scaling (llama3, "
                       "or yarn with its own beta_fast, beta_slow or truncate)",
                       arch);
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {
        {"context_length", stated_context(c)},
        {"embedding_length", c->hidden},
        {"block_count", c->layers},
        {"feed_forward_length", c->ffn},
        {"attention.head_count", c->heads},
        {"attention.head_count_kv", c->kv_heads},
        {"attention.key_length", c->head_dim},
        {"attention.value_length", c->head_dim},
        {"vocab_size", c->vocab},
    };
    char key[96];
    gguf_put_string(p, "general.architecture", arch, strlen(arch));
    gguf_put_string(p, "general.type", "model", 5);
    gguf_put_string(p, "general.name", name, strlen(name));
    gguf_put_u32(p, "general.file_type", file_types[type]);
    gguf_put_u32(p, "general.quantization_version", 2);
    gguf_put_u32(p, "general.alignment", 32);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].key);
        gguf_put_u32(p, key, (uint32_t)numbers[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.%s", arch,
             c->norm == NORM_RMS ? "layer_norm_rms_epsilon" : "layer_norm_epsilon");
    gguf_put_f32(p, key, (float)c->norm_eps);
    if (!c->learned_positions) {
        snprintf(key, sizeof key, "%s.rope.freq_base", arch);
        gguf_put_f32(p, key, (float)c->rope.theta);
        snprintf(key, sizeof key, "%s.rope.dimension_count", arch);
        gguf_put_u32(p, key, (uint32_t)c->head_dim);
        put_scaling(p, arch, c);
    }
    return 0;
}

// --- the tokenizer ---

static int put_tokens(struct gguf_pairs *p, const struct tokenizer *tok, uint32_t known,
                      uint32_t vocab, struct err *err) {
    struct text one = {0};
    gguf_begin_array(p, "tokenizer.ggml.tokens", GGUF_VALUE_STRING, vocab);
    for (uint32_t id = 0; id < vocab; id++) {
        size_t length;
        one.size = 0;
        int failed = 0;
        if (id < known && tokenizer_token_bytes(tok, id, &length))
            failed = tokenizer_token_text(tok, id, &one);
        else // rows of the embedding without a token
            failed = text_printf(&one, "[PAD%u]", id);
        if (failed) {
            text_free(&one);
            return err_set(err, ERR_MEMORY, "no memory for token %u", id);
        }
        gguf_raw_string(p, one.data ? one.data : "", one.size);
    }
    gguf_begin_array(p, "tokenizer.ggml.token_type", GGUF_VALUE_I32, vocab);
    for (uint32_t id = 0; id < vocab; id++) {
        size_t length;
        int32_t type = id < known && tokenizer_token_bytes(tok, id, &length)
                           ? (int32_t)tokenizer_token_type(tok, id)
                           : TOKENIZER_UNUSED;
        gguf_raw(p, &type, sizeof type);
    }
    if (tokenizer_kind(tok) == TOKENIZER_CHARACTERS) {
        gguf_begin_array(p, "tokenizer.ggml.scores", GGUF_VALUE_F32, vocab);
        for (uint32_t id = 0; id < vocab; id++) {
            float score = id < known ? tokenizer_token_score(tok, id) : -1000.0f;
            gguf_raw(p, &score, sizeof score);
        }
    }
    text_free(&one);
    return 0;
}

static int put_merges(struct gguf_pairs *p, const struct tokenizer *tok, struct err *err) {
    struct text one = {0};
    size_t count = tokenizer_merge_count(tok);
    gguf_begin_array(p, "tokenizer.ggml.merges", GGUF_VALUE_STRING, count);
    for (size_t i = 0; i < count; i++) {
        uint32_t left, right;
        tokenizer_merge(tok, i, &left, &right);
        one.size = 0;
        if (tokenizer_token_text(tok, left, &one) != 0 || text_puts(&one, " ") != 0 ||
            tokenizer_token_text(tok, right, &one) != 0) {
            text_free(&one);
            return err_set(err, ERR_MEMORY, "no memory for merge %zu", i);
        }
        gguf_raw_string(p, one.data, one.size);
    }
    text_free(&one);
    return 0;
}

static void put_special(struct gguf_pairs *p, const char *key, int32_t id) {
    if (id >= 0) gguf_put_u32(p, key, (uint32_t)id);
}

int gguf_tokenizer_pairs(struct gguf_pairs *p, const struct tokenizer *tok,
                         const struct model_config *c, struct err *err) {
    uint32_t known = tokenizer_vocab_size(tok);
    if (known > (uint32_t)c->vocab)
        return err_set(
            err, ERR_DATA,
            "the tokenizer has %u tokens, the model only %d; it is the tokenizer of another model",
            known, c->vocab);
    const char *model = tokenizer_gguf_model(tok), *pre = tokenizer_gguf_pre(tok),
               *chat = tokenizer_chat_template(tok);
    gguf_put_string(p, "tokenizer.ggml.model", model, strlen(model));
    gguf_put_string(p, "tokenizer.ggml.pre", pre, strlen(pre));
    if (put_tokens(p, tok, known, (uint32_t)c->vocab, err) != 0) return -1;
    if (tokenizer_kind(tok) == TOKENIZER_BYTE_LEVEL && put_merges(p, tok, err) != 0) return -1;
    // ids of the tokenizer's files; the model's own where they name none
    int32_t bos = tokenizer_bos(tok), eos = tokenizer_eos(tok);
    put_special(p, "tokenizer.ggml.bos_token_id", bos >= 0 ? bos : c->bos_id);
    put_special(p, "tokenizer.ggml.eos_token_id", eos >= 0 ? eos : c->eos_id);
    put_special(p, "tokenizer.ggml.eot_token_id", tokenizer_eot(tok));
    put_special(p, "tokenizer.ggml.unknown_token_id", tokenizer_unk(tok));
    put_special(p, "tokenizer.ggml.padding_token_id", tokenizer_pad(tok));
    gguf_put_bool(p, "tokenizer.ggml.add_bos_token", tokenizer_add_bos(tok));
    gguf_put_bool(p, "tokenizer.ggml.add_eos_token", tokenizer_add_eos(tok));
    gguf_put_bool(p, "tokenizer.ggml.add_space_prefix", tokenizer_add_space_prefix(tok));
    if (chat) gguf_put_string(p, "tokenizer.chat_template", chat, strlen(chat));
    return 0;
}
