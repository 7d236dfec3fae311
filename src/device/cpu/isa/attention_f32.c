// Attention in FP32 arithmetic, for F32 and BF16 tensors; compiled for every instruction set.
#define ATTENTION_PAIRS 0
#include "device/cpu/attention_few.h"
#include "device/cpu/attention_kernel.h"
