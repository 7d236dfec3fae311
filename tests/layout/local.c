// A rank's own model: together the ranks hold every element as often as they say, and each holds
// what its stage, its part of every matrix, and its experts ask for.
#include "layout/layout.h"
#include "model/families.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct model_config shape(bool tied, int kv_heads, int experts) {
    struct model_config c;
    model_family_defaults(FAMILY_LLAMA, &c);
    c.layers = 6, c.heads = 8, c.kv_heads = kv_heads, c.head_dim = 2, c.hidden = 16, c.ffn = 24,
    c.vocab = 250, c.context = 8;
    c.tied_head = tied;
    c.qkv_bias = c.out_bias = true;
    c.qk_norm = QK_NORM_HEAD;
    if (experts) {
        c.experts = experts, c.top_k = 2, c.expert_ffn = 8, c.shared_ffn = 16;
        c.layer_dense[0] = true;
    }
    return c;
}

static struct model_config gpt2(void) {
    struct model_config c;
    model_family_defaults(FAMILY_GPT2, &c);
    c.layers = 6, c.heads = c.kv_heads = 8, c.head_dim = 2, c.hidden = 16, c.ffn = 64,
    c.vocab = 130, c.context = 8;
    return c;
}

static struct layout cut(const struct model_config *c, int pp, int tp, int ep, int chunks,
                         enum layout_placement placement) {
    struct layout layout = {.mesh = {.size = {pp, ep, 1, tp},
                                     .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                     .ep = ep,
                                     .shard = ep},
                            .chunks = chunks,
                            .placement = placement,
                            .sequence_parallel = tp > 1};
    struct err err = {0};
    CHECK_OK(layout_split_layers(&layout, c, NULL, 0, false, &err), err);
    return layout;
}

// How often an element of the whole model is held, and the sum of the copies' numbers from 1 on.
// Copies of a tied table count apart.
struct cover {
    int *held, *numbers;
    int64_t *begin; // of each parameter; the tied copy behind the last
    int64_t total;
};

static struct cover cover_open(const struct model *whole) {
    struct cover cover = {.begin = calloc((size_t)whole->param_count + 1, sizeof(int64_t))};
    for (int i = 0; i < whole->param_count; i++) {
        cover.begin[i] = cover.total;
        cover.total += param_elements(&whole->params[i]);
    }
    cover.begin[whole->param_count] = cover.total;
    cover.total += param_elements(&whole->params[0]);
    cover.held = calloc((size_t)cover.total, sizeof(int));
    cover.numbers = calloc((size_t)cover.total, sizeof(int));
    return cover;
}

static void cover_close(struct cover *cover) {
    free(cover->held);
    free(cover->numbers);
    free(cover->begin);
}

static void add_slice(struct cover *cover, const struct model *whole, const struct param *p,
                      const struct param_slice *s) {
    const struct param *w = &whole->params[s->whole];
    CHECK_STR(p->name, w->name);
    CHECK_EQ_INT(p->role, w->role);
    CHECK_EQ_INT(p->parts, w->parts);
    int64_t part_begin = 0, rows = 0;
    for (int part = 0; part < p->parts; part++) {
        int copy = part > 0 ? s->copy_kv : s->copy;
        CHECK(s->row[part] >= 0 && s->row[part] + p->part_rows[part] <= w->part_rows[part]);
        CHECK(s->column >= 0 && s->column + p->columns <= w->columns);
        for (int64_t row = 0; row < p->part_rows[part]; row++)
            for (int64_t column = 0; column < p->columns; column++) {
                int64_t at = cover->begin[s->tied_copy ? whole->param_count : s->whole] +
                             (part_begin + s->row[part] + row) * w->columns + s->column + column;
                cover->held[at]++;
                cover->numbers[at] += copy + 1;
            }
        part_begin += w->part_rows[part];
        rows += p->part_rows[part];
    }
    CHECK_EQ_INT(p->rows, rows);
    CHECK(p->rows_padded >= p->rows);
}

