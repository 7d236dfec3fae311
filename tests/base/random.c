// Random numbers: the published generator, frozen values, moments, and permutations that are
// permutations.
#include "base/random.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Philox-4x32-10 with all its inputs, written down a second time.
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c[4], k[2] = {key[0], key[1]};
    memcpy(c, counter, sizeof c);
    for (int round = 0; round < 10; round++) {
        uint64_t a = UINT64_C(0xD2511F53) * c[0], b = UINT64_C(0xCD9E8D57) * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9;
        k[1] += 0xBB67AE85;
    }
    memcpy(out, c, sizeof c);
}

TEST(random_known_answers) {
    // the published vectors of the generator
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t out[4];
    for (int i = 0; i < 3; i++) {
        philox(known[i].counter, known[i].key, out);
        CHECK_BYTES(out, known[i].out, sizeof out);
    }
    random_words(0, 0, out);
    CHECK_BYTES(out, known[0].out, sizeof out);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t key = i * UINT64_C(0x123456789abcdef1), counter = i * UINT64_C(0xfedcba9876543211);
        uint32_t expected[4], k[2] = {(uint32_t)key, (uint32_t)(key >> 32)},
                              c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
        philox(c, k, expected);
        random_words(key, counter, out);
        CHECK_BYTES(out, expected, sizeof out);
    }
}

TEST(random_uniform_moments) {
    enum { COUNT = 200000 };
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        double u = random_uniform(3, i);
        CHECK(u >= 0 && u < 1);
        sum += u, squares += u * u;
    }
    CHECK_CLOSE(sum / COUNT, 0.5, 0.003);
    CHECK_CLOSE(squares / COUNT, 1.0 / 3, 0.003);
}

TEST(random_normal_moments) {
    enum { COUNT = 200000 };
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    int beyond_two = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        double x = random_normal(4, i);
        CHECK(isfinite(x));
        m1 += x, m2 += x * x, m3 += x * x * x, m4 += x * x * x * x;
        beyond_two += fabs(x) > 2;
    }
    CHECK_CLOSE(m1 / COUNT, 0, 0.01);
    CHECK_CLOSE(m2 / COUNT, 1, 0.01);
    CHECK_CLOSE(m3 / COUNT, 0, 0.03);
    CHECK_CLOSE(m4 / COUNT, 3, 0.03);
    CHECK_CLOSE((double)beyond_two / COUNT, 0.0455, 0.002);
}

TEST(random_keys_differ) {
    CHECK(random_key(1, "a") != random_key(1, "b"));
    CHECK(random_key(1, "a") != random_key(2, "a"));
    CHECK(random_key(0, "") != 0);
    CHECK_EQ_INT(random_key(1, "a"), random_key(1, "a"));
}

static void check_permutation(uint64_t key, uint64_t count) {
    unsigned char *seen = calloc(count, 1);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t image = random_permute(key, i, count);
        CHECK(image < count);
        CHECK(!seen[image]);
        seen[image] = 1;
    }
    free(seen);
}

TEST(random_permute_is_a_bijection) {
    for (uint64_t count = 1; count <= 300; count++)
        for (uint64_t key = 0; key < 5; key++) check_permutation(key, count);
    static const uint64_t larger[] = {1023,  1024,  1025,  4097,  16384,
                                      16385, 65535, 65536, 65537, 1000003};
    for (int i = 0; i < 10; i++)
        check_permutation(UINT64_C(0xdeadbeefcafe) + (uint64_t)i, larger[i]);
}

// Data order is part of what a resumed run relies on: these values must never change.
TEST(random_permute_is_frozen) {
    static const uint64_t counts[] = {2, 10, 1000, UINT64_C(1) << 33, UINT64_MAX};
    uint64_t digest = 0;
    for (int c = 0; c < 5; c++)
        for (uint64_t i = 0; i < 100; i++) {
            uint64_t index = i % counts[c];
            uint64_t image = random_permute(random_key(42, "order"), index, counts[c]);
            CHECK(image < counts[c]);
            CHECK(image == random_permute(random_key(42, "order"), index, counts[c]));
            digest = digest * 31 + image;
        }
    CHECK_EQ_INT(digest, 5233183308807173317);
}

TEST(random_permute_mixes) {
    // each of 8 elements is first equally often over many keys (chi-square, 7 degrees of freedom, p
    // = 0.001: 24.3)
    enum { KEYS = 8000 };
    int first[8] = {0}, fixed = 0;
    for (uint64_t key = 0; key < KEYS; key++) first[random_permute(random_key(key, "k"), 0, 8)]++;
    double chi = 0;
    for (int i = 0; i < 8; i++)
        chi += (first[i] - KEYS / 8.0) * (first[i] - KEYS / 8.0) / (KEYS / 8.0);
    CHECK(chi < 24.3);
    // neighbours do not stay neighbours
    int near = 0;
    for (uint64_t i = 0; i + 1 < 10000; i++) {
        uint64_t a = random_permute(5, i, 10000), b = random_permute(5, i + 1, 10000);
        near += (a > b ? a - b : b - a) < 10;
        fixed += a == i;
    }
    CHECK(near < 60);  // expected 18
    CHECK(fixed < 10); // expected 1
}
