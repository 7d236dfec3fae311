// weft data prepare | inspect | verify | mix
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/data_print.h"
#include "cli/options.h"
#include "data/inspect.h"
#include "data/loader.h"
#include "data/prepare.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: weft data prepare --tokenizer PATH --out FOLDER [options] INPUT...\n"
    "       weft data inspect [--context N] [--json] DATA\n"
    "       weft data verify [--eod ID] [--bos ID] DATA...\n"
    "       weft data mix --context N --samples N [--pack] [--json] DATA[=WEIGHT]...\n"
    "\n"
    "INPUT is text or JSON lines, plain, .gz or .zst, or a folder of such files. DATA is what "
    "prepare\n"
    "made, a shard, a Megatron prefix, a llm.c .bin or a bare .bin of 16-bit ids.\n"
    "\n"
    "prepare turns text into shards of token ids:\n"
    "  --tokenizer PATH        as for `weft tokenizer`\n"
    "  --out FOLDER            gets train/, validation/, tokenizer/ and dataset.json\n"
    "  --field NAME            text of a JSON line; default text\n"
    "  --input-format KIND     text or jsonl; default by name: .jsonl, .ndjson and .json hold JSON "
    "lines\n"
    "  --skip-bad              counts lines that are not JSON or lack the field instead of "
    "stopping\n"
    "  --split-documents WHERE blank-line, line, or a text such as '<|endoftext|>'; default: a "
    "file of\n"
    "                          text is one document\n"
    "  --validation N          holds out a share of the documents (below 1) or a number of them\n"
    "  --seed N                of that choice; default 0\n"
    "  --eod TOKEN|none        ends every document; default: the tokenizer's end of text\n"
    "  --bos TOKEN|none        begins every document; default: only if the tokenizer's files ask "
    "for it\n"
    "  --parse-special         special tokens written in the text become their ids\n"
    "  --format KIND           weft or megatron; default weft\n"
    "  --shard-tokens N        a shard ends with the document that reaches it; default 256M "
    "tokens\n"
    "  --threads N             default: all; the result does not depend on it\n"
    "  --overwrite             replaces a data set that stands in FOLDER\n"
    "  --json                  prints the counts as JSON\n"
    "\n"
    "inspect prints what the headers say, the lengths of documents, and for rows of --context "
    "tokens\n"
    "(default 1024) how full they are, what is cut and how many pairs attention looks at.\n"
    "verify recomputes hashes, sizes and ids, names the document that is off, and warns of "
    "documents\n"
    "that begin with two BOS. --eod and --bos tell what the files of other programs do not say.\n"
    "mix shows what a mixture draws. A weight is a share of drawn samples.\n";

enum { MOST_SETS = 1024 };

static int usage(const char *format, const char *word) {
    struct err err = {ERR_NONE, ""};
    err_set(&err, ERR_USAGE, format, word);
    return cli_fail(&err);
}

// ---- prepare -----------------------------------------------------------------------------------

struct prepare_words {
    const char *tokenizer, *out, *field, *input_format, *split, *eod, *bos, *format;
    double validation;
    uint64_t seed, shard_tokens;
    int threads;
    bool skip_bad, parse_special, overwrite, json;
};

// A token named on the command line, "none", or the default.
static int token_option(const struct tokenizer *tok, const char *option, const char *text,
                        int32_t fallback, int32_t *id, struct err *err) {
    *id = fallback;
    if (!text) return 0;
    *id = PREPARE_NONE;
    if (strcmp(text, "none") == 0) return 0;
    *id = tokenizer_id_of(tok, text);
    if (*id >= 0) return 0;
    return err_set(err, ERR_USAGE, "%s %s: the tokenizer has no such token", option, text);
}

// The token that ends texts: what the tokenizer's files say, else a token of a name that is used
// for nothing else.
static int32_t usual_eod(const struct tokenizer *tok) {
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    int32_t id = tokenizer_eos(tok);
    for (size_t i = 0; i < sizeof names / sizeof *names && id < 0; i++)
        id = tokenizer_id_of(tok, names[i]);
    return id;
}

static int choose_tokens(const struct prepare_words *w, struct prepare_options *o,
                         struct err *err) {
    const struct tokenizer *tok = o->tokenizer;
    if (token_option(tok, "--eod", w->eod, usual_eod(tok), &o->eod, err) != 0) return -1;
    if (o->eod < 0 && !w->eod)
        return err_set(err, ERR_USAGE,
                       "the tokenizer names no end of text; name a token with --eod, or use --eod "
                       "none to put documents together without one");
    int32_t bos = tokenizer_add_bos(tok) ? tokenizer_bos(tok) : PREPARE_NONE;
    return token_option(tok, "--bos", w->bos, bos, &o->bos, err);
}

