// Counter-based random numbers and permutations, see random.h.
#include "base/random.h"
#include "base/hash.h"
#include <math.h>

// Philox-4x32-10: ten rounds of two 32 x 32 bit products on a block of four words; the key walks by
// the golden ratio and sqrt(3) - 1. Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011.
void random_words(uint64_t key, uint64_t counter, uint32_t words[4]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t x0 = (uint32_t)counter, x1 = (uint32_t)(counter >> 32), x2 = 0, x3 = 0;
    for (int round = 0; round < RANDOM_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)x0 * RANDOM_MULTIPLY_0, p1 = (uint64_t)x2 * RANDOM_MULTIPLY_1;
        x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)p1;
        x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)p0;
        k0 += RANDOM_WALK_0;
        k1 += RANDOM_WALK_1;
    }
    words[0] = x0, words[1] = x1, words[2] = x2, words[3] = x3;
}

// A 64-bit finalizer with full avalanche (the multipliers of SplitMix64).
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t random_key(uint64_t seed, const char *stream) {
    return mix(mix(seed + 0x9E3779B97F4A7C15u) ^ hash_string(stream));
}

static double unit(uint32_t high, uint32_t low) { // 53 bits to [0, 1)
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

double random_uniform(uint64_t key, uint64_t counter) {
    uint32_t w[4];
    random_words(key, counter, w);
    return unit(w[0], w[1]);
}

double random_normal(uint64_t key, uint64_t counter) {
    uint32_t w[4];
    random_words(key, counter, w);
    double radius = sqrt(-2.0 * log(1.0 - unit(w[0], w[1]))); // 1 - u is never 0
    return radius * cos(6.283185307179586476925 * unit(w[2], w[3]));
}

// The index is split into two halves of equal width; each round replaces one half by its XOR with a
// keyed mix of the other, which any function makes a bijection of 0 .. 4^width - 1. Images outside
// the range walk on along their cycle: at most 4 times the range lies in the domain, so a few steps
// on average.
enum { PERMUTE_ROUNDS = 8 };

uint64_t random_permute(uint64_t key, uint64_t index, uint64_t count) {
    if (count < 2) return index;
    unsigned width = 1;
    while (width < 32 && (uint64_t)1 << (2 * width) < count) width++;
    uint64_t mask = ((uint64_t)1 << width) - 1;
    do {
        uint64_t left = index >> width, right = index & mask;
        for (uint64_t round = 0; round < PERMUTE_ROUNDS; round++) {
            uint64_t next = (left ^ mix(key + (right << 4 | round) * 0x9E3779B97F4A7C15u)) & mask;
            left = right;
            right = next;
        }
        index = left << width | right;
    } while (index >= count);
    return index;
}
