// weft tokenizer train | encode | decode | info
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "data/tokenizer.h"
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: weft tokenizer train --vocab-size N --out FOLDER [options] FILE...\n"
    "       weft tokenizer encode --tokenizer PATH [options] [FILE]\n"
    "       weft tokenizer decode --tokenizer PATH [options] [FILE]\n"
    "       weft tokenizer info PATH [--json]\n"
    "\n"
    "PATH is a folder or a file: tokenizer.json, vocab.json with merges.txt, a SentencePiece BPE "
    "model, or a tiktoken\n"
    "rank file. FILE is standard input when absent or \"-\".\n"
    "\n"
    "train learns a byte-level BPE from text and writes tokenizer.json and tokenizer_config.json:\n"
    "  --vocab-size N    tokens, the 256 bytes and the special tokens included\n"
    "  --out FOLDER      made when absent\n"
    "  --special TEXT    a special token (may be repeated; the first ends documents); default "
    "<|endoftext|>\n"
    "  --split KIND      gpt2, llama3, qwen2 or smollm2: how text is cut into words; default "
    "llama3\n"
    "  --least-count N   pairs seen fewer times are not merged; default 2\n"
    "  --threads N       default: all\n"
    "encode prints ids separated by spaces:\n"
    "  --parse-special   special tokens written in the text become their ids\n"
    "  --bos, --eos      put BOS in front, EOS behind\n"
    "  --count           print the number of ids only\n"
    "  --threads N       default: all\n"
    "decode reads ids separated by anything but digits and prints the text:\n"
    "  --skip-special    leaves special tokens out\n";

struct arguments {
    const char *tokenizer, *out, *split;
    const char *specials[64];
    size_t special_count;
    const char **files;
    size_t file_count;
    long vocab_size, least_count, threads;
    bool parse_special, bos, eos, count, skip_special, json;
};

static int usage(const char *format, const char *word) {
    struct err err = {0};
    err_set(&err, ERR_USAGE, format, word);
    return cli_fail(&err);
}

static int number(const char *text, long least, long *out) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value < least || value > (1L << 30)) return -1;
    *out = value;
    return 0;
}

// 0, or the exit status after a message.
static int parse(int argc, char **argv, struct arguments *a) {
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {{"--parse-special", &a->parse_special},
                 {"--bos", &a->bos},
                 {"--eos", &a->eos},
                 {"--count", &a->count},
                 {"--skip-special", &a->skip_special},
                 {"--json", &a->json}};
    const struct {
        const char *name;
        const char **text;
        long *value;
    } options[] = {{"--tokenizer", &a->tokenizer, NULL},
                   {"--out", &a->out, NULL},
                   {"--split", &a->split, NULL},
                   {"--vocab-size", NULL, &a->vocab_size},
                   {"--least-count", NULL, &a->least_count},
                   {"--threads", NULL, &a->threads}};
    char wrong[256];
    for (int i = 0; i < argc; i++) {
        bool known = false;
        if (argv[i][0] != '-' || argv[i][1] == 0) {
            a->files[a->file_count++] = argv[i];
            continue;
        }
        for (size_t k = 0; k < sizeof flags / sizeof *flags && !known; k++)
            if (strcmp(argv[i], flags[k].name) == 0) *flags[k].flag = known = true;
        bool special = strcmp(argv[i], "--special") == 0;
        for (size_t k = 0; k <= sizeof options / sizeof *options && !known; k++) {
            bool last = k == sizeof options / sizeof *options;
            if (last ? !special : strcmp(argv[i], options[k].name) != 0) continue;
            if (i + 1 == argc) return usage("%s needs a value", argv[i]);
            known = true;
            i++;
            if (last) {
                if (a->special_count == 64) return usage("%s: at most 64 special tokens", argv[i]);
                a->specials[a->special_count++] = argv[i];
            } else if (options[k].text) {
                *options[k].text = argv[i];
            } else if (number(argv[i], 0, options[k].value) != 0) {
                snprintf(wrong, sizeof wrong, "%s \"%.200s\"", argv[i - 1], argv[i]);
                return usage("%s: expected a whole number from 0 up", wrong);
            }
        }
        if (!known)
            return usage("unknown option \"%s\"; weft tokenizer --help lists them", argv[i]);
    }
    snprintf(wrong, sizeof wrong, "--threads %ld: expected at most %d", a->threads, MOST_THREADS);
    return a->threads > MOST_THREADS ? usage("%s", wrong) : 0;
}

static int read_all(const char *path, char **data, size_t *size, struct err *err) {
    if (path && strcmp(path, "-") != 0) return file_read(path, 0, data, size, err);
    struct text all = {0};
    char block[65536];
    size_t got;
    while ((got = fread(block, 1, sizeof block, stdin)) > 0)
        if (text_put(&all, block, got) != 0) {
            text_free(&all);
            return err_set(err, ERR_MEMORY, "no memory for standard input");
        }
    if (text_put(&all, "", 0) != 0) return err_set(err, ERR_MEMORY, "no memory for standard input");
    *data = all.data;
    *size = all.size;
    return 0;
}

