// One region of memory, taken from the system at once, touched, and handed out in aligned pieces.
// What an arena hands out is never given back singly: its user planned the pieces beforehand.
#pragma once
#include "base/error.h"
#include <stddef.h>

#define ARENA_ALIGN ((size_t)64)

struct arena {
    unsigned char *base;
    size_t capacity_bytes; // what was asked for
    size_t used_bytes;
};

// Maps `bytes` (huge pages asked for where the system has them), zero-filled. `touch` writes every
// page now, so that later steps meet no first-touch cost and a shortage shows at start.
int arena_open(struct arena *arena, size_t bytes, int touch, struct err *err);
void arena_close(struct arena *arena);

// Next piece, aligned to ARENA_ALIGN. NULL when the plan was too small (a bug of the planner).
void *arena_take(struct arena *arena, size_t bytes);

// Size that a piece of `bytes` occupies: rounded up to ARENA_ALIGN.
size_t arena_round(size_t bytes);