// The local list is what a model of the local sizes would have, layer by layer.
static void check_against_own_description(const struct local_model *local) {
    struct model own;
    struct err err = {0};
    if (local->model.config.experts > 0) return; // the router keeps a row for each expert
    CHECK_OK(model_describe(&own, &local->model.config, &err), err);
    int at = 0;
    for (int i = 0; i < own.param_count; i++) {
        const struct param *o = &own.params[i];
        if (o->layer < 0) continue;
        while (local->model.params[at].layer < 0) at++;
        const struct param *p = &local->model.params[at++];
        CHECK_EQ_INT(p->role, o->role);
        CHECK_EQ_INT(p->layer, o->layer);
        CHECK_EQ_INT(p->rows, o->rows);
        CHECK_EQ_INT(p->rows_padded, o->rows_padded);
        CHECK_EQ_INT(p->columns, o->columns);
        for (int part = 0; part < p->parts; part++)
            CHECK_EQ_INT(p->part_rows[part], o->part_rows[part]);
    }
    model_free(&own);
}

static void check_cover(const struct model_config *c, int pp, int tp, int ep, int chunks,
                        enum layout_placement placement) {
    struct layout layout = cut(c, pp, tp, ep, chunks, placement);
    struct model whole;
    struct err err = {0};
    CHECK_OK(model_describe(&whole, c, &err), err);
    CHECK_OK(layout_check(&layout, &whole, 8, 1, 1, &err), err);
    struct cover cover = cover_open(&whole);
    int tied_copies = 0;
    for (int rank = 0; rank < mesh_ranks(&layout.mesh); rank++) {
        struct local_model local;
        CHECK_OK(layout_local(&local, &whole, &layout, rank, &err), err);
        check_against_own_description(&local);
        bool counts = mesh_data_index(&layout.mesh, rank) == 0; // one replica of what is dense
        for (int i = 0; i < local.model.param_count; i++) {
            const struct param *p = &local.model.params[i];
            if (!counts && p->expert < 0) continue;
            add_slice(&cover, &whole, p, &local.slices[i]);
            tied_copies += local.slices[i].tied_copy;
        }
        local_model_free(&local);
    }
    bool apart = c->tied_head && layout_stage_rank(&layout, pp * chunks - 1) != 0;
    CHECK_EQ_INT(tied_copies, apart ? tp : 0);
    for (int i = 0; i <= whole.param_count; i++) {
        const struct param *w = &whole.params[i < whole.param_count ? i : 0];
        int64_t kv_begin = w->parts == 3 ? w->part_rows[0] * w->columns : INT64_MAX;
        for (int64_t e = 0; e < param_elements(w); e++) {
            int copies = w->axis == SHARD_NONE ? tp : 1;
            if (e >= kv_begin && c->kv_heads < tp) copies = tp / c->kv_heads;
            if (i == whole.param_count && !apart) copies = 0;
            CHECK_EQ_INT(cover.held[cover.begin[i] + e], copies);
            CHECK_EQ_INT(cover.numbers[cover.begin[i] + e], copies * (copies + 1) / 2);
        }
    }
    cover_close(&cover);
    model_free(&whole);
}

TEST(local_models_cover_the_whole) {
    for (int tp = 1; tp <= 8; tp *= 2)
        for (int pp = 1; pp <= 3; pp++)
            for (int kv = 1; kv <= 8; kv *= 2)
                for (int tied = 0; tied < 2; tied++) {
                    struct model_config c = shape(tied, kv, 0);
                    check_cover(&c, pp, tp, 1, 1, PLACE_LOOP);
                    check_cover(&c, pp, tp, 1, 2, PLACE_LOOP);
                    check_cover(&c, pp, tp, 1, 2, PLACE_V);
                }
}

TEST(local_models_cover_experts) {
    for (int ep = 1; ep <= 4; ep *= 2)
        for (int tp = 1; tp <= 2; tp++)
            for (int pp = 1; pp <= 3; pp++) {
                struct model_config c = shape(pp == 2, 4, 8);
                check_cover(&c, pp, tp, ep, 1 + pp % 2, PLACE_LOOP);
                check_cover(&c, pp, tp, ep, 2, PLACE_V);
            }
}

