// The way from text to shards, see prepare.h: one thread reads and decompresses a block ahead, all
// threads encode, this one writes.
#include "data/prepare.h"
#include "base/clock.h"
#include "base/random.h"
#include "data/prepare_parts.h"
#include <pthread.h>
#include <string.h>

enum { BLOCK_BYTES = 8 << 20 };

// ---- reading ahead -----------------------------------------------------------------------------

struct reader {
    struct input *input;
    struct input_block blocks[2];
    pthread_t thread;
    int filling, result; // block that the thread fills; what input_read said
    bool runs;
    struct err err;
};

static void *read_block(void *argument) {
    struct reader *r = argument;
    r->result = input_read(r->input, &r->blocks[r->filling], BLOCK_BYTES, &r->err);
    return NULL;
}

static int start_reading(struct reader *r, struct err *err) {
    if (pthread_create(&r->thread, NULL, read_block, r) != 0)
        return err_set(err, ERR_MEMORY, "the system gave no thread for reading");
    r->runs = true;
    return 0;
}

// The block read ahead, and the next one started. NULL at the end and on failure (*result 0 or -1).
static const struct input_block *next_block(struct reader *r, int *result, struct err *err) {
    pthread_join(r->thread, NULL);
    r->runs = false;
    *result = r->result < 0 ? -1 : 0;
    if (r->result < 0) *err = r->err;
    if (r->result <= 0) return NULL;
    const struct input_block *block = &r->blocks[r->filling];
    r->filling ^= 1;
    *result = start_reading(r, err);
    return *result == 0 ? block : NULL;
}

// ---- the split ---------------------------------------------------------------------------------

struct splitter {
    double share;   // of documents, or
    uint64_t exact; // so many
    uint64_t total; // documents, where `exact` needs them
    uint64_t key;
    uint64_t next; // number of the next document
};

static int choose_split(struct splitter *s) {
    uint64_t document = s->next++;
    if (s->exact) return random_permute(s->key, document, s->total) < s->exact;
    return s->share > 0 && random_uniform(s->key, document) < s->share;
}

// ---- passes ------------------------------------------------------------------------------------

static void report(const struct prepare_options *o, struct prepare_counts *c, struct input *input,
                   double begin) {
    c->input_bytes = input_done_bytes(input);
    c->seconds = clock_seconds() - begin;
    if (o->progress) o->progress(c, o->context);
}

static int write_block(const struct prepare_encoder *e, struct splitter *splitter,
                       struct prepare_folder *folder, struct prepare_counts *c, struct err *err) {
    for (size_t p = 0; p < e->piece_count; p++) {
        const uint32_t *ids = e->pieces[p].ids.ids;
        for (size_t i = 0; i < e->pieces[p].count; i++) {
            const struct prepared_record *record = &e->records[e->pieces[p].first + i];
            c->skipped_empty += record->fate == FATE_EMPTY;
            c->skipped_bad += record->fate == FATE_BAD;
            if (record->fate != FATE_KEPT) continue;
            int split = folder ? choose_split(splitter) : 0;
            if (folder && prepare_folder_document(folder, split, ids, record->tokens,
                                                  record->text_bytes, err) != 0)
                return -1;
            c->documents[split]++;
            c->tokens[split] += record->tokens;
            c->text_bytes[split] += record->text_bytes;
            ids += record->tokens;
        }
    }
    return 0;
}

