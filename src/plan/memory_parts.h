// What the files of the memory plan share. Inside the room only.
#pragma once
#include "plan/memory.h"

// memory_own.c: the engine's enumeration.
int plan_memory_own(const struct job *job, const struct pipeline *pipeline,
                    struct plan_memory_cache *cache, struct plan_memory *ranks, struct err *err);
struct plan_memory_cache *plan_memory_own_open(void);
void plan_memory_own_close(struct plan_memory_cache *cache);

// memory_stack.c: the same items by what another stack keeps.
int plan_memory_stack(const struct job *job, const struct pipeline *pipeline,
                      struct plan_memory *ranks, struct err *err);
