// Lengths of documents and the layouts that come of them, see inspect.h.
#include "data/inspect.h"
#include "base/clock.h"
#include "data/pack.h"

const char *inspect_way_name(enum inspect_way way) {
    static const char *const names[] = {"padded", "chunked", "chunked, masked", "best-fit"};
    return names[way];
}

static uint64_t triangle(uint64_t n) {
    return n * (n + 1) / 2;
}

static void count_length(struct inspect_report *r, uint64_t length) {
    if (length == 0) {
        r->empty++;
        return;
    }
    int bin = 63 - __builtin_clzll(length);
    if (bin >= INSPECT_BINS) bin = INSPECT_BINS - 1;
    r->documents[bin]++;
    r->tokens[bin] += length;
    if (r->shortest == 0 || length < r->shortest) r->shortest = length;
    if (length > r->longest) r->longest = length;
}

static void count_padded(struct inspect_report *r, uint64_t length) {
    struct inspect_layout *l = &r->layouts[INSPECT_PADDED];
    uint64_t kept = length < r->context ? length : r->context;
    if (length == 0) return;
    l->rows++;
    l->tokens += kept;
    l->lost_tokens += length - kept;
    l->cut_documents += length > kept;
    l->pairs += triangle(kept);
}

// `begin` is the document's place in the whole stream; rows end behind `limit` tokens.
static void count_masked(struct inspect_report *r, uint64_t begin, uint64_t length,
                         uint64_t limit) {
    struct inspect_layout *l = &r->layouts[INSPECT_MASKED];
    uint64_t end = begin + length < limit ? begin + length : limit;
    if (begin >= end) return;
    l->cut_documents += begin / r->context != (begin + length - 1) / r->context;
    uint64_t in_first = r->context - begin % r->context, left = end - begin;
    if (left <= in_first) {
        l->pairs += triangle(left);
        return;
    }
    left -= in_first;
    l->pairs +=
        triangle(in_first) + left / r->context * triangle(r->context) + triangle(left % r->context);
}

static void count_chunks(struct inspect_report *r, uint64_t tokens) {
    uint64_t rows = tokens ? (tokens - 1) / r->context : 0;
    struct inspect_layout *l = &r->layouts[INSPECT_MASKED], *plain = &r->layouts[INSPECT_CHUNKED];
    l->rows = rows;
    l->tokens = rows * r->context;
    l->lost_tokens = tokens - l->tokens;
    *plain = *l;
    plain->pairs = rows * triangle(r->context);
}

static void count_packed(struct inspect_report *r, const struct pack_plan *plan) {
    struct inspect_layout *l = &r->layouts[INSPECT_PACKED];
    l->rows = plan->rows;
    l->tokens = plan->tokens;
    l->lost_tokens = plan->left_out;
    l->cut_documents = plan->cut_documents;
    for (uint64_t i = 0; i < plan->pieces; i++) l->pairs += triangle(pack_length(&plan->piece[i]));
}

static int inspect_shard(struct inspect_report *r, const struct shard *shard,
                         struct pack_plan *plan, uint64_t before, uint64_t limit, struct err *err) {
    for (uint64_t d = 0; d < shard->info.documents; d++) {
        uint64_t begin, end;
        if (shard_document(shard, d, &begin, &end, err) != 0) return -1;
        count_length(r, end - begin);
        count_padded(r, end - begin);
        count_masked(r, before + begin, end - begin, limit);
    }
    double start = clock_seconds();
    int result = pack_add(plan, shard, err);
    r->pack_seconds += clock_seconds() - start;
    return result;
}

int inspect_run(const struct dataset *set, uint32_t context, struct inspect_report *report,
                struct err *err) {
    struct pack_plan plan;
    *report = (struct inspect_report){.context = context};
    if (pack_open(&plan, context, err) != 0) return -1;
    uint64_t before = 0, limit = (set->tokens ? (set->tokens - 1) / context : 0) * context;
    int result = 0;
    for (size_t i = 0; i < set->count && result == 0; i++) {
        struct shard shard;
        result = shard_open(&shard, set->paths[i], NULL, err);
        if (result != 0) break;
        result = inspect_shard(report, &shard, &plan, before, limit, err);
        before += shard.info.tokens;
        shard_close(&shard);
        report->small_shards += set->tokens >= INSPECT_LARGE_SET && i + 1 < set->count &&
                                set->infos[i].tokens < INSPECT_SMALL_SHARD;
    }
    if (result == 0) {
        count_chunks(report, set->tokens);
        count_packed(report, &plan);
    }
    pack_close(&plan);
    return result;
}
