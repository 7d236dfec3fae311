// Records to ids, by many threads; see prepare.h. A block is cut into pieces of about PIECE_BYTES
// by its content alone. Small pieces go to one thread each; a large document is shared by all
// threads.
#include "data/input_json.h"
#include "data/prepare_parts.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 17, LARGE_BYTES = 1 << 20 };

int prepare_encoder_open(struct prepare_encoder *e, const struct prepare_options *options,
                         const struct input *input, struct err *err) {
    *e = (struct prepare_encoder){.options = options, .input = input};
    e->threads = options->threads > 0 ? options->threads : omp_get_max_threads();
    e->scratch = calloc((size_t)e->threads, sizeof *e->scratch);
    if (!e->scratch) return err_set(err, ERR_MEMORY, "no memory for %d threads", e->threads);
    for (int i = 0; i < e->threads; i++) {
        e->scratch[i] = tokenizer_scratch_new(options->tokenizer, err);
        if (!e->scratch[i]) return -1;
    }
    return 0;
}

void prepare_encoder_close(struct prepare_encoder *e) {
    for (int i = 0; e->scratch && i < e->threads; i++) tokenizer_scratch_free(e->scratch[i]);
    for (size_t i = 0; i < e->piece_capacity; i++) {
        token_list_free(&e->pieces[i].ids);
        text_free(&e->pieces[i].text);
    }
    free(e->scratch);
    free(e->records);
    free(e->pieces);
}

uint64_t prepare_invalid_bytes(const struct prepare_encoder *e) {
    uint64_t bytes = e->large_invalid_bytes;
    for (int i = 0; i < e->threads; i++) bytes += tokenizer_scratch_invalid_bytes(e->scratch[i]);
    return bytes;
}

static int reserve(struct prepare_encoder *e, size_t records, size_t pieces, struct err *err) {
    if (records > e->record_capacity) {
        struct prepared_record *grown = realloc(e->records, records * sizeof *grown);
        if (!grown) return err_set(err, ERR_MEMORY, "no memory for %zu documents", records);
        e->records = grown;
        e->record_capacity = records;
    }
    if (pieces > e->piece_capacity) {
        size_t capacity = 2 * pieces;
        struct prepared_piece *grown = realloc(e->pieces, capacity * sizeof *grown);
        if (!grown) return err_set(err, ERR_MEMORY, "no memory for %zu pieces of work", capacity);
        memset(grown + e->piece_capacity, 0, (capacity - e->piece_capacity) * sizeof *grown);
        e->pieces = grown;
        e->piece_capacity = capacity;
    }
    return 0;
}

static int cut_pieces(struct prepare_encoder *e, const struct input_block *block, struct err *err) {
    e->piece_count = 0;
    if (reserve(e, block->count, 1, err) != 0) return -1;
    for (size_t i = 0; i < block->count;) {
        size_t first = i, bytes = 0;
        bool large = block->records[i].size >= LARGE_BYTES;
        do {
            bytes += block->records[i++].size;
        } while (!large && i < block->count && bytes < PIECE_BYTES &&
                 block->records[i].size < LARGE_BYTES);
        if (reserve(e, block->count, e->piece_count + 1, err) != 0) return -1;
        struct prepared_piece *piece = &e->pieces[e->piece_count++];
        piece->first = first;
        piece->count = i - first;
        piece->ids.count = 0;
        piece->err = (struct err){ERR_NONE, ""};
    }
    return 0;
}

// ---- one record --------------------------------------------------------------------------------

