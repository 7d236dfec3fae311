// What the memory column of a publisher counts, and the planned figure that stands beside it.
#include "plan/validate.h"
#include <math.h>
#include <string.h>

#define GIB (1024.0 * 1024 * 1024)

enum { LIVE, RESERVED, DEVICE }; // tensors; with what the allocator loses; with driver, libraries
enum { EVERY_RANK, FIRST_RANK, END_RANKS };

static const struct column {
    const char *prefix;
    double unit;
    int what, ranks;
    const char *source;
} columns[] = {
    {"simumax", GIB, LIVE, EVERY_RANK, "SimuMax docs/b200: max allocated over the ranks, GiB"},
    {"zerobubble", 1e9, LIVE, EVERY_RANK, "arXiv 2401.10241, Table 4: largest over the stages, GB"},
    {"nanotron", GIB, RESERVED, FIRST_RANK,
     "nanotron logs torch's peak on the first rank in units of 1024; its rows fit the first stage"},
    {"torchtitan", GIB, RESERVED, EVERY_RANK, "torchtitan metrics: max reserved, GiB"},
    {"bigscience", GIB, DEVICE, END_RANKS,
     "chronicles-prequel.md: nvidia-smi on the first and the last node"},
    {"", 1e9, DEVICE, EVERY_RANK, "not known"},
};

static const struct column *column_of(const struct published *row) {
    const struct column *c = columns;
    while (strncmp(row->source, c->prefix, strlen(c->prefix)) != 0) c++;
    return c;
}

double published_memory(const struct published *row) {
    return row->memory_gb > 0 ? row->memory_gb * column_of(row)->unit : 0;
}

double published_memory_planned(const struct published *row, const struct plan_memory *ranks,
                                int count) {
    const struct column *c = column_of(row);
    double most = 0;
    for (int i = 0; i < count; i++) {
        if (c->ranks == FIRST_RANK && i > 0) break;
        if (c->ranks == END_RANKS && i > 0 && i < count - 1) continue;
        const struct plan_memory *m = &ranks[i];
        most = fmax(most, c->what == LIVE       ? m->allocated
                          : c->what == RESERVED ? m->allocated + m->bytes[PLAN_FRAGMENTATION]
                                                : m->total);
    }
    return most;
}
