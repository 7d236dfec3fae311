// The enumeration of a rank's buffers, see rank.h.
#include "memory/rank_parts.h"
#include <stdlib.h>
#include <string.h>

enum { // sets of modes
    KEEP_NONE = 1 << RECOMPUTE_NONE,
    KEEP_SELECTIVE = KEEP_NONE | 1 << RECOMPUTE_SELECTIVE,
    KEEP_MLP = KEEP_SELECTIVE | 1 << RECOMPUTE_SELECTIVE_MLP,
    KEEP_ALL = KEEP_MLP | 1 << RECOMPUTE_FULL
};

static const struct {
    const char *name;
    bool f32,
        residual; // residual: a row for each token of the residual stream, not of the micro-batch
    int kept;     // in these modes
} activations[ACT_COUNT] = {
    [ACT_INPUT] = {"input", false, true, KEEP_ALL},
    [ACT_NORM1] = {"norm1", false, true, KEEP_NONE},
    [ACT_RSTD1] = {"rstd1", true, true, KEEP_NONE},
    [ACT_MEAN1] = {"mean1", true, true, KEEP_NONE},
    [ACT_QKV_RAW] = {"qkv_raw", false, false, KEEP_MLP},
    [ACT_Q_RSTD] = {"q_rstd", true, false, KEEP_NONE},
    [ACT_K_RSTD] = {"k_rstd", true, false, KEEP_NONE},
    [ACT_QKV] = {"qkv", false, false, KEEP_MLP},
    [ACT_ATTENTION] = {"attention", false, false, KEEP_MLP},
    [ACT_LSE] = {"lse", true, false, KEEP_MLP},
    [ACT_ATTENTION_OUT] = {"attention_out", false, true, KEEP_MLP},
    [ACT_MIDDLE] = {"middle", false, true, KEEP_MLP},
    [ACT_NORM2] = {"norm2", false, true, KEEP_NONE},
    [ACT_RSTD2] = {"rstd2", true, true, KEEP_NONE},
    [ACT_MEAN2] = {"mean2", true, true, KEEP_NONE},
    [ACT_UP] = {"up", false, false, KEEP_SELECTIVE},
    [ACT_ACTIVATED] = {"activated", false, false, KEEP_NONE},
    [ACT_DOWN] = {"down", false, true, KEEP_MLP},
};

bool rank_keeps(const struct model_config *config, const struct rank_shape *shape,
                enum rank_activation activation) {
    if (!shape->train) return false;
    int kept = activations[activation].kept;
    // With a norm of q and k the values before it are kept, and the norm is redone like all norms.
    if (activation == ACT_QKV && config->qk_norm != QK_NORM_NONE) kept = KEEP_NONE;
    return kept >> shape->recompute & 1;
}

// Elements per token; 0: the model has none.
static int64_t activation_width(const struct model_config *c, enum rank_activation activation) {
    bool before = c->norm_place == NORM_BEFORE, qk_norm = c->qk_norm != QK_NORM_NONE;
    bool per_head = c->qk_norm == QK_NORM_HEAD;
    switch (activation) {
    case ACT_INPUT:
    case ACT_MIDDLE:
        return c->hidden;
    case ACT_NORM1:
    case ACT_NORM2:
        return before ? c->hidden : 0;
    case ACT_ATTENTION_OUT:
    case ACT_DOWN:
        return before ? 0 : c->hidden;
    case ACT_RSTD1:
    case ACT_RSTD2:
        return 1;
    case ACT_MEAN1:
    case ACT_MEAN2:
        return c->norm == NORM_LAYER;
    case ACT_QKV_RAW:
        return qk_norm ? model_qkv_width(c) : model_latent_width(c);
    case ACT_Q_RSTD:
        return per_head ? c->heads : qk_norm;
    case ACT_K_RSTD:
        return per_head ? c->kv_heads : qk_norm;
    case ACT_QKV:
        return model_qkv_width(c);
    case ACT_ATTENTION:
        return model_value_width(c);
    case ACT_LSE:
        return c->heads;
    case ACT_UP:
        return c->activation == ACTIVATION_SWIGLU ? 2 * (int64_t)c->ffn : c->ffn;
    case ACT_ACTIVATED:
        return c->ffn;
    case ACT_COUNT:
        break;
    }
    return 0;
}