// The text of a JSON line; the tree that holds it goes to *tree. -1 with a message when it is not
// usable.
static int json_text(const struct prepare_encoder *e, const struct input_record *record,
                     const char *bytes, json_t **tree, const char **text, size_t *size,
                     struct err *err) {
    const char *name = input_name(e->input, record->file);
    unsigned long long line = record->line;
    json_error_t why;
    *tree = json_loadb(bytes, record->size, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (!*tree)
        return err_set(err, ERR_DATA, "%s: line %llu: not valid JSON (column %d: %s); %s", name,
                       line, why.column, why.text,
                       record->size && bytes[0] == '['
                           ? "one object per line is expected, not an array over several lines"
                           : "--skip-bad counts such lines and goes on");
    if (!json_is_object(*tree))
        return err_set(
            err, ERR_DATA,
            "%s: line %llu: expected an object like {\"%s\": \"...\"}; --skip-bad counts "
            "such lines and goes on",
            name, line, e->options->field);
    json_t *value = json_object_get(*tree, e->options->field);
    if (!json_is_string(value)) {
        const char *first = json_object_iter_key(json_object_iter(*tree));
        return err_set(
            err, ERR_DATA,
            "%s: line %llu: expected text in the field \"%s\", found %s%s%s; name another "
            "with --field, or use --skip-bad to count such lines and go on",
            name, line, e->options->field,
            value   ? "something else"
            : first ? "no such field (the first one is \""
                    : "an empty object",
            value || !first ? "" : first, value || !first ? "" : "\")");
    }
    *text = json_string_value(value);
    *size = json_string_length(value);
    return 0;
}

static bool is_blank(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (!memchr(" \t\n\r\v\f", text[i], 6)) return false;
    return true;
}

static int put_id(struct token_list *ids, int32_t id, struct err *err) {
    if (token_list_put(ids, (uint32_t)id) == 0) return 0;
    return err_set(err, ERR_MEMORY, "no memory for the ids of a document");
}

// `scratch` NULL: shared by all threads.
static int encode_text(struct prepare_encoder *e, struct tokenizer_scratch *scratch,
                       const char *text, size_t size, struct token_list *ids, struct err *err) {
    const struct prepare_options *o = e->options;
    unsigned flags = o->parse_special ? TOKENIZER_PARSE_SPECIAL : 0;
    size_t begin = ids->count;
    if (o->bos >= 0 && put_id(ids, o->bos, err) != 0) return -1;
    uint64_t invalid = 0;
    int result = scratch ? tokenizer_encode(o->tokenizer, scratch, text, size, flags, ids, err)
                         : tokenizer_encode_parallel(o->tokenizer, text, size, flags, e->threads,
                                                     ids, &invalid, err);
    if (result != 0) return -1;
    if (!scratch) e->large_invalid_bytes += invalid; // large documents come one after the other
    // A text that brings its own BOS gets no second one.
    if (o->bos >= 0 && ids->count - begin >= 2 && ids->ids[begin + 1] == (uint32_t)o->bos) {
        memmove(ids->ids + begin, ids->ids + begin + 1,
                (ids->count - begin - 1) * sizeof *ids->ids);
        ids->count--;
    }
    bool ended = o->eod >= 0 && ids->count > begin && ids->ids[ids->count - 1] == (uint32_t)o->eod;
    return o->eod < 0 || ended ? 0 : put_id(ids, o->eod, err);
}

static int encode_record(struct prepare_encoder *e, struct tokenizer_scratch *scratch,
                         const struct input_block *block, size_t index,
                         struct prepared_piece *piece, bool count_only, struct err *err) {
    const struct input_record *record = &block->records[index];
    struct prepared_record *out = &e->records[index];
    const char *text = block->text.data + record->offset;
    struct token_list *ids = &piece->ids;
    size_t size = record->size, before = ids->count;
    json_t *tree = NULL;
    *out = (struct prepared_record){FATE_KEPT, 0, 0};
    int result = 0;
    bool simple =
        record->json && input_json_text(text, size, e->options->field, &piece->text, &text, &size);
    if (record->json && !simple && json_text(e, record, text, &tree, &text, &size, err) != 0) {
        out->fate = FATE_BAD;
        if (e->options->skip_bad)
            *err = (struct err){ERR_NONE, ""};
        else
            result = -1;
    } else if (is_blank(text, size)) {
        out->fate = FATE_EMPTY;
    } else if (!count_only) {
        result = encode_text(e, scratch, text, size, ids, err);
    }
    out->tokens = ids->count - before;
    out->text_bytes = size;
    json_decref(tree);
    return result;
}

// ---- the block ---------------------------------------------------------------------------------

static void encode_piece(struct prepare_encoder *e, struct tokenizer_scratch *scratch,
                         const struct input_block *block, struct prepared_piece *piece,
                         bool count_only) {
    for (size_t i = piece->first; i < piece->first + piece->count; i++)
        if (encode_record(e, scratch, block, i, piece, count_only, &piece->err) != 0) return;
}

int prepare_encode(struct prepare_encoder *e, const struct input_block *block, bool count_only,
                   struct err *err) {
    if (cut_pieces(e, block, err) != 0) return -1;
#pragma omp parallel for schedule(dynamic) num_threads(e->threads)
    for (size_t i = 0; i < e->piece_count; i++) {
        struct prepared_piece *piece = &e->pieces[i];
        if (block->records[piece->first].size < LARGE_BYTES || count_only)
            encode_piece(e, e->scratch[omp_get_thread_num()], block, piece, count_only);
    }
    for (size_t i = 0; i < e->piece_count && !count_only; i++)
        if (block->records[e->pieces[i].first].size >= LARGE_BYTES)
            encode_piece(e, NULL, block, &e->pieces[i], false);
    for (size_t i = 0; i < e->piece_count; i++) // the first fault in file order, whoever met it
        if (e->pieces[i].err.kind != ERR_NONE) {
            *err = e->pieces[i].err;
            return -1;
        }
    return 0;
}