TEST(local_models_cover_gpt2) {
    struct model_config c = gpt2();
    for (int tp = 1; tp <= 4; tp++)
        for (int pp = 1; pp <= 3 && tp != 3; pp++) check_cover(&c, pp, tp, 1, 1, PLACE_LOOP);
}

TEST(local_model_of_one_process_is_the_whole) {
    struct model_config c = shape(true, 4, 8);
    struct layout layout = layout_single(&c);
    struct model whole;
    struct local_model local;
    struct err err = {0};
    CHECK_OK(model_describe(&whole, &c, &err), err);
    CHECK_OK(layout_check(&layout, &whole, 8, 1, 1, &err), err);
    CHECK_OK(layout_local(&local, &whole, &layout, 0, &err), err);
    CHECK_EQ_INT(local.model.param_count, whole.param_count);
    CHECK_BYTES(local.model.params, whole.params, sizeof *whole.params * (size_t)whole.param_count);
    CHECK_BYTES(&local.model.config, &whole.config, sizeof whole.config);
    CHECK_EQ_INT(local.stage_count, 1);
    CHECK(local.stages[0].first && local.stages[0].last);
    CHECK_EQ_INT(local.stages[0].layer_count, 6);
    CHECK_EQ_INT(local.vocab_rows, 250);
    for (int i = 0; i < local.model.param_count; i++) {
        CHECK_EQ_INT(local.slices[i].whole, i);
        CHECK_EQ_INT(local.slices[i].copies, 1);
        CHECK_EQ_INT(local.slices[i].partial, GROUP_KIND_COUNT);
        CHECK(!local.slices[i].tied_copy);
    }
    CHECK_EQ_INT(layout_local(&local, &whole, &layout, 1, &err), -1);
    CHECK_CONTAINS(err.text, "rank 1 is not one of the mesh's 1");
    local_model_free(&local);
    model_free(&whole);
}

// Rank `rank` of a layout; the caller looks at it and frees it.
static struct local_model take(const struct model_config *c, const struct layout *layout,
                               int rank) {
    struct model whole;
    struct local_model local;
    struct err err = {0};
    CHECK_OK(model_describe(&whole, c, &err), err);
    CHECK_OK(layout_local(&local, &whole, layout, rank, &err), err);
    model_free(&whole);
    return local;
}

static int find(const struct local_model *local, int layer, enum param_role role) {
    int i = model_param(&local->model, layer, role);
    CHECK(i >= 0);
    return i;
}

TEST(local_vocabulary_rows_have_one_padded_size) {
    struct model_config c = shape(false, 8, 0);
    c.vocab = 50257;
    struct layout layout = cut(&c, 1, 8, 1, 1, PLACE_LOOP);
    int64_t rows = 0;
    for (int rank = 0; rank < 8; rank++) {
        struct local_model local = take(&c, &layout, rank);
        const struct param *p = &local.model.params[find(&local, -1, PARAM_HEAD)];
        CHECK_EQ_INT(p->rows_padded, 50688 / 8);
        CHECK_EQ_INT(local.vocab_first, rows);
        CHECK_EQ_INT(local.vocab_rows, p->rows);
        CHECK_EQ_INT(p->rows, rank < 7 ? 6336 : 50257 - 7 * 6336);
        rows += p->rows;
        local_model_free(&local);
    }
    CHECK_EQ_INT(rows, 50257);
    // fewer words than ranks have room for: the last ones hold none
    c.vocab = 70;
    layout = cut(&c, 1, 4, 1, 1, PLACE_LOOP);
    struct local_model local = take(&c, &layout, 3);
    CHECK_EQ_INT(local.vocab_first, 70);
    CHECK_EQ_INT(local.vocab_rows, 0);
    CHECK_EQ_INT(local.model.params[0].rows, 0);
    CHECK_EQ_INT(local.model.params[0].rows_padded, 64);
    local_model_free(&local);
}

