// The loader: orders, epochs, seeking, ranks and readers, document masks, mixing.
#include "base/random.h"
#include "data/loader.h"
#include "data/mix.h"
#include "data_tools.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_row(const int32_t *found, const int *expected, int count) {
    for (int i = 0; i < count; i++) CHECK_EQ_INT(found[i], expected[i]);
}

TEST(loader_epochs_are_permutations) {
    const char *path = tools_path("s.weft");
    tools_counting_shard(path, 1000, 0, 8 * 4 + 1);
    struct loader_options options = tools_options(path, 4);
    struct tools_loader t;
    tools_open(&t, &options);
    CHECK_EQ_INT(loader_samples_per_epoch(t.loader), 8);
    uint64_t order[3][8];
    for (uint64_t s = 0; s < 24; s++) {
        const struct batch *b = tools_step(&t, s)[0];
        loader_sample_ids(t.loader, s, &order[s / 8][s % 8]);
        CHECK_EQ_INT(b->input[0], 4 * order[s / 8][s % 8]);
        CHECK_EQ_INT(b->target[3], b->input[0] + 4);
    }
    for (int e = 0; e < 3; e++) {
        int seen = 0;
        for (int i = 0; i < 8; i++) seen |= 1 << order[e][i];
        CHECK_EQ_INT(seen, 255);
    }
    CHECK(memcmp(order[0], order[1], sizeof order[0]) != 0);
    CHECK(memcmp(order[0], order[2], sizeof order[0]) != 0);
    CHECK(memcmp(order[1], order[2], sizeof order[0]) != 0);
    tools_close(&t);
}

TEST(loader_seed_changes_the_order) {
    const char *path = tools_path("s.weft");
    tools_counting_shard(path, 1000, 0, 64 * 4 + 1);
    struct loader_options options = tools_options(path, 4);
    struct tools_loader a, b;
    tools_open(&a, &options);
    options.seed = 8;
    tools_open(&b, &options);
    int same = 0;
    for (uint64_t s = 0; s < 64; s++)
        same += tools_step(&a, s)[0]->input[0] == tools_step(&b, s)[0]->input[0];
    CHECK(same < 16);
    CHECK(loader_digest(a.loader) != loader_digest(b.loader));
    tools_close(&a);
    tools_close(&b);
}

TEST(loader_file_order_in_every_epoch) {
    const char *path = tools_path("s.weft");
    tools_counting_shard(path, 1000, 0, 5 * 3 + 1);
    for (int ranks = 1; ranks <= 2; ranks++) {
        uint64_t merged[10];
        for (int rank = 0; rank < ranks; rank++) {
            struct loader_options options = tools_options(path, 3);
            options.shuffle = SHUFFLE_NONE;
            options.rank = rank;
            options.ranks = ranks;
            struct tools_loader t;
            tools_open(&t, &options);
            for (uint64_t s = 0; s < 10; s += (uint64_t)ranks)
                merged[s + (uint64_t)rank] = (uint64_t)tools_step(&t, s)[0]->input[0] / 3;
            tools_close(&t);
        }
        for (uint64_t i = 0; i < 10; i++) CHECK_EQ_INT(merged[i], i % 5);
    }
}

// The log of a run of steps [from, to) of 4 samples.
static void run_steps(struct loader_options options, uint64_t from, uint64_t to, uint64_t *log) {
    struct tools_loader t;
    tools_open(&t, &options);
    for (uint64_t step = from; step < to; step++) {
        tools_step(&t, 4 * step);
        loader_sample_ids(t.loader, 4 * step, log + 4 * step);
    }
    tools_close(&t);
}

TEST(loader_resume_reads_what_the_whole_run_reads) {
    const char *path = tools_path("s.weft");
    tools_counting_shard(path, 1000, 0, 64 * 4 + 1);
    struct loader_options options = tools_options(path, 4);
    options.rows = 2;
    options.micro_batches = 2;
    uint64_t whole[160], parts[160], border[160];
    run_steps(options, 0, 40, whole);
    run_steps(options, 0, 13, parts);
    run_steps(options, 13, 40, parts);
    run_steps(options, 0, 16, border); // 16 steps of 4 are one epoch
    run_steps(options, 16, 40, border);
    CHECK_BYTES(parts, whole, sizeof whole);
    CHECK_BYTES(border, whole, sizeof whole);
}

