// Tables and JSON of `weft data`, see data_print.h.
#include "cli/data_print.h"
#include "base/log.h"
#include "base/text.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static void print_json(json_t *tree) {
    char *text = json_dumps(tree, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
    if (text) puts(text);
    free(text);
    json_decref(tree);
}

static json_t *integer(uint64_t value) {
    return json_integer((json_int_t)value);
}

static const char *number(uint64_t value, char out[32]) {
    return text_count((int64_t)value, out);
}

// ---- prepare -----------------------------------------------------------------------------------

void data_print_progress(const struct prepare_counts *c, void *context) {
    static double shown_seconds;
    (void)context;
    if (c->seconds - shown_seconds < 1) return;
    shown_seconds = c->seconds;
    char read[32], total[32], tokens[32];
    fprintf(stderr, "read %s of %s, %s tokens, %.1f MB/s of text\n",
            text_bytes(c->input_bytes, read), text_bytes(c->input_total_bytes, total),
            number(c->tokens[0] + c->tokens[1], tokens),
            (double)(c->text_bytes[0] + c->text_bytes[1]) / c->seconds * 1e-6);
}

static void print_prepared_json(const struct prepare_counts *c, const char *out) {
    json_t *tree = json_object();
    json_object_set_new(tree, "out", json_string(out));
    const char *const names[2] = {"train", "validation"};
    for (int i = 0; i < 2; i++) {
        json_t *split = json_object();
        json_object_set_new(split, "documents", integer(c->documents[i]));
        json_object_set_new(split, "tokens", integer(c->tokens[i]));
        json_object_set_new(split, "text_bytes", integer(c->text_bytes[i]));
        json_object_set_new(tree, names[i], split);
    }
    json_object_set_new(tree, "files", integer(c->files));
    json_object_set_new(tree, "skipped_empty", integer(c->skipped_empty));
    json_object_set_new(tree, "skipped_bad", integer(c->skipped_bad));
    json_object_set_new(tree, "invalid_utf8_bytes", integer(c->invalid_bytes));
    json_object_set_new(tree, "seconds", json_real(c->seconds));
    print_json(tree);
}

void data_print_prepared(const struct prepare_counts *c, const char *out, bool lossless,
                         bool json) {
    char a[32], b[32], d[32];
    if (c->invalid_bytes)
        log_line(LOG_WARN, "%s bytes were no valid UTF-8; %s", number(c->invalid_bytes, a),
                 lossless ? "they are kept as bytes"
                          : "this tokenizer cannot give all of them back");
    if (json) {
        print_prepared_json(c, out);
        return;
    }
    const char *const names[2] = {"train", "validation"};
    for (int i = 0; i < 2; i++)
        if (c->documents[i])
            printf("%-12s %s documents, %s tokens, %s of text\n", names[i],
                   number(c->documents[i], a), number(c->tokens[i], b),
                   text_bytes(c->text_bytes[i], d));
    printf("skipped_empty=%llu skipped_bad=%llu invalid_utf8_bytes=%llu\n",
           (unsigned long long)c->skipped_empty, (unsigned long long)c->skipped_bad,
           (unsigned long long)c->invalid_bytes);
    printf("%s from %s files in %s: %s/dataset.json\n", text_bytes(c->input_total_bytes, a),
           number(c->files, b), text_duration(c->seconds, d), out);
}

// ---- inspect -----------------------------------------------------------------------------------

static void warn_of_shards(const struct dataset *set, const struct inspect_report *r) {
    char a[32];
    if (r->small_shards)
        log_line(
            LOG_WARN,
            "%llu of %zu shards are below 100M tokens in a set of %s: opening many small files "
            "slows readers on shared storage; prepare with larger --shard-tokens",
            (unsigned long long)r->small_shards, set->count, number(set->tokens, a));
}

