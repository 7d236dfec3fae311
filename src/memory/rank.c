// The enumeration of a rank's buffers, see rank.h.
#include "memory/rank.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARAM_ALIGN_ELEMENTS = 64,
    // sets of modes
    KEEP_NONE = 1 << RECOMPUTE_NONE,
    KEEP_SELECTIVE = KEEP_NONE | 1 << RECOMPUTE_SELECTIVE,
    KEEP_MLP = KEEP_SELECTIVE | 1 << RECOMPUTE_SELECTIVE_MLP,
    KEEP_ALL = KEEP_MLP | 1 << RECOMPUTE_FULL
};

static const struct {
    const char *name;
    bool f32;
    int kept; // in these modes
} activations[ACT_COUNT] = {
    [ACT_INPUT] = {"input", false, KEEP_ALL},
    [ACT_NORM1] = {"norm1", false, KEEP_NONE},
    [ACT_RSTD1] = {"rstd1", true, KEEP_NONE},
    [ACT_MEAN1] = {"mean1", true, KEEP_NONE},
    [ACT_QKV_RAW] = {"qkv_raw", false, KEEP_MLP},
    [ACT_Q_RSTD] = {"q_rstd", true, KEEP_NONE},
    [ACT_K_RSTD] = {"k_rstd", true, KEEP_NONE},
    [ACT_QKV] = {"qkv", false, KEEP_MLP},
    [ACT_ATTENTION] = {"attention", false, KEEP_MLP},
    [ACT_LSE] = {"lse", true, KEEP_MLP},
    [ACT_ATTENTION_OUT] = {"attention_out", false, KEEP_MLP},
    [ACT_MIDDLE] = {"middle", false, KEEP_MLP},
    [ACT_NORM2] = {"norm2", false, KEEP_NONE},
    [ACT_RSTD2] = {"rstd2", true, KEEP_NONE},
    [ACT_MEAN2] = {"mean2", true, KEEP_NONE},
    [ACT_UP] = {"up", false, KEEP_SELECTIVE},
    [ACT_ACTIVATED] = {"activated", false, KEEP_NONE},
    [ACT_DOWN] = {"down", false, KEEP_MLP},
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
        return qk_norm ? model_qkv_width(c) : 0;
    case ACT_Q_RSTD:
        return per_head ? c->heads : qk_norm;
    case ACT_K_RSTD:
        return per_head ? c->kv_heads : qk_norm;
    case ACT_QKV:
        return model_qkv_width(c);
    case ACT_ATTENTION:
        return model_q_width(c);
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

void rank_param_offsets(const struct model *model, int64_t *out) {
    int64_t at = 0;
    for (int i = 0; i < model->param_count; i++) {
        out[i] = at;
        int64_t n = param_elements_padded(&model->params[i]);
        at += (n + PARAM_ALIGN_ELEMENTS - 1) / PARAM_ALIGN_ELEMENTS * PARAM_ALIGN_ELEMENTS;
    }
    out[model->param_count] = at;
}

int64_t rank_norm_blocks(const struct param *param) {
    return (param_elements_padded(param) + RANK_NORM_BLOCK - 1) / RANK_NORM_BLOCK;
}

// What the steps of the enumeration share. `failed` gathers shortages of memory for one check at
// the end.
struct enumeration {
    struct memory_plan *plan;
    struct rank_buffers *buffers;
    const struct model *model;
    const struct model_config *config;
    const struct rank_shape *shape;
    bool failed;
};

static int add(struct enumeration *e, enum buffer_kind kind, int layer, int slot, uint64_t bytes,
               const char *name) {
    if (bytes == 0) return -1;
    int index = memory_plan_add(e->plan, kind, layer, slot, bytes, "%s", name);
    e->failed = e->failed || index < 0;
    return index;
}

static void single(struct enumeration *e, enum rank_single which, enum buffer_kind kind,
                   uint64_t bytes, const char *name) {
    e->buffers->single[which] = add(e, kind, -1, -1, bytes, name);
}

static void add_state(struct enumeration *e, const int64_t *offsets) {
    const struct model *m = e->model;
    uint64_t elements = (uint64_t)offsets[m->param_count], f32 = elements * sizeof(float);
    bool bf16_mode = e->shape->compute == DTYPE_BF16, train = e->shape->train;
    single(e, SINGLE_WEIGHTS, BUFFER_WEIGHT, elements * dtype_bytes(e->shape->compute), "weights");
    single(e, SINGLE_MASTERS, BUFFER_MASTER, bf16_mode ? f32 : 0, "masters");
    single(e, SINGLE_GRADIENTS, BUFFER_GRADIENT, train ? f32 : 0, "gradients");
    single(e, SINGLE_MOMENT1, BUFFER_MOMENT, train ? f32 : 0, "moment1");
    single(e, SINGLE_MOMENT2, BUFFER_MOMENT, train ? f32 : 0, "moment2");
    uint64_t blocks = 0;
    for (int i = 0; i < m->param_count; i++) blocks += (uint64_t)rank_norm_blocks(&m->params[i]);
    single(e, SINGLE_NORM_SUMS, BUFFER_SCRATCH, train ? blocks * sizeof(double) : 0, "norm_sums");
}

static void add_packed(struct enumeration *e, const struct rank_workspace *workspace) {
    const struct model *m = e->model;
    char name[PARAM_NAME_BYTES + 16];
    for (int i = 0; i < m->param_count; i++)
        for (int backward = 0; backward < 2; backward++) {
            const uint64_t *bytes = backward ? workspace->pack_backward : workspace->pack_forward;
            int *index = backward ? e->buffers->packed_backward : e->buffers->packed_forward;
            snprintf(name, sizeof name, "%.50s %s", m->params[i].name,
                     backward ? "backward" : "forward");
            index[i] = add(e, BUFFER_PACKED, m->params[i].layer, -1, bytes ? bytes[i] : 0, name);
        }
}

static void add_activations(struct enumeration *e) {
    int layers = e->config->layers;
    for (int a = 0; a < ACT_COUNT; a++) {
        size_t element = activations[a].f32 ? sizeof(float) : dtype_bytes(e->shape->compute);
        uint64_t bytes = (uint64_t)(activation_width(e->config, a) * e->shape->tokens) * element;
        bool kept = rank_keeps(e->config, e->shape, a);
        int shared = kept ? -1 : add(e, BUFFER_SCRATCH, -1, -1, bytes, activations[a].name);
        for (int l = 0; l < layers; l++)
            e->buffers->activation[l][a] =
                kept ? add(e, BUFFER_ACTIVATION, l, 0, bytes, activations[a].name) : shared;
    }
}

// Gradients of the residual stream go round in three buffers (out, middle, in; the layer below
// finds its out in what was in), unless weight halves come later and every layer needs its own.
static void add_flows(struct enumeration *e) {
    const struct rank_shape *s = e->shape;
    const struct model_config *c = e->config;
    size_t element = dtype_bytes(s->compute);
    uint64_t hidden = (uint64_t)(c->hidden * s->tokens) * element;
    uint64_t qkv = (uint64_t)(model_qkv_width(c) * s->tokens) * element;
    bool after = c->norm_place == NORM_AFTER;
    int pool[3], down = -1, project = -1, shared_qkv = -1;
    for (int i = 0; i < 3; i++) pool[i] = add(e, BUFFER_SCRATCH, -1, -1, hidden, "flow");
    for (int l = c->layers - 1; l >= 0; l--) {
        int *flow = e->buffers->flow[l], step = c->layers - 1 - l;
        bool fresh = s->split_backward && step > 0;
        flow[FLOW_OUT] = step == 0 ? pool[0] : e->buffers->flow[l + 1][FLOW_IN];
        flow[FLOW_MIDDLE] =
            fresh ? add(e, BUFFER_SCRATCH, l, -1, hidden, "flow") : pool[(2 * step + 1) % 3];
        flow[FLOW_IN] =
            fresh ? add(e, BUFFER_SCRATCH, l, -1, hidden, "flow") : pool[(2 * step + 2) % 3];
        if (after && (fresh || step == 0)) {
            down = add(e, BUFFER_SCRATCH, -1, -1, hidden, "flow_down");
            project = add(e, BUFFER_SCRATCH, -1, -1, hidden, "flow_project");
        }
        if (fresh || step == 0) shared_qkv = add(e, BUFFER_SCRATCH, -1, -1, qkv, "flow_qkv");
        flow[FLOW_DOWN] = after ? down : flow[FLOW_OUT];
        flow[FLOW_PROJECT] = after ? project : flow[FLOW_MIDDLE];
        flow[FLOW_QKV] = shared_qkv;
    }
}

// The tied head's table gets gradients from two sides. The look-up's side has an accumulator of its
// own with a row for each id that can occur in a step, and is added to the head's once, at the
// step's end.
static void add_lookup(struct enumeration *e) {
    const struct rank_shape *s = e->shape;
    if (!s->train || !e->config->tied_head) return;
    uint64_t vocab = (uint64_t)e->config->vocab, rows = (uint64_t)(s->tokens * s->micro_batches);
    if (rows > vocab) rows = vocab;
    uint64_t row_bytes = (uint64_t)e->config->hidden * sizeof(float);
    single(e, SINGLE_LOOKUP, BUFFER_GRADIENT, rows * row_bytes, "lookup");
    single(e, SINGLE_LOOKUP_IDS, BUFFER_SCRATCH, rows * sizeof(int32_t), "lookup_ids");
    single(e, SINGLE_LOOKUP_SLOT, BUFFER_SCRATCH, vocab * sizeof(int32_t), "lookup_slot");
    single(e, SINGLE_LOOKUP_ROWS, BUFFER_SCRATCH, (uint64_t)s->tokens * sizeof(int32_t),
           "lookup_rows");
}

static void add_rest(struct enumeration *e, const struct rank_workspace *workspace) {
    const struct rank_shape *s = e->shape;
    const struct model_config *c = e->config;
    size_t element = dtype_bytes(s->compute);
    uint64_t tokens = (uint64_t)s->tokens, hidden = tokens * (uint64_t)c->hidden * element;
    int head = model_param(e->model, -1, c->tied_head ? PARAM_EMBEDDING : PARAM_HEAD);
    uint64_t columns = (uint64_t)e->model->params[head].rows_padded;
    int64_t wide = c->ffn > model_q_width(c) ? c->ffn : model_q_width(c);
    single(e, SINGLE_FINAL_INPUT, BUFFER_ACTIVATION, hidden, "final_input");
    single(e, SINGLE_FINAL_NORM, BUFFER_SCRATCH, hidden, "final_norm");
    single(e, SINGLE_FINAL_RSTD, BUFFER_ACTIVATION, tokens * sizeof(float), "final_rstd");
    single(e, SINGLE_FINAL_MEAN, BUFFER_ACTIVATION,
           c->norm == NORM_LAYER ? tokens * sizeof(float) : 0, "final_mean");
    single(e, SINGLE_DELTA, BUFFER_SCRATCH, hidden, "delta");
    single(e, SINGLE_WIDE, BUFFER_SCRATCH, s->train ? tokens * (uint64_t)wide * element : 0,
           "wide");
    single(e, SINGLE_LOSS, BUFFER_SCRATCH, tokens * sizeof(float), "loss");
    single(e, SINGLE_LOGITS, BUFFER_LOGITS, (uint64_t)s->chunk * columns * sizeof(float), "logits");
    uint64_t table = c->learned_positions
                         ? 0
                         : (uint64_t)s->context * (uint64_t)(c->head_dim / 2) * sizeof(float);
    single(e, SINGLE_COSINE, BUFFER_TABLE, table, "cosine");
    single(e, SINGLE_SINE, BUFFER_TABLE, table, "sine");
    single(e, SINGLE_PRODUCTS, BUFFER_WORKSPACE, workspace->products_bytes, "products");
    single(e, SINGLE_KERNELS, BUFFER_WORKSPACE, workspace->kernels_bytes, "kernels");
    single(e, SINGLE_OTHER, BUFFER_DATA, s->other_bytes, "other");
}

int rank_plan(struct memory_plan *plan, struct rank_buffers *buffers, const struct model *model,
              const struct rank_shape *shape, const struct rank_workspace *workspace,
              struct err *err) {
    size_t params = (size_t)model->param_count;
    *plan = (struct memory_plan){NULL, 0, 0, 0};
    memset(buffers, -1, sizeof *buffers);
    buffers->packed_forward = malloc(2 * params * sizeof(int));
    int64_t *offsets = malloc((params + 1) * sizeof *offsets);
    struct enumeration e = {plan, buffers, model, &model->config, shape, false};
    if (buffers->packed_forward && offsets) {
        buffers->packed_backward = buffers->packed_forward + params;
        rank_param_offsets(model, offsets);
        add_state(&e, offsets);
        add_packed(&e, workspace);
        add_activations(&e);
        if (shape->train) add_flows(&e);
        add_lookup(&e);
        add_rest(&e, workspace);
    } else {
        e.failed = true;
    }
    free(offsets);
    if (!e.failed) return 0;
    memory_plan_free(plan);
    rank_buffers_free(buffers);
    return err_set(err, ERR_MEMORY, "no memory for the list of buffers of a model of %d layers",
                   model->config.layers);
}

void rank_buffers_free(struct rank_buffers *buffers) {
    free(buffers->packed_forward);
    buffers->packed_forward = buffers->packed_backward = NULL;
}
