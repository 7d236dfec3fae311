// What benchmarks share: the words they are given, and their micro-batches. See bench.h.
#include "cli/bench.h"
#include "base/random.h"
#include <string.h>

int bench_target_read(struct bench_target *t, int argc, char **argv, const struct option *options,
                      int count, struct err *err) {
    const char *words[BENCH_MOST_SETTINGS + 1];
    int word_count;
    int got =
        options_read(argc, argv, options, count, words, BENCH_MOST_SETTINGS + 1, &word_count, err);
    if (got != 0) return got;
    t->config = NULL;
    t->setting_count = 0;
    for (int i = 0; i < word_count; i++) {
        bool setting = strchr(words[i], '=') != NULL;
        if (!setting && t->config)
            return err_set(err, ERR_USAGE, "%s: \"%s\": expected one CONFIG, then key=value",
                           argv[0], words[i]);
        if (setting && t->setting_count == BENCH_MOST_SETTINGS)
            return err_set(err, ERR_USAGE, "%s: more than %d settings", argv[0],
                           BENCH_MOST_SETTINGS);
        if (setting)
            t->settings[t->setting_count++] = (char *)words[i];
        else
            t->config = words[i];
    }
    if (!t->config)
        return err_set(err, ERR_USAGE,
                       "%s: no configuration given; configs/bench/gpt2-124m.yaml is one", argv[0]);
    return 0;
}

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
