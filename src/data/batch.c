// Size and layout of a micro-batch, see batch.h.
#include "data/batch.h"
#include "base/arena.h"

enum { ARRAYS = 5 };

uint64_t batch_bytes(int32_t tokens) {
    return ARRAYS * (uint64_t)arena_round(sizeof(int32_t) * (size_t)tokens);
}

void batch_place(struct batch *batch, void *memory, int32_t rows, int32_t context) {
    *batch = (struct batch){.tokens = rows * context, .rows = rows, .context = context};
    int32_t **arrays[ARRAYS] = {&batch->input, &batch->target, &batch->position,
                                &batch->attend_from, &batch->attend_to};
    size_t each = (size_t)(batch_bytes(batch->tokens) / ARRAYS);
    for (int i = 0; i < ARRAYS; i++)
        *arrays[i] = (int32_t *)((unsigned char *)memory + (size_t)i * each);
}