// Everything that the ranks of a step see, one after the other.
struct merged {
    int32_t values[5][100000];
    size_t count;
};

static void collect(struct merged *m, struct loader_options options, int ranks, int steps,
                    uint64_t skip) {
    m->count = 0;
    options.micro_batches /= ranks;
    options.ranks = ranks;
    struct tools_loader t[6];
    for (int r = 0; r < ranks; r++) {
        options.rank = r;
        tools_open(&t[r], &options);
    }
    uint64_t size = (uint64_t)options.rows * (uint64_t)options.micro_batches * (uint64_t)ranks;
    for (uint64_t step = skip; step < skip + (uint64_t)steps; step++)
        for (int r = 0; r < ranks; r++) {
            struct batch *const *batches = tools_step(&t[r], step * size);
            for (int b = 0; b < options.micro_batches; b++) {
                const struct batch *x = batches[b];
                const int32_t *arrays[5] = {x->input, x->target, x->position, x->attend_from,
                                            x->attend_to};
                for (int a = 0; a < 5; a++)
                    memcpy(m->values[a] + m->count, arrays[a], 4 * (size_t)x->tokens);
                m->count += (size_t)x->tokens;
            }
        }
    for (int r = 0; r < ranks; r++) tools_close(&t[r]);
}

TEST(loader_order_is_free_of_ranks_and_readers) {
    static struct merged one, other;
    char paths[3][4096];
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "%s",
                 tools_path(i == 0   ? "a.weft"
                            : i == 1 ? "b.weft"
                                     : "c.weft"));
        tools_random_shard(paths[i], 50 + (uint64_t)i, 500, 200, 300);
    }
    for (int mode = 0; mode < 2; mode++)
        for (int shuffle = 0; shuffle < 3; shuffle++) {
            struct loader_options options = tools_options(test_temp_dir(), 32);
            options.rows = 2;
            options.micro_batches = 6;
            options.mode = mode;
            options.document_mask = options.reset_positions = true;
            options.shuffle = shuffle;
            options.shuffle_window = 20;
            collect(&one, options, 1, 40, 0);
            for (int n = 1; n <= 3; n++) {
                options.readers = n;
                options.steps_ahead = n;
                collect(&other, options, n, 40, 0);
                CHECK_EQ_INT(other.count, one.count);
                for (int a = 0; a < 5; a++)
                    CHECK_BYTES(other.values[a], one.values[a], 4 * one.count);
                // a seek into the middle shows the same as walking there
                collect(&other, options, n, 10, 30);
                size_t tail = other.count;
                for (int a = 0; a < 5; a++)
                    CHECK_BYTES(other.values[a], one.values[a] + one.count - tail, 4 * tail);
            }
        }
}

TEST(loader_seeks_back_and_repeats) {
    const char *path = tools_path("s.weft");
    tools_counting_shard(path, 1000, 0, 100 * 4 + 1);
    struct loader_options options = tools_options(path, 4);
    options.shuffle = SHUFFLE_NONE;
    options.rows = 2;
    options.readers = 3;
    struct tools_loader t;
    tools_open(&t, &options);
    const uint64_t visits[] = {0, 2, 4, 4, 4, 6, 40, 42, 0, 2, 98, 100, 98, 96};
    for (size_t i = 0; i < sizeof visits / sizeof visits[0]; i++) {
        const struct batch *b = tools_step(&t, visits[i])[0];
        CHECK_EQ_INT(b->input[0], 4 * (visits[i] % 100));
        CHECK_EQ_INT(b->input[4], 4 * ((visits[i] + 1) % 100));
    }
    struct loader_counts counts;
    loader_counts(t.loader, &counts);
    CHECK_EQ_INT(counts.shard_opens, 1);
    CHECK(counts.shard_reads >= 28);
    CHECK(counts.read_seconds > 0);
    CHECK(counts.wait_seconds > 0);
    tools_close(&t);
}

