#include "spread.h"
#include "checkpoint/pieces.h"
#include "model/families.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct tensor spread_tensors[SPREAD_TENSORS] = {
    {.name = "embedding.weight", .type = DTYPE_F32, .dims = 2, .shape = {53, 24}},
    {.name = "layers.0.attention.qkv.weight", .type = DTYPE_F32, .dims = 2, .shape = {40, 20}},
    {.name = "layers.0.attention.qkv.weight.moment1",
     .type = DTYPE_BF16,
     .dims = 2,
     .shape = {40, 20}},
    {.name = "layers.0.norm.weight", .type = DTYPE_F32, .dims = 1, .shape = {37}},
    {.name = "layers.1.mlp.down.weight", .type = DTYPE_BF16, .dims = 2, .shape = {3, 211}},
    {.name = "layers.1.one.bias", .type = DTYPE_F32, .dims = 1, .shape = {1}},
    {.name = "layers.1.router.counts", .type = DTYPE_I64, .dims = 1, .shape = {11}},
    {.name = "layers.1.router.weight", .type = DTYPE_F32, .dims = 2, .shape = {1, 9}},
};

static void add(struct spread *s, int rank, const struct tensor *t, struct box b, int copy,
                int copies, int64_t gap) {
    CHECK(s->counts[rank] < SPREAD_MOST_SLICES);
    struct tensor_slice *out = &s->slices[rank][s->counts[rank]++];
    *out = checkpoint_whole_slice(t);
    out->row = b.row;
    out->rows = b.rows;
    out->column = b.column;
    out->columns = b.columns;
    out->stride = b.columns + gap;
    out->copy = copy;
    out->copies = copies;
    out->data = malloc((size_t)(b.rows * out->stride) * dtype_bytes(t->type));
    s->bytes[rank] += (uint64_t)box_elements(b) * dtype_bytes(t->type);
}

// Cuts on until it is small or chance says so, and hands the pieces out.
static void hand_out(struct spread *s, const struct tensor *t, struct box b, unsigned *state) {
    int64_t kind = random_below(state, 5);
    if (box_elements(b) == 0) return;
    if (kind == 4 && box_elements(b) > 1) { // a run of elements and the rest of them
        struct box parts[6];
        int64_t at = random_below(state, box_elements(b) + 1);
        int count = box_range(b, 0, at, parts);
        count += box_range(b, at, box_elements(b) - at, parts + count);
        for (int i = 0; i < count; i++)
            add(s, (int)random_below(state, s->ranks), t, parts[i], 0, 1, 0);
    } else if (kind >= 2 && (kind == 2 ? b.rows : b.columns) > 1) {
        struct box rest = b;
        if (kind == 2) {
            b.rows = 1 + random_below(state, b.rows - 1);
            rest.row += b.rows;
            rest.rows -= b.rows;
        } else {
            b.columns = 1 + random_below(state, b.columns - 1);
            rest.column += b.columns;
            rest.columns -= b.columns;
        }
        hand_out(s, t, b, state);
        hand_out(s, t, rest, state);
    } else {
        int copies = 1 + (int)random_below(state, s->ranks);
        int first = (int)random_below(state, s->ranks);
        for (int i = 0; i < copies; i++)
            add(s, (first + i) % s->ranks, t, b, i, copies, random_below(state, 4));
    }
}

static void begin(struct spread *s, int ranks) {
    *s = (struct spread){.ranks = ranks};
    for (int i = 0; i < ranks; i++) s->slices[i] = calloc(SPREAD_MOST_SLICES, sizeof *s->slices[i]);
}

void spread_random(struct spread *s, int ranks, unsigned *state) {
    begin(s, ranks);
    for (int i = 0; i < SPREAD_TENSORS; i++)
        hand_out(s, &spread_tensors[i], box_whole(&spread_tensors[i]), state);
}

void spread_runs(struct spread *s, int ranks) {
    int64_t total = 0, before = 0;
    begin(s, ranks);
    for (int i = 0; i < SPREAD_TENSORS; i++) total += tensor_elements(&spread_tensors[i]);
    for (int i = 0; i < SPREAD_TENSORS; i++) {
        const struct tensor *t = &spread_tensors[i];
        int64_t elements = tensor_elements(t);
        for (int rank = 0; rank < ranks; rank++) {
            int64_t from = total * rank / ranks - before, to = total * (rank + 1) / ranks - before;
            from = from < 0 ? 0 : from;
            to = to > elements ? elements : to;
            struct box parts[3];
            for (int k = 0, count = box_range(box_whole(t), from, to - from, parts); k < count; k++)
                add(s, rank, t, parts[k], 0, 1, 0);
        }
        before += elements;
    }
}