static void print_inspected_json(const struct dataset *set, const struct inspect_report *r,
                                 const char *path) {
    const struct shard_info *info = &set->infos[0];
    json_t *tree = json_pack("{s:s, s:s, s:s}", "path", path, "format", shard_kind_name(info->kind),
                             "dtype", info->token_bytes == 2 ? "u16" : "u32");
    char fingerprint[32];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)info->fingerprint);
    json_object_set_new(tree, "tokenizer_fingerprint", json_string(fingerprint));
    json_object_set_new(tree, "vocab_size", integer(info->vocab_size));
    json_object_set_new(tree, "eod", json_integer(info->eod));
    json_object_set_new(tree, "bos", json_integer(info->bos));
    json_object_set_new(tree, "shards", integer(set->count));
    json_object_set_new(tree, "small_shards", integer(r->small_shards));
    json_object_set_new(tree, "documents", integer(set->documents));
    json_object_set_new(tree, "tokens", integer(set->tokens));
    json_object_set_new(tree, "text_bytes", integer(set->text_bytes));
    json_object_set_new(tree, "empty_documents", integer(r->empty));
    json_object_set_new(tree, "shortest", integer(r->shortest));
    json_object_set_new(tree, "longest", integer(r->longest));
    json_t *lengths = json_array(), *ways = json_object();
    for (int i = 0; i < INSPECT_BINS; i++)
        if (r->documents[i])
            json_array_append_new(lengths, json_pack("{s:I, s:I, s:I}", "from", (json_int_t)1 << i,
                                                     "documents", (json_int_t)r->documents[i],
                                                     "tokens", (json_int_t)r->tokens[i]));
    for (int i = 0; i < INSPECT_WAYS; i++) {
        const struct inspect_layout *l = &r->layouts[i];
        json_object_set_new(ways, inspect_way_name(i),
                            json_pack("{s:I, s:f, s:I, s:I, s:I}", "rows", (json_int_t)l->rows,
                                      "fill", inspect_fill(l, r->context), "cut_documents",
                                      (json_int_t)l->cut_documents, "lost_tokens",
                                      (json_int_t)l->lost_tokens, "attended_pairs",
                                      (json_int_t)l->pairs));
    }
    json_object_set_new(tree, "lengths", lengths);
    json_object_set_new(tree, "context", integer(r->context));
    json_object_set_new(tree, "layouts", ways);
    json_object_set_new(tree, "packing_seconds", json_real(r->pack_seconds));
    print_json(tree);
}

static void print_facts(const struct dataset *set, const struct inspect_report *r,
                        const char *path) {
    const struct shard_info *info = &set->infos[0];
    char a[32], b[32], c[32];
    printf("%s\n  format       %s, ids of %u bits", path, shard_kind_name(info->kind),
           8 * info->token_bytes);
    if (info->vocab_size) printf(", vocabulary %s", number(info->vocab_size, a));
    if (info->fingerprint) printf(", tokenizer %016llx", (unsigned long long)info->fingerprint);
    if (info->eod >= 0) printf(", documents end in id %d", info->eod);
    printf("\n  shards       %s\n  tokens       %s in %s documents", number(set->count, a),
           number(set->tokens, b), number(set->documents, c));
    if (set->text_bytes)
        printf(" from %s of text (%.2f bytes per token)", text_bytes(set->text_bytes, a),
               (double)set->text_bytes / (double)set->tokens);
    printf("\n  documents    %s to %s tokens, %s empty\n", number(r->shortest, a),
           number(r->longest, b), number(r->empty, c));
}

void data_print_inspected(const struct dataset *set, const struct inspect_report *r,
                          const char *path, bool json) {
    char a[32], b[32], c[32], d[32];
    warn_of_shards(set, r);
    if (json) {
        print_inspected_json(set, r, path);
        return;
    }
    print_facts(set, r, path);
    printf("\n  tokens from    documents  share of tokens\n");
    for (int i = 0; i < INSPECT_BINS; i++) {
        if (!r->documents[i]) continue;
        double share = (double)r->tokens[i] / (double)set->tokens;
        printf("  %11s  %11s  %5.1f %%  %.*s\n", number((uint64_t)1 << i, a),
               number(r->documents[i], b), 100 * share, (int)(share * 40 + 0.5),
               "########################################");
    }
    printf("\n  rows of %s tokens         rows     fill  cut documents    lost tokens  attended "
           "pairs\n",
           number(r->context, a));
    for (int i = 0; i < INSPECT_WAYS; i++) {
        const struct inspect_layout *l = &r->layouts[i];
        printf("  %-18s %14s  %5.1f %%  %13s  %13s  %14s\n", inspect_way_name(i),
               number(l->rows, a), 100 * inspect_fill(l, r->context), number(l->cut_documents, b),
               number(l->lost_tokens, c), number(l->pairs, d));
    }
    printf("\n  packing took %.3f s\n", r->pack_seconds);
}

// ---- mix ---------------------------------------------------------------------------------------

void data_print_mix(const struct loader_mix_row *rows, int count, bool json) {
    char a[32], b[32];
    json_t *list = json ? json_array() : NULL;
    if (!json)
        printf("weight = share of drawn samples\n%-40s %8s %14s %16s %9s\n", "source", "weight",
               "samples", "tokens", "epochs");
    for (int i = 0; i < count; i++) {
        const struct loader_mix_row *r = &rows[i];
        if (json)
            json_array_append_new(list,
                                  json_pack("{s:s, s:f, s:I, s:I, s:f}", "source", r->path,
                                            "weight", r->share, "samples", (json_int_t)r->drawn,
                                            "tokens", (json_int_t)r->tokens, "epochs", r->epochs));
        else
            printf("%-40s %8.4f %14s %16s %9.3f\n", r->path, r->share, number(r->drawn, a),
                   number(r->tokens, b), r->epochs);
    }
    if (json) print_json(list);
}