TEST(loader_shard_order_reads_shards_one_after_the_other) {
    for (uint32_t i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "%c.weft", (int)('a' + i));
        tools_counting_shard(tools_path(name), 65536, i * 1000, 400);
    }
    struct loader_options options = tools_options(test_temp_dir(), 4);
    options.shuffle = SHUFFLE_SHARD;
    options.shuffle_window = 10;
    struct tools_loader t;
    tools_open(&t, &options);
    uint64_t samples = loader_samples_per_epoch(t.loader);
    CHECK_EQ_INT(samples, 499);
    int first_shards[2] = {-1, -1};
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        unsigned char seen[499] = {0};
        int changes = 0, last = -1, moved = 0;
        uint64_t previous = 0;
        for (uint64_t i = 0; i < samples; i++) {
            uint64_t id;
            loader_sample_ids(t.loader, epoch * samples + i, &id);
            CHECK(seen[id] == 0);
            seen[id] = 1;
            int shard = (int)(id / 100); // 100 samples begin in each shard of 400 tokens
            changes += shard != last;
            if (i && shard == last) {
                CHECK(id + 20 > previous && previous + 20 > id); // two windows at most
                moved += id != previous + 1;
            }
            if (last < 0) first_shards[epoch] = shard;
            last = shard;
            previous = id;
        }
        CHECK_EQ_INT(changes, 5);
        CHECK(moved > 100);
    }
    CHECK(first_shards[0] >= 0 && first_shards[1] >= 0);
    tools_close(&t);
}

TEST(loader_borders_of_documents_in_chunks) {
    const char *path = tools_path("s.weft");
    struct shard_info like = tools_like(SHARD_WEFT, 10);
    tools_shard(path, &like, DOCUMENTS(1, 3, 3, 3, -1, 1, 3, 3, -1));
    struct loader_options options = tools_options(path, 6);
    options.shuffle = SHUFFLE_NONE;
    options.document_mask = options.reset_positions = true;
    struct tools_loader t;
    tools_open(&t, &options);
    const struct batch *b = tools_step(&t, 0)[0];
    check_row(b->input, (int[]){1, 3, 3, 3, 1, 3}, 6);
    check_row(b->target, (int[]){3, 3, 3, -1, 3, 3}, 6);
    check_row(b->position, (int[]){0, 1, 2, 3, 0, 1}, 6);
    check_row(b->attend_from, (int[]){0, 0, 0, 0, 4, 4}, 6);
    check_row(b->attend_to, (int[]){1, 2, 3, 4, 5, 6}, 6);
    CHECK_EQ_INT(b->counted, 5);
    CHECK_EQ_INT(b->non_pad, 6);
    CHECK_EQ_INT(b->attended_pairs, 1 + 2 + 3 + 4 + 1 + 2);
    tools_close(&t);

    // the switches are independent
    options.reset_positions = false;
    tools_open(&t, &options);
    b = tools_step(&t, 0)[0];
    check_row(b->position, (int[]){0, 1, 2, 3, 4, 5}, 6);
    check_row(b->attend_from, (int[]){0, 0, 0, 0, 4, 4}, 6);
    CHECK_EQ_INT(b->counted, 5);
    tools_close(&t);
    options.reset_positions = true;
    options.document_mask = false;
    tools_open(&t, &options);
    b = tools_step(&t, 0)[0];
    check_row(b->position, (int[]){0, 1, 2, 3, 0, 1}, 6);
    check_row(b->attend_from, (int[]){0, 0, 0, 0, 0, 0}, 6);
    check_row(b->target, (int[]){3, 3, 3, 1, 3, 3}, 6);
    CHECK_EQ_INT(b->counted, 6);
    tools_close(&t);
}

