// The rank's pieces of the state as boxes of whole tensors. A piece is a run of elements of a local
// parameter; a run is up to three boxes (the end of a row, whole rows, the beginning of a row), and
// each part of a fused parameter is a box of its own. Padding is left out.
#include "engine/states_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct slicing {
    struct tensor_slice *slices;
    int count, capacity;
    bool failed;
};

// What the boxes of one array of a parameter share.
struct source {
    const struct engine *e;
    int param;
    const char *suffix;
    enum dtype type;
    char *data;    // of element `first`
    int64_t first; // of the local parameter
};

// Ranks that hold the same values: other data ranks (all, or those with the same shard), tp ranks
// with the same rows, and the other end of a pipeline with a tied table.
static void set_copies(const struct engine *e, int param, int part, struct tensor_slice *slice) {
    const struct states *s = states_of(e);
    const struct flat_bucket *b = state_bucket_of(e, param);
    const struct param_slice *p = &e->local.slices[param];
    bool shared = state_sharded(e) && b->shards > 1;
    int data = shared ? s->data_copies[b->group] : s->all_copies[b->group];
    int data_copy = shared ? s->data_copy[b->group] : s->all_copy[b->group];
    int tp = part > 0 ? p->copies_kv : p->copies, tp_copy = part > 0 ? p->copy_kv : p->copy;
    bool tied = e->whole->config.tied_head && e->model->params[param].role == PARAM_EMBEDDING &&
                layout_stage_rank(&e->layout, 0) !=
                    layout_stage_rank(&e->layout, layout_stages(&e->layout) - 1);
    slice->copies = data * tp * (tied ? 2 : 1);
    slice->copy = (p->tied_copy * tp + tp_copy) * data + data_copy;
}

static struct tensor_slice *next_slice(struct slicing *out) { // NULL when memory is short
    if (out->count == out->capacity) {
        int capacity = out->capacity ? 2 * out->capacity : 64;
        struct tensor_slice *more = realloc(out->slices, (size_t)capacity * sizeof *more);
        out->failed = out->failed || !more;
        if (!more) return NULL;
        out->slices = more;
        out->capacity = capacity;
    }
    return &out->slices[out->count++];
}

static void add_box(struct slicing *out, const struct source *from, int part, int64_t part_begin,
                    int64_t at, int64_t rows, int64_t columns) {
    const struct engine *e = from->e;
    const struct param *p = &e->model->params[from->param];
    const struct param_slice *slice = &e->local.slices[from->param];
    const struct param *whole = &e->whole->params[slice->whole];
    int64_t before = 0; // rows of the whole's earlier parts
    for (int i = 0; i < part; i++) before += whole->part_rows[i];
    struct tensor_slice *box = next_slice(out);
    if (!box) return;
    *box = (struct tensor_slice){.type = from->type,
                                 .dims = param_is_matrix(p) ? 2 : 1,
                                 .shape = {whole->rows, whole->columns},
                                 .row = before + slice->row[part] + at / p->columns - part_begin,
                                 .rows = rows,
                                 .column = slice->column + at % p->columns,
                                 .columns = columns,
                                 .stride = p->columns,
                                 .data = from->data +
                                         (size_t)(at - from->first) * dtype_bytes(from->type)};
    snprintf(box->name, sizeof box->name, "%s%s", whole->name, from->suffix);
    set_copies(e, from->param, part, box);
}

// Elements [at, end) inside one part.
static void add_run(struct slicing *out, const struct source *from, int part, int64_t part_begin,
                    int64_t at, int64_t end) {
    int64_t columns = from->e->model->params[from->param].columns;
    while (at < end) {
        int64_t column = at % columns, left = end - at;
        if (column == 0 && left >= columns) {
            int64_t rows = left / columns;
            add_box(out, from, part, part_begin, at, rows, columns);
            at += rows * columns;
        } else {
            int64_t n = columns - column < left ? columns - column : left;
            add_box(out, from, part, part_begin, at, 1, n);
            at += n;
        }
    }
}

static void add_piece(struct slicing *out, const struct source *from) {
    const struct param *p = &from->e->model->params[from->param];
    const struct state_piece *piece = &states_of(from->e)->pieces[from->param];
    int64_t part_begin = 0, last = piece->first + piece->count;
    for (int part = 0; part < p->parts; part++) {
        int64_t begin = part_begin * p->columns, end = begin + p->part_rows[part] * p->columns;
        int64_t at = piece->first > begin ? piece->first : begin;
        add_run(out, from, part, part_begin, at, end < last ? end : last);
        part_begin += p->part_rows[part];
    }
}

static void add_param(struct slicing *out, struct engine *e, enum engine_part part, int param) {
    struct source from = {.e = e, .param = param, .suffix = "", .type = DTYPE_F32};
    from.first = states_of(e)->pieces[param].first;
    int64_t at = state_at(e, param, state_sharded(e));
    if (part == ENGINE_MASTER) from.data = (char *)state_master(e, param);
    if (part == ENGINE_GRADIENTS) {
        from.data = state_gradient(e, param);
        from.type = states_of(e)->shape.accumulate;
    }
    if (part != ENGINE_MOMENTS) {
        add_piece(out, &from);
        return;
    }
    from.suffix = ".moment1";
    from.data = (char *)((float *)e->single[SINGLE_MOMENT1] + at);
    add_piece(out, &from);
    from.suffix = ".moment2";
    from.data = (char *)((float *)e->single[SINGLE_MOMENT2] + at);
    add_piece(out, &from);
}

// All ranks that hold the layer have the same values.
static void add_expert_bias(struct slicing *out, struct engine *e, int layer) {
    const struct mesh *m = &e->layout.mesh;
    float *bias = engine_expert_bias(e, layer);
    if (!bias || e->layers[layer].param[PARAM_ROUTER] < 0) return;
    struct tensor_slice *s = next_slice(out);
    if (!s) return;
    *s = (struct tensor_slice){.type = DTYPE_F32,
                               .dims = 1,
                               .shape = {e->whole->config.experts, 1},
                               .rows = e->whole->config.experts,
                               .columns = 1,
                               .stride = 1,
                               .data = bias,
                               .copies = m->size[MESH_TP] * m->size[MESH_DP] * m->size[MESH_CP]};
    s->copy = mesh_data_index(m, e->rank) * m->size[MESH_TP] + e->tp_index;
    snprintf(s->name, sizeof s->name, "layers.%d.router.bias", e->layers[layer].whole);
}

int engine_slices(struct engine *engine, enum engine_part part, struct tensor_slice **slices,
                  int *count, struct err *err) {
    struct slicing out = {NULL, 0, 0, false};
    if (part != ENGINE_MASTER && !engine->options.train)
        return err_set(err, ERR_INTERNAL,
                       "gradients and moments were asked of an engine that was opened without "
                       "training");
    if (part == ENGINE_EXPERT_BIAS) {
        for (int l = 0; l < engine->model->config.layers; l++) add_expert_bias(&out, engine, l);
    } else {
        for (int i = 0; i < engine->model->param_count; i++) add_param(&out, engine, part, i);
    }
    if (out.failed) {
        free(out.slices);
        return err_set(err, ERR_MEMORY, "no memory for the list of %d parameters' pieces",
                       engine->model->param_count);
    }
    *slices = out.slices;
    *count = out.count;
    return 0;
}
