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
