// All candidates in a fixed order: meshes from small tp to large, inside them what changes the work
// of a layer (nodes), inside them what changes its order and what is sharded (variants).
#include "plan/search_parts.h"

int search_world(const struct search_request *request) {
    return request->cluster->nodes * request->cluster->per_node;
}

static bool allows(const struct search_request *request, enum search_key key, int value) {
    return !request->pins.set[key] || request->pins.value[key] == value;
}

static enum search_reason tensor_fault(const struct model_config *c, int tp) {
    bool dense = c->experts == 0;
    for (int i = 0; i < c->layers && !dense; i++) dense = c->layer_dense[i];
    if (c->heads % tp != 0) return REASON_HEADS;
    if (c->kv_heads % tp != 0 && tp % c->kv_heads != 0) return REASON_KV_HEADS;
    if (c->qk_norm == QK_NORM_FULL) return REASON_QK_NORM;
    if (dense && c->ffn % tp != 0) return REASON_FFN;
    if (c->experts > 0 && (c->expert_ffn % tp != 0 || c->shared_ffn % tp != 0)) return REASON_FFN;
    return SEARCH_REASONS;
}

// SEARCH_REASONS: none.
static enum search_reason mesh_fault(const struct search_request *r, const int *v) {
    const struct model_config *c = r->model;
    for (int key = SEARCH_TP; key <= SEARCH_EP; key++)
        if (!allows(r, (enum search_key)key, v[key])) return REASON_PINNED;
    if (v[SEARCH_TP] > 1) {
        enum search_reason fault = tensor_fault(c, v[SEARCH_TP]);
        if (fault != SEARCH_REASONS) return fault;
    }
    if (v[SEARCH_PP] > c->layers || v[SEARCH_PP] > LAYOUT_MAX_STAGES) return REASON_LAYERS;
    if (v[SEARCH_CP] > 1 && r->context % (2 * v[SEARCH_CP]) != 0) return REASON_CONTEXT;
    if (r->batch % v[SEARCH_DP] != 0) return REASON_BATCH;
    if (v[SEARCH_EP] > 1 && (c->experts == 0 || c->experts % v[SEARCH_EP] != 0))
        return REASON_EXPERTS;
    int micro = r->pins.value[SEARCH_MICRO];
    if (r->pins.set[SEARCH_MICRO] && r->batch / v[SEARCH_DP] % micro != 0) return REASON_MICRO;
    return SEARCH_REASONS;
}

static void reject_mesh(struct search_walk *walk, const struct search_choice *choice,
                        enum search_reason reason) {
    if (walk->refused) walk->refused(walk, choice, reason);
    if (!walk->result) return;
    if (walk->result->rejected_meshes[reason]++ == 0) walk->result->example[reason] = *choice;
}

// ---- nodes of a mesh

static bool is_split(enum pipeline_kind kind) {
    return kind == PIPELINE_ZB_H1 || kind == PIPELINE_ZB_V;
}

static int walk_recompute(struct search_walk *walk, struct search_choice *choice, struct err *err) {
    for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL; mode++) {
        choice->value[SEARCH_RECOMPUTE] = mode;
        if (!allows(walk->request, SEARCH_RECOMPUTE, mode)) continue;
        int result = walk->node(walk, choice, err);
        if (result != 0) return result;
    }
    return 0;
}

static int walk_micro(struct search_walk *walk, struct search_choice *choice, struct err *err) {
    const struct search_request *r = walk->request;
    int *v = choice->value;
    int64_t share = r->batch / v[SEARCH_DP];
    for (int64_t rows = 1; rows <= share && rows * r->context <= INT32_MAX / 2; rows++) {
        if (share % rows != 0 || !allows(r, SEARCH_MICRO, (int)rows)) continue;
        v[SEARCH_MICRO] = (int)rows;
        for (int sequence = v[SEARCH_TP] > 1; sequence >= 0; sequence--) {
            v[SEARCH_SEQUENCE] = sequence;
            if (!allows(r, SEARCH_SEQUENCE, sequence)) continue;
            if (sequence && rows * r->context / v[SEARCH_CP] % v[SEARCH_TP] != 0) continue;
            int result = walk_recompute(walk, choice, err);
            if (result != 0) return result;
        }
    }
    return 0;
}

static int walk_mesh(struct search_walk *walk, struct search_choice *choice, struct err *err) {
    enum search_reason fault = mesh_fault(walk->request, choice->value);
    if (walk->result) walk->result->meshes++;
    if (fault != SEARCH_REASONS) {
        reject_mesh(walk, choice, fault);
        return 0;
    }
    return walk_micro(walk, choice, err);
}

static int walk_experts(struct search_walk *walk, struct search_choice *choice, struct err *err) {
    int *v = choice->value, data = v[SEARCH_CP] * v[SEARCH_DP],
        experts = walk->request->model->experts;
    for (v[SEARCH_EP] = 1; v[SEARCH_EP] <= data; v[SEARCH_EP]++) {
        if (data % v[SEARCH_EP] != 0) continue;
        // Beyond the experts there is nothing to look at, unless the user asked for it.
        if (v[SEARCH_EP] > 1 && v[SEARCH_EP] > experts &&
            !(walk->request->pins.set[SEARCH_EP] && allows(walk->request, SEARCH_EP, v[SEARCH_EP])))
            continue;
        int result = walk_mesh(walk, choice, err);
        if (result != 0) return result;
    }
    return 0;
}

