// Checkpoints of several ranks: what one layout saved, any other loads; who writes and reads how
// much.
#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/pieces.h"
#include "checkpoint/safetensors.h"
#include "model/families.h"
#include "spread.h"
#include "test.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct scene {
    const char *folder;
    struct spread *from, *to;
    int64_t step;
    uint64_t part_bytes;
    struct checkpoint_saved saved[SPREAD_MOST_RANKS];
    atomic_int done;
};

static void save_all(void *context, struct comm_stream *world, int rank) {
    struct scene *scene = context;
    struct err err = {0};
    CHECK_OK(spread_save(scene->folder, scene->from, rank, scene->step, scene->part_bytes, world,
                         &scene->saved[rank], &err),
             err);
    scene->done++;
}

static uint64_t share_bytes(const char *checkpoint, int rank, int ranks) {
    struct manifest m;
    struct err err = {0};
    uint64_t sum = 0;
    CHECK_OK(manifest_read(checkpoint, &m, &err), err);
    for (int i = rank; i < m.part_count; i += ranks) {
        char path[4096];
        struct safetensors part;
        CHECK_OK(file_join(path, sizeof path, checkpoint, m.parts[i].name, &err), err);
        CHECK_OK(safetensors_open(path, &part, &err), err);
        sum += m.parts[i].bytes + part.offsets[0]; // the header once more
        safetensors_close(&part);
    }
    manifest_free(&m);
    return sum;
}

static void load_all(void *context, struct comm_stream *world, int rank) {
    struct scene *scene = context;
    struct checkpoint *c;
    struct err err = {0};
    CHECK_OK(checkpoint_open_newest_world(scene->folder, world, &c, &err), err);
    CHECK(c != NULL);
    CHECK_EQ_INT(checkpoint_state(c)->step, scene->step);
    CHECK_OK(
        checkpoint_load_slices(c, scene->to->slices[rank], scene->to->counts[rank], world, &err),
        err);
    spread_check(scene->to, rank, scene->step);
    // not a byte more of what it holds, and its share of the parts, whole, to verify them
    CHECK_EQ_INT(checkpoint_read_bytes(c) - checkpoint_verified_bytes(c), scene->to->bytes[rank]);
    CHECK_EQ_INT(checkpoint_verified_bytes(c),
                 share_bytes(checkpoint_path(c), rank, scene->to->ranks));
    checkpoint_close(c);
    scene->done++;
}

static void save_with(struct scene *scene, int64_t step) {
    scene->step = step;
    spread_fill(scene->from, step);
    scene->done = 0;
    run_ranks(scene->from->ranks, 0, save_all, scene);
    CHECK_EQ_INT(scene->done, scene->from->ranks);
}

static void load_with(struct scene *scene) {
    spread_clear(scene->to);
    scene->done = 0;
    run_ranks(scene->to->ranks, 0, load_all, scene);
    CHECK_EQ_INT(scene->done, scene->to->ranks);
}

// As one process that knows nothing of ranks sees it: whole tensors, and ranges of them.
static void check_whole(const char *folder, int64_t step, unsigned *state) {
    struct checkpoint *c;
    struct err err = {0};
    int count;
    CHECK_OK(checkpoint_open_newest(folder, &c, &err), err);
    checkpoint_tensors(c, &count);
    CHECK_EQ_INT(count, SPREAD_TENSORS);
    for (int i = 0; i < SPREAD_TENSORS; i++) {
        const struct tensor *t = &spread_tensors[i], *stored = checkpoint_find(c, t->name);
        size_t width = dtype_bytes(t->type);
        int64_t elements = tensor_elements(t), first = random_below(state, elements);
        int64_t some = random_below(state, elements - first + 1);
        char *data = malloc((size_t)elements * width), expected[8];
        CHECK(stored && stored->dims == t->dims && stored->type == t->type);
        CHECK_EQ_INT(tensor_elements(stored), elements);
        CHECK_OK(checkpoint_read(c, t->name, data, &err), err);
        for (int64_t k = 0; k < elements; k++) {
            spread_value(t, step, k, expected);
            CHECK_BYTES(data + (size_t)k * width, expected, width);
        }
        memset(data, 0, (size_t)elements * width);
        CHECK_OK(checkpoint_read_range(c, t->name, first, some, data, &err), err);
        for (int64_t k = 0; k < some; k++) {
            spread_value(t, step, first + k, expected);
            CHECK_BYTES(data + (size_t)k * width, expected, width);
        }
        CHECK(checkpoint_read_range(c, t->name, first, elements - first + 1, data, NULL) != 0);
        free(data);
    }
    checkpoint_close(c);
}

