// Writing a text: prompt in, tokens out one by one until enough, an end id, or the context is full.
#pragma once
#include "data/tokenizer.h"
#include "generate/generator.h"
#include "generate/sampler.h"

enum write_end { WRITE_ENOUGH, WRITE_STOP_ID, WRITE_CONTEXT_FULL, WRITE_HALTED };

struct write_request {
    const int32_t *prompt;
    int prompt_count;
    int tokens; // most new tokens; 0: until the end of text or of the context
    struct sampler_options sampler;
    const int32_t *stop_ids; // an end id is not delivered
    int stop_count;
    // Called for each new token; a result other than 0 ends the text (WRITE_HALTED).
    int (*token)(void *context, int32_t id);
    // With `tokenizer`: called with whole UTF-8 characters as soon as they are complete.
    const struct tokenizer *tokenizer;
    int (*text)(void *context, const char *bytes, size_t size);
    void *context; // of both
};

struct write_result {
    enum write_end end;
    int tokens; // new ones, without the end id
    double prompt_seconds, token_seconds;
};

// Begins a new text in `g`. An empty prompt, or one longer than the context, is an error.
int write_text(struct generator *g, const struct write_request *request,
               struct write_result *result, struct err *err);
