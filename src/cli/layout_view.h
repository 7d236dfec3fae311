// What `weft layout` tells about a layout, gathered once for its two ways of printing: groups and
// where they lie, kinds of ranks and what each holds, roles of parameters and their sums. Nothing
// here grows with the memory of the model, and but for lists of ranks nothing with the world.
#pragma once
#include "base/text.h"
#include "memory/state_bytes.h"
#include "train/config.h"

enum { ZERO_STAGES = 4 };

// All groups of a kind: they have one size.
struct group_view {
    int size, count;
    int most_hosts;   // that one group lies on
    bool keeps_rails; // on each of its hosts it has the same places
    int *members;     // [count][size]
};

// Ranks that hold the same stages; they differ in tp, dp and cp only.
struct kind_view {
    int first_pp, last_pp;
    struct local_model local; // of the first rank with tp index 0
    int64_t parameters;       // logical, of that rank
    struct state_bytes states[ZERO_STAGES];
};

struct role_view {
    const struct param *first;   // of the whole model
    char name[PARAM_NAME_BYTES]; // "layers.*.mlp.up.weight"
    enum mesh_group_kind sum, partial;
    bool tied_sum; // over the first and the last stage
};

struct layout_view {
    struct train_config *config;
    struct layout layout;
    struct model whole;
    int ranks, ranks_per_host;
    int64_t parameters;
    struct group_view groups[GROUP_KIND_COUNT];
    struct kind_view *kinds;
    int kind_count;
    struct role_view roles[PARAM_ROLE_COUNT];
    int role_count;
};

// The configuration must be loaded; ranks 0: as many as its sizes multiply to.
int layout_view_open(struct layout_view *view, struct train_config *config, int ranks,
                     int ranks_per_host, struct err *err);
void layout_view_close(struct layout_view *view);

// Groups of experts only where there are some.
bool layout_group_exists(const struct layout_view *view, enum mesh_group_kind kind);
// "0-7", "0:2048:16" (from, up to but not including, step), "0-1,8-9": at most `pieces`, then
// "...". -1 when memory is short.
int layout_ranges(struct text *out, const int *ranks, int count, int pieces);
// All ranks with this pipeline index.
int layout_stage_ranks(struct text *out, const struct layout_view *view, int pp, int pieces);
// Warnings as lines; empty when there are none.
int layout_warnings(struct text *out, const struct layout_view *view);
const char *layout_cut_text(const struct layout_view *view, const struct param *param);

// Both return 0, or -1 when memory is short. `rank` -1: none in particular.
int layout_print(struct text *out, const struct layout_view *view, int rank, struct err *err);
int layout_print_json(struct text *out, const struct layout_view *view, int rank, struct err *err);
