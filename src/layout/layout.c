// Layers over stages, and what a layout demands of a model and of a run; see layout.h.
#include "layout/layout.h"
#include "layout/layout_parts.h"
#include <stdio.h>
#include <string.h>

int layout_stage_rank(const struct layout *layout, int stage) {
    int pp = layout->mesh.size[MESH_PP];
    if (layout->placement == PLACE_V) return stage < pp ? stage : 2 * pp - 1 - stage;
    return stage % pp;
}

struct layout layout_single(const struct model_config *model) {
    struct layout layout = {
        .mesh = {.size = {1, 1, 1, 1},
                 .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                 .ep = 1,
                 .shard = 1},
        .chunks = 1,
        .placement = PLACE_LOOP,
    };
    layout.layer_first[1] = model->layers;
    return layout;
}

// ---- layers over stages

static int check_stages(const struct layout *layout, int layers, struct err *err) {
    int pp = layout->mesh.size[MESH_PP], chunks = layout->chunks;
    int64_t stages = (int64_t)pp * chunks;
    if (pp < 1 || chunks < 1 || chunks > LAYOUT_MAX_CHUNKS)
        return err_set(
            err, ERR_USAGE,
            "layout: %d chunks on each of %d pipeline ranks; 1 to %d chunks are possible", chunks,
            pp, LAYOUT_MAX_CHUNKS);
    if (layout->placement == PLACE_V && chunks != 2)
        return err_set(err, ERR_USAGE,
                       "layout: stages laid out as a V (zb-v) are 2 chunks a rank, not %d", chunks);
    if (stages > LAYOUT_MAX_STAGES)
        return err_set(err, ERR_USAGE, "layout: pp %d x %d chunks is %lld stages; at most %d", pp,
                       chunks, (long long)stages, LAYOUT_MAX_STAGES);
    if (stages <= layers) return 0;
    char nearest[96];
    if (pp <= layers)
        snprintf(nearest, sizeof nearest, "pp %d with at most %d chunks, or pp %d or less with %d",
                 pp, layers / pp, layers / chunks ? layers / chunks : 1,
                 layers / chunks ? chunks : 1);
    else
        snprintf(nearest, sizeof nearest, "pp %d or less", layers / chunks ? layers / chunks : 1);
    return err_set(err, ERR_USAGE,
                   "layout: layers (%d) do not fill the %lld stages of pp %d x %d chunks, each of "
                   "which needs one; nearest that work: %s",
                   layers, (long long)stages, pp, chunks, nearest);
}

// The layers that are left after each stage has one go one by one to the lightest stage, the first
// of equals.
static void split_even(struct layout *layout, int layers, bool count_ends) {
    int stages = layout_stages(layout);
    int count[LAYOUT_MAX_STAGES] = {0}, weight[LAYOUT_MAX_STAGES] = {0};
    for (int stage = 0; stage < stages; stage++) {
        count[stage] = 1;
        weight[stage] = 1 + (count_ends ? (stage == 0) + (stage == stages - 1) : 0);
    }
    for (int left = layers - stages; left > 0; left--) {
        int lightest = 0;
        for (int stage = 1; stage < stages; stage++)
            if (weight[stage] < weight[lightest]) lightest = stage;
        count[lightest]++;
        weight[lightest]++;
    }
    layout->layer_first[0] = 0;
    for (int stage = 0; stage < stages; stage++)
        layout->layer_first[stage + 1] = layout->layer_first[stage] + count[stage];
}

static int split_list(struct layout *layout, int layers, const int *list, int count,
                      struct err *err) {
    int stages = layout_stages(layout);
    int64_t sum = 0;
    if (count != stages)
        return err_set(err, ERR_USAGE,
                       "layout: the list of layers has %d numbers, but pp %d x %d chunks is %d "
                       "stages; give one number for each stage",
                       count, layout->mesh.size[MESH_PP], layout->chunks, stages);
    for (int stage = 0; stage < stages; stage++) {
        if (list[stage] < 1)
            return err_set(err, ERR_USAGE,
                           "layout: stage %d has %d layers in the list; each stage needs one",
                           stage, list[stage]);
        sum += list[stage];
    }
    if (sum != layers) {
        struct layout even = *layout;
        split_even(&even, layers, false);
        int least = layers - even.layer_first[stages - 1], more = layers - least * stages;
        char longer[32] = "";
        if (more > 0) snprintf(longer, sizeof longer, "%d of %d and ", more, least + 1);
        return err_set(err, ERR_USAGE,
                       "layout: the list gives %lld layers to %d stages, but the model has %d; "
                       "nearest that works: %s%d of %d",
                       (long long)sum, stages, layers, longer, stages - more, least);
    }
    layout->layer_first[0] = 0;
    for (int stage = 0; stage < stages; stage++)
        layout->layer_first[stage + 1] = layout->layer_first[stage] + list[stage];
    return 0;
}

int layout_split_layers(struct layout *layout, const struct model_config *model, const int *list,
                        int list_count, bool count_ends, struct err *err) {
    if (check_stages(layout, model->layers, err) != 0) return -1;
    if (list && list_count > 0) return split_list(layout, model->layers, list, list_count, err);
    split_even(layout, model->layers, count_ends);
    return 0;
}