TEST(loader_border_at_the_end_of_a_chunk) {
    const char *path = tools_path("s.weft");
    struct shard_info like = tools_like(SHARD_WEFT, 10);
    tools_shard(path, &like, DOCUMENTS(1, 2, 3, -1, 4, 5, -1, 6, 7, 8, 9, -1));
    struct loader_options options = tools_options(path, 3);
    options.shuffle = SHUFFLE_NONE;
    options.document_mask = options.reset_positions = true;
    struct tools_loader t;
    tools_open(&t, &options);
    CHECK_EQ_INT(loader_samples_per_epoch(t.loader), 2);
    check_row(tools_step(&t, 0)[0]->target, (int[]){2, 3, -1}, 3);
    const struct batch *b = tools_step(&t, 1)[0];
    check_row(b->input, (int[]){4, 5, 6}, 3);
    check_row(b->target, (int[]){5, -1, 7}, 3);
    check_row(b->position, (int[]){0, 1, 0}, 3);
    tools_close(&t);
}

TEST(loader_chunks_run_over_shard_borders) {
    struct shard_info like = tools_like(SHARD_WEFT, 100);
    tools_shard(tools_path("a.weft"), &like, DOCUMENTS(0, 1, 2, 3, 4, -1));
    tools_shard(tools_path("b.weft"), &like, DOCUMENTS(5, -1));
    tools_shard(tools_path("c.weft"), &like, DOCUMENTS(6, 7, 8, -1, 9, 10, 11, 12, -1));
    struct loader_options options = tools_options(test_temp_dir(), 4);
    options.shuffle = SHUFFLE_NONE;
    options.rows = 3;
    struct tools_loader t;
    tools_open(&t, &options);
    const struct batch *b = tools_step(&t, 0)[0];
    for (int i = 0; i < 12; i++) {
        CHECK_EQ_INT(b->input[i], i);
        CHECK_EQ_INT(b->target[i], i + 1);
        CHECK_EQ_INT(b->position[i], i % 4);
        CHECK_EQ_INT(b->attend_from[i], i / 4 * 4);
    }
    tools_close(&t);
    options.document_mask = options.reset_positions = true;
    tools_open(&t, &options);
    b = tools_step(&t, 0)[0];
    check_row(b->target, (int[]){1, 2, 3, 4, -1, -1, 7, 8, -1, 10, 11, 12}, 12);
    check_row(b->position, (int[]){0, 1, 2, 3, 0, 0, 0, 1, 0, 0, 1, 2}, 12);
    check_row(b->attend_from, (int[]){0, 0, 0, 0, 4, 5, 6, 6, 8, 9, 9, 9}, 12);
    tools_close(&t);
}

// ---- packing -----------------------------------------------------------------------------------

TEST(loader_packs_documents_apart) {
    const char *path = tools_path("s.weft");
    struct shard_info like = tools_like(SHARD_WEFT, 10);
    tools_shard(path, &like, DOCUMENTS(1, 3, 3, 3, -1, 1, 3, 3, -1));
    struct loader_options options = tools_options(path, 7);
    options.mode = LOADER_PACK;
    options.document_mask = options.reset_positions = true;
    struct tools_loader t;
    tools_open(&t, &options);
    CHECK_EQ_INT(loader_samples_per_epoch(t.loader), 1);
    const struct batch *b = tools_step(&t, 0)[0];
    check_row(b->input, (int[]){1, 3, 3, 3, 1, 3, 3}, 7);
    check_row(b->position, (int[]){0, 1, 2, 3, 0, 1, 2}, 7);
    check_row(b->target, (int[]){3, 3, 3, -1, 3, 3, -1}, 7);
    check_row(b->attend_from, (int[]){0, 0, 0, 0, 4, 4, 4}, 7);
    CHECK_EQ_INT(b->counted, 5);
    tools_close(&t);
}

TEST(loader_ids_of_other_documents_change_nothing) {
    struct shard_info like = tools_like(SHARD_WEFT, 10);
    tools_shard(tools_path("x.weft"), &like, DOCUMENTS(5, 6, 7, -1, 8, 9, -1));
    tools_shard(tools_path("y.weft"), &like, DOCUMENTS(1, 2, 3, -1, 8, 9, -1));
    const char *paths[] = {tools_path("x.weft"), tools_path("y.weft")};
    for (int i = 0; i < 2; i++) {
        struct loader_options options = tools_options(paths[i], 5);
        options.mode = LOADER_PACK;
        options.document_mask = options.reset_positions = true;
        struct tools_loader t;
        tools_open(&t, &options);
        const struct batch *b = tools_step(&t, 0)[0];
        check_row(b->input + 3, (int[]){8, 9}, 2);
        check_row(b->attend_from, (int[]){0, 0, 0, 3, 3}, 5);
        check_row(b->attend_to, (int[]){1, 2, 3, 4, 5}, 5);
        check_row(b->position, (int[]){0, 1, 2, 0, 1}, 5);
        check_row(b->target + 2, (int[]){-1, 9, -1}, 3);
        tools_close(&t);
    }
}

