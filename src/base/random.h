// Random numbers as pure functions of (key, counter): no state to save, no order to keep, the same
// for any number of ranks and threads. Philox-4x32-10 (Salmon et al. 2011) makes the words; a
// Feistel network over the next power of four with cycle walking makes a permutation of any range
// in O(1) memory.
#pragma once
#include <stdint.h>

// Constants of Philox-4x32-10, for kernels that make many blocks at once.
#define RANDOM_ROUNDS 10
#define RANDOM_MULTIPLY_0 0xD2511F53u
#define RANDOM_MULTIPLY_1 0xCD9E8D57u
#define RANDOM_WALK_0 0x9E3779B9u
#define RANDOM_WALK_1 0xBB67AE85u

void random_words(uint64_t key, uint64_t counter, uint32_t words[4]);
uint64_t random_key(uint64_t seed,
                    const char *stream); // mixes a seed and a name, e.g. a parameter's
double random_uniform(uint64_t key, uint64_t counter); // [0, 1)
double random_normal(uint64_t key, uint64_t counter);  // mean 0, deviation 1 (Box-Muller)

// Elements first .. first + count - 1 of the infinite row of normal deviates that `key` names, as
// floats; about four times as fast as random_normal, and another row than its. The values do not
// depend on `first` or `count`.
void random_normals(uint64_t key, uint64_t first, uint64_t count, float *out);

// Image of `index` under the permutation of 0..count-1 that `key` names. index < count.
uint64_t random_permute(uint64_t key, uint64_t index, uint64_t count);