TEST(any_layout_reads_what_any_other_wrote) {
    static const int ranks[] = {1, 2, 3, 4, 6, 8};
    unsigned state = 1;
    for (int round = 0; round < 36; round++) {
        struct spread from, to;
        struct scene scene = {
            .folder = test_temp_dir(), .from = &from, .to = &to, .part_bytes = round % 3 ? 700 : 0};
        int a = ranks[round % 6], b = ranks[(round / 6 + round) % 6];
        if (round % 4 == 0)
            spread_runs(&from, a);
        else
            spread_random(&from, a, &state);
        if (round % 5 == 0)
            spread_runs(&to, b);
        else
            spread_random(&to, b, &state);
        save_with(&scene, 10 + round);
        load_with(&scene);
        check_whole(scene.folder, 10 + round, &state);
        spread_free(&from);
        spread_free(&to);
    }
}

// A part per piece: more files than stay open.
TEST(more_parts_than_open_files) {
    unsigned state = 2;
    struct spread from, to;
    struct scene scene = {.folder = test_temp_dir(), .from = &from, .to = &to, .part_bytes = 1};
    spread_crumbs(&from, 8);
    spread_random(&to, 3, &state);
    save_with(&scene, 5);
    char **names;
    size_t count;
    CHECK_OK(file_list(scene.saved[0].path, &names, &count, NULL), (struct err){0});
    CHECK(count > 600);
    file_list_free(names, count);
    load_with(&scene);
    check_whole(scene.folder, 5, &state);
    spread_free(&from);
    spread_free(&to);
}

// ---- who writes how much

enum { COPIES = 4, NORMS = 40 };

struct replicas {
    const char *folder;
    float *table, *norms;
    struct checkpoint_saved saved[COPIES];
};

static void save_copies(void *context, struct comm_stream *world, int rank) {
    struct replicas *r = context;
    struct tensor_slice slices[1 + NORMS];
    struct model_config model = {0};
    struct checkpoint_state state = {.step = 1};
    struct err err = {0};
    struct tensor table = {
        .name = "embedding.weight", .dims = 2, .shape = {1000, 1000}, .data = r->table};
    slices[0] = checkpoint_whole_slice(&table);
    for (int i = 0; i < NORMS; i++) {
        struct tensor norm = {.dims = 1, .shape = {32}, .data = r->norms + 32 * i};
        snprintf(norm.name, sizeof norm.name, "layers.%d.norm.weight", i);
        slices[1 + i] = checkpoint_whole_slice(&norm);
    }
    for (int i = 0; i <= NORMS; i++) {
        slices[i].copy = rank;
        slices[i].copies = COPIES;
    }
    CHECK_OK(checkpoint_save_slices(r->folder, &model, slices, 1 + NORMS, &state, 0, world,
                                    &r->saved[rank], &err),
             err);
}

TEST(copies_write_each_byte_once_and_share_the_work) {
    struct replicas r = {.folder = test_temp_dir(),
                         .table = calloc(1000 * 1000, sizeof *r.table),
                         .norms = calloc(32 * NORMS, sizeof *r.norms)};
    run_ranks(COPIES, 0, save_copies, &r);
    uint64_t all = 0, data = 4 * (1000 * 1000 + 32 * NORMS);
    for (int i = 0; i < COPIES; i++) {
        CHECK((double)r.saved[i].own_bytes > 0.9 * (double)data / COPIES);
        CHECK((double)r.saved[i].own_bytes < 1.1 * (double)data / COPIES);
        CHECK_EQ_INT(r.saved[i].bytes, r.saved[0].bytes);
        all += r.saved[i].own_bytes;
    }
    CHECK(all > data && all < data + 16384); // the rest are headers
    free(r.table);
    free(r.norms);
}

// ---- who reads how much