int search_walk_nodes(struct search_walk *walk, struct err *err) {
    const struct search_request *r = walk->request;
    struct search_choice choice = {{0}};
    int *v = choice.value, world = search_world(r);
    v[SEARCH_PRECISION] =
        r->pins.set[SEARCH_PRECISION] ? r->pins.value[SEARCH_PRECISION] : HARDWARE_BF16;
    for (v[SEARCH_TP] = 1; v[SEARCH_TP] <= world; v[SEARCH_TP]++) {
        if (world % v[SEARCH_TP] != 0) continue;
        int rest = world / v[SEARCH_TP];
        for (v[SEARCH_PP] = 1; v[SEARCH_PP] <= rest; v[SEARCH_PP]++) {
            if (rest % v[SEARCH_PP] != 0) continue;
            int data = rest / v[SEARCH_PP];
            for (v[SEARCH_CP] = 1; v[SEARCH_CP] <= data; v[SEARCH_CP]++) {
                if (data % v[SEARCH_CP] != 0) continue;
                v[SEARCH_DP] = data / v[SEARCH_CP];
                int result = walk_experts(walk, &choice, err);
                if (result != 0) return result;
            }
        }
    }
    return 0;
}

// ---- variants of a node

enum { MOST_STAGE_MICRO_BATCHES = 1 << 19 }; // of a schedule, see pipeline.c

static bool schedule_fits(const struct search_request *r, const int *v, enum pipeline_kind kind,
                          int chunks) {
    int64_t micro_batches = r->batch / v[SEARCH_DP] / v[SEARCH_MICRO];
    int stages = v[SEARCH_PP] * chunks;
    if (!allows(r, SEARCH_SCHEDULE, (int)kind) || !allows(r, SEARCH_CHUNKS, chunks)) return false;
    if (stages > r->model->layers || stages > LAYOUT_MAX_STAGES) return false;
    if (stages * micro_batches > MOST_STAGE_MICRO_BATCHES) return false;
    // The engine's weight halves read what recomputation would overwrite.
    if (is_split(kind) && r->stack->own && v[SEARCH_RECOMPUTE] != RECOMPUTE_NONE) return false;
    // Others run interleaved pipelines in whole rounds only.
    return kind != PIPELINE_INTERLEAVED || r->stack->own || micro_batches % v[SEARCH_PP] == 0;
}

static int put_variants(const struct search_request *r, const struct search_choice *node,
                        enum pipeline_kind kind, int chunks, struct search_choice *out, int count) {
    const int *v = node->value;
    bool sharded = v[SEARCH_DP] * v[SEARCH_CP] > 1;
    bool splits = v[SEARCH_PP] > 1 && v[SEARCH_PP] * chunks < r->model->layers;
    for (int ends = 0; ends <= (splits ? 1 : 0); ends++)
        for (int zero = 0; zero <= (sharded ? 3 : 0); zero++) {
            if (!allows(r, SEARCH_ENDS, ends) || !allows(r, SEARCH_ZERO, zero)) continue;
            struct search_choice *c = &out[count++];
            *c = *node;
            c->value[SEARCH_SCHEDULE] = (int)kind;
            c->value[SEARCH_CHUNKS] = chunks;
            c->value[SEARCH_ENDS] = ends;
            c->value[SEARCH_ZERO] = zero;
        }
    return count;
}

int search_variants(const struct search_request *r, const struct search_choice *node,
                    struct search_choice *out) {
    const int *v = node->value;
    int count = 0;
    if (v[SEARCH_PP] == 1) { // no pipeline: plain accumulation, whatever the schedule is called
        bool any = r->pins.set[SEARCH_SCHEDULE];
        enum pipeline_kind kind =
            any ? (enum pipeline_kind)r->pins.value[SEARCH_SCHEDULE] : PIPELINE_1F1B;
        int chunks = kind == PIPELINE_ZB_V ? 2 : 1;
        if (kind != PIPELINE_INTERLEAVED && schedule_fits(r, v, kind, chunks))
            count = put_variants(r, node, kind, chunks, out, count);
        return count;
    }
    for (int k = PIPELINE_GPIPE; k <= PIPELINE_ZB_V; k++) {
        enum pipeline_kind kind = (enum pipeline_kind)k;
        int least = kind == PIPELINE_INTERLEAVED || kind == PIPELINE_ZB_V ? 2 : 1;
        int most = kind == PIPELINE_INTERLEAVED ? LAYOUT_MAX_CHUNKS : least;
        for (int chunks = least; chunks <= most; chunks++)
            if (schedule_fits(r, v, kind, chunks))
                count = put_variants(r, node, kind, chunks, out, count);
    }
    return count;
}
