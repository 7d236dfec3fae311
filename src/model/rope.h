// Rotary frequencies of every scaling kind, in double.
#pragma once
#include "model/model.h"

// Inverse frequencies [head_dim / 2] in radians per position; `length` matters for dynamic NTK
// only. Returns the factor that multiplies cos and sin (YaRN; otherwise 1).
double rope_inverse_frequencies(const struct model_rope *rope, int head_dim, int length,
                                double *out);

// cosine and sine [positions, head_dim / 2] of the positions 0 .. positions - 1, computed in double
// and with the factor inside: the tables that device kernels read. `length` as above.
void rope_tables(const struct model_rope *rope, int head_dim, int positions, int length,
                 float *cosine, float *sine);

// Two layouts of a head's rows are in use. Half-split (weft, Hugging Face): pair i is rows i and i
// + head_dim / 2. Interleaved (llama2.c, GGUF's llama): pair i is rows 2 i and 2 i + 1. Row `row`
// of a [heads head_dim, ...] matrix (each head by itself: the number of heads does not matter) in
// one layout is this row of the other.
int64_t rope_half_split_row(int64_t interleaved_row, int head_dim);
int64_t rope_interleaved_row(int64_t half_split_row, int head_dim);
