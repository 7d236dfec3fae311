// The loop that writes, with a model that recites a given script: where it ends, what it hands over
// and when, and what it refuses.
#include "generate/write.h"
#include "model/families.h"
#include "models.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

enum { SCRIPT_CONTEXT = 64, SCRIPT_VOCAB = 320 };

// Learned positions alone decide: position p is a one-hot vector, and the head's column p points at
// script[p + 1].
static void fill_script(struct generator *g, const int32_t *script, int count) {
    const struct model *m = generator_model(g);
    struct err err = {0};
    for (int i = 0; i < m->param_count; i++) {
        const struct param *p = &m->params[i];
        float *values = calloc((size_t)param_elements(p), sizeof *values);
        CHECK(values);
        if (p->role == PARAM_POSITION)
            for (int k = 0; k < SCRIPT_CONTEXT; k++) values[k * SCRIPT_CONTEXT + k] = 1;
        if (p->role == PARAM_FINAL_NORM)
            for (int k = 0; k < SCRIPT_CONTEXT; k++) values[k] = 1;
        if (p->role == PARAM_HEAD)
            for (int k = 0; k + 1 < count; k++) values[script[k + 1] * SCRIPT_CONTEXT + k] = 10;
        CHECK_OK(generator_set_param(g, i, values, &err), err);
        free(values);
    }
    generator_weights_changed(g);
}

static void open_script(struct tiny *t, const int32_t *script, int count) {
    struct err err = {0};
    struct model_config c;
    model_family_defaults(FAMILY_GPT2, &c);
    c.layers = 1, c.heads = c.kv_heads = 4, c.head_dim = 16, c.ffn = 64;
    c.hidden = c.context = SCRIPT_CONTEXT;
    c.vocab = SCRIPT_VOCAB;
    c.tied_head = false;
    CHECK_OK(model_describe(&t->model, &c, &err), err);
    CHECK_OK(device_cpu_open(&t->device, &(struct device_cpu_options){0}, &err), err);
    t->g = generator_open(&t->model, &t->device, &(struct generator_options){.compute = DTYPE_F32},
                          &err);
    if (!t->g) test_fail(__FILE__, __LINE__, "generator_open: %s", err.text);
    fill_script(t->g, script, count);
}

struct heard {
    int32_t ids[SCRIPT_CONTEXT + 1];
    int count;
    char text[1000];
    size_t size;
    int pieces;
    int halt_after; // tokens; 0: never
};

static int hear_token(void *context, int32_t id) {
    struct heard *h = context;
    h->ids[h->count++] = id;
    return h->count == h->halt_after;
}

static int hear_text(void *context, const char *bytes, size_t size) {
    struct heard *h = context;
    CHECK(size > 0);
    CHECK_EQ_INT(text_utf8_valid_prefix(bytes, size), size); // whole characters only
    memcpy(h->text + h->size, bytes, size);
    h->size += size;
    h->pieces++;
    return 0;
}

static struct write_request request_of(const int32_t *prompt, int count, struct heard *h) {
    return (struct write_request){.prompt = prompt,
                                  .prompt_count = count,
                                  .sampler = {.greedy = true, .top_p = 1},
                                  .token = hear_token,
                                  .context = h};
}

static void script_numbers(int32_t *script) {
    for (int i = 0; i < SCRIPT_CONTEXT; i++) script[i] = (i * 37 + 11) % SCRIPT_VOCAB;
}

TEST(write_as_many_as_asked) {
    int32_t script[SCRIPT_CONTEXT];
    script_numbers(script);
    struct tiny t;
    open_script(&t, script, SCRIPT_CONTEXT);
    struct err err = {0};
    struct heard h = {0};
    struct write_result result;
    struct write_request request = request_of(script, 5, &h);
    request.tokens = 12;
    CHECK_OK(write_text(t.g, &request, &result, &err), err);
    CHECK_EQ_INT(result.end, WRITE_ENOUGH);
    CHECK_EQ_INT(result.tokens, 12);
    CHECK_EQ_INT(h.count, 12);
    CHECK_BYTES(h.ids, script + 5, 12 * sizeof *script);
    struct heard again = {0}; // a second text in the same generator starts afresh
    request.context = &again;
    CHECK_OK(write_text(t.g, &request, &result, &err), err);
    CHECK_BYTES(again.ids, h.ids, sizeof h.ids);
    tiny_close(&t);
}

