// Micro-batches of benchmarks. See bench.h.
#include "base/random.h"
#include "cli/bench.h"

void bench_fill_batch(struct batch *b, int vocab, uint64_t seed) {
    uint64_t key = random_key(seed, "bench");
    b->attended_pairs = 0;
    for (int32_t i = 0; i < b->tokens; i++) {
        int32_t at = i % b->context;
        b->input[i] = (int32_t)(random_uniform(key, (uint64_t)i) * vocab);
        b->target[i] = (int32_t)(random_uniform(key, (uint64_t)i + 1) * vocab);
        b->position[i] = at;
        b->attend_from[i] = i - at;
        b->attend_to[i] = i + 1;
        b->attended_pairs += at + 1;
    }
    b->counted = b->non_pad = b->tokens;
}
