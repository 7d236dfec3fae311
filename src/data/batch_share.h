// A micro-batch cut along the sequence, for context parallelism: which positions each of `ranks`
// ranks holds, and the batch that one of them computes with.
//
// In causal attention late positions see more keys. So a stretch of positions is cut into 2 ranks
// equal parts, and rank i takes the parts i and 2 ranks - 1 - i ("zigzag"): every rank has the same
// number of positions and of (query, key) pairs.
//
// BATCH_BALANCE_ROW cuts each row of the batch so. Pairs are equal when a row is one document.
// BATCH_BALANCE_DOCUMENT cuts each document of a row so (a document: neighbouring positions whose
// first visible key is the same). What a document has beyond 2 ranks equal parts, and documents
// shorter than 2 ranks, are dealt in runs to the rank that has the fewest pairs so far and still
// needs positions in this row. Short parts make short runs of keys, which kernels like less, so
// this pays where documents are long or of very different lengths.
//
// Either way a rank holds exactly context / ranks positions of every row, in ascending order.
// Intervals of visible keys keep the coordinates of the full batch; since the positions of a rank
// ascend, the keys of any rank that lie in an interval stand next to each other there.
#pragma once
#include "base/error.h"
#include "data/batch.h"

enum batch_balance { BATCH_BALANCE_ROW, BATCH_BALANCE_DOCUMENT };

struct batch_share {
    int ranks, index;  // this rank
    int32_t tokens;    // of the full batch
    int32_t each;      // positions of a rank: tokens / ranks
    int32_t *position; // [ranks][each] indices into the full batch, ascending for each rank
};

// 0, or -1 with a message when rows of `context` positions cannot be cut for `ranks` ranks.
int batch_share_check(int32_t context, int ranks, struct err *err);
// Bytes of what batch_share_make writes into `memory`, for batches of up to `tokens` positions.
uint64_t batch_share_bytes(int32_t tokens, int ranks);
int batch_share_make(struct batch_share *share, const struct batch *full, int ranks, int index,
                     enum batch_balance balance, void *memory, struct err *err);
// This rank's part of `full`, from which `share` was made, into a batch that batch_place made for
// rows of context / ranks positions. Its attend_from and attend_to count in the full batch, as does
// attended_pairs; counted and non_pad are those of the part.
void batch_share_take(const struct batch_share *share, const struct batch *full,
                      struct batch *local);

// Index in the full batch of position `local` of `rank`.
static inline int32_t batch_share_global(const struct batch_share *share, int rank, int32_t local) {
    return share->position[(int64_t)rank * share->each + local];
}