int64_t rank_norm_blocks(const struct param *param) {
    return (param_elements_padded(param) + RANK_NORM_BLOCK - 1) / RANK_NORM_BLOCK;
}

int rank_add(struct enumeration *e, enum buffer_kind kind, int layer, int slot, uint64_t bytes,
             const char *name) {
    if (bytes == 0) return -1;
    int index = memory_plan_add(e->plan, kind, layer, slot, bytes, "%s", name);
    e->failed = e->failed || index < 0;
    return index;
}

void rank_single(struct enumeration *e, enum rank_single which, enum buffer_kind kind,
                 uint64_t bytes, const char *name) {
    e->buffers->single[which] = rank_add(e, kind, -1, -1, bytes, name);
}

uint64_t rank_sum_scratch_bytes(int64_t elements, int members, size_t element_bytes) {
    enum { ALIGN = 16 }; // parts begin at whole vectors
    uint64_t whole = (uint64_t)elements * element_bytes;
    uint64_t parts = whole + (uint64_t)members * ALIGN * element_bytes;
    uint64_t small = whole < RANK_WHOLE_BYTES ? whole : RANK_WHOLE_BYTES;
    uint64_t wholes = (uint64_t)(members - 1) * small;
    return parts > wholes ? parts : wholes;
}

static uint64_t row_bytes(const struct enumeration *e) { // of the residual stream
    return (uint64_t)e->config->hidden * dtype_bytes(e->shape->compute);
}

static uint64_t residual_bytes(const struct enumeration *e) {
    return row_bytes(e) * (uint64_t)e->shape->residual;
}

static uint64_t all_tokens_bytes(const struct enumeration *e) {
    return row_bytes(e) * (uint64_t)e->shape->tokens;
}

static int most_slots(const struct rank_shape *s) {
    int most = 1;
    for (int i = 0; i < s->stage_count; i++)
        if (s->stages[i].slots > most) most = s->stages[i].slots;
    return most;
}

static int most_flows(const struct rank_shape *s) {
    int most = 1;
    for (int i = 0; i < s->stage_count; i++)
        if (s->stages[i].flows > most) most = s->stages[i].flows;
    return most;
}

static int *activation_place(const struct rank_buffers *b, int slot, int layer) {
    return b->activation + ((size_t)slot * (size_t)b->layers + (size_t)layer) * ACT_COUNT;
}

static int *flow_place(const struct rank_buffers *b, int flow, int layer) {
    return b->flow + ((size_t)flow * (size_t)b->layers + (size_t)layer) * FLOW_COUNT;
}

int rank_activation_buffer(const struct rank_buffers *b, int slot, int layer,
                           enum rank_activation activation) {
    return activation_place(b, slot, layer)[activation];
}

int rank_flow_buffer(const struct rank_buffers *b, int flow, int layer, enum rank_flow which) {
    return flow_place(b, flow, layer)[which];
}

static uint64_t activation_bytes(const struct model_config *c, const struct rank_shape *s,
                                 enum rank_activation a) {
    size_t element = activations[a].f32 ? sizeof(float) : dtype_bytes(s->compute);
    int64_t rows = activations[a].residual ? s->residual : s->tokens;
    return (uint64_t)(activation_width(c, a) * rows) * element;
}

static bool of_dense_mlp(enum rank_activation a) {
    return a == ACT_UP || a == ACT_ACTIVATED;
}

uint64_t rank_kept_bytes(const struct model_config *config, const struct rank_shape *shape,
                         bool experts) {
    uint64_t bytes = 0;
    for (int a = 0; a < ACT_COUNT; a++)
        if (rank_keeps(config, shape, a) && !(experts && of_dense_mlp(a)))
            bytes += activation_bytes(config, shape, a);
    return bytes;
}