TEST(write_stops_at_any_end_id) {
    int32_t script[SCRIPT_CONTEXT];
    script_numbers(script);
    struct tiny t;
    open_script(&t, script, SCRIPT_CONTEXT);
    struct err err = {0};
    struct heard h = {0};
    struct write_result result;
    const int32_t stops[2] = {script[30], script[9]};
    struct write_request request = request_of(script, 3, &h);
    request.stop_ids = stops, request.stop_count = 2;
    CHECK_OK(write_text(t.g, &request, &result, &err), err);
    CHECK_EQ_INT(result.end, WRITE_STOP_ID);
    CHECK_EQ_INT(result.tokens, 6); // 3 .. 8; the end id itself is not delivered
    CHECK_EQ_INT(h.count, 6);
    tiny_close(&t);
}

TEST(write_until_the_context_is_full) {
    int32_t script[SCRIPT_CONTEXT];
    script_numbers(script);
    struct tiny t;
    open_script(&t, script, SCRIPT_CONTEXT);
    struct err err = {0};
    struct heard h = {0};
    struct write_result result;
    struct write_request request = request_of(script, 60, &h);
    request.tokens = 100;
    CHECK_OK(write_text(t.g, &request, &result, &err), err);
    CHECK_EQ_INT(result.end, WRITE_CONTEXT_FULL);
    CHECK_EQ_INT(result.tokens, 5); // four that fit, and one predicted behind the last
    CHECK_BYTES(h.ids, script + 60, 4 * sizeof *script);
    h = (struct heard){0};
    request.prompt_count = SCRIPT_CONTEXT;
    CHECK_OK(write_text(t.g, &request, &result, &err), err);
    CHECK_EQ_INT(result.tokens, 1);
    tiny_close(&t);
}

TEST(write_receiver_ends_it) {
    int32_t script[SCRIPT_CONTEXT];
    script_numbers(script);
    struct tiny t;
    open_script(&t, script, SCRIPT_CONTEXT);
    struct err err = {0};
    struct heard h = {.halt_after = 4};
    struct write_result result;
    struct write_request request = request_of(script, 2, &h);
    CHECK_OK(write_text(t.g, &request, &result, &err), err);
    CHECK_EQ_INT(result.end, WRITE_HALTED);
    CHECK_EQ_INT(h.count, 4);
    tiny_close(&t);
}

TEST(write_refuses_prompts_that_cannot_be) {
    int32_t script[SCRIPT_CONTEXT + 1] = {0};
    struct tiny t;
    open_script(&t, script, SCRIPT_CONTEXT);
    struct err err = {0};
    struct heard h = {0};
    struct write_result result;
    struct write_request request = request_of(script, 0, &h);
    CHECK_EQ_INT(write_text(t.g, &request, &result, &err), -1);
    CHECK_CONTAINS(err.text, "prompt is empty");
    err = (struct err){0};
    request.prompt_count = SCRIPT_CONTEXT + 1;
    CHECK_EQ_INT(write_text(t.g, &request, &result, &err), -1);
    CHECK_CONTAINS(err.text, "65 tokens, but the context holds 64");
    CHECK_EQ_INT(err_exit_status(&err), 2);
    CHECK_EQ_INT(h.count, 0);
    tiny_close(&t);
}

