// Flat buffers: parameters lie on the norm's grid, buckets do not overlap, shards make up buckets,
// and the states have the sizes of the formulas.
#include "memory/flat.h"
#include "memory/rank.h"
#include "memory/state_bytes.h"
#include "model/families.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

static struct model_config shape(bool tied, int experts) {
    struct model_config c;
    model_family_defaults(FAMILY_LLAMA, &c);
    c.layers = 4, c.heads = 4, c.kv_heads = 2, c.head_dim = 16, c.hidden = 72, c.ffn = 100,
    c.vocab = 250, c.context = 8;
    c.tied_head = tied;
    c.qkv_bias = true;
    c.qk_norm = QK_NORM_HEAD;
    if (experts) {
        c.experts = experts, c.top_k = 2, c.expert_ffn = 20, c.shared_ffn = 30;
        c.layer_dense[0] = true;
    }
    return c;
}

struct made {
    struct model whole;
    struct layout layout;
    struct local_model local;
    struct flat flat;
    struct flat_options options;
};

static struct made make(const struct model_config *c, int pp, int dp, int ep, int tp, int zero,
                        int rank, uint64_t bucket_bytes) {
    struct made m = {.layout = {.mesh = {.size = {pp, dp, 1, tp},
                                         .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                         .ep = ep,
                                         .shard = dp},
                                .chunks = 1,
                                .sequence_parallel = tp > 1,
                                .zero = zero}};
    struct err err = {0};
    CHECK_OK(model_describe(&m.whole, c, &err), err);
    CHECK_OK(layout_split_layers(&m.layout, c, NULL, 0, false, &err), err);
    CHECK_OK(layout_check(&m.layout, &m.whole, 8, 1, 1, &err), err);
    CHECK_OK(layout_local(&m.local, &m.whole, &m.layout, rank, &err), err);
    m.options = flat_options_for(&m.layout, rank, bucket_bytes);
    CHECK_OK(flat_open(&m.flat, &m.local, &m.options, &err), err);
    return m;
}

static void drop(struct made *m) {
    flat_close(&m->flat);
    local_model_free(&m->local);
    model_free(&m->whole);
}

// What holds for every rank of every layout.
static void check_flat(const struct made *m) {
    const struct flat *flat = &m->flat;
    const struct model *model = &m->local.model;
    char *used = calloc((size_t)flat->elements + 1, 1);
    int64_t matrices = 0, vectors = 0, at = 0, shards = 0;
    for (int i = 0; i < model->param_count; i++) {
        const struct param *p = &model->params[i];
        const struct flat_bucket *bucket = &flat->buckets[flat->bucket_of[i]];
        int64_t begin = flat->offset[i], elements = param_elements_padded(p);
        CHECK(begin >= bucket->begin && begin + elements <= bucket->end);
        CHECK_EQ_INT(bucket->vectors, !param_is_matrix(p));
        CHECK_EQ_INT(bucket->group, p->expert < 0 ? FLAT_DENSE : FLAT_EXPERT);
        CHECK(bucket->unit == -1 || bucket->unit == flat->unit_of[i]);
        CHECK_EQ_INT(begin % 64, 0);
        if (elements >= RANK_NORM_BLOCK)
            CHECK_EQ_INT(begin % RANK_NORM_BLOCK, 0);
        else if (elements > 0)
            CHECK_EQ_INT(begin / RANK_NORM_BLOCK, (begin + elements - 1) / RANK_NORM_BLOCK);
        for (int64_t e = begin; e < begin + elements; e++) CHECK_EQ_INT(used[e]++, 0);
        *(param_is_matrix(p) ? &matrices : &vectors) += param_elements(p);
        CHECK(flat->unit_of[i] >= 0 && flat->unit_of[i] < flat->unit_count);
        if (p->layer >= 0) CHECK_EQ_INT(flat->unit_of[i], p->layer);
    }
    free(used);
    CHECK_EQ_INT(flat->matrix_elements, matrices);
    CHECK_EQ_INT(flat->vector_elements, vectors);
    for (int i = 0; i < flat->bucket_count; i++) {
        const struct flat_bucket *bucket = &flat->buckets[i];
        CHECK_EQ_INT(bucket->begin, at);
        CHECK(bucket->end > bucket->begin);
        CHECK_EQ_INT((bucket->end - bucket->begin) % ((int64_t)bucket->shards * RANK_NORM_BLOCK),
                     0);
        CHECK_EQ_INT(bucket->shard_begin, shards);
        if (bucket->vectors) CHECK_EQ_INT(bucket->shards, 1);
        if (m->options.zero >= 2 && !bucket->vectors) CHECK(bucket->unit >= 0);
        int64_t begin = 0, end = 0;
        for (int index = 0; index < bucket->shards; index++) { // side by side
            flat_shard(flat, i, index, &begin, &end);
            CHECK_EQ_INT(begin, at);
            CHECK_EQ_INT(begin % RANK_NORM_BLOCK, 0);
            CHECK(end > begin);
            at = end;
        }
        CHECK_EQ_INT(at, bucket->end);
        shards += end - begin;
    }
    CHECK_EQ_INT(flat->elements, at);
    CHECK_EQ_INT(flat->shard_elements, shards);
}

