// The growing list of buffers, see memory.h.
#include "memory/memory.h"
#include "base/arena.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *buffer_kind_name(enum buffer_kind kind) {
    static const char *const names[BUFFER_KIND_COUNT] = {
        [BUFFER_WEIGHT] = "weights",      [BUFFER_PACKED] = "packed weights",
        [BUFFER_GRADIENT] = "gradients",  [BUFFER_MASTER] = "master weights",
        [BUFFER_MOMENT] = "moments",      [BUFFER_ACTIVATION] = "activations",
        [BUFFER_SCRATCH] = "scratch",     [BUFFER_LOGITS] = "logits",
        [BUFFER_WORKSPACE] = "workspace", [BUFFER_DATA] = "data",
        [BUFFER_TABLE] = "tables",        [BUFFER_COMM] = "messages",
        [BUFFER_SNAPSHOT] = "snapshots"};
    return (unsigned)kind < BUFFER_KIND_COUNT ? names[kind] : "unknown";
}

int memory_plan_add(struct memory_plan *plan, enum buffer_kind kind, int layer, int slot,
                    uint64_t bytes, const char *format, ...) {
    plan->kind_bytes[kind] += arena_round(bytes);
    if (plan->totals_only) {
        plan->total_bytes += arena_round(bytes);
        return plan->count++;
    }
    if (plan->count == plan->capacity) {
        int capacity = plan->capacity ? plan->capacity * 2 : 64;
        struct buffer *more = realloc(plan->buffers, (size_t)capacity * sizeof *more);
        if (!more) return -1;
        plan->buffers = more;
        plan->capacity = capacity;
    }
    struct buffer *b = &plan->buffers[plan->count];
    *b = (struct buffer){.kind = kind, .layer = layer, .slot = slot};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(b->name, sizeof b->name, format, arguments);
    va_end(arguments);
    b->bytes = arena_round(bytes);
    b->offset_bytes = plan->total_bytes;
    plan->total_bytes += b->bytes;
    return plan->count++;
}

uint64_t memory_plan_region_bytes(const struct memory_plan *plan) {
    return plan->total_bytes - plan->kind_bytes[BUFFER_SNAPSHOT];
}

uint64_t memory_plan_kind_bytes(const struct memory_plan *plan, enum buffer_kind kind) {
    return plan->kind_bytes[kind];
}

void memory_plan_free(struct memory_plan *plan) {
    free(plan->buffers);
    *plan = (struct memory_plan){.buffers = NULL};
}
