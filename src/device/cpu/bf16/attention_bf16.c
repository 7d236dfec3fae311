// Attention whose products multiply pairs of bf16 and sum in FP32; compiled for AVX-512 with
// AVX512_BF16 only.
#define ATTENTION_PAIRS 1
#include "device/cpu/attention_kernel.h"
