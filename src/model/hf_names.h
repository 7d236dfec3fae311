// The tensors that a Hugging Face folder holds for a model, and how each lies in a param: several
// tensors may share the rows of one param (q, k, v), and GPT-2 stores matrices turned ([inputs,
// outputs]).
#pragma once
#include "base/error.h"
#include "base/tensor.h"
#include "model/model.h"
#include <stdbool.h>
#include <stdint.h>

struct hf_tensor {
    char name[TENSOR_NAME_BYTES];
    int param;
    int64_t first_row, rows,
        columns;      // of the param (logical); first_row is where this tensor's rows begin
    bool turned;      // stored as [columns, rows]
    int dims;         // 1 for vectors
    int64_t shape[2]; // as stored
};

// All tensors of the model, in the order of its params; free() the list. A tied head has none of
// its own.
int hf_tensors(const struct model *model, struct hf_tensor **list, int *count, struct err *err);

// Name of the head's tensor: in untied models a tensor of the list; in tied ones a copy that some
// files carry beside, or instead of, the embedding.
const char *hf_head_name(const struct model_config *config);

// Finds the tensor that a stored name means, with or without the prefix "model." or "transformer.".
// -1: none.
int hf_tensor_find(const struct hf_tensor *list, int count, const char *stored_name);

// Buffers that files carry and no model needs: causal masks, rotary tables.
bool hf_name_ignorable(const char *stored_name);
