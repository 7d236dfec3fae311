// The kernels of attention for one arithmetic and one instruction set: the including file defines
// ATTENTION_PAIRS.
#pragma once
#include "device/cpu/attention_backward.h"
#include "device/cpu/attention_forward.h"
