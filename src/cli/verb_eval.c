// weft eval: how well a model predicts a text. The figures are those of docs/definitions.md.
#include "base/clock.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: weft eval MODEL --text FILE [options]\n"
    "\n"
    "Loss per token, perplexity and bits per byte of a text. MODEL is a run folder (its newest\n"
    "checkpoint), a checkpoint, or a Hugging Face folder. The text is read in windows; each token\n"
    "is predicted once, from what stands in front of it in its window.\n"
    "\n"
    "  --context N        tokens of a window (the model's context, at most 4096)\n"
    "  --stride N         distance of windows (half the context); with the whole context windows\n"
    "                     do not overlap, with less each token has more in front of it\n"
    "  --no-bos           no BOS token in front of the text: its first token is not predicted\n"
    "  --parse-special    special tokens written in the text become their ids\n"
    "  --precision P      bf16 or f32 (bf16)\n"
    "  --tokenizer PATH   another tokenizer than the one beside the model\n"
    "  --threads N        default: all\n"
    "  --json             prints one JSON object\n";

enum { USUAL_CONTEXT = 4096 };

struct eval {
    const char *text_path, *precision, *tokenizer_path;
    int context, stride, threads;
    bool no_bos, parse_special, json;
    // opened
    struct loaded_model loaded;
    struct tokenizer *tokenizer;
    struct token_list ids; // with BOS
    size_t bytes;
    uint64_t invalid_bytes;
    bool has_bos;
    // result
    double loss_sum, seconds;
    int64_t predicted;
};

static int read_text(struct eval *e, struct err *err) {
    char *text;
    const struct model_source *source = &e->loaded.source;
    e->tokenizer =
        cli_tokenizer(source->tokenizer, e->tokenizer_path, source->model->config.vocab, err);
    if (!e->tokenizer || file_read(e->text_path, 0, &text, &e->bytes, err) != 0) return -1;
    e->has_bos = !e->no_bos && tokenizer_bos(e->tokenizer) >= 0;
    unsigned flags =
        (e->has_bos ? TOKENIZER_ADD_BOS : 0u) | (e->parse_special ? TOKENIZER_PARSE_SPECIAL : 0u);
    int result = tokenizer_encode_parallel(e->tokenizer, text, e->bytes, flags, e->threads, &e->ids,
                                           &e->invalid_bytes, err);
    free(text);
    if (result != 0) return -1;
    if (e->ids.count < 2)
        return err_set(err, ERR_DATA, "%s: %zu bytes of text hold no token to predict",
                       e->text_path, e->bytes);
    return 0;
}

static int set_windows(struct eval *e, struct err *err) {
    int most = e->loaded.source.model->config.context;
    if (e->context == 0) e->context = most < USUAL_CONTEXT ? most : USUAL_CONTEXT;
    if (e->context > most)
        return err_set(err, ERR_USAGE, "--context %d is longer than the model's, which is %d",
                       e->context, most);
    if (e->stride == 0) e->stride = e->context > 1 ? e->context / 2 : 1;
    if (e->stride > e->context)
        return err_set(err, ERR_USAGE,
                       "--stride %d is longer than the context of %d: tokens would be left out",
                       e->stride, e->context);
    return 0;
}

static void show_progress(const struct eval *e, double begin) {
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%lld of %zu tokens, loss %.4f, %.0f tokens/s ", (long long)e->predicted,
            e->ids.count, e->loss_sum / (double)e->predicted,
            (double)e->predicted / (clock_seconds() - begin));
}

// Input `at` of a window predicts id `at` + 1. Windows begin a stride apart; what an earlier one
// has scored is only read.
static int score(struct eval *e, float *losses, struct err *err) {
    const int32_t *ids = (const int32_t *)e->ids.ids;
    int64_t inputs = (int64_t)e->ids.count - 1, scored = 0;
    double begin = clock_seconds();
    for (int64_t first = 0; scored < inputs; first += e->stride) {
        int64_t end = first + e->context < inputs ? first + e->context : inputs;
        struct generator *g = e->loaded.generator;
        generator_rewind(g, 0);
        if (scored > first && generator_feed(g, ids + first, (int)(scored - first), err) != 0)
            return -1;
        int count = (int)(end - scored);
        if (generator_score(g, ids + scored, ids + scored + 1, count, losses, err) != 0) return -1;
        for (int i = 0; i < count; i++) e->loss_sum += (double)losses[i];
        scored = e->predicted = end;
        show_progress(e, begin);
    }
    e->seconds = clock_seconds() - begin;
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%60s\r", "");
    if (!isfinite(e->loss_sum))
        return err_set(err, ERR_DATA, "%s: the loss is not a number; the weights are damaged",
                       e->loaded.source.path);
    return 0;
}