TEST(loader_masks_come_from_lengths) {
    // the id that ends a text is also the one used for filling up
    const char *path = tools_path("s.weft");
    struct shard_info like = tools_like(SHARD_WEFT, 10);
    like.eod = 2;
    tools_shard(path, &like, DOCUMENTS(5, 6, 2, -1));
    struct loader_options options = tools_options(path, 5);
    options.mode = LOADER_PACK;
    options.document_mask = options.reset_positions = true;
    struct tools_loader t;
    tools_open(&t, &options);
    const struct batch *b = tools_step(&t, 0)[0];
    check_row(b->input, (int[]){5, 6, 2}, 3);
    check_row(b->target, (int[]){6, 2, -1, -1, -1}, 5);
    CHECK_EQ_INT(b->counted, 2);
    CHECK_EQ_INT(b->non_pad, 3);
    check_row(b->attend_from + 3, (int[]){3, 4}, 2);
    tools_close(&t);
}

TEST(loader_cuts_long_documents_without_losing_labels) {
    const char *path = tools_path("s.weft");
    tools_counting_shard(path, 1000, 0, 11);
    struct loader_options options = tools_options(path, 4);
    options.mode = LOADER_PACK;
    options.shuffle = SHUFFLE_NONE;
    options.document_mask = options.reset_positions = true;
    struct tools_loader t;
    tools_open(&t, &options);
    CHECK_EQ_INT(loader_samples_per_epoch(t.loader), 3);
    check_row(tools_step(&t, 0)[0]->target, (int[]){1, 2, 3, 4}, 4);
    check_row(tools_step(&t, 1)[0]->target, (int[]){5, 6, 7, 8}, 4);
    check_row(tools_step(&t, 2)[0]->target, (int[]){9, 10, -1, -1}, 4);
    tools_close(&t);
}

// Every label of every document once per epoch, rows filled well.
TEST(loader_packing_keeps_every_label) {
    const char *path = tools_path("s.weft");
    tools_random_shard(path, 3, 60000, 3000, 400);
    struct err err = {ERR_NONE, ""};
    struct shard shard;
    CHECK_OK(shard_open(&shard, path, NULL, &err), err);
    uint64_t labels = shard.info.tokens, sum = 0, begin, end;
    for (uint64_t d = 0; d < shard.info.documents; d++) {
        CHECK_OK(shard_document(&shard, d, &begin, &end, &err), err);
        labels -= end > begin;
        for (uint64_t i = begin + 1; i < end; i++) sum += shard_id(&shard, i);
    }
    struct loader_options options = tools_options(path, 256);
    options.mode = LOADER_PACK;
    options.document_mask = options.reset_positions = true;
    struct tools_loader t;
    tools_open(&t, &options);
    uint64_t rows = loader_samples_per_epoch(t.loader), counted = 0, filled = 0;
    for (uint64_t s = 0; s < rows; s++) {
        const struct batch *b = tools_step(&t, s)[0];
        counted += (uint64_t)b->counted;
        filled += (uint64_t)b->non_pad;
        int64_t pairs = 0;
        for (int i = 0; i < 256; i++) {
            if (b->target[i] >= 0) sum -= (uint64_t)b->target[i];
            CHECK(b->attend_from[i] <= i && b->attend_to[i] == i + 1);
            pairs += b->attend_to[i] - b->attend_from[i];
        }
        CHECK_EQ_INT(b->attended_pairs, pairs);
    }
    CHECK_EQ_INT(counted, labels);
    CHECK_EQ_INT(sum, 0);
    CHECK((double)filled / (double)(rows * 256) > 0.97);
    tools_close(&t);
    shard_close(&shard);
}

