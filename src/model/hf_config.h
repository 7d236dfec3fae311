// Hugging Face config.json <-> model_config, for the model types gpt2, llama (2, 3, 3.x, SmolLM2),
// mistral, qwen2 (2.5), qwen3, olmo2, mixtral and qwen3_moe. Every key of a file is used, known to
// change nothing, or refused by name: a setting that would be dropped in silence makes a model that
// looks right and is not.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include "model/model.h"
#include <stddef.h>

// `name` is the file for messages.
int hf_config_parse(const char *text, size_t bytes, const char *name, struct model_config *out,
                    struct err *err);
int hf_config_read(const char *path, struct model_config *out, struct err *err); // a config.json

// The model_type that stores this description without loss, or NULL with a message that names what
// no type can hold.
const char *hf_config_type(const struct model_config *config, struct err *err);

// config.json as text, readable by transformers 4 and 5. `dtype` is what the weights are stored as:
// "float32", "bfloat16" or "float16".
int hf_config_write(const struct model_config *config, const char *dtype, struct text *out,
                    struct err *err);
