// What the files of the GGUF writer share; inside the room only.
#pragma once
#include "base/text.h"
#include "checkpoint/gguf.h"
#include "model/hf_names.h"

// A growing list of key-value pairs. The first failure for want of memory is kept in `failed`.
struct gguf_pairs {
    struct text bytes;
    uint64_t count;
    int failed;
};
void gguf_put_u32(struct gguf_pairs *p, const char *key, uint32_t value);
void gguf_put_f32(struct gguf_pairs *p, const char *key, float value);
void gguf_put_bool(struct gguf_pairs *p, const char *key, bool value);
void gguf_put_string(struct gguf_pairs *p, const char *key, const char *text, size_t bytes);
// Arrays: the head, then `count` elements through the raw functions.
enum gguf_value {
    GGUF_VALUE_U32 = 4,
    GGUF_VALUE_I32 = 5,
    GGUF_VALUE_F32 = 6,
    GGUF_VALUE_BOOL = 7,
    GGUF_VALUE_STRING = 8,
    GGUF_VALUE_ARRAY = 9
};
void gguf_begin_array(struct gguf_pairs *p, const char *key, enum gguf_value type, uint64_t count);
void gguf_raw(struct gguf_pairs *p, const void *bytes, size_t count);
void gguf_raw_string(struct gguf_pairs *p, const char *text, size_t bytes);

// Settings of the model and of the tokenizer as pairs.
int gguf_model_pairs(struct gguf_pairs *p, const char *name, const struct model_config *c,
                     enum gguf_type type, struct err *err);
int gguf_tokenizer_pairs(struct gguf_pairs *p, const struct tokenizer *tokenizer,
                         const struct model_config *c, struct err *err);

// Whether the frequencies go into a tensor of factors, rope_freqs.weight.
bool gguf_has_rope_factors(const struct model_config *c);

// "llama", "qwen2", "qwen3", "olmo2" or "gpt2"; NULL with a message when none fits.
const char *gguf_architecture(const struct model_config *c, struct err *err);
