// The sampler: borders of every filter, frequencies, and that a choice depends on nothing else.
#include "generate/sampler.h"
#include "test.h"
#include <math.h>
#include <string.h>

static struct sampler *open_with(struct sampler_options options, int vocab) {
    struct err err = {0};
    struct sampler *s = sampler_open(&options, vocab, &err);
    if (!s) test_fail(__FILE__, __LINE__, "sampler_open: %s", err.text);
    return s;
}

// Counts of 20,000 draws.
static void draw(struct sampler_options options, const float *logits, int vocab, int *counts) {
    struct err err = {0};
    struct sampler *s = open_with(options, vocab);
    memset(counts, 0, (size_t)vocab * sizeof *counts);
    for (int i = 0; i < 20000; i++) {
        int32_t id = sampler_pick(s, logits, i, &err);
        CHECK(id >= 0 && id < vocab);
        counts[id]++;
    }
    sampler_close(s);
}

// log of shares, so that softmax gives them back
static const float shares[5] = {0.1f, 0.4f, 0.05f, 0.25f, 0.2f};

static void logits_of_shares(float *logits) {
    for (int i = 0; i < 5; i++) logits[i] = logf(shares[i]) + 3;
}

TEST(sampler_frequencies) {
    float logits[5];
    int counts[5];
    logits_of_shares(logits);
    draw((struct sampler_options){.temperature = 1, .top_p = 1, .seed = 5}, logits, 5, counts);
    for (int i = 0; i < 5; i++) // five deviations of a binomial
        CHECK(fabs(counts[i] / 20000.0 - (double)shares[i]) < 5 * sqrt(0.25 / 20000));
}

TEST(sampler_temperature) {
    const float logits[2] = {0, 0.6931472f};
    int counts[2];
    draw((struct sampler_options){.temperature = 0.5, .top_p = 1}, logits, 2, counts);
    CHECK(fabs(counts[1] / 20000.0 - 0.8) < 0.015); // exp(2 ln 2) / (1 + exp(2 ln 2))
    draw((struct sampler_options){.temperature = 2, .top_p = 1}, logits, 2, counts);
    CHECK(fabs(counts[1] / 20000.0 - sqrt(2) / (1 + sqrt(2))) < 0.02);
    draw((struct sampler_options){.temperature = 0, .top_p = 1}, logits, 2, counts);
    CHECK_EQ_INT(counts[1], 20000);
}

TEST(sampler_top_k) {
    float logits[5];
    int counts[5];
    logits_of_shares(logits);
    struct sampler_options o = {.temperature = 1, .top_p = 1, .top_k = 1};
    draw(o, logits, 5, counts);
    CHECK_EQ_INT(counts[1], 20000);
    o.top_k = 2;
    draw(o, logits, 5, counts);
    CHECK_EQ_INT(counts[1] + counts[3], 20000);
    CHECK(fabs(counts[1] / 20000.0 - 0.4 / 0.65) < 0.02);
    int all[5];
    o.top_k = 5;
    draw(o, logits, 5, counts);
    o.top_k = 0;
    draw(o, logits, 5, all);
    CHECK_BYTES(counts, all, sizeof all);
    o.top_k = 1000; // more than there are: all
    draw(o, logits, 5, counts);
    CHECK_BYTES(counts, all, sizeof all);
}

TEST(sampler_top_p) {
    float logits[5];
    int counts[5];
    logits_of_shares(logits);
    struct sampler_options o = {.temperature = 1, .top_p = 0.39};
    draw(o, logits, 5, counts); // the first token alone reaches it
    CHECK_EQ_INT(counts[1], 20000);
    o.top_p = 0.41; // the token that crosses the border stays
    draw(o, logits, 5, counts);
    CHECK_EQ_INT(counts[1] + counts[3], 20000);
    CHECK(counts[3] > 0);
    o.top_p = 1e-9;
    draw(o, logits, 5, counts);
    CHECK_EQ_INT(counts[1], 20000);
    o.top_p = 0.94;
    draw(o, logits, 5, counts);
    CHECK_EQ_INT(counts[2], 0);
    CHECK(counts[0] > 0);
    o = (struct sampler_options){.temperature = 1, .top_p = 0.6, .top_k = 2};
    draw(o, logits, 5, counts); // of the two left, 0.4 / 0.65 reaches 0.6 alone
    CHECK_EQ_INT(counts[1], 20000);
}