static int print_json(const struct eval *e, double loss, double bits, int64_t tokens,
                      struct err *err) {
    json_t *o = json_pack("{s:s, s:s, s:f, s:f, s:f, s:I, s:I, s:I, s:i, s:i, s:b, s:s, s:f}",
                          "model", e->loaded.source.path, "text", e->text_path, "loss", loss,
                          "perplexity", exp(loss), "bits_per_byte", bits, "tokens",
                          (json_int_t)tokens, "predicted_tokens", (json_int_t)e->predicted, "bytes",
                          (json_int_t)e->bytes, "context", e->context, "stride", e->stride, "bos",
                          (int)e->has_bos, "precision", e->precision, "seconds", e->seconds);
    char *text = o ? json_dumps(o, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(o);
    if (!text) return err_set(err, ERR_MEMORY, "no memory for the result");
    puts(text);
    free(text);
    return 0;
}

static int print_result(const struct eval *e, struct err *err) {
    int64_t tokens = (int64_t)e->ids.count - e->has_bos;
    double loss = e->loss_sum / (double)e->predicted;
    double bits = loss / log(2) * (double)tokens / (double)e->bytes;
    if (e->invalid_bytes > 0)
        fprintf(stderr, "weft: %s: %llu bytes are not valid UTF-8 and were taken as bytes\n",
                e->text_path, (unsigned long long)e->invalid_bytes);
    if (e->json) return print_json(e, loss, bits, tokens, err);
    printf("model          %s, %s\n"
           "text           %s: %zu bytes, %lld tokens, %lld predicted\n"
           "windows        %d tokens, %d apart%s\n"
           "loss           %.5f nats per token\n"
           "perplexity     %.3f per token\n"
           "bits per byte  %.4f\n"
           "time           %.1f s, %.0f tokens/s\n",
           e->loaded.source.path, e->precision, e->text_path, e->bytes, (long long)tokens,
           (long long)e->predicted, e->context, e->stride, e->has_bos ? ", BOS in front" : "", loss,
           exp(loss), bits, e->seconds, (double)e->predicted / e->seconds);
    return 0;
}

static int run(struct eval *e, const char *path, struct err *err) {
    if (model_source_open(&e->loaded.source, path, err) != 0 || set_windows(e, err) != 0 ||
        read_text(e, err) != 0 ||
        loaded_model_open(&e->loaded, e->precision, e->context, e->threads, err) != 0)
        return -1;
    float *losses = malloc((size_t)e->context * sizeof *losses);
    if (!losses) return err_set(err, ERR_MEMORY, "no memory for the losses");
    int result = score(e, losses, err);
    free(losses);
    return result == 0 ? print_result(e, err) : -1;
}

int verb_eval(int argc, char **argv) {
    struct eval e = {.precision = "bf16"};
    const struct option options[] = {
        {"--text", OPTION_TEXT, &e.text_path, 0},
        {"--context", OPTION_COUNT, &e.context, 1},
        {"--stride", OPTION_COUNT, &e.stride, 1},
        {"--no-bos", OPTION_FLAG, &e.no_bos, 0},
        {"--parse-special", OPTION_FLAG, &e.parse_special, 0},
        {"--precision", OPTION_TEXT, &e.precision, 0},
        {"--tokenizer", OPTION_TEXT, &e.tokenizer_path, 0},
        {"--threads", OPTION_THREADS, &e.threads, 0},
        {"--json", OPTION_FLAG, &e.json, 0},
    };
    struct err err = {0};
    const char *path = NULL;
    int words;
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], &path, 1,
                           &words, &err);
    if (got > 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (got == 0 && (!path || !e.text_path))
        got =
            err_set(&err, ERR_USAGE, "eval: a model and --text FILE are needed; weft eval --help");
    if (got == 0) got = run(&e, path, &err);
    loaded_model_close(&e.loaded);
    model_source_close(&e.loaded.source);
    tokenizer_free(e.tokenizer);
    token_list_free(&e.ids);
    return got == 0 ? 0 : cli_fail(&err);
}