TEST(flat_lies_on_the_grid) {
    for (int zero = 0; zero <= 3; zero++)
        for (int experts = 0; experts <= 8; experts += 8)
            for (int pp = 1; pp <= 2; pp++)
                for (int dp = 1; dp <= 4; dp++)
                    for (int tp = 1; tp <= 2; tp++)
                        for (uint64_t bytes = 4; bytes < 1 << 24; bytes *= 64) {
                            struct model_config c = shape((pp + dp) % 2, experts);
                            int ep = experts && dp % 2 == 0 ? 2 : 1;
                            int ranks = pp * dp * tp;
                            struct made m =
                                make(&c, pp, dp, ep, tp, zero, ranks - 1 - dp / 2, bytes);
                            check_flat(&m);
                            drop(&m);
                        }
}

// Ranks that share states see the same places; only their shards differ.
TEST(flat_is_the_same_on_all_sharers) {
    struct model_config c = shape(true, 8);
    struct made first = make(&c, 1, 4, 2, 1, 1, 0, 100000);
    for (int rank = 1; rank < 4; rank++) {
        struct made m = make(&c, 1, 4, 2, 1, 1, rank, 100000);
        CHECK_EQ_INT(m.flat.bucket_count, first.flat.bucket_count);
        CHECK_BYTES(m.flat.buckets, first.flat.buckets,
                    sizeof *m.flat.buckets * (size_t)m.flat.bucket_count);
        CHECK_BYTES(m.flat.offset, first.flat.offset,
                    sizeof *m.flat.offset * (size_t)m.local.model.param_count);
        CHECK_EQ_INT(m.options.index[FLAT_DENSE], rank);
        CHECK_EQ_INT(m.options.index[FLAT_EXPERT], rank / 2);
        CHECK_EQ_INT(m.options.shards[FLAT_EXPERT], 2);
        drop(&m);
    }
    drop(&first);
}

// ZeRO 0 and 1 have the same places and buckets, so that they can have the same bits.
TEST(flat_of_zero_0_and_1_agree) {
    struct model_config c = shape(true, 0);
    struct made zero = make(&c, 2, 3, 1, 1, 0, 1, 50000), one = make(&c, 2, 3, 1, 1, 1, 1, 50000);
    CHECK_EQ_INT(zero.flat.elements, one.flat.elements);
    CHECK_BYTES(zero.flat.offset, one.flat.offset,
                sizeof(int64_t) * (size_t)one.local.model.param_count);
    CHECK_EQ_INT(zero.flat.shard_elements, zero.flat.elements);
    CHECK(one.flat.shard_elements < one.flat.elements);
    drop(&zero);
    drop(&one);
}

TEST(flat_buckets_follow_backward) {
    struct model_config c = shape(false, 0);
    struct made m = make(&c, 1, 2, 1, 1, 1, 0, 4); // a bucket for each matrix
    const struct model *model = &m.local.model;
    int previous = model->param_count;
    for (int b = 0; b < m.flat.bucket_count - 1; b++) {
        int count = 0;
        for (int i = 0; i < model->param_count; i++)
            if (m.flat.bucket_of[i] == b) {
                CHECK(i < previous);
                previous = i;
                count++;
            }
        CHECK_EQ_INT(count, 1);
    }
    CHECK_EQ_INT(model->params[previous].role, PARAM_EMBEDDING);
    CHECK(m.flat.buckets[m.flat.bucket_count - 1].vectors);
    CHECK_EQ_INT(m.flat.vectors_begin[FLAT_DENSE], m.flat.buckets[m.flat.bucket_count - 1].begin);
    CHECK_EQ_INT(m.flat.vectors_end[FLAT_DENSE], m.flat.elements);
    CHECK_EQ_INT(m.flat.vectors_end[FLAT_EXPERT], 0);
    drop(&m);
    // a bucket closes before it would pass its size
    m = make(&c, 1, 2, 1, 1, 1, 0, 100000);
    for (int b = 0; b < m.flat.bucket_count; b++)
        CHECK(m.flat.buckets[b].end - m.flat.buckets[b].begin <= 25000 + 2 * RANK_NORM_BLOCK);
    CHECK(m.flat.bucket_count > 3 && m.flat.bucket_count < 20);
    drop(&m);
}

