// weft bench tokenizer: how fast text becomes ids, and how fast a vocabulary is learned.
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "data/tokenizer.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: weft bench tokenizer [--tokenizer PATH] [--text FILE] [--seconds S] [--json]\n"
    "\n"
    "Encodes a text again and again on one thread and on all, and prints MB/s (10^6 bytes of text "
    "per second):\n"
    "cold is the first pass with empty caches, warm the fastest later one. Then a vocabulary of "
    "8,192 is learned from the\n"
    "text repeated or cut to 5 MB. Without --text the text is made up of random words whose "
    "frequencies follow Zipf's\n"
    "law, and without --tokenizer the tokenizer is trained on it: figures for comparison with real "
    "ones only.\n";

#define TRAIN_BYTES ((size_t)5000000)

// Words of random letters, drawn as often as Zipf's law says, in sentences and lines.
static int made_text(struct text *out, size_t bytes) {
    enum { WORDS = 20000 };
    uint64_t key = random_key(1, "bench tokenizer");
    if (text_reserve(out, bytes + 64) != 0) return -1;
    for (uint64_t i = 0; out->size < bytes; i++) {
        double u = random_uniform(key, i);
        uint64_t word = (uint64_t)(1.0 / (1.0 - u)) - 1; // rank r with probability 1 / (r (r + 1))
        if (word >= WORDS) word = WORDS - 1;
        uint64_t letters = 2 + random_key(word, "length") % 7;
        char spelled[16];
        for (uint64_t k = 0; k < letters; k++)
            spelled[k] = "etaoinshrdlucmfwypvbgkjqxz"[random_key(word * 16 + k, "letter") % 26];
        if (text_put(out, spelled, letters) != 0) return -1;
        const char *behind = i % 97 == 96 ? ".\n\n" : i % 11 == 10 ? ", " : " ";
        if (text_puts(out, behind) != 0) return -1;
    }
    return 0;
}

struct figures {
    double cold, warm, parallel, train_seconds; // MB/s and seconds
    size_t ids;
};

static int measure_encoding(const struct tokenizer *tok, const char *text, size_t size,
                            double seconds, struct figures *f, struct err *err) {
    struct token_list ids = {0};
    struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, err);
    int failed = !scratch;
    double end = clock_seconds() + seconds;
    for (int pass = 0; !failed && (pass < 3 || clock_seconds() < end); pass++) {
        ids.count = 0;
        double begin = clock_seconds();
        failed = tokenizer_encode(tok, scratch, text, size, TOKENIZER_PLAIN, &ids, err);
        double speed = (double)size / 1e6 / (clock_seconds() - begin);
        if (pass == 0) f->cold = speed;
        if (pass > 0 && speed > f->warm) f->warm = speed;
    }
    f->ids = ids.count;
    for (int pass = 0; !failed && pass < 3; pass++) {
        ids.count = 0;
        double begin = clock_seconds();
        failed = tokenizer_encode_parallel(tok, text, size, TOKENIZER_PLAIN, 0, &ids, NULL, err);
        double speed = (double)size / 1e6 / (clock_seconds() - begin);
        if (speed > f->parallel) f->parallel = speed;
    }
    if (!failed && ids.count != f->ids)
        failed = err_set(err, ERR_INTERNAL, "threads gave other ids");
    tokenizer_scratch_free(scratch);
    token_list_free(&ids);
    return failed ? -1 : 0;
}

static struct tokenizer *train(const char *text, size_t size, double *seconds, struct err *err) {
    struct text repeated = {0};
    while (repeated.size < TRAIN_BYTES) {
        size_t piece = TRAIN_BYTES - repeated.size < size ? TRAIN_BYTES - repeated.size : size;
        if (text_put(&repeated, text, piece) != 0) {
            text_free(&repeated);
            err_set(err, ERR_MEMORY, "no memory for 5 MB of text");
            return NULL;
        }
    }
    struct tokenizer_train_text all = {repeated.data, repeated.size};
    struct tokenizer_train_options options = {.vocab_size = 8192, .split = TOKENIZER_SPLIT_LLAMA3};
    double begin = clock_seconds();
    struct tokenizer *tok = tokenizer_train(&all, 1, &options, err);
    *seconds = clock_seconds() - begin;
    text_free(&repeated);
    return tok;
}

static void print_figures(const struct figures *f, size_t size, uint32_t vocab_size, bool json) {
    if (json) {
        json_t *root =
            json_pack("{s:I, s:I, s:i, s:f, s:f, s:f, s:f}", "text_bytes", (json_int_t)size, "ids",
                      (json_int_t)f->ids, "vocab_size", (int)vocab_size, "cold_mb_per_second",
                      f->cold, "warm_mb_per_second", f->warm, "all_threads_mb_per_second",
                      f->parallel, "train_8192_on_5mb_seconds", f->train_seconds);
        json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        printf("\n");
        json_decref(root);
        return;
    }
    printf("text            %.1f MB, %zu ids, vocabulary %u\n", (double)size / 1e6, f->ids,
           vocab_size);
    printf("one thread      %.1f MB/s warm, %.1f MB/s cold\n", f->warm, f->cold);
    printf("all threads     %.1f MB/s, start of threads and caches included\n", f->parallel);
    printf("training        8,192 tokens on 5 MB in %.2f s\n", f->train_seconds);
}

static int run(const char *tokenizer, const char *path, double seconds, bool json,
               struct err *err) {
    struct text text = {0};
    struct figures f = {0};
    if (path) {
        if (file_read(path, 0, &text.data, &text.size, err) != 0) return -1;
        if (text.size == 0) return err_set(err, ERR_DATA, "%s: the file is empty", path);
    } else if (made_text(&text, TRAIN_BYTES) != 0) {
        return err_set(err, ERR_MEMORY, "no memory for 5 MB of text");
    }
    struct tokenizer *trained = train(text.data, text.size, &f.train_seconds, err);
    struct tokenizer *loaded = trained && tokenizer ? tokenizer_load(tokenizer, err) : NULL;
    int failed = !trained || (tokenizer && !loaded);
    const struct tokenizer *tok = loaded ? loaded : trained;
    if (!failed) failed = measure_encoding(tok, text.data, text.size, seconds, &f, err);
    if (!failed) print_figures(&f, text.size, tokenizer_vocab_size(tok), json);
    tokenizer_free(loaded);
    tokenizer_free(trained);
    text_free(&text);
    return failed ? -1 : 0;
}

int bench_tokenizer(int argc, char **argv) {
    const char *tokenizer = NULL, *path = NULL;
    double seconds = 1;
    bool json = false;
    struct err err = {0};
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--tokenizer") == 0 && more)
            tokenizer = argv[++i];
        else if (strcmp(argv[i], "--text") == 0 && more)
            path = argv[++i];
        else if (strcmp(argv[i], "--seconds") == 0 && more)
            seconds = strtod(argv[++i], NULL);
        else {
            err_set(&err, ERR_USAGE,
                    "bench tokenizer: \"%s\": expected --tokenizer PATH, --text FILE, --seconds S "
                    "or --json",
                    argv[i]);
            return cli_fail(&err);
        }
    }
    return run(tokenizer, path, seconds, json, &err) == 0 ? 0 : cli_fail(&err);
}