TEST(loader_sees_appended_documents) {
    const char *path = tools_path("s.weft");
    struct shard_info like = tools_like(SHARD_WEFT, 100);
    struct loader_options options = tools_options(path, 4);
    options.mode = LOADER_PACK;
    struct tools_loader t;
    tools_shard(path, &like, DOCUMENTS(1, 2, 3, 4, -1, 5, 6, 7, 8, -1));
    tools_open(&t, &options);
    uint64_t before = loader_digest(t.loader);
    CHECK_EQ_INT(loader_samples_per_epoch(t.loader), 2);
    tools_close(&t);
    tools_shard(path, &like, DOCUMENTS(1, 2, 3, 4, -1, 5, 6, 7, 8, -1)); // the same again
    tools_open(&t, &options);
    CHECK(loader_digest(t.loader) == before);
    tools_close(&t);
    tools_shard(path, &like, DOCUMENTS(1, 2, 3, 4, -1, 5, 6, 7, 8, -1, 9, 9, 9, 9, -1));
    tools_open(&t, &options);
    CHECK(loader_digest(t.loader) != before);
    CHECK_EQ_INT(loader_samples_per_epoch(t.loader), 3);
    tools_close(&t);
}

// ---- mixing ------------------------------------------------------------------------------------

static void mix_row(const struct loader_mix_row *row, uint64_t drawn, double epochs) {
    CHECK_EQ_INT(row->drawn, drawn);
    CHECK_CLOSE(row->epochs, epochs, 1e-12);
    CHECK_EQ_INT(row->tokens, drawn * 4);
}

TEST(loader_weights_are_shares_of_samples) {
    char a[4096], b[4096];
    snprintf(a, sizeof a, "%s", tools_path("a.weft"));
    snprintf(b, sizeof b, "%s", tools_path("b.weft"));
    tools_counting_shard(a, 1000, 0, 10 * 4 + 1);
    tools_counting_shard(b, 1000, 500, 20 * 4 + 1);
    struct loader_options options = tools_options(a, 4);
    options.sets[1].path = b;
    options.set_count = 2;
    const double weights[2][2] = {{1, 1}, {10, 20}};
    for (int w = 0; w < 2; w++) {
        options.sets[0].weight = weights[w][0];
        options.sets[1].weight = weights[w][1];
        struct tools_loader t;
        struct loader_mix_row rows[LOADER_MAX_SETS];
        tools_open(&t, &options);
        CHECK_EQ_INT(loader_mix_rows(t.loader, 30, rows), 2);
        mix_row(&rows[0], w ? 10 : 15, w ? 1.0 : 1.5);
        mix_row(&rows[1], w ? 20 : 15, w ? 1.0 : 0.75);
        int drawn[2] = {0, 0};
        for (uint64_t s = 0; s < 30; s++) drawn[tools_step(&t, s)[0]->input[0] >= 500]++;
        CHECK_EQ_INT(drawn[0], rows[0].drawn);
        CHECK_EQ_INT(drawn[1], rows[1].drawn);
        tools_close(&t);
    }
}

TEST(mix_is_even_and_seekable) {
    struct err err = {ERR_NONE, ""};
    for (uint64_t round = 0; round < 40; round++) {
        double weights[MIX_MAX_SETS], total = 0;
        int count = 1 + (int)(random_uniform(1, round) * 12);
        for (int i = 0; i < count; i++) {
            double u = random_uniform(2 + round, (uint64_t)i);
            weights[i] = u < 0.1 && i ? 0 : u * u * u + 1e-4;
            total += weights[i];
        }
        struct mix mix;
        CHECK_OK(mix_open(&mix, weights, count, &err), err);
        uint64_t drawn[MIX_MAX_SETS] = {0}, before;
        for (uint64_t n = 0; n < 2000; n++) {
            int set = mix_pick(&mix, n, &before);
            CHECK_EQ_INT(before, drawn[set]);
            drawn[set]++;
            for (int i = 0; i < count; i++) {
                CHECK_EQ_INT(mix_draws(&mix, i, n + 1), drawn[i]);
                CHECK_CLOSE((double)drawn[i] - weights[i] / total * (double)(n + 1), 0, 1.5);
                if (weights[i] == 0) CHECK_EQ_INT(drawn[i], 0);
            }
        }
        // far into a run the shares are still exact
        uint64_t far = (uint64_t)1 << 50;
        CHECK_CLOSE((double)mix_draws(&mix, 0, far) / (double)far, weights[0] / total, 1e-12);
    }
    CHECK(mix_open(&(struct mix){0}, (double[]){0, 0}, 2, &err) == -1);
    CHECK(mix_open(&(struct mix){0}, (double[]){1, -1}, 2, &err) == -1);
}