TEST(local_key_heads_are_shared_when_fewer_than_ranks) {
    struct model_config c = shape(false, 2, 0); // 8 heads of width 2; 2 key heads on 4 ranks
    struct layout layout = cut(&c, 1, 4, 1, 1, PLACE_LOOP);
    for (int rank = 0; rank < 4; rank++) {
        struct local_model local = take(&c, &layout, rank);
        int i = find(&local, 0, PARAM_QKV);
        const struct param *p = &local.model.params[i];
        const struct param_slice *s = &local.slices[i];
        CHECK_EQ_INT(local.model.config.heads, 2);
        CHECK_EQ_INT(local.model.config.kv_heads, 1);
        CHECK_EQ_INT(p->part_rows[0], 4);
        CHECK_EQ_INT(p->part_rows[1], 2);
        CHECK_EQ_INT(p->part_rows[2], 2);
        CHECK_EQ_INT(s->row[0], rank * 4);
        CHECK_EQ_INT(s->row[1], rank / 2 * 2);
        CHECK_EQ_INT(s->row[2], rank / 2 * 2);
        CHECK_EQ_INT(s->copies, 1);
        CHECK_EQ_INT(s->copies_kv, 2);
        CHECK_EQ_INT(s->copy_kv, rank % 2);
        CHECK_EQ_INT(s->partial, GROUP_KV);
        CHECK_EQ_INT(local.slices[find(&local, 0, PARAM_QKV_BIAS)].partial, GROUP_KV);
        // the ranks that share a key head are the members of that group
        int members[4], index;
        CHECK_EQ_INT(mesh_group(&layout.mesh, rank, GROUP_KV, 2, members, &index), s->copies_kv);
        CHECK_EQ_INT(index, s->copy_kv);
        local_model_free(&local);
    }
}

TEST(local_stages_and_layers) {
    struct model_config c = shape(true, 8, 0);
    for (int layer = 0; layer < 6; layer++) c.layer_window[layer] = 100 + layer;
    struct layout layout = cut(&c, 2, 1, 1, 2, PLACE_LOOP); // layers 0 1 | 2 3 | 4 | 5
    struct local_model local = take(&c, &layout, 1);
    CHECK_EQ_INT(local.stage_count, 2);
    CHECK_EQ_INT(local.stages[0].stage, 1);
    CHECK_EQ_INT(local.stages[0].layer_first, 0);
    CHECK_EQ_INT(local.stages[0].layer_count, 2);
    CHECK_EQ_INT(local.stages[1].stage, 3);
    CHECK_EQ_INT(local.stages[1].layer_first, 2);
    CHECK_EQ_INT(local.stages[1].layer_count, 1);
    CHECK(!local.stages[0].first && !local.stages[0].last);
    CHECK(!local.stages[1].first && local.stages[1].last);
    CHECK_EQ_INT(local.model.config.layers, 3);
    CHECK_EQ_INT(local.model.config.layer_window[2], 105);
    int last = find(&local, 2, PARAM_QKV);
    CHECK_STR(local.model.params[last].name, "layers.5.attention.qkv.weight");
    int table = find(&local, -1, PARAM_EMBEDDING);
    CHECK(local.slices[table].tied_copy);
    CHECK_EQ_INT(table, 0); // order of the whole model
    local_model_free(&local);

    layout = cut(&c, 2, 1, 1, 2, PLACE_V); // both ends on rank 0: one table
    local = take(&c, &layout, 0);
    CHECK_EQ_INT(local.stages[0].stage, 0);
    CHECK_EQ_INT(local.stages[1].stage, 3);
    CHECK(local.stages[0].first && local.stages[1].last);
    CHECK(!local.slices[find(&local, -1, PARAM_EMBEDDING)].tied_copy);
    local_model_free(&local);
    local = take(&c, &layout, 1);
    CHECK_EQ_INT(model_param(&local.model, -1, PARAM_EMBEDDING), -1);
    CHECK_EQ_INT(model_param(&local.model, -1, PARAM_FINAL_NORM), -1);
    local_model_free(&local);
}

