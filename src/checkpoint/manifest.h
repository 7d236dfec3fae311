// manifest.json of a checkpoint folder: what must be there, and the state. Inside the room only.
#pragma once
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include <stdint.h>

#define MANIFEST_NAME "manifest.json"

struct manifest_part {
    char name[64]; // plain file name
    uint64_t bytes, hash;
};

struct manifest {
    struct checkpoint_state state; // its texts live in `tree`
    struct model_config model;
    struct manifest_part *parts;
    int part_count;
    json_t *tree;
};

// Written whole and made durable. The manifest carries a hash of itself.
int manifest_write(const char *folder, const struct checkpoint_state *state,
                   const struct model_config *model, const struct manifest_part *parts,
                   int part_count, uint64_t *bytes, struct err *err);
int manifest_read(const char *folder, struct manifest *out, struct err *err);
void manifest_free(struct manifest *m);
