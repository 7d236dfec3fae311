// Tags of the messages between two ranks, one range for each use; a message is found by its sender
// and its tag.
#pragma once
#include "comm/comm.h"

enum {
    TAG_STAGES = 0,          // stage.c: 2 (stage x slots + micro-batch) + direction
    TAG_CONTEXT = 1 << 18,   // context_ring.c: 2 step + ring
    TAG_TIED = 1 << 19,      // states_tied.c: + 0 .. 3
    TAG_NORM = TAG_TIED + 64 // states_norm.c: + stage
};
_Static_assert((int)TAG_NORM < (int)COMM_TAG_MOST, "comm_send takes tags up to COMM_TAG_MOST");