TEST(local_experts) {
    struct model_config c = shape(false, 8, 8);
    struct layout layout = cut(&c, 1, 2, 4, 1, PLACE_LOOP);
    struct local_model local = take(&c, &layout, 5); // data index 2, tp index 1
    CHECK_EQ_INT(local.model.config.experts, 2);
    CHECK_EQ_INT(local.model.config.expert_ffn, 4);
    CHECK_EQ_INT(local.model.config.shared_ffn, 8);
    CHECK_EQ_INT(local.expert_first, 4);
    CHECK_EQ_INT(local.model.params[find(&local, 1, PARAM_ROUTER)].rows, 8);
    int up = model_param_expert(&local.model, 1, PARAM_EXPERT_UP, 1);
    CHECK(up >= 0);
    CHECK_CONTAINS(local.model.params[up].name, "5");
    CHECK_EQ_INT(local.slices[up].row[1], 4);
    CHECK_EQ_INT(local.model.params[up].rows, 8);
    CHECK_EQ_INT(model_param(&local.model, 0, PARAM_ROUTER), -1); // a dense layer
    CHECK_EQ_INT(model_param_expert(&local.model, 1, PARAM_EXPERT_UP, 2), -1);
    CHECK_EQ_INT(layout_gradient_group(&local.model.params[up]), GROUP_EXPERT_DATA);
    CHECK_EQ_INT(layout_gradient_group(&local.model.params[find(&local, 1, PARAM_SHARED_UP)]),
                 GROUP_DATA);
    local_model_free(&local);
}

// Every replicated parameter whose input is cut has a reduction, and only those.
TEST(local_partial_gradients) {
    static const enum param_role stream[] = {
        PARAM_ATTENTION_NORM, PARAM_ATTENTION_NORM_BIAS, PARAM_MLP_NORM, PARAM_MLP_NORM_BIAS,
        PARAM_FINAL_NORM,     PARAM_FINAL_NORM_BIAS,     PARAM_POSITION};
    static const enum param_role none[] = {
        PARAM_EMBEDDING, PARAM_HEAD,        PARAM_OUT,       PARAM_OUT_BIAS,  PARAM_UP,
        PARAM_UP_BIAS,   PARAM_DOWN,        PARAM_DOWN_BIAS, PARAM_EXPERT_UP, PARAM_EXPERT_DOWN,
        PARAM_SHARED_UP, PARAM_SHARED_DOWN, PARAM_QKV,       PARAM_QKV_BIAS};
    struct model_config c = shape(false, 8, 8);
    struct layout layout = cut(&c, 1, 2, 1, 1, PLACE_LOOP);
    for (size_t i = 0; i < sizeof stream / sizeof *stream; i++) {
        layout.sequence_parallel = true;
        CHECK_EQ_INT(layout_partial_group(&layout, &c, stream[i]), GROUP_TP);
        layout.sequence_parallel = false;
        CHECK_EQ_INT(layout_partial_group(&layout, &c, stream[i]), GROUP_KIND_COUNT);
    }
    for (int on = 0; on < 2; on++) {
        layout.sequence_parallel = on;
        for (size_t i = 0; i < sizeof none / sizeof *none; i++)
            CHECK_EQ_INT(layout_partial_group(&layout, &c, none[i]), GROUP_KIND_COUNT);
        CHECK_EQ_INT(layout_partial_group(&layout, &c, PARAM_Q_NORM), GROUP_TP);
        CHECK_EQ_INT(layout_partial_group(&layout, &c, PARAM_K_NORM), GROUP_TP);
        CHECK_EQ_INT(layout_partial_group(&layout, &c, PARAM_ROUTER), GROUP_TP);
    }
    layout.mesh.size[MESH_TP] = 1;
    for (int role = 0; role < PARAM_ROLE_COUNT; role++)
        CHECK_EQ_INT(layout_partial_group(&layout, &c, (enum param_role)role), GROUP_KIND_COUNT);
}

TEST(local_model_refuses_what_does_not_divide) {
    struct model_config c = shape(false, 8, 0);
    struct layout layout = cut(&c, 1, 1, 1, 1, PLACE_LOOP);
    layout.mesh.size[MESH_TP] = 16;
    struct model whole;
    struct local_model local;
    struct err err = {0};
    CHECK_OK(model_describe(&whole, &c, &err), err);
    CHECK_EQ_INT(layout_local(&local, &whole, &layout, 0, &err), -1);
    CHECK_CONTAINS(err.text, "tp (16) does not divide heads (8)");
    model_free(&whole);
}