static void add_activations(struct enumeration *e) {
    const struct rank_shape *s = e->shape;
    for (int a = 0; a < ACT_COUNT; a++) {
        uint64_t bytes = activation_bytes(e->config, s, a);
        bool kept = rank_keeps(e->config, s, a), mlp = of_dense_mlp(a);
        if (mlp && !rank_has_dense_mlp(e->config)) bytes = 0;
        int shared = kept ? -1 : rank_add(e, BUFFER_SCRATCH, -1, -1, bytes, activations[a].name);
        for (int i = 0; i < s->stage_count; i++) {
            const struct rank_stage *stage = &s->stages[i];
            int end = stage->part.layer_first + stage->part.layer_count;
            for (int slot = 0; slot < stage->slots; slot++)
                for (int l = stage->part.layer_first; l < end; l++) {
                    if (mlp && model_layer_has_experts(e->config, l)) continue;
                    activation_place(e->buffers, slot, l)[a] =
                        kept ? rank_add(e, BUFFER_ACTIVATION, l, slot, bytes, activations[a].name)
                             : shared;
                }
        }
    }
}

// Buffers of one backward pass that weight halves do not read later, or all of it when nothing runs
// later.
struct flow_pool {
    int residual[3]; // gradients of the residual stream go round: out, middle, in; the layer below
                     // finds its out in what was in
    int down, project, qkv, down_all, project_all;
};

static int add_flow(struct enumeration *e, int layer, int slot, uint64_t bytes, const char *name) {
    return rank_add(e, BUFFER_SCRATCH, layer, slot, bytes, name);
}

// Whether the gradient of a block's output is another one than that of the residual stream behind
// it.
static bool has_own_flows(const struct enumeration *e) {
    return e->config->norm_place == NORM_AFTER || e->shape->dropout;
}

// `shared`: for all layers of a stage. The gradient of a stage's output has a buffer of its own, so
// that a layer that shares nothing needs only two.
static struct flow_pool add_pool(struct enumeration *e, int layer, int slot, bool shared) {
    const struct rank_shape *s = e->shape;
    bool own = has_own_flows(e), cut = s->residual != s->tokens;
    uint64_t qkv = (uint64_t)(model_qkv_width(e->config) * s->tokens) * dtype_bytes(s->compute);
    struct flow_pool p = {.residual = {-1, -1, -1}};
    for (int i = shared ? 0 : 1; i < 3; i++)
        p.residual[i] = add_flow(e, layer, slot, residual_bytes(e), "flow");
    p.down = own ? add_flow(e, layer, slot, residual_bytes(e), "flow_down") : -1;
    p.project = own ? add_flow(e, layer, slot, residual_bytes(e), "flow_project") : -1;
    p.qkv = add_flow(e, layer, slot, qkv, "flow_qkv");
    p.down_all = cut ? add_flow(e, layer, slot, all_tokens_bytes(e), "flow_down_all") : -1;
    p.project_all = cut ? add_flow(e, layer, slot, all_tokens_bytes(e), "flow_project_all") : -1;
    return p;
}

// FLOW_OUT of a stage's last layer, and FLOW_IN of its first where that is sent, lie in buffers of
// the stage's borders: the engine puts them in place.
static void place_flows(struct enumeration *e, int stage, int flow,
                        const struct flow_pool *shared) {
    const struct rank_stage *s = &e->shape->stages[stage];
    bool apart = has_own_flows(e), cut = e->shape->residual != e->shape->tokens;
    int last = s->part.layer_first + s->part.layer_count - 1, above = -1;
    for (int l = last; l >= s->part.layer_first; l--) {
        struct flow_pool own = shared ? *shared : add_pool(e, l, flow, false);
        int *place = flow_place(e->buffers, flow, l), turn = shared ? 2 * (last - l) : 0;
        place[FLOW_OUT] = l == last ? own.residual[0] : above;
        place[FLOW_MIDDLE] = own.residual[(turn + 1) % 3];
        place[FLOW_IN] = own.residual[(turn + 2) % 3];
        place[FLOW_DOWN] = apart ? own.down : place[FLOW_OUT];
        place[FLOW_PROJECT] = apart ? own.project : place[FLOW_MIDDLE];
        place[FLOW_QKV] = own.qkv;
        place[FLOW_DOWN_ALL] = cut ? own.down_all : place[FLOW_DOWN];
        place[FLOW_PROJECT_ALL] = cut ? own.project_all : place[FLOW_PROJECT];
        above = place[FLOW_IN];
    }
}

// One pool for all stages, unless weight halves come later and every layer of every micro-batch
// that waits for its own needs one.
static void add_flows(struct enumeration *e) {
    const struct rank_shape *s = e->shape;
    struct flow_pool shared;
    if (!s->split_backward) shared = add_pool(e, -1, -1, true);
    for (int i = 0; i < s->stage_count; i++)
        for (int flow = 0; flow < s->stages[i].flows; flow++)
            place_flows(e, i, flow, s->split_backward ? NULL : &shared);
}

