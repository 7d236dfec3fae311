// Filling micro-batches from shards: the inner part of a reader thread, see loader.h. Masks come
// from the lengths of documents, never from comparing ids.
#include "base/clock.h"
#include "data/loader_parts.h"
#include <string.h>

int loader_reader_open(struct loader_reader *reader, const struct loader_options *options,
                       struct loader_sets *sets, struct err *err) {
    *reader = (struct loader_reader){.options = options, .sets = sets};
    if (record_lane_open(&reader->lane, "reader", options->trace_spans) != 0)
        return err_set(err, ERR_MEMORY, "no memory for a reader's records");
    for (int i = 0; i < sets->count; i++)
        if (order_space_open(&reader->spaces[i], &sets->source[i].order, err) != 0) return -1;
    return 0;
}

void loader_reader_close(struct loader_reader *reader) {
    for (int i = 0; i < LOADER_MAX_SETS; i++) order_space_close(&reader->spaces[i]);
    record_lane_close(&reader->lane);
}

uint64_t loader_draw(struct loader_reader *reader, uint64_t n, int *set, uint32_t *next_shard) {
    uint64_t index;
    *set = mix_pick(&reader->sets->mix, n, &index);
    const struct loader_source *s = &reader->sets->source[*set];
    return order_sample(&s->order, &reader->spaces[*set], index / s->samples, index % s->samples,
                        next_shard);
}

struct row { // the row being filled
    struct loader_reader *reader;
    const struct loader_source *source;
    struct batch *batch;
    int32_t begin, context; // its first position in the batch
};

// Positions [from, to) of the row belong to one document.
static void mark_document(const struct row *row, int32_t from, int32_t to) {
    const struct loader_options *o = row->reader->options;
    struct batch *b = row->batch;
    for (int32_t j = from; j < to; j++) {
        int32_t i = row->begin + j;
        b->position[i] = o->reset_positions ? j - from : j;
        b->attend_from[i] = o->document_mask ? row->begin + from : row->begin;
        b->attend_to[i] = i + 1;
    }
}

// ---- chunks ------------------------------------------------------------------------------------

enum { LABEL_NEXT = 0, LABEL_NONE = -1 }; // in `target` until the ids behind are known

// Documents in `count` tokens from `token` of a shard, which stand in the row from `at`.
static int mark_chunk(const struct row *row, const struct shard *shard, uint64_t token,
                      int32_t count, int32_t at, struct err *err) {
    const struct loader_options *o = row->reader->options;
    int32_t end = at + count < row->context ? at + count : row->context;
    if (!o->document_mask && !o->reset_positions) {
        mark_document(row, 0, end);
        return 0;
    }
    uint64_t document, begin, document_end;
    if (at >= end) return 0;
    if (shard_find(shard, token, &document, err) != 0) return -1;
    for (int32_t j = at; j < end; document++) {
        if (document == shard->info.documents)
            return err_set(err, ERR_DATA, "%s: its documents end before its tokens", shard->path);
        if (shard_document(shard, document, &begin, &document_end, err) != 0) return -1;
        uint64_t left = document_end - (token + (uint64_t)(j - at));
        int32_t to = left < (uint64_t)(end - j) ? j + (int32_t)left : end;
        mark_document(row, j, to);
        if (o->document_mask && to > j && left == (uint64_t)(to - j))
            row->batch->target[row->begin + to - 1] = LABEL_NONE;
        j = to;
    }
    return 0;
}

