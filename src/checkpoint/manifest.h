// manifest.json of a checkpoint folder: what must be there, where each piece of each tensor lies,
// and the state. Inside the room only.
//
// Version 2 names every tensor with its logical type and shape, and for every part the rank that
// wrote it, where its data begin, and its pieces in the order in which they lie there (pieces.h has
// the names). So a reader finds any bytes without opening a part that it does not need, and can say
// what an absent one held. Version 1, whole tensors in parts of one process, is read too; there the
// parts' own headers say what they hold.
#pragma once
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/pieces.h"
#include <stdint.h>

#define MANIFEST_NAME "manifest.json"

struct manifest_part {
    char name[64]; // plain file name
    uint64_t bytes, hash;
    int rank; // that wrote it
};

struct manifest_piece {
    int tensor, part;
    struct box box;
    uint64_t begin; // of its data in the file, which are dense
};

struct manifest {
    struct checkpoint_state state; // its texts live in `tree`
    struct model_config model;
    uint64_t hash;
    int version;
    struct manifest_part *parts;
    int part_count;
    struct tensor *tensors; // of the whole model, ascending by name, described only
    int tensor_count;
    struct manifest_piece *pieces; // ascending by tensor, row, column; those without elements are
                                   // left out
    int piece_count;
    int *first_piece; // [tensor_count + 1]
    json_t *tree;
};

// What a rank adds to the manifest: {"tensors": {name: [dtype, sizes...]}, "parts": [...]}.
json_t *manifest_lists(void);
int manifest_lists_tensor(json_t *lists, const struct tensor *t, struct err *err);
int manifest_lists_part(json_t *lists, const struct manifest_part *part, uint64_t begin,
                        const struct tensor *pieces, int count, struct err *err);
// Adds the lists of `rank`; a tensor that both name must be the same.
int manifest_lists_merge(json_t *lists, json_t *more, int rank, struct err *err);

// Refuses lists whose pieces do not tile every tensor. Written whole and made durable; the manifest
// carries a hash of itself. *bytes: of the manifest and all parts.
int manifest_write(const char *folder, const struct checkpoint_state *state,
                   const struct model_config *model, const json_t *lists, uint64_t *bytes,
                   struct err *err);
// The same of a whole tree, without hash.
int manifest_write_tree(const char *folder, json_t *tree, uint64_t *bytes, struct err *err);
// Its pieces, for snapshots. The tree without its hash; NULL when memory is short. Then the hash is
// added, which turns it into text (free() it).
json_t *manifest_tree(const struct checkpoint_state *state, const struct model_config *model,
                      const json_t *lists);
char *manifest_seal(json_t *tree, bool compact);
// Takes the hash out again and compares.
int manifest_unseal(json_t *tree, const char *where, uint64_t *hash, struct err *err);
// State, model and lists of a tree whose hash is known to be right. Keeps a reference to it, and
// needs manifest_free also when it fails.
int manifest_from_tree(json_t *tree, const char *where, struct manifest *out, struct err *err);
// Of version 1 the parts' headers are still to be added, and then manifest_complete called.
int manifest_read(const char *folder, struct manifest *out, struct err *err);
int manifest_add_header(struct manifest *m, int part, const struct tensor *tensors, int count,
                        uint64_t begin, struct err *err);
// Reads the lists of `tree`, and checks that the pieces of each tensor tile it. `where` stands in
// messages.
int manifest_complete(struct manifest *m, const char *where, struct err *err);
int manifest_find(const struct manifest *m, const char *name); // index of the tensor, or -1
// By the name under which it stands in a part; NULL when there is none.
const struct manifest_piece *manifest_find_piece(const struct manifest *m, const char *stored);
void manifest_free(struct manifest *m);
