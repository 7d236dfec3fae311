// The local cache of shards: copies, its bound, trouble with the folder; and the allocations of a
// step.
#include "base/file.h"
#include "data/loader.h"
#include "data_tools.h"
#include "test.h"
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void make_shards(int count) {
    struct err err = {ERR_NONE, ""};
    CHECK_OK(file_make_folders(tools_path("data"), &err), err);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "data/%d.weft", i);
        tools_counting_shard(tools_path(name), 60000, (uint32_t)i * 1000, 400);
    }
}

static uint64_t folder_bytes(const char *folder, size_t *files) {
    struct err err = {ERR_NONE, ""};
    char **names;
    uint64_t sum = 0, bytes;
    CHECK_OK(file_list(folder, &names, files, &err), err);
    for (size_t i = 0; i < *files; i++) {
        char path[4096];
        CHECK_OK(file_join(path, sizeof path, folder, names[i], &err), err);
        if (file_size(path, &bytes, NULL) == 0) sum += bytes; // one may go while we look
    }
    file_list_free(names, *files);
    return sum;
}

static struct loader_options cached(uint64_t bytes) {
    struct loader_options options = tools_options(tools_path("data"), 4);
    options.cache_folder = tools_path("cache");
    options.cache_bytes = bytes;
    return options;
}

// One pass in file order; returns hits.
static uint64_t pass(struct loader_options options, uint64_t samples, uint64_t bound) {
    struct tools_loader t;
    struct loader_counts counts;
    size_t files;
    options.shuffle = SHUFFLE_NONE;
    tools_open(&t, &options);
    for (uint64_t s = 0; s < samples; s++) {
        const struct batch *b = tools_step(&t, s)[0];
        uint64_t token = 4 * s;
        CHECK_EQ_INT(b->input[0], token / 400 * 1000 + token % 400);
        if (s % 50 == 0) usleep(20000); // time for copies
        if (bound && s % 25 == 0) CHECK(folder_bytes(options.cache_folder, &files) <= bound);
    }
    loader_counts(t.loader, &counts);
    tools_close(&t);
    return counts.cache_hits;
}

enum { SHARD_BYTES = 128 + 800 + 16 };

TEST(store_cache_stays_in_its_bound_and_serves) {
    make_shards(6);
    CHECK(pass(cached(3 * SHARD_BYTES), 599, 3 * SHARD_BYTES) > 100);
    size_t files;
    CHECK(folder_bytes(tools_path("cache"), &files) <= 3 * SHARD_BYTES);
    CHECK(files >= 1 && files <= 3);
    // all fit: a second run finds every copy
    pass(cached(10 * SHARD_BYTES), 599, 0);
    CHECK(pass(cached(10 * SHARD_BYTES), 599, 0) > 500);
}

TEST(store_cache_follows_changed_originals) {
    make_shards(2);
    pass(cached(10 * SHARD_BYTES), 199, 0);
    tools_counting_shard(tools_path("data/0.weft"), 60000, 7000, 400);
    struct loader_options options = cached(10 * SHARD_BYTES);
    options.shuffle = SHUFFLE_NONE;
    struct tools_loader t;
    tools_open(&t, &options);
    CHECK_EQ_INT(tools_step(&t, 0)[0]->input[0], 7000);
    tools_close(&t);
}

TEST(store_leftovers_are_removed_and_damaged_copies_ignored) {
    make_shards(2);
    pass(cached(10 * SHARD_BYTES), 199, 0);
    struct err err = {ERR_NONE, ""};
    char **names, path[4096];
    size_t count;
    CHECK_OK(file_list(tools_path("cache"), &names, &count, &err), err);
    CHECK(count >= 1);
    CHECK_OK(file_join(path, sizeof path, tools_path("cache"), names[0], &err), err);
    char half[4200];
    snprintf(half, sizeof half, "%s.tmp.999999999", path);
    tools_write(half, "x", 1);
    char garbage[SHARD_BYTES] = "WEFTTOKSgarbage of the right size";
    tools_write(path, garbage, sizeof garbage);
    file_list_free(names, count);
    pass(cached(10 * SHARD_BYTES), 199, 0); // values are checked there
    CHECK(!file_exists(half));
}

TEST(store_trouble_with_the_cache_is_no_failure) {
    make_shards(3);
    tools_write(tools_path("cache"), "a file", 6); // where the folder should be
    CHECK_EQ_INT(pass(cached(10 * SHARD_BYTES), 299, 0), 0);
    CHECK(remove(tools_path("cache")) == 0);
    CHECK_EQ_INT(pass(cached(10), 299, 10), 0); // too small for anything
    file_fail_after(100, ENOSPC);
    CHECK_EQ_INT(pass(cached(10 * SHARD_BYTES), 299, 0), 0);
    file_fail_after(0, 0);
    size_t files;
    CHECK_EQ_INT(folder_bytes(tools_path("cache"), &files), 0);
}

TEST(store_full_cache_under_random_order_keeps_what_it_has) {
    make_shards(6);
    struct loader_options options = cached(2 * SHARD_BYTES);
    struct tools_loader t;
    struct loader_counts counts;
    size_t files;
    tools_open(&t, &options);
    for (uint64_t s = 0; s < 300; s++) {
        tools_step(&t, s);
        if (s % 100 == 0) usleep(20000);
    }
    loader_counts(t.loader, &counts);
    CHECK(counts.cache_hits > 20);
    CHECK(counts.cache_misses > 50);
    CHECK(counts.shard_opens <= 12);
    CHECK(folder_bytes(tools_path("cache"), &files) <= 2 * SHARD_BYTES);
    tools_close(&t);
}

#ifndef WEFT_SANITIZED
TEST(loader_step_takes_no_memory) {
    make_shards(3);
    struct loader_options options = tools_options(tools_path("data"), 4);
    options.mode = LOADER_PACK;
    struct tools_loader t;
    tools_open(&t, &options);
    // The figure covers the readers' memory too, and they take some when they open a shard: first
    // every shard is seen.
    for (uint64_t s = 0; s < 100; s++) tools_step(&t, s);
    struct mallinfo2 before = mallinfo2();
    for (uint64_t s = 100; s < 300; s++) tools_step(&t, s);
    struct mallinfo2 after = mallinfo2();
    CHECK_EQ_INT(after.uordblks, before.uordblks);
    tools_close(&t);
}
#endif