TEST(flat_tied_table_is_a_bucket_of_its_own) {
    struct model_config c = shape(true, 0);
    for (int zero = 0; zero <= 3; zero++)
        for (int rank = 0; rank < 4; rank += 2) { // first and last stage
            struct made m = make(&c, 2, 2, 1, 1, zero, rank, 1 << 20);
            int table = model_param(&m.local.model, -1, PARAM_EMBEDDING), tied = 0;
            CHECK(m.flat.buckets[m.flat.bucket_of[table]].tied);
            for (int b = 0; b < m.flat.bucket_count; b++) tied += m.flat.buckets[b].tied;
            CHECK_EQ_INT(tied, 1);
            for (int i = 0; i < m.local.model.param_count; i++)
                CHECK_EQ_INT(m.flat.bucket_of[i] == m.flat.bucket_of[table], i == table);
            CHECK_EQ_INT(m.flat.unit_of[table], rank ? m.flat.unit_head : m.flat.unit_embedding);
            CHECK_EQ_INT(rank ? m.flat.unit_embedding : m.flat.unit_head, -1);
            drop(&m);
        }
}

TEST(flat_units_have_a_bucket_under_zero_2_and_3) {
    struct model_config c = shape(false, 8);
    struct made m = make(&c, 1, 2, 2, 1, 3, 0, 1 << 20);
    // 4 layers and two ends, experts of 3 layers, vectors
    CHECK_EQ_INT(m.flat.unit_count, 6);
    CHECK_EQ_INT(m.flat.bucket_count, 6 + 3 + 1);
    for (int unit = 0; unit < 6; unit++) {
        int dense = 0, experts = 0;
        for (int b = 0; b < m.flat.bucket_count; b++) {
            const struct flat_bucket *bucket = &m.flat.buckets[b];
            if (bucket->vectors || bucket->unit != unit) continue;
            dense += bucket->group == FLAT_DENSE;
            experts += bucket->group == FLAT_EXPERT;
        }
        CHECK_EQ_INT(dense, 1);
        CHECK_EQ_INT(experts, unit > 0 && unit < 4);
    }
    // experts live on one of two ranks: nobody shares their states
    for (int b = 0; b < m.flat.bucket_count; b++)
        if (m.flat.buckets[b].group == FLAT_EXPERT) CHECK_EQ_INT(m.flat.buckets[b].shards, 1);
    drop(&m);
}

// One huge table and many tiny norms over four ranks: some shards lie inside the table, and the
// norms still have a place on everyone.
TEST(flat_of_one_huge_table_and_tiny_norms) {
    struct model_config c = shape(true, 0);
    c.layers = 20, c.hidden = 64, c.heads = c.kv_heads = 1, c.head_dim = 2, c.ffn = 2;
    c.qkv_bias = false;
    c.qk_norm = QK_NORM_NONE;
    c.vocab = 250000; // 64 MB in FP32, and 41 norms of 64
    struct made m = make(&c, 1, 4, 1, 1, 1, 2, 32000000);
    check_flat(&m);
    const struct flat_bucket *table = &m.flat.buckets[m.flat.bucket_of[0]];
    int64_t begin, end;
    flat_shard(&m.flat, m.flat.bucket_of[0], 2, &begin, &end);
    CHECK(begin > m.flat.offset[0] && end < m.flat.offset[0] + param_elements(&m.whole.params[0]));
    CHECK_EQ_INT(table->shards, 4);
    CHECK_EQ_INT(m.flat.vector_elements, 41 * 64);
    CHECK_EQ_INT(m.flat.vectors_end[FLAT_DENSE] - m.flat.vectors_begin[FLAT_DENSE],
                 RANK_NORM_BLOCK);
    drop(&m);
}

