// weft bench loader: how many tokens a second reader threads lay out in micro-batches, in each mode
// and order; how long a seek and a packing plan take.
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "base/text.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/shard_write.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: weft bench loader [options] [--json]\n"
    "\n"
    "  --data PATH      a data set; default: 32M tokens made up in a temporary folder\n"
    "  --context N      positions per sample; default 1024\n"
    "  --rows N         samples per micro-batch; default 8\n"
    "  --readers N      threads; default 1\n"
    "  --seconds X      of each measurement; default 1\n"
    "\n"
    "The caller only takes the micro-batches: what is measured is the most that training could be "
    "fed.\n";

enum { MADE_TOKENS = 32 << 20, MADE_VOCAB = 50257, MADE_SHARDS = 4, SEEKS = 200 };

struct settings {
    const char *data;
    int context, rows, readers;
    double seconds;
    bool json;
};

struct measured {
    const char *mode, *order;
    double tokens_per_second, seek_seconds, open_seconds, fill;
    uint64_t samples;
};

// Lengths as in web text: half of the documents below 400 tokens, the mean near 700, a long tail.
static int make_shard(const char *path, uint64_t key, struct err *err) {
    struct shard_info like = {.kind = SHARD_WEFT, .vocab_size = MADE_VOCAB, .eod = 0, .bos = -1},
                      info;
    struct shard_writer *w = malloc(sizeof *w);
    uint32_t *ids = malloc(65536 * sizeof *ids);
    int result = w && ids ? shard_writer_open(w, path, &like, err)
                          : err_set(err, ERR_MEMORY, "no memory for a made-up shard");
    bool open = result == 0;
    for (uint64_t d = 0; result == 0 && w->info.tokens < MADE_TOKENS / MADE_SHARDS; d++) {
        double length = 400 * exp(random_normal(key, d));
        size_t count = length < 2 ? 2 : length > 65536 ? 65536 : (size_t)length;
        uint64_t state = key ^ d;
        for (size_t i = 0; i < count; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (uint32_t)((state >> 33) % MADE_VOCAB);
        }
        result = shard_writer_document(w, ids, count, 0, err);
    }
    if (result == 0)
        result = shard_writer_close(w, &info, err);
    else if (open)
        shard_writer_abandon(w);
    free(w);
    free(ids);
    return result;
}

static int make_data(char folder[4096], struct err *err) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, 4096, "%.4000s/weft-bench-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder)) return err_set_errno(err, "%s: cannot make a temporary folder", folder);
    for (int i = 0; i < MADE_SHARDS; i++) {
        char name[32], path[4096];
        snprintf(name, sizeof name, "%d" SHARD_SUFFIX, i);
        if (file_join(path, sizeof path, folder, name, err) != 0 ||
            make_shard(path, random_key(1, name), err) != 0)
            return -1;
    }
    return 0;
}

static int run_steps(struct loader *loader, const struct settings *s, struct measured *m,
                     struct err *err) {
    struct batch *const *batches;
    uint64_t sample = 0, tokens = 0, filled = 0, rows = (uint64_t)s->rows;
    double begin = 0, end;
    for (int warm = 0; warm < 2; warm++) // the first pass maps shards
        for (begin = end = clock_seconds(), tokens = filled = 0;
             end - begin < (warm ? s->seconds : 0.1); end = clock_seconds(), sample += rows) {
            if (loader_step(loader, sample, &batches, err) != 0) return -1;
            tokens += (uint64_t)batches[0]->tokens;
            filled += (uint64_t)batches[0]->non_pad;
        }
    m->tokens_per_second = (double)tokens / (end - begin);
    m->fill = (double)filled / (double)tokens;
    begin = clock_seconds();
    for (uint64_t i = 0; i < SEEKS; i++)
        if (loader_step(loader, (i * 7919 + 13) * 1000 * rows, &batches, err) != 0) return -1;
    m->seek_seconds = (clock_seconds() - begin) / SEEKS;
    return 0;
}