static void show_progress(uint32_t done, uint32_t total, void *context) {
    (void)context;
    fprintf(stderr, "\rmerges %u of %u", done, total);
}

static int train_on(const struct arguments *a, const struct tokenizer_train_text *texts,
                    struct err *err) {
    static const char *const kinds[] = {"gpt2", "llama3", "qwen2", "smollm2"};
    static const char *const usual[] = {"<|endoftext|>"};
    struct tokenizer_train_options options = {
        .vocab_size = (uint32_t)a->vocab_size,
        .specials = a->special_count ? a->specials : usual,
        .special_count = a->special_count ? a->special_count : 1,
        .split = TOKENIZER_SPLIT_LLAMA3,
        .least_count = (uint64_t)a->least_count,
        .threads = (int)a->threads,
        .progress = isatty(STDERR_FILENO) ? show_progress : NULL,
    };
    size_t kind = 1, bytes = 0;
    if (a->split)
        for (kind = 0; kind < 4 && strcmp(a->split, kinds[kind]) != 0;) kind++;
    if (kind == 4)
        return err_set(err, ERR_USAGE, "--split %s: expected gpt2, llama3, qwen2 or smollm2",
                       a->split);
    options.split = (enum tokenizer_split)kind;
    for (size_t i = 0; i < a->file_count; i++) bytes += texts[i].size;
    if (bytes == 0)
        return err_set(err, ERR_DATA, "there is no text to train on: the files are empty");
    double begin = clock_seconds();
    struct tokenizer *tok = tokenizer_train(texts, a->file_count, &options, err);
    if (!tok) return -1;
    int failed = tokenizer_save_hf(tok, a->out, err);
    char size[32], count[32];
    fprintf(stderr, "\r");
    if (!failed)
        printf("%s: %s tokens from %s in %.2f s\n", a->out,
               text_count(tokenizer_vocab_size(tok), count), text_bytes(bytes, size),
               clock_seconds() - begin);
    if (!failed && tokenizer_vocab_size(tok) < options.vocab_size)
        fprintf(stderr,
                "weft: fewer tokens than asked for: no pair is left that occurs often enough\n");
    tokenizer_free(tok);
    return failed;
}

static int run_train(const struct arguments *a, struct err *err) {
    if (!a->out || a->vocab_size == 0 || a->file_count == 0)
        return err_set(
            err, ERR_USAGE,
            "train needs --vocab-size, --out and a text file; see weft tokenizer --help");
    struct tokenizer_train_text *texts = calloc(a->file_count, sizeof *texts);
    if (!texts) return err_set(err, ERR_MEMORY, "no memory for the list of files");
    int failed = 0;
    for (size_t i = 0; i < a->file_count && !failed; i++) {
        char *data = NULL;
        failed = read_all(a->files[i], &data, &texts[i].size, err);
        texts[i].bytes = data;
    }
    if (!failed) failed = train_on(a, texts, err);
    for (size_t i = 0; i < a->file_count; i++) free((char *)(uintptr_t)texts[i].bytes);
    free(texts);
    return failed;
}

static int run_encode(const struct arguments *a, const struct tokenizer *tok, const char *data,
                      size_t size, struct err *err) {
    struct token_list ids = {0};
    uint64_t invalid = 0;
    unsigned flags = (a->parse_special ? TOKENIZER_PARSE_SPECIAL : 0u) |
                     (a->bos ? TOKENIZER_ADD_BOS : 0u) | (a->eos ? TOKENIZER_ADD_EOS : 0u);
    int failed =
        tokenizer_encode_parallel(tok, data, size, flags, (int)a->threads, &ids, &invalid, err);
    if (!failed && a->count) printf("%zu\n", ids.count);
    if (!failed && !a->count) {
        for (size_t i = 0; i < ids.count; i++) printf(i ? " %u" : "%u", ids.ids[i]);
        printf("\n");
    }
    if (!failed && invalid > 0)
        fprintf(stderr,
                "weft: %llu bytes of the text are not valid UTF-8; they were kept as bytes where "
                "the tokenizer can\n",
                (unsigned long long)invalid);
    token_list_free(&ids);
    return failed;
}

static int run_decode(const struct arguments *a, const struct tokenizer *tok, const char *data,
                      size_t size, struct err *err) {
    struct token_list ids = {0};
    struct text out = {0};
    int failed = 0;
    for (size_t i = 0; i < size && !failed;) {
        uint64_t id = 0;
        size_t begin = i;
        for (; i < size && isdigit((unsigned char)data[i]) && id <= UINT32_MAX; i++)
            id = id * 10 + (uint64_t)(data[i] - '0');
        if (id > UINT32_MAX) failed = err_set(err, ERR_DATA, "an id in the input is out of range");
        if (!failed && i > begin && token_list_put(&ids, (uint32_t)id) != 0)
            failed = err_set(err, ERR_MEMORY, "no memory for token ids");
        if (i == begin) i++;
    }
    if (!failed) failed = tokenizer_decode(tok, ids.ids, ids.count, a->skip_special, &out, err);
    if (!failed && out.size) fwrite(out.data, 1, out.size, stdout);
    token_list_free(&ids);
    text_free(&out);
    return failed;
}