TEST(write_same_seed_same_text) {
    struct err err = {0};
    struct tiny t;
    tiny_open(&t, TINY_LLAMA, DTYPE_BF16, 16, 0);
    int32_t prompt[4] = {1, 2, 3, 4};
    struct heard h[3] = {{{0}, 0, {0}, 0, 0, 0}};
    struct write_result result;
    for (int i = 0; i < 3; i++) {
        struct write_request request = request_of(prompt, 4, &h[i]);
        request.sampler =
            (struct sampler_options){.temperature = 1, .top_p = 0.95, .seed = 1 + i / 2};
        request.tokens = 30;
        CHECK_OK(write_text(t.g, &request, &result, &err), err);
    }
    CHECK_BYTES(h[0].ids, h[1].ids, 30 * sizeof(int32_t));
    CHECK(memcmp(h[0].ids, h[2].ids, 30 * sizeof(int32_t)) != 0);
    // going on from the middle of the text gives the rest of it
    int32_t longer[14];
    memcpy(longer, prompt, sizeof prompt);
    memcpy(longer + 4, h[0].ids, 10 * sizeof(int32_t));
    struct heard rest = {0};
    struct write_request request = request_of(longer, 14, &rest);
    request.sampler = (struct sampler_options){.temperature = 1, .top_p = 0.95, .seed = 1};
    request.tokens = 20;
    CHECK_OK(write_text(t.g, &request, &result, &err), err);
    CHECK_BYTES(rest.ids, h[0].ids + 10, 20 * sizeof(int32_t));
    tiny_close(&t);
}

static struct tokenizer *byte_tokenizer(void) {
    struct err err = {0};
    static const char *const specials[] = {"<|endoftext|>"};
    struct tokenizer_train_text text = {"x", 1};
    struct tokenizer_train_options options = {
        .vocab_size = 257, .specials = specials, .special_count = 1};
    struct tokenizer *tok = tokenizer_train(&text, 1, &options, &err);
    if (!tok) test_fail(__FILE__, __LINE__, "tokenizer_train: %s", err.text);
    return tok;
}

// Recites `bytes` one byte a token and returns what arrived as text.
static void recite(const char *bytes, struct heard *h) {
    struct err err = {0};
    struct tokenizer *tok = byte_tokenizer();
    struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, &err);
    struct token_list list = {0};
    CHECK(scratch);
    CHECK_OK(tokenizer_encode(tok, scratch, "a", 1, 0, &list, &err), err); // the prompt
    CHECK_OK(tokenizer_encode(tok, scratch, bytes, strlen(bytes), 0, &list, &err), err);
    CHECK_EQ_INT(list.count, strlen(bytes) + 1);
    CHECK(list.count <= SCRIPT_CONTEXT);
    struct tiny t;
    open_script(&t, (const int32_t *)list.ids, (int)list.count);
    struct write_result result;
    struct write_request request = request_of((const int32_t *)list.ids, 1, h);
    request.tokens = (int)strlen(bytes);
    request.tokenizer = tok;
    request.text = hear_text;
    CHECK_OK(write_text(t.g, &request, &result, &err), err);
    tiny_close(&t);
    token_list_free(&list);
    tokenizer_scratch_free(scratch);
    tokenizer_free(tok);
}

TEST(write_text_holds_split_characters_back) {
    static const char bytes[] = "h\xC3\xA9! \xE2\x82\xAC \xF0\x9F\x98\x80.";
    struct heard h = {0};
    recite(bytes, &h);
    CHECK_STR(h.text, bytes);
    CHECK_EQ_INT(h.pieces, 8); // one for each character
}

TEST(write_text_replaces_what_is_no_character) {
    struct heard h = {0};
    recite("a\xFF"
           "b\xE2"
           "c",
           &h);
    CHECK_STR(h.text, "a\xEF\xBF\xBD"
                      "b\xEF\xBF\xBD"
                      "c");
    h = (struct heard){0};
    recite("ok\xF0", &h); // the text ends inside a character
    CHECK_STR(h.text, "ok\xEF\xBF\xBD");
}

TEST(write_text_passes_over_ids_without_text) { // a vocabulary padded beyond the tokenizer's
    struct err err = {0};
    struct tokenizer *tok = byte_tokenizer();
    struct heard h = {0};
    struct tiny t;
    int32_t script[] = {1 + 'a' - '!', 300, 1 + 'b' - '!', 319};
    CHECK(tokenizer_vocab_size(tok) < 300);
    open_script(&t, script, 4);
    struct write_result result;
    struct write_request request = request_of(script, 1, &h);
    request.tokens = 3;
    request.tokenizer = tok;
    request.text = hear_text;
    CHECK_OK(write_text(t.g, &request, &result, &err), err);
    CHECK_STR(h.text, "b");
    CHECK_EQ_INT(result.tokens, 3);
    tiny_close(&t);
    tokenizer_free(tok);
}
