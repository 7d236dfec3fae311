// Facts about a data set, and what becomes of it in rows of a given length: how full they are, what
// is cut, how many (query, key) pairs attention has to look at.
#pragma once
#include "base/error.h"
#include "data/dataset.h"
#include <stdint.h>

enum inspect_way {
    INSPECT_PADDED,  // each document alone in a row, cut at its end
    INSPECT_CHUNKED, // documents end to end, cut into rows, no mask
    INSPECT_MASKED,  // the same with a document mask
    INSPECT_PACKED,  // best fit
    INSPECT_WAYS
};
const char *inspect_way_name(enum inspect_way way);

struct inspect_layout {
    uint64_t rows;
    uint64_t tokens;        // in rows
    uint64_t lost_tokens;   // of documents, in no row
    uint64_t cut_documents; // not whole in one row
    uint64_t
        pairs; // causal: a token sees itself and what its row (or document in it) has before it
};
static inline double inspect_fill(const struct inspect_layout *layout, uint64_t context) {
    return layout->rows ? (double)layout->tokens / ((double)layout->rows * (double)context) : 0;
}

enum { INSPECT_BINS = 40 }; // documents of 2^i to 2^(i+1) - 1 tokens; empty ones in `empty`
#define INSPECT_SMALL_SHARD ((uint64_t)100000000)
#define INSPECT_LARGE_SET ((uint64_t)1000000000)

struct inspect_report {
    uint64_t documents[INSPECT_BINS], tokens[INSPECT_BINS];
    uint64_t empty, shortest, longest;
    uint64_t small_shards; // below INSPECT_SMALL_SHARD in a set of at least INSPECT_LARGE_SET; the
                           // last one may be
    uint64_t context;
    double pack_seconds;
    struct inspect_layout layouts[INSPECT_WAYS];
};
int inspect_run(const struct dataset *set, uint32_t context, struct inspect_report *report,
                struct err *err);
