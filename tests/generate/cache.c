// The cache changes no value: tokens one by one, in any pieces, or all at once give the same
// logits.
#include "models.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 40 };

static float whole[TOKENS * TINY_VOCAB], pieces[TOKENS * TINY_VOCAB];

static double largest_difference(int count) {
    double most = 0;
    for (int i = 0; i < count; i++) most = fmax(most, fabs((double)whole[i] - (double)pieces[i]));
    return most;
}

static double spread(int count) { // a model that says the same for everything would prove nothing
    double least = 1e9, most = -1e9;
    for (int i = 0; i < count; i++) {
        least = fmin(least, (double)whole[i]);
        most = fmax(most, (double)whole[i]);
    }
    return most - least;
}

static void compare_pieces(enum dtype type, double tolerance) {
    struct err err = {0};
    int32_t ids[TOKENS];
    tiny_tokens(1, TOKENS, ids);
    for (int kind = 0; kind < TINY_COUNT; kind++) {
        struct tiny t;
        tiny_open(&t, (enum tiny_kind)kind, type, TOKENS, 0);
        CHECK_OK(generator_feed_all(t.g, ids, TOKENS, whole, &err), err);
        CHECK(spread(TOKENS * TINY_VOCAB) > 1);
        generator_rewind(t.g, 0);
        for (int i = 0; i < TOKENS; i++) {
            CHECK_OK(generator_feed(t.g, &ids[i], 1, &err), err);
            memcpy(pieces + i * TINY_VOCAB, generator_logits(t.g), TINY_VOCAB * 4);
        }
        CHECK_EQ_INT(generator_length(t.g), TOKENS);
        CHECK_CLOSE(largest_difference(TOKENS * TINY_VOCAB), 0, tolerance);
        // back to the middle and on with other pieces
        generator_rewind(t.g, 17);
        CHECK_OK(generator_feed_all(t.g, ids + 17, 9, pieces + 17 * TINY_VOCAB, &err), err);
        CHECK_OK(generator_feed_all(t.g, ids + 26, 14, pieces + 26 * TINY_VOCAB, &err), err);
        CHECK_CLOSE(largest_difference(TOKENS * TINY_VOCAB), 0, tolerance);
        tiny_close(&t);
        tiny_open(&t, (enum tiny_kind)kind, type, 3, 0); // passes of three tokens and one
        CHECK_OK(generator_feed_all(t.g, ids, TOKENS, pieces, &err), err);
        CHECK_CLOSE(largest_difference(TOKENS * TINY_VOCAB), 0, tolerance);
        tiny_close(&t);
    }
}

TEST(cache_equals_full_forward_f32) {
    compare_pieces(DTYPE_F32, 1e-5);
}

TEST(cache_equals_full_forward_bf16) {
    compare_pieces(DTYPE_BF16, 0.15);
}

TEST(cache_earlier_tokens_matter) {
    struct err err = {0};
    int32_t ids[TOKENS];
    tiny_tokens(1, TOKENS, ids);
    for (int kind = 0; kind < TINY_COUNT; kind++) {
        struct tiny t;
        tiny_open(&t, (enum tiny_kind)kind, DTYPE_F32, 8, 0);
        CHECK_OK(generator_feed_all(t.g, ids, TOKENS, whole, &err), err);
        generator_rewind(t.g, 0);
        ids[0] = (ids[0] + 1) % TINY_VOCAB;
        CHECK_OK(generator_feed_all(t.g, ids, TOKENS, pieces, &err), err);
        CHECK(largest_difference(TINY_VOCAB) > 1e-3); // first token
        double late = 0;
        for (int i = (TOKENS - 1) * TINY_VOCAB; i < TOKENS * TINY_VOCAB; i++)
            late = fmax(late, fabs((double)whole[i] - (double)pieces[i]));
        CHECK(late > 1e-6); // the last one still sees it
        tiny_close(&t);
    }
}

TEST(cache_threads_change_no_bit) {
    struct err err = {0};
    int32_t ids[TOKENS];
    tiny_tokens(2, TOKENS, ids);
    for (int kind = 0; kind < TINY_COUNT; kind++) {
        struct tiny t;
        tiny_open(&t, (enum tiny_kind)kind, DTYPE_BF16, 16, 1);
        CHECK_OK(generator_feed_all(t.g, ids, TOKENS, whole, &err), err);
        tiny_close(&t);
        tiny_open(&t, (enum tiny_kind)kind, DTYPE_BF16, 16, 2);
        CHECK_OK(generator_feed_all(t.g, ids, TOKENS, pieces, &err), err);
        tiny_close(&t);
        CHECK_BYTES(pieces, whole, sizeof whole);
    }
}

