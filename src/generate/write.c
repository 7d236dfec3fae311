// The loop of generation, see write.h.
#include "generate/write.h"
#include "base/clock.h"

struct writing {
    struct generator *g;
    const struct write_request *request;
    struct sampler *sampler;
    struct tokenizer_stream stream;
    struct text text;
    struct write_result result;
};

static bool is_stop(const struct write_request *r, int32_t id) {
    for (int i = 0; i < r->stop_count; i++)
        if (r->stop_ids[i] == id) return true;
    return false;
}

// Hands on what is complete. 1: the receiver wants no more.
static int flush_text(struct writing *w) {
    if (w->text.size == 0) return 0;
    int halt = w->request->text(w->request->context, w->text.data, w->text.size) != 0;
    w->text.size = 0;
    return halt;
}

// Vocabularies of models are often padded beyond the tokenizer's: such an id is no text.
static bool has_text(const struct tokenizer *tokenizer, int32_t id) {
    size_t length;
    return tokenizer_token_bytes(tokenizer, (uint32_t)id, &length) != NULL;
}

static int hand_over(struct writing *w, int32_t id, struct err *err) {
    const struct write_request *r = w->request;
    int halt = r->token && r->token(r->context, id) != 0;
    if (r->tokenizer && r->text && has_text(r->tokenizer, id)) {
        if (tokenizer_stream_put(r->tokenizer, &w->stream, (uint32_t)id, true, &w->text, err) != 0)
            return -1;
        halt |= flush_text(w);
    }
    return halt;
}

static int write_tokens(struct writing *w, struct err *err) {
    const struct write_request *r = w->request;
    int context = generator_context(w->g);
    w->result.end = WRITE_ENOUGH;
    while (r->tokens == 0 || w->result.tokens < r->tokens) {
        int32_t id = sampler_pick(w->sampler, generator_logits(w->g),
                                  r->prompt_count + w->result.tokens, err);
        if (id < 0) return -1;
        if (is_stop(r, id)) {
            w->result.end = WRITE_STOP_ID;
            return 0;
        }
        w->result.tokens++;
        int halt = hand_over(w, id, err);
        if (halt < 0) return -1;
        if (halt) {
            w->result.end = WRITE_HALTED;
            return 0;
        }
        if (w->result.tokens == r->tokens) return 0;
        if (generator_length(w->g) == context) {
            w->result.end = WRITE_CONTEXT_FULL;
            return 0;
        }
        if (generator_feed(w->g, &id, 1, err) != 0) return -1;
    }
    return 0;
}

static int write_all(struct writing *w, struct err *err) {
    const struct write_request *r = w->request;
    double begin = clock_seconds();
    generator_rewind(w->g, 0);
    if (generator_feed(w->g, r->prompt, r->prompt_count, err) != 0) return -1;
    double read = clock_seconds();
    if (write_tokens(w, err) != 0) return -1;
    w->result.prompt_seconds = read - begin;
    w->result.token_seconds = clock_seconds() - read;
    if (!r->tokenizer || !r->text) return 0;
    if (tokenizer_stream_end(&w->stream, &w->text) != 0)
        return err_set(err, ERR_MEMORY, "no memory for the text");
    flush_text(w);
    return 0;
}

int write_text(struct generator *g, const struct write_request *request,
               struct write_result *result, struct err *err) {
    if (request->prompt_count < 1)
        return err_set(err, ERR_USAGE,
                       "the prompt is empty and the tokenizer has no token that begins a text; "
                       "give a prompt");
    if (request->prompt_count > generator_context(g))
        return err_set(err, ERR_USAGE,
                       "the prompt has %d tokens, but the context holds %d; shorten the prompt",
                       request->prompt_count, generator_context(g));
    struct writing w = {.g = g, .request = request};
    w.sampler = sampler_open(&request->sampler, generator_model(g)->config.vocab, err);
    if (!w.sampler) return -1;
    int status = write_all(&w, err);
    sampler_close(w.sampler);
    text_free(&w.text);
    if (status == 0) *result = w.result;
    return status;
}