TEST(sampler_is_a_function_of_seed_and_position) {
    struct err err = {0};
    float logits[64];
    for (int i = 0; i < 64; i++) logits[i] = (float)(i % 7) * 0.3f;
    struct sampler *a =
        open_with((struct sampler_options){.temperature = 1, .top_p = 1, .seed = 9}, 64);
    struct sampler *b =
        open_with((struct sampler_options){.temperature = 1, .top_p = 1, .seed = 9}, 64);
    struct sampler *c =
        open_with((struct sampler_options){.temperature = 1, .top_p = 1, .seed = 10}, 64);
    int32_t forward[100];
    int same = 0, repeated = 0;
    for (int i = 0; i < 100; i++) forward[i] = sampler_pick(a, logits, i, &err);
    for (int i = 99; i >= 0; i--) CHECK_EQ_INT(sampler_pick(b, logits, i, &err), forward[i]);
    for (int i = 0; i < 100; i++) {
        same += sampler_pick(c, logits, i, &err) == forward[i];
        repeated += i > 0 && forward[i] == forward[i - 1];
    }
    CHECK(same < 20 && repeated < 20);
    sampler_close(a);
    sampler_close(b);
    sampler_close(c);
}

TEST(sampler_greedy_takes_the_first_of_equals) {
    struct err err = {0};
    const float logits[4] = {1, 3, 3, -INFINITY};
    struct sampler *s = open_with((struct sampler_options){.greedy = true, .top_p = 1}, 4);
    CHECK_EQ_INT(sampler_pick(s, logits, 0, &err), 1);
    sampler_close(s);
}

TEST(sampler_infinite_and_missing_logits) {
    struct err err = {0};
    struct sampler *s = open_with((struct sampler_options){.temperature = 1, .top_p = 0.9}, 3);
    const float one[3] = {-INFINITY, -2, -INFINITY};
    for (int i = 0; i < 50; i++) CHECK_EQ_INT(sampler_pick(s, one, i, &err), 1);
    const float certain[3] = {0, INFINITY, 0};
    CHECK_EQ_INT(sampler_pick(s, certain, 0, &err), 1);
    const float bad[3] = {0, 1, NAN};
    CHECK_EQ_INT(sampler_pick(s, bad, 0, &err), -1);
    CHECK_CONTAINS(err.text, "id 2 is NaN");
    err = (struct err){0};
    const float none[3] = {-INFINITY, -INFINITY, -INFINITY};
    CHECK_EQ_INT(sampler_pick(s, none, 0, &err), -1);
    CHECK_CONTAINS(err.text, "minus infinity");
    sampler_close(s);
}

TEST(sampler_refuses_impossible_options) {
    static const struct {
        struct sampler_options options;
        const char *message;
    } bad[] = {
        {{.temperature = -1, .top_p = 1}, "temperature -1"},
        {{.temperature = NAN, .top_p = 1}, "temperature"},
        {{.temperature = 1, .top_p = 0}, "top-p 0"},
        {{.temperature = 1, .top_p = 1.5}, "top-p 1.5"},
        {{.temperature = 1, .top_p = 1, .top_k = -3}, "top-k -3"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {0};
        CHECK(!sampler_open(&bad[i].options, 10, &err));
        CHECK_CONTAINS(err.text, bad[i].message);
        CHECK_EQ_INT(err_exit_status(&err), 2);
    }
}
