// Best-fit packing: whole documents are put into rows of `context` positions so that little is left
// empty.
//
// A document longer than a row is cut into full rows and a rest; the label of a cut is kept, since
// the document goes on. Pieces are packed by best fit in decreasing length (as in "Fewer
// Truncations Improve Language Modeling", Ding et al. 2024) within windows of PACK_WINDOW pieces of
// one shard, so the plan is computed in linear time and the rows stay in file order. A piece of one
// token without a label is left out. Plans are computed at every start and never stored, so a plan
// always belongs to the data at hand.
#pragma once
#include "base/error.h"
#include "data/shard.h"
#include <stdint.h>

enum { PACK_WINDOW = 1 << 18 };
#define PACK_CONTINUES 0x80000000u // the document goes on behind the piece

struct pack_piece {                 // 12 bytes
    uint32_t token_low, token_high; // first token in its shard
    uint32_t length;                // tokens, with PACK_CONTINUES
};
struct pack_plan {
    uint32_t context;
    uint64_t rows, pieces;
    uint64_t *first;          // [rows + 1] first piece of each row
    struct pack_piece *piece; // [pieces]
    uint64_t row_capacity, piece_capacity;
    uint64_t tokens, left_out; // in rows; in pieces without a label
    uint64_t cut_documents;
};
static inline uint64_t pack_token(const struct pack_piece *piece) {
    return (uint64_t)piece->token_high << 32 | piece->token_low;
}
static inline uint32_t pack_length(const struct pack_piece *piece) {
    return piece->length & ~PACK_CONTINUES;
}
int pack_open(struct pack_plan *plan, uint32_t context, struct err *err);
// Appends the rows of a shard behind those there.
int pack_add(struct pack_plan *plan, const struct shard *shard, struct err *err);
void pack_close(struct pack_plan *plan);
