// Which part of a model lies on which rank: stages of the pipeline and their layers, slices of
// every parameter, places in the flat buffers. Plain data made from the model and the mesh; the
// engine executes it, checkpoints name their pieces by it, the memory plan and `weft layout` count
// it.
#pragma once
#include "layout/mesh.h"
#include "model/model.h"
#include <stdint.h>

enum { LAYOUT_MAX_STAGES = 256, LAYOUT_MAX_CHUNKS = 32 };

enum layout_placement {
    PLACE_LOOP, // stage s on pipeline rank s mod pp
    PLACE_V     // rank r holds the stages r and 2 pp - 1 - r (zb-v)
};

struct layout {
    struct mesh mesh;
    int chunks; // stages per pipeline rank
    enum layout_placement placement;
    int layer_first[LAYOUT_MAX_STAGES +
                    1]; // stage s holds the layers [layer_first[s], layer_first[s + 1])
    bool
        sequence_parallel; // the residual stream is cut over tp, token by token; false when tp is 1
    int zero;              // 0..3
};

// Layers of each stage. `list` (NULL or count == stages) is what the user gave; otherwise as even
// as possible, longer stages first, and with `count_ends` embedding and head weigh one layer each.
// Errors name layers, stages and the nearest numbers that work.
int layout_split_layers(struct layout *layout, const struct model_config *model, const int *list,
                        int list_count, bool count_ends, struct err *err);

// All that the layout demands of the model and of the run: heads, kv_heads (a multiple or a divisor
// of tp), ffn, experts; stages with at least one layer; `context` tokens in 2 cp parts; `rows *
// context / cp` tokens over tp with sequence parallelism; micro-batches. One message: which number
// does not divide which, and the nearest layouts that work.
int layout_check(const struct layout *layout, const struct model *model, int context, int rows,
                 int micro_batches, struct err *err);

static inline int layout_stages(const struct layout *layout) {
    return layout->mesh.size[MESH_PP] * layout->chunks;
}
int layout_stage_rank(const struct layout *layout,
                      int stage); // pipeline index that holds the stage

// Ranks over which a parameter's gradient is summed: those with other tokens.
static inline enum mesh_group_kind layout_gradient_group(const struct param *param) {
    return param->expert < 0 ? GROUP_DATA : GROUP_EXPERT_DATA;
}
// The tp ranks over which gradients of this role are partial sums (see param_slice.partial).
enum mesh_group_kind layout_partial_group(const struct layout *layout,
                                          const struct model_config *model, enum param_role role);

// One stage as a rank holds it.
struct stage_part {
    int stage;
    int layer_first, layer_count; // in the local model
    bool first, last;             // holds the embedding; final norm, head and loss
};

// Where a parameter of the local model comes from.
struct param_slice {
    int whole;                    // index in the whole model
    int64_t row[MODEL_MAX_PARTS]; // first row inside part i of the whole parameter; the local
                                  // part has local.part_rows[i] logical rows
    int64_t column;               // first column of the whole parameter
    int copies, copy;             // tp ranks that hold the same values, and which of them this is:
                                  // tp for SHARD_NONE, the size of GROUP_KV for k and v rows
                                  // (in copies_kv, copy_kv), 1 otherwise
    int copies_kv, copy_kv;       // of parts k and v of qkv; equal to copies, copy elsewhere
    // Gradients of this rank are partial sums over the tp ranks of this group, to be added up
    // before they are used: GROUP_TP (norm weights, biases of norms and the position table under
    // sequence parallelism; norms of q and k and router weights always), GROUP_KV (k and v rows of
    // qkv and its bias), or GROUP_KIND_COUNT: none.
    enum mesh_group_kind partial;
    bool tied_copy; // the table of a tied head that this rank holds for the head only; the first
                    // stage owns it
};

// The rank's own model. `model.config` has local sizes (heads, kv_heads, ffn, layers, experts;
// hidden and head_dim are those of the whole), names are those of the whole model ("layers.17..."
// for local layer 3), `layer` and `expert` are local; the router keeps a row for each expert of the
// whole. Order of parameters: as the whole model's. rows_padded of vocabulary rows is the same on
// all tp ranks: round up (vocab, 64 tp) / tp; the last ranks may hold less, even no, logical rows.
struct local_model {
    struct model model;
    struct param_slice *slices;                  // [model.param_count]
    struct stage_part stages[LAYOUT_MAX_CHUNKS]; // ascending
    int stage_count;
    int rank, at[MESH_AXES];
    int64_t vocab_first, vocab_rows; // logical rows of the vocabulary here
    int expert_first; // of the whole model's: local expert 0; there are model.config.experts
};
// A rank's sizes in place of the whole model's: heads, widths, experts. Layers stay.
void layout_local_sizes(struct model_config *config, const struct layout *layout);
int layout_local(struct local_model *local, const struct model *whole, const struct layout *layout,
                 int rank, struct err *err);
void local_model_free(struct local_model *local);

// One process that holds everything.
struct layout layout_single(const struct model_config *model);