static int measure(const struct settings *s, enum loader_mode mode, enum loader_shuffle shuffle,
                   struct measured *m, struct err *err) {
    struct loader_options o = {.sets = {{s->data, 1}},
                               .set_count = 1,
                               .context = s->context,
                               .rows = s->rows,
                               .micro_batches = 1,
                               .mode = mode,
                               .document_mask = mode == LOADER_PACK,
                               .reset_positions = mode == LOADER_PACK,
                               .shuffle = shuffle,
                               .readers = s->readers,
                               .steps_ahead = 2 * s->readers,
                               .ranks = 1};
    void *memory = NULL;
    if (posix_memalign(&memory, 64, loader_bytes(&o)) != 0)
        return err_set(err, ERR_MEMORY, "no memory for the micro-batches");
    double begin = clock_seconds();
    struct loader *loader = loader_open(&o, memory, err);
    m->open_seconds = clock_seconds() - begin;
    int result = loader ? run_steps(loader, s, m, err) : -1;
    if (loader) m->samples = loader_samples_per_epoch(loader);
    loader_close(loader);
    free(memory);
    return result;
}

static void print_result(const struct settings *s, const struct measured *m, int count,
                         uint64_t tokens) {
    if (!s->json) {
        printf("%llu tokens, rows of %d, micro-batches of %d rows, %d reader thread%s\n",
               (unsigned long long)tokens, s->context, s->rows, s->readers,
               s->readers > 1 ? "s" : "");
        printf("mode   order   tokens/s       fill    seek and fill  open\n");
        for (int i = 0; i < count; i++) {
            char rate[32];
            printf("%-6s %-7s %-13s  %5.1f %%  %8.3f ms   %.3f s\n", m[i].mode, m[i].order,
                   text_count((int64_t)m[i].tokens_per_second, rate), 100 * m[i].fill,
                   1e3 * m[i].seek_seconds, m[i].open_seconds);
        }
        return;
    }
    json_t *tree = json_pack("{s:I, s:i, s:i, s:i}", "tokens", (json_int_t)tokens, "context",
                             s->context, "rows", s->rows, "readers", s->readers);
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:I}", "mode", m[i].mode, "order",
                            m[i].order, "tokens_per_second", m[i].tokens_per_second, "fill",
                            m[i].fill, "seek_and_fill_seconds", m[i].seek_seconds, "open_seconds",
                            m[i].open_seconds, "samples", (json_int_t)m[i].samples));
    json_object_set_new(tree, "measured", list);
    char *text = json_dumps(tree, JSON_INDENT(2) | JSON_REAL_PRECISION(8));
    if (text) puts(text);
    free(text);
    json_decref(tree);
}

static int measure_all(const struct settings *s, struct err *err) {
    static const struct {
        enum loader_mode mode;
        enum loader_shuffle shuffle;
        const char *mode_name, *order;
    } cases[] = {{LOADER_CHUNK, SHUFFLE_NONE, "chunk", "none"},
                 {LOADER_CHUNK, SHUFFLE_SHARD, "chunk", "shard"},
                 {LOADER_CHUNK, SHUFFLE_SAMPLE, "chunk", "sample"},
                 {LOADER_PACK, SHUFFLE_NONE, "pack", "none"},
                 {LOADER_PACK, SHUFFLE_SAMPLE, "pack", "sample"}};
    enum { CASES = sizeof cases / sizeof *cases };
    struct measured m[CASES];
    struct dataset set;
    if (dataset_open(&set, s->data, err) != 0) return -1;
    uint64_t tokens = set.tokens;
    dataset_close(&set);
    for (int i = 0; i < CASES; i++) {
        m[i] = (struct measured){.mode = cases[i].mode_name, .order = cases[i].order};
        if (measure(s, cases[i].mode, cases[i].shuffle, &m[i], err) != 0) return -1;
    }
    print_result(s, m, CASES, tokens);
    return 0;
}

int bench_loader(int argc, char **argv) {
    struct settings s = {.context = 1024, .rows = 8, .readers = 1, .seconds = 1};
    const struct option options[] = {
        {"--data", OPTION_TEXT, &s.data, 0},         {"--context", OPTION_COUNT, &s.context, 2},
        {"--rows", OPTION_COUNT, &s.rows, 1},        {"--readers", OPTION_COUNT, &s.readers, 1},
        {"--seconds", OPTION_NUMBER, &s.seconds, 0}, {"--json", OPTION_FLAG, &s.json, 0},
    };
    struct err err = {ERR_NONE, ""};
    int words, result = options_read(argc, argv, options, sizeof options / sizeof *options, NULL, 0,
                                     &words, &err);
    if (result == 1) {
        fputs(help, stdout);
        return 0;
    }
    char folder[4096] = "";
    if (result == 0 && !s.data) {
        result = make_data(folder, &err);
        s.data = folder;
    }
    if (result == 0) result = measure_all(&s, &err);
    if (folder[0] && file_is_folder(folder)) file_remove_tree(folder, NULL);
    return result == 0 ? 0 : cli_fail(&err);
}
