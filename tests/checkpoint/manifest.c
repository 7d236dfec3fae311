// Manifests that are whole, with a right hash of themselves, and do not fit the parts or each
// other: what a wrong program could leave.
#include "checkpoint/manifest.h"
#include "base/file.h"
#include "base/hash.h"
#include "spread.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const table = "embedding.weight";

static json_t *part_of(json_t *tree, size_t i) {
    return json_array_get(json_object_get(tree, "parts"), i);
}

static json_t *pieces_of(json_t *tree, size_t i) {
    return json_object_get(part_of(tree, i), "pieces");
}

// ---- edits of a manifest whose parts hold one piece each

static void other_name(json_t *tree) { // everywhere in the manifest, but not in the part
    json_t *tensors = json_object_get(tree, "tensors"), *part;
    size_t i;
    json_object_set(tensors, "other.weight", json_object_get(tensors, table));
    json_object_del(tensors, table);
    json_array_foreach(json_object_get(tree, "parts"), i, part) {
        const char *name = json_string_value(json_array_get(pieces_of(tree, i), 0));
        char changed[200];
        if (strncmp(name, table, strlen(table)) != 0) continue;
        snprintf(changed, sizeof changed, "other.weight%s", name + strlen(table));
        json_array_set_new(pieces_of(tree, i), 0, json_string(changed));
    }
}

static void unlisted(json_t *tree) {
    json_object_del(json_object_get(tree, "tensors"), table);
}

static void without_pieces(json_t *tree) {
    json_object_del(part_of(tree, 0), "pieces");
}

static void piece_too_many(json_t *tree) {
    json_array_append(pieces_of(tree, 0), json_array_get(pieces_of(tree, 0), 0));
}

static void data_elsewhere(json_t *tree) {
    json_t *part = part_of(tree, 0);
    json_object_set_new(part, "data",
                        json_integer(json_integer_value(json_object_get(part, "data")) - 4));
}

static void part_gone(json_t *tree) {
    json_array_remove(json_object_get(tree, "parts"), 0);
}

static void part_twice(json_t *tree) {
    json_array_append(json_object_get(tree, "parts"), part_of(tree, 0));
}

static void beyond_the_tensor(json_t *tree) {
    json_array_set_new(pieces_of(tree, 0), 0, json_string("embedding.weight@52:54,0:24"));
}

static void malformed_piece(json_t *tree) {
    json_array_set_new(pieces_of(tree, 0), 0, json_string("embedding.weight@52"));
}

static void malformed_size(json_t *tree) {
    json_array_set_new(json_object_get(json_object_get(tree, "tensors"), table), 1,
                       json_integer(-1));
}

static void huge_size(json_t *tree) {
    json_array_set_new(json_object_get(json_object_get(tree, "tensors"), table), 1,
                       json_integer(INT64_MAX / 8));
}

static void unknown_type(json_t *tree) {
    json_array_set_new(json_object_get(json_object_get(tree, "tensors"), table), 0,
                       json_string("f33"));
}

static void other_type(json_t *tree) { // of the same width
    json_array_set_new(json_object_get(json_object_get(tree, "tensors"), table), 0,
                       json_string("i32"));
}

static void no_tensors(json_t *tree) {
    json_object_del(tree, "tensors");
}

static void negative_rank(json_t *tree) {
    json_object_set_new(part_of(tree, 0), "rank", json_integer(-1));
}

static void later_version(json_t *tree) {
    json_object_set_new(tree, "version", json_integer(3));
}

static const struct edit {
    void (*apply)(json_t *tree);
    const char *says;
} edits[] = {
    {other_name, "is not what the manifest says of it"},
    {other_type, "is not what the manifest says of it"},
    {unlisted, "is of no listed tensor"},
    {without_pieces, "the pieces end at byte"},
    {piece_too_many, "the pieces end at byte"},
    {data_elsewhere, "the pieces end at byte"},
    {part_gone, "no part holds rows [0, 1), columns [0, 6) of tensor embedding.weight"},
    {part_twice, "more than one part holds rows [0, 1), columns [0, 6) of tensor embedding.weight"},
    {beyond_the_tensor, "lies outside its tensor"},
    {malformed_piece, "is no name of a piece"},
    {malformed_size, "size 0 is malformed"},
    {huge_size, "size 1 is malformed"},
    {unknown_type, "expected a type and sizes"},
    {no_tensors, "tensors: expected an object"},
    {negative_rank, "rank or hash is malformed"},
    {later_version, "this program reads versions 1 to 2"},
};

// With a hash that fits, as manifest.c computes it.
static void write_tree(json_t *tree, const char *path) {
    char hash[17];
    struct err err = {0};
    json_object_del(tree, "hash");
    char *text = json_dumps(tree, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    hash_text(hash_string(text), hash);
    free(text);
    json_object_set_new(tree, "hash", json_string(hash));
    text = json_dumps(tree, JSON_REAL_PRECISION(17));
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    free(text);
}

TEST(manifests_that_do_not_fit_are_refused) {
    struct spread spread;
    struct checkpoint_saved saved;
    struct checkpoint *c;
    struct err err = {0};
    char path[4200];
    spread_crumbs(&spread, 1);
    spread_fill(&spread, 4);
    CHECK_OK(spread_save(test_temp_dir(), &spread, 0, 4, 1, NULL, &saved, &err), err);
    snprintf(path, sizeof path, "%s/manifest.json", saved.path);
    json_t *tree = json_parse_file(path, &err);
    CHECK(tree != NULL);
    // wider types stand in front: the part of the first row of the table becomes the first
    size_t count = json_array_size(json_object_get(tree, "parts")), first = 0;
    while (strcmp(json_string_value(json_array_get(pieces_of(tree, first), 0)),
                  "embedding.weight@0:1,0:6") != 0)
        CHECK(++first < count);
    json_t *part = json_incref(part_of(tree, first));
    json_array_remove(json_object_get(tree, "parts"), first);
    json_array_insert_new(json_object_get(tree, "parts"), 0, part);
    write_tree(tree, path);
    CHECK_OK(checkpoint_open(saved.path, &c, &err), err); // the order of parts says nothing
    checkpoint_close(c);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        json_t *copy = json_deep_copy(tree);
        struct err why = {0};
        edits[i].apply(copy);
        write_tree(copy, path);
        json_decref(copy);
        CHECK(checkpoint_open(saved.path, &c, &why) != 0);
        CHECK_EQ_INT(why.kind, ERR_DATA);
        CHECK_CONTAINS(why.text, edits[i].says);
    }
    json_decref(tree);
    spread_free(&spread);
}
