// Cutting a micro-batch along the sequence: who holds what, how even the work is, and bad sizes.
#include "data/batch_share.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 5;
static int below(int n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

// Rows of documents of random lengths up to `longest` (0: one document a row), `padding` positions
// at the end of each row.
static struct batch make(int rows, int context, int longest, int padding) {
    struct batch b;
    batch_place(&b, calloc(1, batch_bytes(rows * context)), rows, context);
    for (int r = 0; r < rows; r++) {
        int end = context - padding, length;
        for (int at = 0; at < context; at += length) {
            length = at >= end ? 1 : longest ? 1 + below(longest) : end;
            if (at < end && length > end - at) length = end - at;
            for (int j = 0; j < length; j++) {
                int i = r * context + at + j;
                b.input[i] = below(1000);
                // a document of one token has a label: it goes on in another row
                b.target[i] = at >= end || (j > 0 && j == length - 1) ? -1 : below(1000);
                b.position[i] = j;
                b.attend_from[i] = r * context + at;
                b.attend_to[i] = i + 1;
                b.counted += b.target[i] >= 0;
                b.attended_pairs += j + 1;
            }
        }
    }
    b.non_pad = rows * (context - padding);
    return b;
}

struct cut {
    struct batch_share share;
    struct batch local;
    void *memory;
};

static struct cut cut(const struct batch *full, int ranks, int index, enum batch_balance balance) {
    struct cut c;
    struct err err = {0};
    uint64_t bytes = batch_share_bytes(full->tokens, ranks);
    c.memory = malloc(bytes + 64);
    memset(c.memory, 0xee, bytes + 64);
    CHECK_OK(batch_share_make(&c.share, full, ranks, index, balance, c.memory, &err), err);
    for (int i = 0; i < 64; i++) CHECK(((unsigned char *)c.memory)[bytes + (uint64_t)i] == 0xee);
    batch_place(&c.local, malloc(batch_bytes(full->tokens / ranks)), full->rows,
                full->context / ranks);
    batch_share_take(&c.share, full, &c.local);
    return c;
}

static void cut_free(struct cut *c) {
    free(c->memory);
    free(c->local.input);
}

// Every position is somewhere once; a rank's ascend and are context / ranks of each row; what it
// computes with is what stood there. Returns the largest over the mean of the ranks' pairs.
static double check_cut(const struct batch *full, int ranks, enum batch_balance balance) {
    int *times = calloc((size_t)full->tokens, sizeof *times);
    int64_t counted = 0, non_pad = 0, pairs = 0, most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        struct cut c = cut(full, ranks, rank, balance);
        CHECK_EQ_INT(c.share.each, full->tokens / ranks);
        CHECK_EQ_INT(c.local.tokens, full->tokens / ranks);
        for (int32_t i = 0; i < c.share.each; i++) {
            int32_t g = batch_share_global(&c.share, rank, i);
            CHECK(i == 0 || g > batch_share_global(&c.share, rank, i - 1));
            CHECK_EQ_INT(g / full->context, i / c.local.context); // the same row
            times[g]++;
            CHECK_EQ_INT(c.local.input[i], full->input[g]);
            CHECK_EQ_INT(c.local.target[i], full->target[g]);
            CHECK_EQ_INT(c.local.position[i], full->position[g]);
            CHECK_EQ_INT(c.local.attend_from[i], full->attend_from[g]);
            CHECK_EQ_INT(c.local.attend_to[i], full->attend_to[g]);
        }
        counted += c.local.counted;
        non_pad += c.local.non_pad;
        pairs += c.local.attended_pairs;
        if (c.local.attended_pairs > most) most = c.local.attended_pairs;
        cut_free(&c);
    }
    for (int32_t i = 0; i < full->tokens; i++) CHECK_EQ_INT(times[i], 1);
    free(times);
    CHECK_EQ_INT(counted, full->counted);
    CHECK_EQ_INT(non_pad, full->non_pad);
    CHECK_EQ_INT(pairs, full->attended_pairs);
    return (double)most * ranks / (double)pairs;
}

TEST(share_holds_every_position_once) {
    for (int ranks = 1; ranks <= 5; ranks++)
        for (int balance = 0; balance < 2; balance++)
            for (int longest = 0; longest < 60; longest = 2 * longest + 1) {
                struct batch b = make(3, 2 * ranks * 6, longest, longest % 5);
                check_cut(&b, ranks, (enum batch_balance)balance);
                free(b.input);
            }
}

