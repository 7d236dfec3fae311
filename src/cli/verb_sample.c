// weft sample: continues a text.
#include "base/file.h"
#include "cli/cli.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "generate/write.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft sample MODEL [--prompt TEXT | --prompt-file FILE] [options]\n"
    "\n"
    "Continues a text. MODEL is a run folder (its newest checkpoint), a checkpoint, or a Hugging\n"
    "Face folder. Without a prompt the text begins with the tokenizer's BOS token.\n"
    "\n"
    "  --tokens N         most new tokens (200); 0: until the model ends the text or the context\n"
    "                     is full\n"
    "  --temperature T    1: as the model says; lower is more careful (0.8); 0 is greedy\n"
    "  --top-k K          only the K most probable tokens; 0: all (0)\n"
    "  --top-p P          only the most probable tokens that together reach the share P (1)\n"
    "  --greedy           always the most probable token\n"
    "  --seed N           another text for another seed; the same for the same (0)\n"
    "  --precision P      bf16 or f32 (bf16)\n"
    "  --tokenizer PATH   another tokenizer than the one beside the model\n"
    "  --parse-special    special tokens written in the prompt (<|im_start|>) become their ids\n"
    "  --raw-ids          the prompt is ids separated by spaces, and ids are printed\n"
    "  --no-prompt        prints only what is new\n"
    "  --threads N        default: all\n"
    "  --quiet            no figures on standard error\n";

struct sample {
    const char *prompt, *prompt_file, *precision, *tokenizer_path;
    int tokens, threads;
    struct sampler_options sampler;
    bool raw_ids, parse_special, no_prompt, quiet;
    // opened
    struct loaded_model loaded;
    struct tokenizer *tokenizer;
    char *text; // of the prompt
    size_t text_bytes;
    struct token_list ids;
    int32_t stops[MODEL_MAX_STOPS + 2];
    int stop_count;
};

static int read_prompt(struct sample *s, struct err *err) {
    if (s->prompt && s->prompt_file)
        return err_set(err, ERR_USAGE, "sample: give --prompt or --prompt-file, not both");
    if (s->prompt_file) return file_read(s->prompt_file, 0, &s->text, &s->text_bytes, err);
    s->text = strdup(s->prompt ? s->prompt : "");
    if (!s->text) return err_set(err, ERR_MEMORY, "no memory for the prompt");
    s->text_bytes = strlen(s->text);
    return 0;
}

static int parse_ids(struct sample *s, struct err *err) {
    char *at = s->text;
    for (;;) {
        at += strspn(at, " \t\r\n,");
        if (*at == 0) return 0;
        char *end;
        long id = strtol(at, &end, 10);
        if (end == at || id < 0 || id >= s->loaded.source.model->config.vocab)
            return err_set(err, ERR_USAGE, "--raw-ids: \"%.20s\": expected an id from 0 to %d", at,
                           s->loaded.source.model->config.vocab - 1);
        if (token_list_put(&s->ids, (uint32_t)id) != 0)
            return err_set(err, ERR_MEMORY, "no memory for the prompt");
        at = end;
    }
}

static int open_tokenizer(struct sample *s, struct err *err) {
    const struct model_source *source = &s->loaded.source;
    s->tokenizer =
        cli_tokenizer(source->tokenizer, s->tokenizer_path, source->model->config.vocab, err);
    return s->tokenizer ? 0 : -1;
}

static int encode_prompt(struct sample *s, struct err *err) {
    if (open_tokenizer(s, err) != 0) return -1;
    int32_t bos = tokenizer_bos(s->tokenizer);
    bool add_bos = bos >= 0 && (tokenizer_add_bos(s->tokenizer) || s->text_bytes == 0);
    unsigned flags =
        (add_bos ? TOKENIZER_ADD_BOS : 0u) | (s->parse_special ? TOKENIZER_PARSE_SPECIAL : 0u);
    if (s->text_bytes > 0)
        return tokenizer_encode_parallel(s->tokenizer, s->text, s->text_bytes, flags, 1, &s->ids,
                                         NULL, err);
    if (add_bos && token_list_put(&s->ids, (uint32_t)bos) != 0)
        return err_set(err, ERR_MEMORY, "no memory for the prompt");
    return 0;
}

static void put_stop(struct sample *s, int32_t id) {
    if (id >= 0) s->stops[s->stop_count++] = id;
}