// ---- what must divide

static int divides(const char *axis, int parts, const char *what, int64_t whole, struct err *err) {
    if (whole % parts == 0) return 0;
    return err_set(err, ERR_USAGE, "layout: %s (%d) does not divide %s (%lld)", axis, parts, what,
                   (long long)whole);
}

static bool has_dense_layers(const struct model_config *c) {
    for (int layer = 0; layer < c->layers; layer++)
        if (!model_layer_has_experts(c, layer)) return true;
    return false;
}

static int check_tensor_parallel(const struct layout *layout, const struct model_config *c,
                                 struct err *err) {
    int tp = layout->mesh.size[MESH_TP];
    if (tp == 1) return 0;
    if (divides("tp", tp, "heads", c->heads, err) != 0) return -1;
    if (c->kv_heads % tp != 0 && tp % c->kv_heads != 0)
        return err_set(err, ERR_USAGE,
                       "layout: tp (%d) neither divides kv_heads (%d) nor is a multiple of it", tp,
                       c->kv_heads);
    if (c->qk_norm == QK_NORM_FULL)
        return err_set(err, ERR_USAGE,
                       "layout: tp (%d) would cut the norm of queries and keys, which in this "
                       "model goes over all %d heads (qk_norm full); it needs tp 1",
                       tp, c->heads);
    if (has_dense_layers(c) && divides("tp", tp, "ffn", c->ffn, err) != 0) return -1;
    if (c->experts > 0 && divides("tp", tp, "expert_ffn", c->expert_ffn, err) != 0) return -1;
    if (c->experts > 0 && divides("tp", tp, "shared_ffn", c->shared_ffn, err) != 0) return -1;
    return 0;
}

static int check_experts(const struct layout *layout, const struct model_config *c,
                         struct err *err) {
    int ep = layout->mesh.ep;
    if (ep == 1) return 0;
    if (c->experts == 0)
        return err_set(err, ERR_USAGE,
                       "layout: ep is %d, but the model has no experts to spread; use ep 1", ep);
    return divides("ep", ep, "experts", c->experts, err);
}

int layout_fits_model(const struct layout *layout, const struct model_config *c, struct err *err) {
    if (check_stages(layout, c->layers, err) != 0) return -1;
    if (check_tensor_parallel(layout, c, err) != 0) return -1;
    return check_experts(layout, c, err);
}

int layout_fits_run(const struct layout *layout, const struct model_config *c,
                    const struct layout_run *run, struct err *err) {
    int tp = layout->mesh.size[MESH_TP], cp = layout->mesh.size[MESH_CP];
    if (layout_fits_model(layout, c, err) != 0) return -1;
    if (cp > 1 && run->context < 2 * cp)
        return err_set(err, ERR_USAGE,
                       "layout: a sequence of %d tokens is too short for cp (%d), which cuts it "
                       "into %d parts",
                       run->context, cp, 2 * cp);
    if (cp > 1 && run->context % (2 * cp) != 0)
        return err_set(err, ERR_USAGE,
                       "layout: 2 cp (%d) does not divide context (%d): each of %d ranks takes two "
                       "parts of a sequence, an early and a late one",
                       2 * cp, run->context, cp);
    int64_t tokens = (int64_t)run->rows * run->context / cp;
    if (layout->sequence_parallel && tokens % tp != 0)
        return err_set(err, ERR_USAGE,
                       "layout: tp (%d) does not divide the %lld tokens of a micro-batch on a rank "
                       "(micro_batch %d x context %d / cp %d), as sequence parallelism needs; "
                       "parallel.sequence=false does without",
                       tp, (long long)tokens, run->rows, run->context, cp);
    return 0;
}

static int check_split(const struct layout *layout, const struct model_config *c, struct err *err) {
    int stages = layout_stages(layout);
    bool whole = layout->layer_first[0] == 0 && layout->layer_first[stages] == c->layers;
    for (int stage = 0; stage < stages; stage++)
        whole = whole && layout->layer_first[stage] < layout->layer_first[stage + 1];
    if (whole) return 0;
    return err_set(err, ERR_INTERNAL,
                   "layout: the stages' layers do not add up to the model's %d (call "
                   "layout_split_layers)",
                   c->layers);
}

int layout_check(const struct layout *layout, const struct model *model, int context, int rows,
                 int micro_batches, struct err *err) {
    const struct layout_run run = {context, rows, micro_batches};
    struct err fault = {0};
    char nearest[256];
    if (context < 1 || rows < 1 || micro_batches < 1)
        return err_set(err, ERR_USAGE,
                       "layout: a step has %d micro-batches of %d sequences of %d tokens; each "
                       "number is at least 1",
                       micro_batches, rows, context);
    if (layout->zero < 0 || layout->zero > 3)
        return err_set(err, ERR_USAGE, "layout: zero is %d; stages are 0 to 3", layout->zero);
    if (mesh_check(&layout->mesh, mesh_ranks(&layout->mesh), err) != 0) return -1;
    if (layout_fits_run(layout, &model->config, &run, &fault) != 0)
        return err_set(err, fault.kind, "%s%s", fault.text,
                       layout_nearest(layout, &model->config, &run, nearest));
    return check_split(layout, &model->config, err);
}