static void add_borders(struct enumeration *e) {
    const struct rank_shape *s = e->shape;
    uint64_t bytes = residual_bytes(e);
    for (int i = 0; i < s->stage_count; i++) {
        const struct rank_stage *stage = &s->stages[i];
        int outputs = stage->part.last || stage->next_local ? 0 : RANK_SEND_RING;
        int backs = stage->part.first || stage->previous_local || !s->train ? 0 : RANK_SEND_RING;
        for (int k = 0; k < outputs; k++)
            e->buffers->border[i][BORDER_OUTPUT][k] =
                rank_add(e, BUFFER_COMM, -1, k, bytes, "stage_output");
        for (int k = 0; s->train && k < stage->slots; k++)
            e->buffers->border[i][BORDER_GRADIENT][k] =
                rank_add(e, BUFFER_SCRATCH, -1, k, bytes, "stage_gradient");
        for (int k = 0; k < backs; k++)
            e->buffers->border[i][BORDER_BACK][k] =
                rank_add(e, BUFFER_COMM, -1, k, bytes, "stage_back");
    }
}

static void add_head(struct enumeration *e, const struct rank_stage *stage) {
    const struct rank_shape *s = e->shape;
    const struct model_config *c = e->config;
    int head = model_param(e->model, -1, c->tied_head ? PARAM_EMBEDDING : PARAM_HEAD);
    uint64_t columns = (uint64_t)e->model->params[head].rows_padded, chunk = (uint64_t)s->chunk;
    uint64_t floats = (uint64_t)s->residual * sizeof(float);
    for (int slot = 0; slot < stage->slots; slot++) {
        int *final = e->buffers->final[slot];
        final[0] = rank_add(e, BUFFER_ACTIVATION, -1, slot, residual_bytes(e), "final_input");
        final[1] = rank_add(e, BUFFER_ACTIVATION, -1, slot, floats, "final_rstd");
        final[2] = rank_add(e, BUFFER_ACTIVATION, -1, slot, c->norm == NORM_LAYER ? floats : 0,
                            "final_mean");
    }
    rank_single(e, SINGLE_FINAL_NORM, BUFFER_SCRATCH, residual_bytes(e), "final_norm");
    rank_single(e, SINGLE_LOSS, BUFFER_SCRATCH, (uint64_t)s->tokens * sizeof(float), "loss");
    rank_single(e, SINGLE_LOGITS, BUFFER_LOGITS, chunk * columns * sizeof(float), "logits");
    uint64_t statistics = (uint64_t)(1 + s->tp) * chunk * 3 * sizeof(float);
    rank_single(e, SINGLE_STATISTICS, BUFFER_COMM, s->tp > 1 ? statistics : 0, "statistics");
}

static void add_tensor_parallel(struct enumeration *e, const struct rank_workspace *workspace) {
    const struct rank_shape *s = e->shape;
    if (s->tp == 1) return;
    bool cut = s->residual != s->tokens;
    rank_single(e, SINGLE_PARTIAL, BUFFER_SCRATCH, all_tokens_bytes(e), "partial");
    rank_single(e, SINGLE_GATHERED, BUFFER_SCRATCH, cut ? all_tokens_bytes(e) : 0, "gathered");
    rank_single(e, SINGLE_TP_SCRATCH, BUFFER_COMM, workspace->tp_scratch_bytes, "tp_scratch");
    rank_single(e, SINGLE_LOCAL_IDS, BUFFER_SCRATCH, (uint64_t)s->tokens * sizeof(int32_t),
                "local_ids");
}

