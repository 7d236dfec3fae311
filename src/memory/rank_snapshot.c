// How much of the state a rank stores, see rank.h.
#include "memory/rank.h"

enum {
    ARRAYS = 3,        // master and two moments, FP32
    PIECES = 3,        // boxes of a run of elements: the end of a row, whole rows, the begin of one
    ENTRY_BYTES = 512, // most that the header says of a piece, and its share of what aligns parts
    GAP_SHARE = 256,   // parts of a megabyte or more begin at page borders
    PAGE_BYTES = 4096
};

struct store {
    uint64_t bytes, pieces;
};

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

// Most that one of `copies` ranks stores of rows that they all hold.
static uint64_t share_bytes(uint64_t rows, uint64_t row_bytes, uint64_t copies) {
    uint64_t bytes = rows * row_bytes, shares = smaller(copies, bytes / RANK_SHARE_BYTES);
    if (shares <= 1) return bytes;
    uint64_t most = (rows + shares - 1) / shares * row_bytes;
    if (rows < RANK_SHARE_ROWS * shares) most = bytes / shares + row_bytes;
    if (most < 2 * RANK_SHARE_BYTES)
        most = 2 * RANK_SHARE_BYTES; // fewer rows may be shared by fewer
    return smaller(most, bytes);
}

static bool holds_both_ends(const struct rank_shape *s) {
    bool first = false, last = false;
    for (int i = 0; i < s->stage_count; i++) {
        first |= s->stages[i].part.first;
        last |= s->stages[i].part.last;
    }
    return first && last;
}

static uint64_t ranks_of(const struct rank_shape *s, int group) {
    return s->ranks[group] > 0 ? (uint64_t)s->ranks[group] : 1;
}

static void add_whole(struct store *out, const struct local_model *local,
                      const struct rank_shape *s, int param) {
    const struct param *p = &local->model.params[param];
    const struct param_slice *slice = &local->slices[param];
    const struct flat_bucket *b = &s->flat->buckets[s->flat->bucket_of[param]];
    bool tied = local->model.config.tied_head && p->role == PARAM_EMBEDDING && !holds_both_ends(s);
    uint64_t row_bytes = (uint64_t)p->columns * sizeof(float);
    for (int part = 0; part < p->parts; part++) {
        int64_t rows = p->parts == 1 ? p->rows_padded : p->part_rows[part];
        uint64_t copies = ranks_of(s, b->group) * (tied ? 2 : 1) *
                          (uint64_t)(part > 0 ? slice->copies_kv : slice->copies);
        out->bytes += ARRAYS * share_bytes((uint64_t)rows, row_bytes, copies);
        out->pieces += ARRAYS * PIECES;
    }
}

// Of a shard the ranks hold equally much, whatever parameters lie in it.
static void add_shards(struct store *out, const struct rank_shape *s, const struct flat_bucket *b) {
    uint64_t bytes = (uint64_t)((b->end - b->begin) / b->shards) * sizeof(float);
    uint64_t copies = ranks_of(s, b->group) / (uint64_t)b->shards;
    if (copies > 1) bytes = bytes / copies + bytes / copies / RANK_SHARE_ROWS;
    out->bytes += ARRAYS * bytes;
}

static void add_shard_pieces(struct store *out, const struct param *p, uint64_t copies) {
    uint64_t slices = ARRAYS * PIECES * (uint64_t)p->parts;
    out->pieces += slices * (copies > 1 ? PIECES : 1);
    if (copies > 1) out->bytes += slices * 2 * RANK_SHARE_BYTES; // small ones are not shared
}

uint64_t rank_snapshot_bytes(const struct local_model *local, const struct rank_shape *s) {
    struct store out = {0};
    const struct model *m = &local->model;
    for (int i = 0; i < s->flat->bucket_count; i++)
        if (s->zero > 0 && s->flat->buckets[i].shards > 1)
            add_shards(&out, s, &s->flat->buckets[i]);
    for (int i = 0; i < m->param_count; i++) {
        const struct flat_bucket *b = &s->flat->buckets[s->flat->bucket_of[i]];
        if (s->zero > 0 && b->shards > 1)
            add_shard_pieces(&out, &m->params[i], ranks_of(s, b->group) / (uint64_t)b->shards);
        else
            add_whole(&out, local, s, i);
        if (m->params[i].role != PARAM_ROUTER) continue; // its bias, with a value for each expert
        out.bytes += (uint64_t)m->params[i].rows * sizeof(float);
        out.pieces += PIECES;
    }
    out.bytes += out.pieces * ENTRY_BYTES + out.bytes / GAP_SHARE;
    return (out.bytes / PAGE_BYTES + 1) * PAGE_BYTES;
}