TEST(share_of_a_row_is_a_zigzag) {
    struct batch b = make(2, 12, 0, 0);
    static const int expected[3][8] = {
        {0, 1, 10, 11, 12, 13, 22, 23}, {2, 3, 8, 9, 14, 15, 20, 21}, {4, 5, 6, 7, 16, 17, 18, 19}};
    for (int balance = 0; balance < 2; balance++) // one document a row: the same
        for (int rank = 0; rank < 3; rank++) {
            struct cut c = cut(&b, 3, rank, (enum batch_balance)balance);
            for (int i = 0; i < 8; i++)
                CHECK_EQ_INT(batch_share_global(&c.share, rank, i), expected[rank][i]);
            cut_free(&c);
        }
    free(b.input);
}

TEST(share_of_a_causal_row_is_even) {
    for (int ranks = 2; ranks <= 8; ranks++) {
        struct batch b = make(2, 2 * ranks * 50, 0, 0);
        CHECK_CLOSE(check_cut(&b, ranks, BATCH_BALANCE_ROW), 1, 1e-9);
        free(b.input);
    }
}

// Documents of very different lengths: by rows the work is uneven, by documents it is not.
TEST(share_by_documents_evens_out_packed_rows) {
    enum { CONTEXT = 4096, RANKS = 4 };
    struct batch b = make(1, CONTEXT, 0, 0);
    static const int length[] = {1500, 40, 700, 5, 3, 900, 300, 648}; // of 4096
    int at = 0;
    b.attended_pairs = 0;
    for (int d = 0; d < 8; d++) {
        for (int j = 0; j < length[d]; j++) {
            b.attend_from[at + j] = at;
            b.position[at + j] = j;
            b.attended_pairs += j + 1;
        }
        at += length[d];
    }
    CHECK_EQ_INT(at, CONTEXT);
    CHECK(check_cut(&b, RANKS, BATCH_BALANCE_ROW) > 1.1);
    CHECK(check_cut(&b, RANKS, BATCH_BALANCE_DOCUMENT) < 1.01);
    free(b.input);
}

// Only the last position has a label: it lies on one rank, the others have none (and no NaN comes
// of it: a count of 0 is a sum like any other).
TEST(share_without_labels_counts_none) {
    struct batch b = make(1, 4, 0, 0);
    for (int i = 0; i < 4; i++) b.target[i] = i == 3 ? 7 : -1;
    b.counted = 1;
    for (int rank = 0; rank < 2; rank++) {
        struct cut c = cut(&b, 2, rank, BATCH_BALANCE_ROW);
        CHECK_EQ_INT(c.local.counted, rank == 0);
        cut_free(&c);
    }
    free(b.input);
}

// A row that ends in a document of one token: padding only where the batch says that there is some.
TEST(share_tells_padding_from_documents_of_one_token) {
    struct batch b = make(1, 8, 0, 1);
    struct cut c = cut(&b, 2, 0, BATCH_BALANCE_ROW);
    CHECK_EQ_INT(c.local.non_pad, 3);
    cut_free(&c);
    b.non_pad = 8;
    c = cut(&b, 2, 0, BATCH_BALANCE_ROW);
    CHECK_EQ_INT(c.local.non_pad, 4);
    cut_free(&c);
    free(b.input);
}

TEST(share_refuses_contexts_that_do_not_divide) {
    struct err err = {0};
    struct batch b = make(2, 12, 0, 0);
    struct batch_share share;
    char memory[1024];
    CHECK(batch_share_make(&share, &b, 4, 0, BATCH_BALANCE_ROW, memory, &err) != 0);
    CHECK_CONTAINS(err.text, "context 12 does not divide by 2 x cp = 8");
    CHECK_CONTAINS(err.text, "8 and 16");
    err = (struct err){0};
    CHECK(batch_share_make(&share, &b, 7, 0, BATCH_BALANCE_DOCUMENT, memory, &err) != 0);
    CHECK_CONTAINS(err.text, "too short for context parallelism over 7 ranks");
    CHECK(batch_share_check(0, 1, &err) != 0);
    CHECK(batch_share_check(8, 0, &err) != 0);
    CHECK(batch_share_check(8, 1, &err) == 0);
    free(b.input);
}