uint32_t loader_shard_of_token(const struct loader_source *s, uint64_t token) {
    uint32_t low = 0, high = (uint32_t)s->data.count;
    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->first_token[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int fill_chunk(const struct row *row, uint64_t sample, struct err *err) {
    const struct loader_source *s = row->source;
    struct store *store = row->reader->sets->store;
    int32_t *input = row->batch->input + row->begin, *target = row->batch->target + row->begin;
    int32_t context = row->context, behind = 0;
    uint64_t token = sample * (uint64_t)context;
    uint32_t shard_number = loader_shard_of_token(s, token);
    for (int32_t j = 0; j < context; j++) target[j] = LABEL_NEXT;
    for (int32_t at = 0; at <= context; shard_number++) {
        uint64_t left = s->first_token[shard_number + 1] - token;
        int32_t count = left < (uint64_t)(context + 1 - at) ? (int32_t)left : context + 1 - at;
        if (count == 0) continue;
        uint32_t id = s->store_base + shard_number;
        const struct shard *shard =
            store_acquire(store, id, &row->reader->counts, &row->reader->lane, err);
        if (!shard) return -1;
        uint64_t first = token - s->first_token[shard_number];
        int32_t inputs = at + count > context ? context - at : count;
        shard_copy(shard, first, (uint64_t)inputs, input + at);
        if (inputs < count) behind = (int32_t)shard_id(shard, first + (uint64_t)inputs);
        int result = mark_chunk(row, shard, first, count, at, err);
        store_release(store, id);
        if (result != 0) return -1;
        at += count;
        token += (uint64_t)count;
    }
    for (int32_t j = 0; j < context; j++)
        if (target[j] == LABEL_NEXT) target[j] = j + 1 < context ? input[j + 1] : behind;
    row->batch->non_pad += context;
    return 0;
}

// ---- packed rows -------------------------------------------------------------------------------

static void fill_rest(const struct row *row, int32_t from) {
    struct batch *b = row->batch;
    for (int32_t i = row->begin + from; i < row->begin + row->context; i++) {
        b->input[i] = 0;
        b->target[i] = -1;
        b->position[i] = 0;
        b->attend_from[i] = i;
        b->attend_to[i] = i + 1;
    }
}

static int fill_piece(const struct row *row, const struct shard *shard,
                      const struct pack_piece *piece, int32_t at, struct err *err) {
    struct batch *b = row->batch;
    uint64_t token = pack_token(piece), length = pack_length(piece);
    bool continues = (piece->length & PACK_CONTINUES) != 0;
    if (token + length + continues > shard->info.tokens)
        return err_set(err, ERR_DATA, "%s: changed since this run began; start the run again",
                       shard->path);
    int32_t *input = b->input + row->begin + at, *target = b->target + row->begin + at;
    shard_copy(shard, token, length, input);
    memcpy(target, input + 1, (length - 1) * sizeof *target);
    target[length - 1] = continues ? (int32_t)shard_id(shard, token + length) : -1;
    // Without a mask the row reads as one text, and the document in front is followed by this one.
    if (!row->reader->options->document_mask && at > 0) target[-1] = input[0];
    mark_document(row, at, at + (int32_t)length);
    return 0;
}

static int fill_packed(const struct row *row, uint64_t sample, struct err *err) {
    const struct loader_source *s = row->source;
    struct store *store = row->reader->sets->store;
    uint32_t id = s->store_base + order_shard_of(&s->order, sample);
    const struct shard *shard =
        store_acquire(store, id, &row->reader->counts, &row->reader->lane, err);
    if (!shard) return -1;
    int32_t at = 0;
    int result = 0;
    for (uint64_t p = s->plan.first[sample]; p < s->plan.first[sample + 1] && result == 0; p++) {
        result = fill_piece(row, shard, &s->plan.piece[p], at, err);
        at += (int32_t)pack_length(&s->plan.piece[p]);
    }
    store_release(store, id);
    if (result == 0) fill_rest(row, at);
    row->batch->non_pad += at;
    return result;
}

// ---- the whole ---------------------------------------------------------------------------------

static int check_ids(const struct row *row, uint64_t sample, struct err *err) {
    uint32_t vocab = (uint32_t)row->reader->options->vocab, largest = 0;
    const int32_t *input = row->batch->input + row->begin;
    for (int32_t j = 0; j < row->context; j++)
        if ((uint32_t)input[j] > largest) largest = (uint32_t)input[j];
    // the label behind a row; -1 where there is none
    int32_t last = row->batch->target[row->begin + row->context - 1];
    bool last_wrong = last < -1 || (last >= 0 && (uint32_t)last >= vocab);
    if (vocab == 0 || (largest < vocab && !last_wrong)) return 0;
    const struct loader_source *s = row->source;
    return err_set(err, ERR_DATA,
                   "%s: sample %llu holds id %u, but the model has %u ids; the data was made with "
                   "another tokenizer, or the shard is damaged (`weft data verify`)",
                   s->data.paths[order_shard_of(&s->order, sample)], (unsigned long long)sample,
                   largest < vocab ? (uint32_t)last : largest, vocab);
}

static void count_batch(struct batch *b) {
    b->counted = b->attended_pairs = 0;
    for (int32_t i = 0; i < b->tokens; i++) {
        b->counted += b->target[i] >= 0;
        b->attended_pairs += b->attend_to[i] - b->attend_from[i];
    }
}

int loader_fill(struct loader_reader *reader, uint64_t n, struct batch *batch, struct err *err) {
    double span = record_begin(&reader->lane), begin = clock_seconds();
    batch->non_pad = 0;
    for (int32_t r = 0; r < batch->rows; r++) {
        int set;
        uint32_t next;
        uint64_t sample = loader_draw(reader, n + (uint64_t)r, &set, &next);
        struct row row = {reader, &reader->sets->source[set], batch, r * batch->context,
                          batch->context};
        int result = reader->options->mode == LOADER_PACK ? fill_packed(&row, sample, err)
                                                          : fill_chunk(&row, sample, err);
        if (result != 0 || check_ids(&row, sample, err) != 0) return -1;
        if (reader->options->shuffle != SHUFFLE_SAMPLE)
            store_expect(reader->sets->store, row.source->store_base + next);
    }
    count_batch(batch);
    reader->reads += (uint64_t)batch->rows;
    reader->read_seconds += clock_seconds() - begin;
    record_end(&reader->lane, RECORD_SHARD_READ, "fill micro-batch", (int64_t)n, span);
    return 0;
}