static int choose_kinds(const struct prepare_words *w, struct prepare_options *o, struct err *err) {
    const char *kind = w->input_format ? w->input_format : "";
    if (*kind && strcmp(kind, "text") != 0 && strcmp(kind, "jsonl") != 0)
        return err_set(err, ERR_USAGE, "--input-format %s: expected text or jsonl", kind);
    o->input.kind = strcmp(kind, "text") == 0    ? INPUT_TEXT
                    : strcmp(kind, "jsonl") == 0 ? INPUT_JSONL
                                                 : INPUT_BY_NAME;
    const char *format = w->format ? w->format : "weft";
    if (strcmp(format, "weft") != 0 && strcmp(format, "megatron") != 0)
        return err_set(err, ERR_USAGE, "--format %s: expected weft or megatron", format);
    o->format = strcmp(format, "weft") == 0 ? SHARD_WEFT : SHARD_MEGATRON;
    return 0;
}

static int prepare(const struct prepare_words *w, const char *const *inputs, size_t count,
                   struct err *err) {
    struct prepare_options o = {
        .input = {inputs, count, INPUT_BY_NAME, w->split},
        .field = w->field,
        .skip_bad = w->skip_bad,
        .parse_special = w->parse_special,
        .out = w->out,
        .overwrite = w->overwrite,
        .shard_tokens = w->shard_tokens,
        .validation = w->validation,
        .seed = w->seed,
        .threads = w->threads,
        .progress = data_print_progress,
    };
    struct prepare_counts counts;
    struct tokenizer *tok = tokenizer_load(w->tokenizer, err);
    if (!tok) return -1;
    o.tokenizer = tok;
    int result = choose_kinds(w, &o, err);
    if (result == 0) result = choose_tokens(w, &o, err);
    if (result == 0) result = prepare_run(&o, &counts, err);
    if (result == 0) data_print_prepared(&counts, w->out, tokenizer_lossless(tok), w->json);
    tokenizer_free(tok);
    return result;
}

static int run_prepare(int argc, char **argv) {
    struct prepare_words w = {.field = "text"};
    const struct option options[] = {
        {"--tokenizer", OPTION_TEXT, &w.tokenizer, 0},
        {"--out", OPTION_TEXT, &w.out, 0},
        {"--field", OPTION_TEXT, &w.field, 0},
        {"--input-format", OPTION_TEXT, &w.input_format, 0},
        {"--split-documents", OPTION_TEXT, &w.split, 0},
        {"--eod", OPTION_TEXT, &w.eod, 0},
        {"--bos", OPTION_TEXT, &w.bos, 0},
        {"--format", OPTION_TEXT, &w.format, 0},
        {"--validation", OPTION_NUMBER, &w.validation, 0},
        {"--seed", OPTION_SEED, &w.seed, 0},
        {"--shard-tokens", OPTION_SEED, &w.shard_tokens, 0},
        {"--threads", OPTION_THREADS, &w.threads, 1},
        {"--skip-bad", OPTION_FLAG, &w.skip_bad, 0},
        {"--parse-special", OPTION_FLAG, &w.parse_special, 0},
        {"--overwrite", OPTION_FLAG, &w.overwrite, 0},
        {"--json", OPTION_FLAG, &w.json, 0},
    };
    struct err err = {ERR_NONE, ""};
    const char **inputs = calloc((size_t)argc, sizeof *inputs);
    if (!inputs) return usage("no memory for %s", "the command line");
    int words, result = options_read(argc, argv, options, sizeof options / sizeof *options, inputs,
                                     argc, &words, &err);
    if (result == 0 && (!w.tokenizer || !w.out || words == 0))
        result = err_set(&err, ERR_USAGE, "data prepare: %s; weft data --help shows how",
                         !w.tokenizer ? "--tokenizer is missing"
                         : !w.out     ? "--out is missing"
                                      : "no input is named");
    if (result == 0) result = prepare(&w, inputs, (size_t)words, &err);
    free(inputs);
    return result == 0 ? 0 : cli_fail(&err);
}

// ---- inspect, verify ---------------------------------------------------------------------------

static int run_inspect(int argc, char **argv) {
    int context = 1024, words;
    bool json = false;
    const char *path = NULL;
    const struct option options[] = {
        {"--context", OPTION_COUNT, &context, 2},
        {"--json", OPTION_FLAG, &json, 0},
    };
    struct err err = {ERR_NONE, ""};
    if (options_read(argc, argv, options, 2, &path, 1, &words, &err) != 0) return cli_fail(&err);
    if (words != 1) return usage("data inspect: no data set is named%s; weft data --help", "");
    struct dataset set;
    struct inspect_report report;
    if (dataset_open(&set, path, &err) != 0) return cli_fail(&err);
    int result = inspect_run(&set, (uint32_t)context, &report, &err);
    if (result == 0) data_print_inspected(&set, &report, path, json);
    dataset_close(&set);
    return result == 0 ? 0 : cli_fail(&err);
}

