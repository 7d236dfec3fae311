// What the files of the enumeration share. Inside the room only.
#pragma once
#include "memory/rank.h"

// `failed` gathers shortages of memory for one check at the end.
struct enumeration {
    struct memory_plan *plan;
    struct rank_buffers *buffers;
    const struct local_model *local;
    const struct model *model; // the local one
    const struct model_config *config;
    const struct rank_shape *shape;
    bool failed;
};

// Index of the new buffer; -1 for none (no bytes).
int rank_add(struct enumeration *e, enum buffer_kind kind, int layer, int slot, uint64_t bytes,
             const char *name);
void rank_single(struct enumeration *e, enum rank_single which, enum buffer_kind kind,
                 uint64_t bytes, const char *name);

// rank_state.c: weights, masters, gradients, moments, packed copies, and what sharding needs
void rank_add_state(struct enumeration *e, const struct rank_workspace *workspace);

// rank_experts.c
void rank_add_experts(struct enumeration *e, const struct rank_workspace *workspace);
bool rank_has_dense_mlp(const struct model_config *config); // some layer's MLP is no mixture