// Reads everything; without a folder only counts documents.
static int pass(const struct prepare_options *o, struct splitter *splitter,
                struct prepare_folder *folder, struct prepare_counts *c, struct err *err) {
    struct reader reader = {.input = input_open(&o->input, err)};
    struct prepare_encoder encoder = {0};
    double begin = clock_seconds();
    int result = -1;
    if (!reader.input) return -1;
    *c = (struct prepare_counts){.files = input_files(reader.input),
                                 .input_total_bytes = input_total_bytes(reader.input)};
    if (prepare_encoder_open(&encoder, o, reader.input, err) == 0)
        result = start_reading(&reader, err);
    const struct input_block *block;
    while (result == 0 && (block = next_block(&reader, &result, err)) != NULL) {
        result = prepare_encode(&encoder, block, folder == NULL, err);
        if (result == 0) result = write_block(&encoder, splitter, folder, c, err);
        if (folder) report(o, c, reader.input, begin);
    }
    if (reader.runs) pthread_join(reader.thread, NULL);
    if (result == 0) {
        c->invalid_bytes = prepare_invalid_bytes(&encoder);
        report(o, c, reader.input, begin);
    }
    prepare_encoder_close(&encoder);
    input_block_free(&reader.blocks[0]);
    input_block_free(&reader.blocks[1]);
    input_close(reader.input);
    return result;
}

// ---- the whole ---------------------------------------------------------------------------------

static int single_document(const struct prepare_options *o, struct err *err) {
    return err_set(err, ERR_USAGE,
                   "%s: the text is a single document, and no document may be in training and "
                   "validation at once; cut it with --split-documents blank-line (or line, or the "
                   "text that separates documents), or leave --validation out",
                   o->input.paths[0]);
}

static int open_splitter(const struct prepare_options *o, struct splitter *s, struct err *err) {
    *s = (struct splitter){.key = random_key(o->seed, "data.validation")};
    if (!(o->validation >= 0))
        return err_set(err, ERR_USAGE, "validation %g: expected a share or a number of documents",
                       o->validation);
    if (o->validation < 1) {
        s->share = o->validation;
        return 0;
    }
    s->exact = (uint64_t)o->validation;
    if ((double)s->exact != o->validation)
        return err_set(err, ERR_USAGE,
                       "validation %g: from 1 on, a whole number of documents is expected",
                       o->validation);
    struct prepare_counts counts;
    struct prepare_options quiet = *o;
    quiet.progress = NULL;
    if (pass(&quiet, NULL, NULL, &counts, err) != 0) return -1;
    s->total = counts.documents[0];
    if (s->total == 1) return single_document(o, err);
    if (s->exact >= s->total)
        return err_set(err, ERR_USAGE,
                       "validation %llu: there are only %llu documents, and none would be left for "
                       "training",
                       (unsigned long long)s->exact, (unsigned long long)s->total);
    return 0;
}

static int check_result(const struct prepare_options *o, const struct prepare_counts *c,
                        struct err *err) {
    uint64_t documents = c->documents[0] + c->documents[1];
    if (documents == 0)
        return err_set(err, ERR_DATA,
                       "%s: no document with text in it (%llu empty, %llu unusable lines)",
                       o->input.paths[0], (unsigned long long)c->skipped_empty,
                       (unsigned long long)c->skipped_bad);
    if (o->validation <= 0) return 0;
    if (documents == 1) return single_document(o, err);
    if (c->documents[0] == 0 || c->documents[1] == 0)
        return err_set(err, ERR_USAGE,
                       "validation %g: of %llu documents, %llu went to training and %llu to "
                       "validation; give a number of documents instead, such as --validation %llu",
                       o->validation, (unsigned long long)documents,
                       (unsigned long long)c->documents[0], (unsigned long long)c->documents[1],
                       (unsigned long long)(documents >= 20 ? documents / 20 : 1));
    return 0;
}

int prepare_run(const struct prepare_options *o, struct prepare_counts *counts, struct err *err) {
    struct splitter splitter;
    struct prepare_folder folder;
    if (open_splitter(o, &splitter, err) != 0) return -1;
    int result = prepare_folder_open(&folder, o, err);
    if (result == 0) result = pass(o, &splitter, &folder, counts, err);
    if (result == 0) result = check_result(o, counts, err);
    if (result == 0) result = prepare_folder_finish(&folder, counts, err);
    prepare_folder_close(&folder);
    return result;
}