static int verify_set(const char *path, int32_t eod, int32_t bos, struct err *err) {
    struct dataset set;
    if (dataset_open(&set, path, err) != 0) return -1;
    int result = 0;
    for (size_t i = 0; i < set.count && result == 0; i++) {
        struct shard_report report;
        result = shard_verify(set.paths[i], eod, bos, &report, err);
        if (result != 0) break;
        printf("%s: ok, %llu tokens in %llu documents, largest id %llu\n", set.paths[i],
               (unsigned long long)set.infos[i].tokens, (unsigned long long)set.infos[i].documents,
               (unsigned long long)report.largest_id);
        if (report.doubled_bos)
            log_line(
                LOG_WARN,
                "%s: document %llu begins with BOS twice, as do %llu others; a template and the "
                "encoder both put one",
                set.paths[i], (unsigned long long)report.first_doubled_bos,
                (unsigned long long)report.doubled_bos - 1);
    }
    dataset_close(&set);
    return result;
}

static int run_verify(int argc, char **argv) {
    int eod = -1, bos = -1, words, status = 0;
    const char *paths[MOST_SETS];
    const struct option options[] = {
        {"--eod", OPTION_COUNT, &eod, 0},
        {"--bos", OPTION_COUNT, &bos, 0},
    };
    struct err err = {ERR_NONE, ""};
    if (options_read(argc, argv, options, 2, paths, MOST_SETS, &words, &err) != 0)
        return cli_fail(&err);
    if (words == 0) return usage("data verify: no data set is named%s; weft data --help", "");
    for (int i = 0; i < words; i++) { // one that is damaged does not hide the next
        err = (struct err){ERR_NONE, ""};
        if (verify_set(paths[i], eod, bos, &err) != 0) status = cli_fail(&err);
    }
    return status;
}

// ---- mix ---------------------------------------------------------------------------------------

// "PATH=WEIGHT", or a path that weighs 1.
static int parse_set(char *word, struct loader_set *set, struct err *err) {
    char *equals = strrchr(word, '='), *end;
    *set = (struct loader_set){word, 1};
    if (!equals) return 0;
    set->weight = strtod(equals + 1, &end);
    if (end == equals + 1 || *end)
        return err_set(err, ERR_USAGE, "%s: expected DATA=WEIGHT, where the weight is a number",
                       word);
    *equals = 0;
    return 0;
}

static int run_mix(int argc, char **argv) {
    int context = 1024, samples = 0, words;
    bool json = false, pack = false;
    const char *sets[LOADER_MAX_SETS];
    const struct option options[] = {
        {"--context", OPTION_COUNT, &context, 2},
        {"--samples", OPTION_COUNT, &samples, 1},
        {"--pack", OPTION_FLAG, &pack, 0},
        {"--json", OPTION_FLAG, &json, 0},
    };
    struct err err = {ERR_NONE, ""};
    if (options_read(argc, argv, options, 4, sets, LOADER_MAX_SETS, &words, &err) != 0)
        return cli_fail(&err);
    if (words == 0 || samples == 0)
        return usage("data mix: expected --samples and data sets%s; weft data --help", "");
    struct loader_options o = {.set_count = words,
                               .context = context,
                               .rows = 1,
                               .micro_batches = 1,
                               .mode = pack ? LOADER_PACK : LOADER_CHUNK,
                               .readers = 1,
                               .steps_ahead = 1,
                               .ranks = 1};
    for (int i = 0; i < words; i++)
        if (parse_set((char *)sets[i], &o.sets[i], &err) != 0) return cli_fail(&err);
    void *memory = malloc(loader_bytes(&o));
    struct loader *loader = memory ? loader_open(&o, memory, &err) : NULL;
    if (!memory) err_set(&err, ERR_MEMORY, "no memory for one sample");
    if (loader) {
        struct loader_mix_row rows[LOADER_MAX_SETS];
        int count = loader_mix_rows(loader, (uint64_t)samples, rows);
        data_print_mix(rows, count, json);
        loader_close(loader);
    }
    free(memory);
    return loader ? 0 : cli_fail(&err);
}

int verb_data(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } parts[] = {{"prepare", run_prepare},
                 {"inspect", run_inspect},
                 {"verify", run_verify},
                 {"mix", run_mix}};
    const char *names[sizeof parts / sizeof *parts];
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
    if (argc < 2) {
        fputs(help, stderr);
        return 2;
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        names[i] = parts[i].name;
        if (strcmp(parts[i].name, argv[1]) != 0) continue;
        static char name[32]; // what messages call the verb
        snprintf(name, sizeof name, "data %s", argv[1]);
        argv[1] = name;
        return parts[i].run(argc - 1, argv + 1);
    }
    const char *nearest = text_nearest(argv[1], names, sizeof parts / sizeof *parts);
    struct err err = {ERR_NONE, ""};
    err_set(&err, ERR_USAGE, "weft data %s: expected prepare, inspect, verify or mix%s%s", argv[1],
            nearest ? "; did you mean " : "", nearest ? nearest : "");
    return cli_fail(&err);
}
