// Cutting a micro-batch along the sequence, see batch_share.h. Positions are handed out in
// ascending order, so every rank's list ascends.
#include "data/batch_share.h"
#include <string.h>

struct hand { // what a rank has got
    int64_t pairs;
    int32_t positions; // in all rows so far
    int32_t room;      // loose positions that it still needs in this row
};

int batch_share_check(int32_t context, int ranks, struct err *err) {
    int32_t parts = 2 * ranks;
    if (ranks > 0 && context >= parts && context % parts == 0) return 0;
    if (ranks <= 0)
        return err_set(err, ERR_USAGE, "%d ranks for a sequence: expected 1 or more", ranks);
    int32_t below = context / parts * parts;
    return below == 0
               ? err_set(
                     err, ERR_USAGE,
                     "context %d is too short for context parallelism over %d ranks: each takes "
                     "two parts of a sequence, so it needs %d positions or a multiple",
                     context, ranks, parts)
               : err_set(err, ERR_USAGE,
                         "context %d does not divide by 2 x cp = %d: each rank takes two equal "
                         "parts of a sequence; the nearest that work are %d and %d",
                         context, parts, below, below + parts);
}

static uint64_t hands_bytes(int ranks) {
    return ((uint64_t)ranks * sizeof(struct hand) + 63) / 64 * 64;
}

uint64_t batch_share_bytes(int32_t tokens, int ranks) {
    return hands_bytes(ranks) + (uint64_t)tokens * sizeof(int32_t);
}

static void give(struct batch_share *share, const struct batch *full, struct hand *hands, int rank,
                 int32_t first, int32_t count) {
    struct hand *hand = &hands[rank];
    int32_t *to = share->position + (int64_t)rank * share->each + hand->positions;
    for (int32_t i = 0; i < count; i++) {
        to[i] = first + i;
        hand->pairs += full->attend_to[first + i] - full->attend_from[first + i];
    }
    hand->positions += count;
}

// 2 ranks parts of `part` positions each.
static void give_parts(struct batch_share *share, const struct batch *full, struct hand *hands,
                       int32_t first, int32_t part) {
    int parts = 2 * share->ranks;
    for (int p = 0; part > 0 && p < parts; p++) {
        int rank = p < share->ranks ? p : parts - 1 - p;
        give(share, full, hands, rank, first + p * part, part);
    }
}

static void give_loose(struct batch_share *share, const struct batch *full, struct hand *hands,
                       int32_t first, int32_t count) {
    while (count > 0) {
        int best = -1;
        for (int r = 0; r < share->ranks; r++) {
            if (hands[r].room > 0 && (best < 0 || hands[r].pairs < hands[best].pairs)) best = r;
        }
        int32_t run = hands[best].room < count ? hands[best].room : count;
        give(share, full, hands, best, first, run);
        hands[best].room -= run;
        first += run;
        count -= run;
    }
}

// End of the document that begins at `first`, at most `end`.
static int32_t document_end(const struct batch *full, int32_t first, int32_t end) {
    int32_t i = first + 1;
    while (i < end && full->attend_from[i] == full->attend_from[first]) i++;
    return i;
}

static void share_documents(struct batch_share *share, const struct batch *full, struct hand *hands,
                            int32_t begin, int32_t end) {
    int32_t parts = 2 * share->ranks, loose = 0;
    for (int32_t i = begin, next; i < end; i = next) {
        next = document_end(full, i, end);
        loose += (next - i) % parts;
    }
    // The row divides by 2 ranks and so do the equal parts, so the rest does too.
    for (int r = 0; r < share->ranks; r++) hands[r].room = loose / share->ranks;
    for (int32_t i = begin, next; i < end; i = next) {
        next = document_end(full, i, end);
        int32_t rest = (next - i) % parts;
        give_parts(share, full, hands, i, (next - i) / parts);
        give_loose(share, full, hands, next - rest, rest);
    }
}

int batch_share_make(struct batch_share *share, const struct batch *full, int ranks, int index,
                     enum batch_balance balance, void *memory, struct err *err) {
    if (batch_share_check(full->context, ranks, err) != 0) return -1;
    *share = (struct batch_share){.ranks = ranks,
                                  .index = index,
                                  .tokens = full->tokens,
                                  .each = full->tokens / ranks,
                                  .position = (int32_t *)((char *)memory + hands_bytes(ranks))};
    struct hand *hands = memory;
    memset(hands, 0, (size_t)ranks * sizeof *hands);
    for (int32_t row = 0; row < full->rows; row++) {
        int32_t begin = row * full->context;
        if (balance == BATCH_BALANCE_ROW) {
            give_parts(share, full, hands, begin, full->context / (2 * ranks));
        } else {
            share_documents(share, full, hands, begin, begin + full->context);
        }
    }
    return 0;
}

// First position of the padding at the end of a row: positions without a label that see only
// themselves. A batch without padding may end in such a one, too.
static int32_t padding_of_row(const struct batch *full, int32_t row) {
    int32_t begin = row * full->context, i = begin + full->context;
    if (full->non_pad == full->tokens) return i;
    while (i > begin && full->target[i - 1] < 0 && full->attend_from[i - 1] == i - 1 &&
           full->attend_to[i - 1] == i)
        i--;
    return i;
}

void batch_share_take(const struct batch_share *share, const struct batch *full,
                      struct batch *local) {
    local->counted = local->non_pad = local->attended_pairs = 0;
    int32_t each = full->context / share->ranks;
    for (int32_t row = 0; row < full->rows; row++) {
        int32_t padding = padding_of_row(full, row);
        for (int32_t i = row * each; i < (row + 1) * each; i++) {
            int32_t from = batch_share_global(share, share->index, i);
            local->input[i] = full->input[from];
            local->target[i] = full->target[from];
            local->position[i] = full->position[from];
            local->attend_from[i] = full->attend_from[from];
            local->attend_to[i] = full->attend_to[from];
            local->counted += full->target[from] >= 0;
            local->non_pad += from < padding;
            local->attended_pairs += full->attend_to[from] - full->attend_from[from];
        }
    }
}