static void add_rest(struct enumeration *e, const struct rank_workspace *workspace) {
    const struct rank_shape *s = e->shape;
    const struct model_config *c = e->config;
    size_t element = dtype_bytes(s->compute);
    int64_t wide = rank_has_dense_mlp(c) ? c->ffn : 0;
    if (wide < model_value_width(c)) wide = model_value_width(c);
    rank_single(e, SINGLE_DELTA, BUFFER_SCRATCH, residual_bytes(e), "delta");
    rank_single(e, SINGLE_WIDE, BUFFER_SCRATCH,
                s->train ? (uint64_t)(s->tokens * wide) * element : 0, "wide");
    uint64_t table = c->learned_positions
                         ? 0
                         : (uint64_t)s->context * (uint64_t)(c->head_dim / 2) * sizeof(float);
    rank_single(e, SINGLE_COSINE, BUFFER_TABLE, table, "cosine");
    rank_single(e, SINGLE_SINE, BUFFER_TABLE, table, "sine");
    rank_single(e, SINGLE_BATCHES, BUFFER_DATA, s->shared_batches_bytes, "shared_batches");
    rank_single(e, SINGLE_CONTEXT, BUFFER_COMM, workspace->context_bytes, "context");
    rank_single(e, SINGLE_PRODUCTS, BUFFER_WORKSPACE, workspace->products_bytes, "products");
    rank_single(e, SINGLE_KERNELS, BUFFER_WORKSPACE, workspace->kernels_bytes, "kernels");
    rank_single(e, SINGLE_OTHER, BUFFER_DATA, s->other_bytes, "other");
    if (s->train && s->snapshots > 0)
        rank_single(e, SINGLE_SNAPSHOT, BUFFER_SNAPSHOT,
                    (uint64_t)(s->snapshots * RANK_SNAPSHOT_GENERATIONS) *
                        rank_snapshot_bytes(e->local, s),
                    "snapshots");
}

static void enumerate(struct enumeration *e, const struct rank_workspace *workspace) {
    const struct rank_shape *s = e->shape;
    rank_add_state(e, workspace);
    add_activations(e);
    rank_add_experts(e, workspace);
    if (s->train) add_flows(e);
    add_borders(e);
    for (int i = 0; i < s->stage_count; i++)
        if (s->stages[i].part.last) add_head(e, &s->stages[i]);
    add_tensor_parallel(e, workspace);
    add_rest(e, workspace);
}

// Tables of indices, all -1.
static bool open_buffers(struct rank_buffers *b, const struct local_model *local,
                         const struct rank_shape *s) {
    size_t params = (size_t)local->model.param_count, layers = (size_t)local->model.config.layers;
    size_t slots = (size_t)most_slots(s), flows = (size_t)most_flows(s);
    size_t activation = slots * layers * ACT_COUNT * sizeof *b->activation;
    size_t flow = flows * layers * FLOW_COUNT * sizeof *b->flow;
    size_t border = (size_t)s->stage_count * sizeof *b->border, final = slots * sizeof *b->final;
    memset(b, -1, sizeof *b);
    b->expert = NULL;
    b->expert_place = NULL;
    b->layers = local->model.config.layers;
    b->packed_forward = malloc(2 * params * sizeof(int));
    b->activation = malloc(activation);
    b->flow = malloc(flow);
    b->border = malloc(border);
    b->final = malloc(final);
    if (!b->packed_forward || !b->activation || !b->flow || !b->border || !b->final) return false;
    b->packed_backward = b->packed_forward + params;
    memset(b->packed_forward, -1, 2 * params * sizeof(int));
    memset(b->activation, -1, activation);
    memset(b->flow, -1, flow);
    memset(b->border, -1, border);
    memset(b->final, -1, final);
    return true;
}

int rank_plan(struct memory_plan *plan, struct rank_buffers *buffers,
              const struct local_model *local, const struct rank_shape *shape,
              const struct rank_workspace *workspace, struct err *err) {
    *plan = (struct memory_plan){.totals_only = shape->totals_only};
    struct enumeration e = {plan,  buffers, local, &local->model, &local->model.config,
                            shape, false};
    if (open_buffers(buffers, local, shape))
        enumerate(&e, workspace);
    else
        e.failed = true;
    if (!e.failed) return 0;
    memory_plan_free(plan);
    rank_buffers_free(buffers);
    return err_set(err, ERR_MEMORY, "no memory for the list of buffers of a model of %d layers",
                   local->model.config.layers);
}

void rank_buffers_free(struct rank_buffers *buffers) {
    free(buffers->packed_forward);
    free(buffers->activation);
    free(buffers->flow);
    free(buffers->border);
    free(buffers->final);
    free(buffers->expert);
    free(buffers->expert_place);
    *buffers = (struct rank_buffers){.layers = 0};
}