void spread_crumbs(struct spread *s, int ranks) {
    int next = 0;
    begin(s, ranks);
    for (int i = 0; i < SPREAD_TENSORS; i++) {
        struct box whole = box_whole(&spread_tensors[i]);
        for (int64_t row = 0; row < whole.rows; row++)
            for (int64_t column = 0; column < whole.columns; column += 6) {
                struct box b = box_intersect(whole, (struct box){row, 1, column, 6});
                add(s, next++ % ranks, &spread_tensors[i], b, 0, 1, 0);
            }
    }
}

void spread_value(const struct tensor *t, int64_t step, int64_t index, void *out) {
    int64_t key = (step * 31 + t->name[strlen(t->name) / 2]) * 100000 + index;
    float value = (float)(key % 9973) / 64;
    if (t->type == DTYPE_I64)
        memcpy(out, &key, 8);
    else
        dtype_convert(out, t->type, &value, DTYPE_F32, 1);
}

static const struct tensor *whole_of(const struct tensor_slice *slice) {
    int i = 0;
    while (strcmp(spread_tensors[i].name, slice->name) != 0) i++;
    return &spread_tensors[i];
}

// Calls for each element of the memory; `index` is -1 for what lies between rows.
static void each(const struct tensor_slice *slice,
                 void (*call)(const struct tensor *t, int64_t step, int64_t index, void *at),
                 int64_t step) {
    const struct tensor *t = whole_of(slice);
    for (int64_t r = 0; r < slice->rows; r++)
        for (int64_t c = 0; c < slice->stride; c++)
            call(t, step,
                 c < slice->columns ? (slice->row + r) * box_whole(t).columns + slice->column + c
                                    : -1,
                 (char *)slice->data + (size_t)(r * slice->stride + c) * dtype_bytes(t->type));
}

static void fill_one(const struct tensor *t, int64_t step, int64_t index, void *at) {
    if (index < 0)
        memset(at, 0xff, dtype_bytes(t->type)); // NaN
    else
        spread_value(t, step, index, at);
}

static void clear_one(const struct tensor *t, int64_t step, int64_t index, void *at) {
    (void)step, (void)index;
    memset(at, 0xff, dtype_bytes(t->type));
}

static void check_one(const struct tensor *t, int64_t step, int64_t index, void *at) {
    char expected[8];
    fill_one(t, step, index, expected);
    CHECK_BYTES(at, expected, dtype_bytes(t->type));
}

void spread_fill(struct spread *s, int64_t step) {
    for (int rank = 0; rank < s->ranks; rank++)
        for (int i = 0; i < s->counts[rank]; i++) each(&s->slices[rank][i], fill_one, step);
}

void spread_clear(struct spread *s) {
    for (int rank = 0; rank < s->ranks; rank++)
        for (int i = 0; i < s->counts[rank]; i++) each(&s->slices[rank][i], clear_one, 0);
}

void spread_check(const struct spread *s, int rank, int64_t step) {
    for (int i = 0; i < s->counts[rank]; i++) each(&s->slices[rank][i], check_one, step);
}

void spread_free(struct spread *s) {
    for (int rank = 0; rank < s->ranks; rank++) {
        for (int i = 0; i < s->counts[rank]; i++) free(s->slices[rank][i].data);
        free(s->slices[rank]);
    }
}

int spread_save(const char *folder, const struct spread *s, int rank, int64_t step,
                uint64_t part_bytes, struct comm_stream *world, struct checkpoint_saved *saved,
                struct err *err) {
    struct model_config model;
    struct checkpoint_state state = {.step = step, .samples = 3 * step, .config = "a: 1\n"};
    CHECK_OK(model_preset("llama-15m", &model, NULL), (struct err){0});
    return checkpoint_save_slices(folder, &model, s->slices[rank], s->counts[rank], &state,
                                  part_bytes, world, saved, err);
}
