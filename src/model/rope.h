// Rotary frequencies of every scaling kind, in double.
#pragma once
#include "model/model.h"

// Inverse frequencies [head_dim / 2] in radians per position; `length` matters for dynamic NTK
// only. Returns the factor that multiplies cos and sin (YaRN; otherwise 1).
double rope_inverse_frequencies(const struct model_rope *rope, int head_dim, int length,
                                double *out);