struct reading {
    const char *folder;
    bool replicas; // each rank holds all; else one of COPIES equal shares of the rows
    float *data[COPIES];
    double factor[COPIES]; // bytes read for a byte that the rank holds
};

static struct tensor_slice rows_of(const struct reading *r, int rank) {
    struct tensor table = {
        .name = "embedding.weight", .dims = 2, .shape = {1000, 1000}, .data = r->data[rank]};
    struct tensor_slice s = checkpoint_whole_slice(&table);
    s.copy = r->replicas ? rank : 0;
    s.copies = r->replicas ? COPIES : 1;
    if (r->replicas) return s;
    s.rows /= COPIES;
    s.row = rank * s.rows;
    return s;
}

static void save_and_load(void *context, struct comm_stream *world, int rank) {
    struct reading *r = context;
    struct model_config model;
    struct checkpoint_state state = {.step = 1};
    struct tensor_slice slice = rows_of(r, rank);
    struct checkpoint *c;
    struct err err = {0};
    CHECK_OK(model_preset("llama-15m", &model, NULL), (struct err){0});
    CHECK_OK(checkpoint_save_slices(r->folder, &model, &slice, 1, &state, 0, world, NULL, &err),
             err);
    CHECK_OK(checkpoint_open_newest_world(r->folder, world, &c, &err), err);
    CHECK_OK(checkpoint_load_slices(c, &slice, 1, world, &err), err);
    r->factor[rank] = (double)checkpoint_read_bytes(c) / (double)(4 * slice.rows * slice.columns);
    checkpoint_close(c);
}

// What a rank holds, and its share of the whole to verify it (docs/checkpoints.md).
TEST(r66_each_rank_reads_what_it_holds_and_verifies_its_share) {
    for (int replicas = 0; replicas < 2; replicas++) {
        struct reading r = {.folder = test_path(replicas ? "replicas" : "shares"),
                            .replicas = replicas};
        for (int i = 0; i < COPIES; i++) r.data[i] = calloc(1000 * 1000, sizeof(float));
        run_ranks(COPIES, 0, save_and_load, &r);
        double expected = replicas ? 1 + 1.0 / COPIES : 2;
        for (int i = 0; i < COPIES; i++) {
            CHECK_CLOSE(r.factor[i], expected, 0.01);
            free(r.data[i]);
        }
    }
}

// ---- checkpoints of the format before: of one process, without pieces in the manifest

static void load_old(void *context, struct comm_stream *world, int rank) {
    const char *path = context;
    struct checkpoint *c;
    struct err err = {0};
    float part[16], norm[8];
    CHECK_OK(checkpoint_open_world(path, world, &c, &err), err);
    struct tensor_slice slices[3] = {
        {.name = "layers.0.mlp.up.weight",
         .dims = 2,
         .shape = {6, 8},
         .row = 2 * rank,
         .rows = 2,
         .columns = 8,
         .stride = 8,
         .data = part},
        {.name = "layers.0.norm.weight",
         .dims = 1,
         .shape = {8},
         .rows = 8,
         .columns = 1,
         .stride = 1,
         .data = norm},
        {.name = "layers.0.mlp.up.weight.moment1", .dims = 2, .shape = {6, 8}, .columns = 8},
    };
    CHECK_OK(checkpoint_load_slices(c, slices, 3, world, &err), err);
    for (int i = 0; i < 16; i++) CHECK_CLOSE(part[i], (double)(16 * rank + i) / 8, 0);
    for (int i = 0; i < 8; i++) CHECK_CLOSE(norm[i], 1 + (double)i / 16, 0);
    checkpoint_close(c);
}

TEST(checkpoints_of_the_first_format_are_read) {
    char path[4096];
    struct checkpoint *c;
    struct err err = {0};
    float moment[48];
    snprintf(path, sizeof path, "%s/checkpoint_v1/step_00000010", test_golden_dir());
    CHECK_OK(checkpoint_open(path, &c, &err), err);
    CHECK_EQ_INT(checkpoint_state(c)->samples, 80);
    CHECK_OK(checkpoint_read(c, "layers.0.mlp.up.weight.moment1", moment, &err), err);
    CHECK_CLOSE(moment[47], -47.0 / 4, 0);
    checkpoint_close(c);
    run_ranks(3, 0, load_old, path);
}
