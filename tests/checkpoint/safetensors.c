// The safetensors reader and writer: round trips, and files that lie.
#include "checkpoint/safetensors.h"
#include "base/file.h"
#include "test.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *path_of(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", test_temp_dir(), name);
    return path;
}

static void put_file(const char *path, const char *header, uint64_t header_bytes,
                     size_t data_bytes) {
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    for (int i = 0; i < 8; i++) fputc((int)(header_bytes >> 8 * i & 255), f);
    fputs(header, f);
    for (size_t i = 0; i < data_bytes; i++) fputc((int)i, f);
    fclose(f);
}

// Expects the header to be refused with a message that has `word` in it.
static void refused(const char *header, size_t data_bytes, const char *word) {
    struct safetensors st;
    struct err err = {0};
    const char *path = path_of("x.safetensors");
    put_file(path, header, strlen(header), data_bytes);
    if (safetensors_open(path, &st, &err) == 0)
        test_fail(__FILE__, __LINE__, "accepted: %s", header);
    CHECK_CONTAINS(err.text, word);
    CHECK_EQ_INT(err.kind, ERR_DATA);
    CHECK_CONTAINS(err.text, "x.safetensors");
}

TEST(round_trip_of_every_type) {
    struct tensor list[] = {
        {.name = "a", .type = DTYPE_F64, .dims = 1, .shape = {3}},
        {.name = "b", .type = DTYPE_F32, .dims = 2, .shape = {2, 5}},
        {.name = "scalar", .type = DTYPE_I32, .dims = 0},
        {.name = "c", .type = DTYPE_BF16, .dims = 4, .shape = {1, 2, 3, 1}},
        {.name = "d", .type = DTYPE_F16, .dims = 1, .shape = {5}},
        {.name = "nothing", .type = DTYPE_F16, .dims = 2, .shape = {0, 7}},
        {.name = "e", .type = DTYPE_U8, .dims = 1, .shape = {7}},
    };
    enum { COUNT = sizeof list / sizeof list[0] };
    unsigned char bytes[64];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(3 * i);
    struct safetensors_writer w;
    struct err err = {0};
    const char *path = path_of("round.safetensors");
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    CHECK_OK(safetensors_write_begin(&w, path, list, COUNT, metadata, &err), err);
    for (int i = 0; i < COUNT; i++)
        CHECK_OK(safetensors_write_put(&w, bytes + i, tensor_bytes(&list[i]), &err), err);
    uint64_t hash;
    CHECK_OK(safetensors_write_end(&w, true, &hash, &err), err);
    struct safetensors st;
    CHECK_OK(safetensors_open(path, &st, &err), err);
    CHECK_EQ_INT(st.count, COUNT);
    CHECK_STR(json_string_value(json_object_get(st.metadata, "format")), "pt");
    char *whole;
    size_t size;
    CHECK_OK(file_read(path, 0, &whole, &size, &err), err);
    CHECK(hash == hash_bytes(whole, size));
    free(whole);
    for (int i = 0; i < COUNT; i++) {
        int index = safetensors_find(&st, list[i].name);
        CHECK(index >= 0);
        const struct tensor *t = &st.tensors[index];
        unsigned char back[64];
        CHECK_EQ_INT(t->type, list[i].type);
        CHECK_EQ_INT(t->dims, list[i].dims);
        CHECK_EQ_INT(st.offsets[index] % dtype_bytes(t->type), 0);
        CHECK_OK(safetensors_read(&st, index, 0, tensor_bytes(t), back, &err), err);
        CHECK_BYTES(back, bytes + i, tensor_bytes(t));
    }
    safetensors_close(&st);
    json_decref(metadata);
}

TEST(hostile_headers_are_refused) {
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,20]}}", 20,
            "need 16 bytes");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 12, "outside");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", 16, "outside");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}", 16,
            "data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}", 16, "shape");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4.5],\"data_offsets\":[0,16]}}", 16, "shape");
    refused("{\"a\":{\"dtype\":\"F99\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16, "F99");
    refused("{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16, "dtype");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 20, "at the end");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "in front");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":"
            "\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
            12, "overlap");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"a\":{\"dtype\":"
            "\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
            8, "duplicate");
    // 4 * 2^62 overflows to 0; a product of three overflows on the way
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
            "64 bits");
    refused(
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,0]}}", 0,
        "64 bits");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}",
            0, "JSON");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "shape");
    refused("{\"a\":[1]}", 0, "object");
    refused("[]", 0, "object");
    refused("{", 0, "JSON");
    refused("{\"__metadata__\":{\"x\":1}}", 0, "__metadata__");
    char longest[400] = "{\"";
    memset(longest + 2, 'n', 200);
    strcpy(longest + 202, "\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}");
    refused(longest, 4, "longer");
}

TEST(lengths_beyond_the_file_are_refused) {
    static const uint64_t lengths[] = {
        100, 1 << 20, 101000000, UINT64_MAX, (uint64_t)INT64_MAX, UINT64_MAX - 7};
    struct safetensors st;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct err err = {0};
        put_file(path_of("y.safetensors"), "{}", lengths[i], 0);
        CHECK(safetensors_open(path_of("y.safetensors"), &st, &err) != 0);
        CHECK_CONTAINS(err.text, "header");
    }
    FILE *f = fopen(path_of("z.safetensors"), "wb");
    fputs("abc", f);
    fclose(f);
    struct err err = {0};
    CHECK(safetensors_open(path_of("z.safetensors"), &st, &err) != 0);
    CHECK_CONTAINS(err.text, "3 bytes");
    err = (struct err){0};
    CHECK(safetensors_open(path_of("absent.safetensors"), &st, &err) != 0);
    CHECK_EQ_INT(err.kind, ERR_IO);
}

