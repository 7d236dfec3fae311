// Layout figures against counting them the long way; warnings.
#include "data/inspect.h"
#include "data_tools.h"
#include "test.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Sums over the batches of a loader: what inspect foretells must be what training gets.
static void check_layout(const struct loader_options *options,
                         const struct inspect_layout *layout) {
    struct tools_loader t;
    tools_open(&t, options);
    uint64_t rows = loader_samples_per_epoch(t.loader), pairs = 0, tokens = 0;
    for (uint64_t s = 0; s < rows; s++) {
        const struct batch *b = tools_step(&t, s)[0];
        pairs +=
            (uint64_t)b->attended_pairs - (uint64_t)(b->tokens - b->non_pad); // filling sees itself
        tokens += (uint64_t)b->non_pad;
    }
    CHECK_EQ_INT(layout->rows, rows);
    CHECK_EQ_INT(layout->tokens, tokens);
    CHECK_EQ_INT(layout->pairs, pairs);
    tools_close(&t);
}

TEST(inspect_foretells_what_training_gets) {
    struct err err = {ERR_NONE, ""};
    tools_random_shard(tools_path("a.weft"), 1, 500, 400, 300);
    tools_random_shard(tools_path("b.weft"), 2, 500, 300, 40);
    for (int context = 7; context <= 200; context = context * 3 + 1) {
        struct dataset set;
        struct inspect_report report;
        CHECK_OK(dataset_open(&set, test_temp_dir(), &err), err);
        CHECK_OK(inspect_run(&set, (uint32_t)context, &report, &err), err);
        struct loader_options options = tools_options(test_temp_dir(), context);
        check_layout(&options, &report.layouts[INSPECT_CHUNKED]);
        options.document_mask = true;
        check_layout(&options, &report.layouts[INSPECT_MASKED]);
        options.mode = LOADER_PACK;
        check_layout(&options, &report.layouts[INSPECT_PACKED]);
        uint64_t documents = 0, tokens = 0;
        for (int i = 0; i < INSPECT_BINS; i++) {
            documents += report.documents[i];
            tokens += report.tokens[i];
        }
        CHECK_EQ_INT(documents, 700);
        CHECK_EQ_INT(tokens, set.tokens);
        for (int w = 0; w < INSPECT_WAYS; w++)
            CHECK_EQ_INT(report.layouts[w].tokens + report.layouts[w].lost_tokens, set.tokens);
        dataset_close(&set);
    }
}

TEST(inspect_counts_small_shards_of_large_sets) {
    struct err err = {ERR_NONE, ""};
    // holes: bare ids without any content on disk
    static const char *const names[] = {"a.bin", "b.bin", "c.bin"};
    static const off_t tokens[] = {99999999, 900000000, 1};
    for (int i = 0; i < 3; i++) {
        tools_write(tools_path(names[i]), "", 0);
        if (truncate(tools_path(names[i]), 2 * tokens[i]) != 0) SKIP("no files of 2 GB here");
    }
    struct dataset set;
    struct inspect_report report;
    CHECK_OK(dataset_open(&set, test_temp_dir(), &err), err);
    CHECK_OK(inspect_run(&set, 1024, &report, &err), err);
    CHECK_EQ_INT(set.tokens, 1000000000);
    CHECK_EQ_INT(report.small_shards, 1); // the last one may be small
    dataset_close(&set);
    CHECK(truncate(tools_path(names[0]), 2 * (tokens[0] - 1)) == 0); // just below a large set
    CHECK_OK(dataset_open(&set, test_temp_dir(), &err), err);
    CHECK_OK(inspect_run(&set, 1024, &report, &err), err);
    CHECK_EQ_INT(report.small_shards, 0);
    dataset_close(&set);
}
