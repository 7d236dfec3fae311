// Where a sample comes from: the documents that loader_origin names are those whose ids the row
// holds.
#include "base/file.h"
#include "data/loader.h"
#include "data_tools.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

static struct err err;

static const char *folder(const char *name) {
    const char *path = tools_path(name);
    CHECK_OK(file_make_folders(path, &err), err);
    return path;
}

TEST(origin_of_chunks_over_documents_and_shards) {
    struct shard_info like = tools_like(SHARD_WEFT, 1000);
    const char *a = folder("a");
    tools_shard(tools_path("a/1.weft"), &like, DOCUMENTS(1, 2, 3, -1, 4, 5, -1, 6, -1));
    tools_shard(tools_path("a/2.weft"), &like, DOCUMENTS(7, 8, -1, 9, 10, 11, 12, 13, -1));
    struct loader_options options = tools_options(a, 4);
    options.shuffle = SHUFFLE_NONE;
    struct tools_loader t;
    struct loader_origin o;
    tools_open(&t, &options);
    CHECK_OK(loader_origin(t.loader, 0, &o, &err), err); // 1 2 3 4
    CHECK_EQ_INT(o.id, 0);
    CHECK_STR(o.set, a);
    CHECK_EQ_INT(o.documents, 2);
    CHECK_EQ_INT(o.document[1].number, 1);
    CHECK_CONTAINS(o.document[1].shard, "1.weft");
    CHECK_OK(loader_origin(t.loader, 1, &o, &err), err); // 5 6 | 7 8
    CHECK_EQ_INT(o.id, 1);
    CHECK_EQ_INT(o.documents, 3);
    CHECK_EQ_INT(o.document[0].number, 1);
    CHECK_EQ_INT(o.document[1].number, 2);
    CHECK_CONTAINS(o.document[1].shard, "1.weft");
    CHECK_EQ_INT(o.document[2].number, 0);
    CHECK_CONTAINS(o.document[2].shard, "2.weft");
    CHECK_OK(loader_origin(t.loader, 2, &o, &err), err); // 9 10 11 12
    CHECK_EQ_INT(o.documents, 1);
    CHECK_EQ_INT(o.document[0].number, 1);
    CHECK_OK(loader_origin(t.loader, 3, &o, &err), err); // the next epoch
    CHECK_EQ_INT(o.id, 0);
    tools_close(&t);
}

// Documents begin with ids of their own, so a row tells which it holds; two sets, shuffled.
TEST(origin_of_packed_rows_is_what_they_hold) {
    struct shard_info like = tools_like(SHARD_WEFT, 1000);
    const char *a = folder("a"), *b_set = folder("b");
    tools_shard(tools_path("a/1.weft"), &like,
                DOCUMENTS(100, 1, 1, 1, 1, -1, 101, 1, -1, 102, 1, 1, -1, 103, 1, -1));
    tools_shard(tools_path("b/1.weft"), &like, DOCUMENTS(200, 1, 1, -1, 201, 1, -1, 202, 1, 1, -1));
    struct loader_options options = tools_options(a, 8);
    options.sets[1] = (struct loader_set){b_set, 1};
    options.sets[0].weight = 2; // not in step with the ranks
    options.set_count = 2;
    options.mode = LOADER_PACK;
    options.document_mask = options.reset_positions = true;
    options.ranks = 2;
    options.rank = 1;
    struct tools_loader t;
    tools_open(&t, &options);
    int seen[2] = {0};
    for (uint64_t step = 0; step < 40; step += 2) {
        const struct batch *b = tools_step(&t, step)[0];
        struct loader_origin o;
        uint64_t id;
        CHECK_OK(loader_origin(t.loader, step + 1, &o, &err), err);
        loader_sample_ids(t.loader, step, &id);
        CHECK_EQ_INT(o.id, id);
        int count = 0, first = strcmp(o.set, b_set) == 0 ? 200 : 100;
        for (int32_t i = 0; i < b->tokens; i++) {
            if (b->input[i] < 100) continue;
            CHECK_EQ_INT(b->input[i], first + (int)o.document[count].number);
            count++;
        }
        CHECK_EQ_INT(o.documents, count);
        seen[first / 100 - 1]++;
    }
    CHECK(seen[0] > 0 && seen[1] > 0);
    tools_close(&t);
}

TEST(origin_names_the_first_of_many_documents) {
    struct shard_info like = tools_like(SHARD_WEFT, 1000);
    int documents[100];
    for (int i = 0; i < 48; i++) {
        documents[2 * i] = i;
        documents[2 * i + 1] = -1;
    }
    documents[96] = -2;
    tools_shard(tools_path("s.weft"), &like, documents);
    struct loader_options options = tools_options(tools_path("s.weft"), 20);
    options.shuffle = SHUFFLE_NONE;
    struct tools_loader t;
    struct loader_origin o;
    tools_open(&t, &options);
    CHECK_OK(loader_origin(t.loader, 1, &o, &err), err);
    CHECK_EQ_INT(o.documents, 20);
    CHECK_EQ_INT(o.document[0].number, 20);
    CHECK_EQ_INT(o.document[LOADER_ORIGIN_DOCUMENTS - 1].number, 27);
    tools_close(&t);
}