TEST(unaligned_data_and_values_that_are_not_finite) {
    // a header of odd length puts the floats at odd addresses
    const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[5000],\"data_offsets\":[0,20000]}}";
    char padded[128];
    snprintf(padded, sizeof padded, "%s%s", header, strlen(header) % 2 ? "" : " ");
    FILE *f = fopen(path_of("odd.safetensors"), "wb");
    uint64_t bytes = strlen(padded);
    CHECK_EQ_INT(bytes % 2, 1);
    fwrite(&bytes, 8, 1, f);
    fputs(padded, f);
    for (int i = 0; i < 5000; i++) {
        float x = i == 4777 ? NAN : (float)i;
        fwrite(&x, 4, 1, f);
    }
    fclose(f);
    struct safetensors st;
    struct err err = {0};
    CHECK_OK(safetensors_open(path_of("odd.safetensors"), &st, &err), err);
    float out[5000];
    CHECK_OK(safetensors_read_floats(&st, 0, 0, 5000, out, &err), err);
    CHECK_CLOSE(out[4999], 4999, 0);
    CHECK_CLOSE(out[4097], 4097, 0);
    CHECK_EQ_INT(safetensors_not_finite(out, DTYPE_F32, 5000), 4777);
    CHECK_OK(safetensors_read_floats(&st, 0, 4990, 3, out, &err), err);
    CHECK_CLOSE(out[2], 4992, 0);
    safetensors_close(&st);
}

TEST(offsets_beyond_four_gigabytes) {
    // a sparse file: one tensor of 5 GiB and one behind it
    const char *path = path_of("sparse.safetensors");
    const char *header =
        "{\"big\":{\"dtype\":\"BF16\",\"shape\":[2684354560],\"data_offsets\":[0,5368709120]},"
        "\"small\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[5368709120,5368709124]}}";
    put_file(path, header, strlen(header), 0);
    struct stat status;
    CHECK(stat(path, &status) == 0);
    if (truncate(path, status.st_size + 5368709124) != 0)
        SKIP("the file system has no room for a sparse file of 5 GiB");
    FILE *f = fopen(path, "r+b");
    fseek(f, -4, SEEK_END);
    float x = 2.5f;
    fwrite(&x, 4, 1, f);
    fclose(f);
    struct safetensors st;
    struct err err = {0};
    CHECK_OK(safetensors_open(path, &st, &err), err);
    CHECK_OK(safetensors_read_floats(&st, safetensors_find(&st, "small"), 0, 1, &x, &err), err);
    CHECK_CLOSE(x, 2.5, 0);
    CHECK(safetensors_bytes(&st, safetensors_find(&st, "big")) == 5368709120u);
    safetensors_close(&st);
}

TEST(a_writer_that_gets_too_little_says_so) {
    struct tensor t = {.name = "a", .type = DTYPE_F32, .dims = 1, .shape = {8}};
    struct safetensors_writer w;
    struct err err = {0};
    float half[4] = {0};
    CHECK_OK(safetensors_write_begin(&w, path_of("w.safetensors"), &t, 1, NULL, &err), err);
    CHECK_OK(safetensors_write_put(&w, half, sizeof half, &err), err);
    CHECK(safetensors_write_end(&w, false, NULL, &err) != 0);
    struct tensor misaligned[] = {{.name = "b", .type = DTYPE_U8, .dims = 1, .shape = {1}},
                                  {.name = "a", .type = DTYPE_F32, .dims = 1, .shape = {8}}};
    CHECK(safetensors_write_begin(&w, path_of("w.safetensors"), misaligned, 2, NULL, NULL) != 0);
}

TEST(random_changes_of_a_file_never_crash) {
    char source[4096];
    char *data;
    size_t bytes;
    struct err err = {0};
    snprintf(source, sizeof source, "%s/checkpoints/mistral/model.safetensors", test_golden_dir());
    CHECK_OK(file_read(source, 0, &data, &bytes, &err), err);
    uint64_t header_bytes;
    memcpy(&header_bytes, data, 8);
    unsigned state = 99;
    int accepted = 0;
    for (int round = 0; round < 1500; round++) {
        char *copy = malloc(bytes);
        size_t length = bytes;
        memcpy(copy, data, bytes);
        for (int k = 0; k < 1 + round % 3; k++) {
            state = state * 1664525u + 1013904223u;
            size_t at = (state >> 8) % (8 + (size_t)header_bytes);
            if ((state & 7) == 0)
                length = at;
            else if ((state & 7) < 4)
                copy[at] = "0123456789,[]{}\":"[(state >> 24) % 17];
            else
                copy[at] ^= (char)(1u << (state >> 29));
        }
        FILE *f = fopen(path_of("fuzz.safetensors"), "wb");
        fwrite(copy, 1, length, f);
        fclose(f);
        free(copy);
        struct safetensors st;
        if (safetensors_open(path_of("fuzz.safetensors"), &st, NULL) != 0) continue;
        accepted++;
        for (int i = 0; i < st.count; i++) {
            char byte;
            if (safetensors_bytes(&st, i) > 0)
                CHECK(safetensors_read(&st, i, safetensors_bytes(&st, i) - 1, 1, &byte, NULL) == 0);
        }
        safetensors_close(&st);
    }
    CHECK(accepted < 1000);
    free(data);
}