// ---- refusals ----------------------------------------------------------------------------------

static void refused(const struct loader_options *options, const char *part) {
    struct err err = {ERR_NONE, ""};
    void *memory;
    CHECK(posix_memalign(&memory, 64, loader_bytes(options)) == 0);
    struct loader *loader = loader_open(options, memory, &err);
    CHECK(loader == NULL);
    CHECK_CONTAINS(err.text, part);
    free(memory);
}

TEST(loader_refuses_what_cannot_work) {
    const char *path = tools_path("s.weft");
    tools_counting_shard(path, 1000, 0, 8);
    struct loader_options good = tools_options(path, 4), o = good;
    o.context = 8;
    refused(&o, "holds 8 tokens, fewer than the 9");
    o = good;
    o.vocab = 999;
    refused(&o, "vocabulary of 1000");
    o = good;
    o.vocab = 65537;
    refused(&o, "32 bits");
    o = good;
    o.sets[0].path = tools_path("nothing");
    refused(&o, "no such data");
    o = good;
    o.sets[0].weight = -1;
    refused(&o, "weight -1");
    o = good;
    o.tokenizer_fingerprint = 9; // the shard does not know its tokenizer: nothing to compare
    struct tools_loader t;
    tools_open(&t, &o);
    tools_close(&t);
}

TEST(loader_checks_ids_in_every_batch) {
    // bare ids carry no vocabulary: only reading shows that one is too large
    uint16_t ids[41] = {0};
    ids[22] = 300;
    tools_write(tools_path("ids.bin"), ids, sizeof ids);
    struct loader_options options = tools_options(tools_path("ids.bin"), 4);
    options.shuffle = SHUFFLE_NONE;
    options.vocab = 300;
    struct tools_loader t;
    tools_open(&t, &options);
    struct err err = {ERR_NONE, ""};
    struct batch *const *batches;
    for (uint64_t s = 0; s < 5; s++) CHECK_OK(loader_step(t.loader, s, &batches, &err), err);
    CHECK(loader_step(t.loader, 5, &batches, &err) == -1);
    CHECK_CONTAINS(err.text, "id 300");
    CHECK_CONTAINS(err.text, "ids.bin");
    err = (struct err){ERR_NONE, ""};
    CHECK_OK(loader_step(t.loader, 6, &batches, &err), err); // the next one is sound
    tools_close(&t);
}

TEST(loader_records_waiting_and_opening) {
    const char *path = tools_path("s.weft");
    tools_counting_shard(path, 1000, 0, 100 * 4 + 1);
    struct record_lane lane;
    CHECK(record_lane_open(&lane, "compute", 16) == 0);
    struct loader_options options = tools_options(path, 4);
    options.lane = &lane;
    options.trace_spans = 64;
    struct tools_loader t;
    tools_open(&t, &options);
    for (uint64_t s = 0; s < 5; s++) tools_step(&t, s);
    CHECK_EQ_INT(lane.events[RECORD_DATA_WAIT], 5);
    loader_stop(t.loader);
    const struct record_lane *reader = loader_lane(t.loader, 0);
    CHECK_EQ_INT(reader->events[RECORD_SHARD_OPEN], 1);
    CHECK(reader->events[RECORD_SHARD_READ] >= 5);
    struct err err = {ERR_NONE, ""};
    struct batch *const *batches;
    CHECK(loader_step(t.loader, 5, &batches, &err) == -1);
    tools_close(&t);
    record_lane_close(&lane);
}
