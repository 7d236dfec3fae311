// Where a sample comes from: set, shards, documents; see loader.h.
#include "data/loader_parts.h"

static void add_document(struct loader_origin *out, const char *shard, uint64_t number) {
    if (out->documents < LOADER_ORIGIN_DOCUMENTS) {
        out->document[out->documents].shard = shard;
        out->document[out->documents].number = number;
    }
    out->documents++;
}

// Documents of the tokens [token, token + count) of a shard.
static int add_documents(const struct shard *shard, const char *path, uint64_t token,
                         uint64_t count, struct loader_origin *out, struct err *err) {
    uint64_t document, begin, end;
    if (shard_find(shard, token, &document, err) != 0) return -1;
    for (; document < shard->info.documents; document++) {
        if (shard_document(shard, document, &begin, &end, err) != 0) return -1;
        if (begin >= token + count) break;
        if (end > token) add_document(out, path, document);
    }
    return 0;
}

static int look_into(struct loader_reader *reader, const struct loader_source *s, uint32_t number,
                     uint64_t token, uint64_t count, struct loader_origin *out, struct err *err) {
    struct store *store = reader->sets->store;
    uint32_t id = s->store_base + number;
    const struct shard *shard = store_acquire(store, id, &reader->counts, NULL, err);
    if (!shard) return -1;
    int result = add_documents(shard, s->data.paths[number], token, count, out, err);
    store_release(store, id);
    return result;
}

static int chunk_origin(struct loader_reader *reader, const struct loader_source *s,
                        uint64_t sample, struct loader_origin *out, struct err *err) {
    uint64_t left = (uint64_t)reader->options->context, token = sample * left;
    for (uint32_t number = loader_shard_of_token(s, token); left > 0; number++) {
        uint64_t held = s->first_token[number + 1] - token, count = held < left ? held : left;
        if (count > 0 &&
            look_into(reader, s, number, token - s->first_token[number], count, out, err) != 0)
            return -1;
        token += count;
        left -= count;
    }
    return 0;
}

static int packed_origin(struct loader_reader *reader, const struct loader_source *s,
                         uint64_t sample, struct loader_origin *out, struct err *err) {
    uint32_t number = order_shard_of(&s->order, sample);
    for (uint64_t p = s->plan.first[sample]; p < s->plan.first[sample + 1]; p++) {
        const struct pack_piece *piece = &s->plan.piece[p];
        if (look_into(reader, s, number, pack_token(piece), pack_length(piece), out, err) != 0)
            return -1;
    }
    return 0;
}

int loader_find_origin(struct loader_reader *reader, uint64_t n, struct loader_origin *out,
                       struct err *err) {
    int set;
    uint32_t next;
    uint64_t sample = loader_draw(reader, n, &set, &next);
    const struct loader_source *s = &reader->sets->source[set];
    struct loader_origin found = {.id = s->sample_base + sample,
                                  .set = reader->options->sets[set].path};
    int result = reader->options->mode == LOADER_PACK
                     ? packed_origin(reader, s, sample, &found, err)
                     : chunk_origin(reader, s, sample, &found, err);
    if (result == 0) *out = found;
    return result;
}