// State bytes of a rank with bf16 weights and gradients: (4 + 12/N) P, (2 + 14/N) P, 16 P/N for the
// matrices of the padded flat order; with FP32 gradients two bytes more for each gradient. The
// bytes are those of the enumeration that is allocated.
TEST(flat_states_have_the_bytes_of_the_formulas) {
    struct model_config c = shape(false, 0);
    for (int dp = 1; dp <= 4; dp++)
        for (int zero = 0; zero <= 3; zero++)
            for (int wide = 0; wide < 2; wide++) {
                struct made m = make(&c, 1, dp, 1, 1, zero, dp - 1, 100000);
                struct rank_shape s = {.compute = DTYPE_BF16,
                                       .train = true,
                                       .tokens = 8,
                                       .tp = 1,
                                       .flat = &m.flat,
                                       .zero = zero,
                                       .ranks = {dp, dp},
                                       .gather_type = DTYPE_BF16,
                                       .reduce_type = DTYPE_F32,
                                       .accumulate_type = wide ? DTYPE_F32 : DTYPE_BF16,
                                       .gathers_in_flight = 2};
                struct state_bytes b;
                struct err err = {0};
                CHECK_OK(state_bytes(&b, &m.local, &s, &err), err);
                int n = zero ? dp : 1; // over how many ranks
                CHECK_EQ_INT(b.vectors,
                             m.flat.vectors_end[FLAT_DENSE] - m.flat.vectors_begin[FLAT_DENSE]);
                CHECK_EQ_INT(b.matrices, m.flat.elements - b.vectors);
                CHECK_EQ_INT(b.shard * n, b.matrices);
                CHECK_EQ_INT(b.weights, 2 * (zero == 3 ? b.shard : b.matrices));
                int64_t gradients = zero >= 2 ? b.shard : b.matrices;
                CHECK_EQ_INT(b.gradients, (wide ? 4 : 2) * gradients);
                CHECK_EQ_INT(b.masters, 4 * b.shard);
                CHECK_EQ_INT(b.moments, 8 * b.shard);
                CHECK_EQ_INT(b.vector_bytes, b.vectors * (2 + (wide ? 4 : 2) + 4 + 8));
                int64_t states = (int64_t)(b.weights + b.gradients + b.masters + b.moments);
                int64_t p = b.matrices, more = wide ? 2 * gradients : 0;
                if (zero == 1) CHECK_EQ_INT((states - more) * n, (4 * n + 12) * p);
                if (zero == 2) CHECK_EQ_INT((states - more) * n, (2 * n + 14) * p);
                if (zero == 3) CHECK_EQ_INT((states - more) * n, 16 * p);
                drop(&m);
            }
}

// Hybrid sharding: shards inside groups of two, each state on dp / 2 ranks.
TEST(flat_shards_inside_a_group) {
    struct model_config c = shape(false, 8);
    struct made m = make(&c, 1, 8, 2, 1, 1, 5, 100000);
    m.layout.mesh.shard = 2;
    struct flat_options options = flat_options_for(&m.layout, 5, 100000);
    CHECK_EQ_INT(options.shards[FLAT_DENSE], 2);
    CHECK_EQ_INT(options.index[FLAT_DENSE], 1);
    CHECK_EQ_INT(options.ranks[FLAT_DENSE], 8);
    CHECK_EQ_INT(options.shards[FLAT_EXPERT], 2);
    CHECK_EQ_INT(options.index[FLAT_EXPERT], 0); // third of the four ranks with these experts
    CHECK_EQ_INT(options.ranks[FLAT_EXPERT], 4);
    // the place in a shard group is the place among the members of that group
    for (int rank = 0; rank < 8; rank++) {
        int members[8], index;
        options = flat_options_for(&m.layout, rank, 100000);
        CHECK_EQ_INT(mesh_group(&m.layout.mesh, rank, GROUP_SHARD, 2, members, &index), 2);
        CHECK_EQ_INT(options.index[FLAT_DENSE], index);
        CHECK_EQ_INT(mesh_group(&m.layout.mesh, rank, GROUP_EXPERT_SHARD, 2, members, &index), 2);
        CHECK_EQ_INT(options.index[FLAT_EXPERT], index);
    }
    drop(&m);
}

TEST(flat_refuses_impossible_groups) {
    struct model_config c = shape(true, 0);
    struct made m = make(&c, 1, 4, 1, 1, 1, 0, 100000);
    struct flat_options bad[6];
    for (int i = 0; i < 6; i++) bad[i] = m.options;
    bad[0].shards[FLAT_DENSE] = 3;
    bad[1].index[FLAT_DENSE] = 4;
    bad[2].zero = 4;
    bad[3].zero = 0; // with shards
    bad[4].bucket_bytes = 0;
    bad[5].shards[FLAT_EXPERT] = 0;
    for (int i = 0; i < 6; i++) {
        struct flat flat = {0};
        struct err err = {0};
        CHECK_EQ_INT(flat_open(&flat, &m.local, &bad[i], &err), -1);
        CHECK_EQ_INT(err.kind, ERR_INTERNAL);
        CHECK(flat.buckets == NULL);
    }
    drop(&m);
}