static void set_stops(struct sample *s) {
    const struct model_config *c = &s->loaded.source.model->config;
    put_stop(s, c->eos_id);
    for (int i = 0; i < c->stop_count; i++) put_stop(s, c->stop_ids[i]);
    if (s->stop_count == 0 && s->tokenizer) put_stop(s, tokenizer_eos(s->tokenizer));
}

static int put_id(void *context, int32_t id) {
    (void)context;
    printf("%d ", id);
    return fflush(stdout) != 0;
}

static int put_text(void *context, const char *bytes, size_t size) {
    (void)context;
    fwrite(bytes, 1, size, stdout);
    return fflush(stdout) != 0; // nobody reads any more: stop
}

static void report(const struct sample *s, const struct write_result *r) {
    static const char *const ends[] = {"as many as asked for", "the model ended the text",
                                       "the context is full", "nobody reads any more"};
    if (s->quiet) return;
    fprintf(stderr, "%s: %zu tokens read in %.2f s, %d written at %.1f tokens/s: %s\n",
            s->loaded.source.path, s->ids.count, r->prompt_seconds, r->tokens,
            r->token_seconds > 0 ? r->tokens / r->token_seconds : 0.0, ends[r->end]);
}

// The cache is as long as this text needs.
static int context_of(const struct sample *s) {
    int most = s->loaded.source.model->config.context;
    int64_t needed = (int64_t)s->ids.count + s->tokens;
    return s->tokens == 0 || needed > most ? most : needed < 1 ? 1 : (int)needed;
}

static int run(struct sample *s, const char *path, struct err *err) {
    if (read_prompt(s, err) != 0 || model_source_open(&s->loaded.source, path, err) != 0) return -1;
    if ((s->raw_ids ? parse_ids(s, err) : encode_prompt(s, err)) != 0) return -1;
    if (loaded_model_open(&s->loaded, s->precision, context_of(s), s->threads, err) != 0) return -1;
    set_stops(s);
    struct write_request request = {.prompt = (const int32_t *)s->ids.ids,
                                    .prompt_count = (int)s->ids.count,
                                    .tokens = s->tokens,
                                    .sampler = s->sampler,
                                    .stop_ids = s->stops,
                                    .stop_count = s->stop_count};
    if (s->raw_ids) {
        request.token = put_id;
    } else {
        request.tokenizer = s->tokenizer;
        request.text = put_text;
        if (!s->no_prompt) fwrite(s->text, 1, s->text_bytes, stdout);
    }
    struct write_result result;
    if (write_text(s->loaded.generator, &request, &result, err) != 0) return -1;
    printf("\n");
    report(s, &result);
    return 0;
}

int verb_sample(int argc, char **argv) {
    struct sample s = {
        .precision = "bf16", .tokens = 200, .sampler = {.temperature = 0.8, .top_p = 1}};
    const struct option options[] = {
        {"--prompt", OPTION_TEXT, &s.prompt, 0},
        {"--prompt-file", OPTION_TEXT, &s.prompt_file, 0},
        {"--tokens", OPTION_COUNT, &s.tokens, 0},
        {"--temperature", OPTION_NUMBER, &s.sampler.temperature, 0},
        {"--top-k", OPTION_COUNT, &s.sampler.top_k, 0},
        {"--top-p", OPTION_NUMBER, &s.sampler.top_p, 0},
        {"--greedy", OPTION_FLAG, &s.sampler.greedy, 0},
        {"--seed", OPTION_SEED, &s.sampler.seed, 0},
        {"--precision", OPTION_TEXT, &s.precision, 0},
        {"--tokenizer", OPTION_TEXT, &s.tokenizer_path, 0},
        {"--raw-ids", OPTION_FLAG, &s.raw_ids, 0},
        {"--parse-special", OPTION_FLAG, &s.parse_special, 0},
        {"--no-prompt", OPTION_FLAG, &s.no_prompt, 0},
        {"--threads", OPTION_THREADS, &s.threads, 0},
        {"--quiet", OPTION_FLAG, &s.quiet, 0},
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
    if (got == 0 && !path)
        got = err_set(&err, ERR_USAGE, "sample: a model is needed; weft sample --help");
    if (got == 0) got = run(&s, path, &err);
    loaded_model_close(&s.loaded);
    model_source_close(&s.loaded.source);
    tokenizer_free(s.tokenizer);
    token_list_free(&s.ids);
    free(s.text);
    return got == 0 ? 0 : cli_fail(&err);
}