TEST(cache_scores_are_losses_of_the_logits) {
    struct err err = {0};
    int32_t ids[TOKENS + 1], targets[TOKENS];
    float losses[TOKENS];
    tiny_tokens(3, TOKENS + 1, ids);
    memcpy(targets, ids + 1, sizeof targets);
    targets[5] = -1;
    struct tiny t;
    tiny_open(&t, TINY_LLAMA, DTYPE_F32, 16, 0);
    CHECK_OK(generator_feed_all(t.g, ids, TOKENS, whole, &err), err);
    generator_rewind(t.g, 0);
    CHECK_OK(generator_score(t.g, ids, targets, TOKENS, losses, &err), err);
    for (int i = 0; i < TOKENS; i++) {
        const float *row = whole + i * TINY_VOCAB;
        double sum = 0;
        for (int v = 0; v < TINY_VOCAB; v++) sum += exp((double)row[v]);
        double loss = targets[i] < 0 ? 0 : log(sum) - (double)row[targets[i]];
        CHECK_CLOSE(losses[i], loss, 1e-5);
    }
    tiny_close(&t);
}

TEST(cache_plan_is_what_is_taken) {
    struct tiny t;
    tiny_open(&t, TINY_QWEN3, DTYPE_BF16, 0, 0);
    const struct memory_plan *plan = generator_memory(t.g);
    CHECK_EQ_INT(generator_allocated_bytes(t.g), plan->total_bytes);
    uint64_t sum = 0;
    for (int i = 0; i < plan->count; i++) sum += plan->buffers[i].bytes;
    CHECK_EQ_INT(sum, plan->total_bytes);
    // two layers of keys and values, bf16
    CHECK_EQ_INT(memory_plan_kind_bytes(plan, BUFFER_ACTIVATION), 2 * TINY_CONTEXT * 2 * 16 * 2);
    tiny_close(&t);
}

TEST(cache_bad_input) {
    struct err err = {0};
    struct tiny t;
    tiny_open(&t, TINY_GPT2, DTYPE_F32, 8, 0);
    int32_t ids[TINY_CONTEXT + 1];
    tiny_tokens(4, TINY_CONTEXT + 1, ids);
    CHECK_EQ_INT(generator_feed(t.g, ids, TINY_CONTEXT + 1, &err), -1);
    CHECK_CONTAINS(err.text, "do not fit into the context of 48");
    CHECK_OK(generator_feed(t.g, ids, TINY_CONTEXT, &err), err);
    err = (struct err){0};
    CHECK_EQ_INT(generator_feed(t.g, ids, 1, &err), -1);
    CHECK_CONTAINS(err.text, "1 tokens behind the 48");
    generator_rewind(t.g, 0);
    ids[1] = TINY_VOCAB;
    err = (struct err){0};
    CHECK_EQ_INT(generator_feed(t.g, ids, 2, &err), -1);
    CHECK_CONTAINS(err.text, "vocabulary has 70 ids");
    CHECK_EQ_INT(generator_length(t.g), 0); // refused before anything was read
    float *values = calloc(TINY_VOCAB * 32, sizeof *values);
    CHECK(values);
    values[33] = NAN;
    err = (struct err){0};
    CHECK_EQ_INT(generator_set_param(t.g, 0, values, &err), -1);
    CHECK_CONTAINS(err.text, "embedding.weight: element 33 is");
    free(values);
    struct generator_options long_context = {.compute = DTYPE_F32, .context = TINY_CONTEXT + 1};
    err = (struct err){0};
    CHECK(!generator_open(&t.model, &t.device, &long_context, &err));
    CHECK_CONTAINS(err.text, "49 positions is longer than the model's, which is 48");
    struct generator_options type = {.compute = DTYPE_F16};
    err = (struct err){0};
    CHECK(!generator_open(&t.model, &t.device, &type, &err));
    CHECK_CONTAINS(err.text, "expected bf16 or f32");
    tiny_close(&t);
}
