// Writing GGUF, the format of llama.cpp (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md,
// version 3): one file with the model's settings, its tokenizer and its weights. Written param by
// param; memory is one param.
#pragma once
#include "base/error.h"
#include "checkpoint/hf_folder.h"
#include "data/tokenizer.h"
#include "model/model.h"
#include <stdint.h>

enum gguf_type { GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0 };

// `name` is general.name. Vectors and the position table are F32 whatever `type`; matrices whose
// rows are not a multiple of 32 long cannot be Q8_0 and are stored as BF16. What llama.cpp cannot
// express (a sliding window, dynamic rope scaling) limits the context length that the file states,
// with a log line. `counts` may be NULL.
int gguf_write(const char *path, const char *name, const struct model *model,
               const struct tokenizer *tokenizer, enum gguf_type type, hf_fill *fill, void *context,
               struct hf_cast_counts *counts, struct err *err);

// One block of 32 values: a 16-bit scale and 32 signed bytes; 34 bytes.
enum { GGUF_Q8_VALUES = 32, GGUF_Q8_BYTES = 34 };
void gguf_quantize_q8_0(const float *from, int64_t blocks, unsigned char *to);