static void print_info(const struct tokenizer *tok, bool json) {
    char hash[17];
    hash_text(tokenizer_fingerprint(tok), hash);
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"bos", tokenizer_bos(tok)},
               {"eos", tokenizer_eos(tok)},
               {"eot", tokenizer_eot(tok)},
               {"pad", tokenizer_pad(tok)},
               {"unk", tokenizer_unk(tok)}};
    const char *kind =
        tokenizer_kind(tok) == TOKENIZER_BYTE_LEVEL ? "byte-level BPE" : "BPE over characters";
    if (json) {
        json_t *root = json_pack("{s:s, s:i, s:I, s:s, s:s, s:b, s:b, s:b}", "kind", kind,
                                 "vocab_size", (int)tokenizer_vocab_size(tok), "merges",
                                 (json_int_t)tokenizer_merge_count(tok), "pre_tokenizer",
                                 tokenizer_gguf_pre(tok), "fingerprint", hash, "lossless",
                                 tokenizer_lossless(tok), "add_bos", tokenizer_add_bos(tok),
                                 "add_eos", tokenizer_add_eos(tok));
        for (size_t i = 0; i < 5; i++)
            json_object_set_new(root, ids[i].name, json_integer(ids[i].id));
        json_dumpf(root, stdout, JSON_INDENT(1));
        printf("\n");
        json_decref(root);
        return;
    }
    printf("kind           %s\nvocabulary     %u tokens, %zu merges\npre-tokenizer  "
           "%s\nfingerprint    %s\n",
           kind, tokenizer_vocab_size(tok), tokenizer_merge_count(tok), tokenizer_gguf_pre(tok),
           hash);
    printf("lossless       %s\n",
           tokenizer_lossless(tok) ? "yes: any bytes come back as they were" : "no");
    for (size_t i = 0; i < 5; i++) {
        size_t length;
        if (ids[i].id < 0) continue;
        const unsigned char *bytes = tokenizer_token_bytes(tok, (uint32_t)ids[i].id, &length);
        printf("%-14s %d  %.*s\n", ids[i].name, ids[i].id, bytes ? (int)length : 0,
               bytes ? (const char *)bytes : "");
    }
    printf("added to text  %s\n", tokenizer_add_bos(tok)
                                      ? (tokenizer_add_eos(tok) ? "bos, eos" : "bos")
                                      : (tokenizer_add_eos(tok) ? "eos" : "nothing"));
    if (tokenizer_chat_template(tok))
        printf("chat template  %zu bytes\n", strlen(tokenizer_chat_template(tok)));
}

static int run_with_tokenizer(const char *verb, const struct arguments *a, struct err *err) {
    bool info = strcmp(verb, "info") == 0;
    const char *path = a->tokenizer ? a->tokenizer : info && a->file_count ? a->files[0] : NULL;
    if (!path)
        return err_set(err, ERR_USAGE, "%s needs a tokenizer; see weft tokenizer --help", verb);
    if (!info && a->file_count > 1) return err_set(err, ERR_USAGE, "%s takes one file", verb);
    struct tokenizer *tok = tokenizer_load(path, err);
    if (!tok) return -1;
    char *data = NULL;
    size_t size = 0;
    int failed = 0;
    if (info) {
        print_info(tok, a->json);
    } else {
        failed = read_all(a->file_count ? a->files[0] : NULL, &data, &size, err);
        if (!failed)
            failed = strcmp(verb, "encode") == 0 ? run_encode(a, tok, data, size, err)
                                                 : run_decode(a, tok, data, size, err);
    }
    free(data);
    tokenizer_free(tok);
    return failed;
}

int verb_tokenizer(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        fputs(help, argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    const char *verb = argv[1];
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            return 0;
        }
    bool train = strcmp(verb, "train") == 0;
    if (!train && strcmp(verb, "encode") != 0 && strcmp(verb, "decode") != 0 &&
        strcmp(verb, "info") != 0)
        return usage("weft tokenizer: expected train, encode, decode or info, found \"%s\"", verb);
    struct arguments a = {.least_count = 2, .files = calloc((size_t)argc, sizeof(char *))};
    struct err err = {0};
    if (!a.files) return 5;
    int status = parse(argc - 2, argv + 2, &a);
    if (status == 0 && (train ? run_train(&a, &err) : run_with_tokenizer(verb, &a, &err)) != 0)
        status = cli_fail(&err);
    free(a.files);
    return status;
}
