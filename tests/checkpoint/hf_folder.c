// Model folders in Hugging Face layout: read, written, converted, validated.
#include "checkpoint/hf_folder.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "model/families.h"
#include "test.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *const names[] = {
    "gpt2",       "llama",        "mistral",    "qwen2",        "qwen3",
    "olmo2",      "smollm2",      "llama-bias", "llama-linear", "llama-dynamic",
    "llama-yarn", "qwen2-window", "mixtral",    "qwen3-moe",    "qwen3-moe-norm"};
enum { NAMES = sizeof names / sizeof names[0] };

static const char *golden(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/checkpoints/%s", test_golden_dir(), name);
    return path;
}

static const char *temp(const char *name) {
    static char path[4][4096];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", test_temp_dir(), name);
    return path[next];
}

static int fill_from_folder(void *context, int param, int64_t first_row, int64_t rows, float *out,
                            struct err *err) {
    return hf_folder_read_rows(context, param, first_row, rows, out, err);
}

static void same_values(const struct hf_folder *a, const struct hf_folder *b) {
    const struct model *model = hf_folder_model(a);
    struct err err = {0};
    CHECK_EQ_INT(model->param_count, hf_folder_model(b)->param_count);
    for (int i = 0; i < model->param_count; i++) {
        size_t bytes = (size_t)param_elements(&model->params[i]) * sizeof(float);
        float *x = malloc(bytes), *y = malloc(bytes);
        CHECK_OK(hf_folder_read(a, i, x, &err), err);
        CHECK_OK(hf_folder_read(b, i, y, &err), err);
        CHECK_BYTES(x, y, bytes);
        free(x), free(y);
    }
}

// Bytes of a stored tensor of the only or the n-th file.
static void *stored(const char *folder, const char *file, const char *tensor, uint64_t *bytes) {
    struct safetensors st;
    struct err err = {0};
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    CHECK_OK(safetensors_open(path, &st, &err), err);
    int index = safetensors_find(&st, tensor);
    CHECK(index >= 0);
    *bytes = safetensors_bytes(&st, index);
    void *data = malloc(*bytes);
    CHECK_OK(safetensors_read(&st, index, 0, *bytes, data, &err), err);
    safetensors_close(&st);
    return data;
}

TEST(every_family_is_read_and_written_without_loss) {
    for (int i = 0; i < NAMES; i++) {
        struct hf_folder *a, *b;
        struct err err = {0};
        CHECK_OK(hf_folder_validate(golden(names[i]), &err), err);
        CHECK_OK(hf_folder_open(golden(names[i]), &a, &err), err);
        struct hf_write_options options = {.type = DTYPE_F32};
        struct hf_cast_counts counts = {0};
        CHECK_OK(hf_folder_write(temp(names[i]), hf_folder_model(a), &options, fill_from_folder, a,
                                 &counts, &err),
                 err);
        CHECK_EQ_INT(counts.changed, 0);
        CHECK_OK(hf_folder_open(temp(names[i]), &b, &err), err);
        CHECK_STR(hf_folder_model(b)->config.variant, hf_folder_model(a)->config.variant);
        CHECK_EQ_INT(hf_folder_dtype(b), DTYPE_F32);
        same_values(a, b);
        hf_folder_close(a), hf_folder_close(b);
    }
}

TEST(conversion_keeps_bits_and_carries_files) {
    for (int i = 0; i < NAMES; i++) {
        struct hf_folder *a, *b;
        struct err err = {0};
        struct hf_write_options options = {.type = DTYPE_COUNT};
        CHECK_OK(hf_folder_convert(golden(names[i]), temp(names[i]), &options, NULL, &err), err);
        CHECK_OK(hf_folder_validate(temp(names[i]), &err), err);
        CHECK_OK(hf_folder_open(golden(names[i]), &a, &err), err);
        CHECK_OK(hf_folder_open(temp(names[i]), &b, &err), err);
        CHECK_EQ_INT(hf_folder_dtype(a), hf_folder_dtype(b));
        same_values(a, b);
        hf_folder_close(a), hf_folder_close(b);
    }
    uint64_t bytes, again;
    void *x =
        stored(golden("gpt2"), "model.safetensors", "transformer.h.1.attn.c_attn.weight", &bytes);
    void *y =
        stored(temp("gpt2"), "model.safetensors", "transformer.h.1.attn.c_attn.weight", &again);
    CHECK_EQ_INT(bytes, again);
    CHECK_BYTES(x, y, bytes);
    free(x), free(y);
    struct err err = {0};
    struct hf_write_options options = {.type = DTYPE_COUNT};
    CHECK_OK(hf_folder_convert(golden("llama"), temp("source"), &options, NULL, &err), err);
    CHECK_OK(file_replace(temp("source/tokenizer.json"), "{\n}", 3, &err), err);
    CHECK_OK(file_replace(temp("source/merges.txt"), "a b", 3, &err), err);
    CHECK_OK(file_replace(temp("source/secrets.txt"), "a b", 3, &err), err);
    CHECK_OK(hf_folder_convert(temp("source"), temp("target"), &options, NULL, &err), err);
    CHECK(file_exists(temp("target/tokenizer.json")) && file_exists(temp("target/merges.txt")) &&
          !file_exists(temp("target/secrets.txt")));
}

TEST(turned_and_fused_matrices_lie_as_described) {
    struct hf_folder *f;
    struct err err = {0};
    uint64_t bytes;
    CHECK_OK(hf_folder_open(golden("gpt2"), &f, &err), err);
    const struct model *model = hf_folder_model(f);
    int index = model_param(model, 1, PARAM_QKV);
    float *out = calloc((size_t)param_elements(&model->params[index]), sizeof *out);
    CHECK_OK(hf_folder_read(f, index, out, &err), err);
    bf16 *raw =
        stored(golden("gpt2"), "model.safetensors", "transformer.h.1.attn.c_attn.weight", &bytes);
    for (int r = 0; r < 96; r++)
        for (int c = 0; c < 32; c++)
            CHECK_CLOSE(out[r * 32 + c], bf16_to_float(raw[c * 96 + r]), 0);
    free(raw);
    hf_folder_close(f);
    CHECK_OK(hf_folder_open(golden("llama"), &f, &err), err);
    model = hf_folder_model(f);
    index = model_param(model, 0, PARAM_QKV);
    CHECK_OK(hf_folder_read(f, index, out, &err), err);
    raw = stored(golden("llama"), "model.safetensors", "model.layers.0.self_attn.k_proj.weight",
                 &bytes);
    for (int i = 0; i < 16 * 32; i++) CHECK_CLOSE(out[32 * 32 + i], bf16_to_float(raw[i]), 0);
    free(raw), free(out);
    hf_folder_close(f);
}

// --- larger models of given shapes ---

static struct model sized(int vocab, int layers, int hidden) {
    struct model_config c;
    struct model model;
    struct err err = {0};
    model_family_defaults(FAMILY_LLAMA, &c);
    c.layers = layers, c.hidden = hidden, c.heads = 4, c.kv_heads = 2, c.head_dim = hidden / 4,
    c.ffn = 2 * hidden, c.vocab = vocab, c.context = 64;
    CHECK_OK(model_describe(&model, &c, &err), err);
    return model;
}

static int fill_pattern(void *context, int param, int64_t first_row, int64_t rows, float *out,
                        struct err *err) {
    const struct model *model = context;
    (void)err;
    int64_t columns = model->params[param].columns;
    for (int64_t i = 0; i < rows * columns; i++)
        out[i] = (float)((param * 131 + first_row * columns + i) % 251) / 256;
    return 0;
}

TEST(shards_are_named_counted_and_whole) {
    // 14 tensors of 0.25 MB, 3.5 MB together: four to a shard of 1 MB
    struct model model = sized(256, 1, 256);
    struct err err = {0};
    struct hf_write_options options = {.type = DTYPE_F32, .max_shard_bytes = 1 << 20};
    CHECK_OK(hf_folder_write(temp("s"), &model, &options, fill_pattern, &model, NULL, &err), err);
    json_t *index = json_parse_file(temp("s/model.safetensors.index.json"), &err);
    CHECK(index != NULL);
    uint64_t total = 0, sum = 0;
    for (int i = 0; i < model.param_count; i++)
        total += 4 * (uint64_t)param_elements(&model.params[i]);
    CHECK_EQ_INT(
        json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
        total);
    int files = 0;
    for (;; files++) {
        char name[64];
        struct safetensors st;
        snprintf(name, sizeof name, "s/model-%05d-of-00004.safetensors", files + 1);
        if (!file_exists(temp(name))) break;
        CHECK_OK(safetensors_open(temp(name), &st, &err), err);
        uint64_t bytes = 0;
        for (int i = 0; i < st.count; i++) {
            bytes += safetensors_bytes(&st, i);
            CHECK_STR(json_string_value(json_object_get(json_object_get(index, "weight_map"),
                                                        st.tensors[i].name)),
                      name + 2);
        }
        CHECK(bytes <= 1 << 20);
        CHECK_EQ_INT(st.offsets[0] % 64, 0);
        sum += bytes;
        safetensors_close(&st);
    }
    CHECK_EQ_INT(files, 4);
    CHECK(sum == total);
    CHECK_OK(hf_folder_validate(temp("s"), &err), err);
    // one file in the end: the shards and the index of before are gone
    options.max_shard_bytes = 0;
    CHECK_OK(hf_folder_write(temp("s"), &model, &options, fill_pattern, &model, NULL, &err), err);
    CHECK(!file_exists(temp("s/model.safetensors.index.json")) &&
          !file_exists(temp("s/model-00001-of-00004.safetensors")));
    CHECK_OK(hf_folder_validate(temp("s"), &err), err);
    json_decref(index);
    model_free(&model);
}

TEST(rows_are_read_by_themselves) {
    for (int n = 0; n < 2; n++) {
        struct hf_folder *f;
        struct err err = {0};
        CHECK_OK(hf_folder_open(golden(n ? "llama" : "gpt2"), &f, &err), err);
        const struct param *p =
            &hf_folder_model(f)->params[model_param(hf_folder_model(f), 1, PARAM_QKV)];
        int index = (int)(p - hf_folder_model(f)->params);
        float *whole = malloc((size_t)param_elements(p) * sizeof *whole), some[16 * 32];
        CHECK_OK(hf_folder_read(f, index, whole, &err), err);
        for (int64_t first = 0; first + 16 <= p->rows;
             first += 5) { // across the borders of q, k and v
            CHECK_OK(hf_folder_read_rows(f, index, first, 16, some, &err), err);
            CHECK_BYTES(some, whole + first * 32, sizeof some);
        }
        free(whole);
        hf_folder_close(f);
    }
}

TEST(tied_heads) {
    struct err err = {0};
    struct hf_write_options options = {.type = DTYPE_COUNT, .store_tied_head = true};
    uint64_t bytes;
    struct hf_folder *a, *b;
    // none by default, a copy when asked for, and both read the same
    CHECK_OK(hf_folder_convert(golden("smollm2"), temp("copy"), &options, NULL, &err), err);
    free(stored(temp("copy"), "model.safetensors", "lm_head.weight", &bytes));
    CHECK_OK(hf_folder_open(golden("smollm2"), &a, &err), err);
    CHECK_OK(hf_folder_open(temp("copy"), &b, &err), err);
    same_values(a, b);
    hf_folder_close(b);
    options.type = DTYPE_F32;
    CHECK_OK(hf_folder_write(temp("copy2"), hf_folder_model(a), &options, fill_from_folder, a, NULL,
                             &err),
             err);
    CHECK_OK(hf_folder_validate(temp("copy2"), &err), err);
    hf_folder_close(a);
    struct safetensors st;
    CHECK_OK(safetensors_open(temp("copy2/model.safetensors"), &st, &err), err);
    CHECK(safetensors_find(&st, "lm_head.weight") >= 0);
    safetensors_close(&st);
    // a copy that differs is no copy
    char path[4096], *text;
    size_t size;
    snprintf(path, sizeof path, "%s", temp("copy/model.safetensors"));
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    text[size - 3] ^= 1; // the head is the last tensor
    CHECK_OK(file_replace(path, text, size, &err), err);
    CHECK(hf_folder_open(temp("copy"), &b, &err) != 0);
    CHECK_CONTAINS(err.text, "lm_head.weight");
    free(text);
}

TEST(casts_are_counted) {
    static const float values[] = {1, 70144, 1e-7f, 1e-9f, 1.0f + 0x1p-12f, -70144, 0, 65504};
    struct hf_cast_counts counts = {0};
    // through a folder: an embedding with these values
    struct model model = sized(64, 1, 16);
    struct err err = {0};
    struct hf_folder *f;
    struct hf_write_options options = {.type = DTYPE_F32};
    CHECK_OK(hf_folder_write(temp("c"), &model, &options, fill_pattern, &model, NULL, &err), err);
    char path[4096], *text;
    size_t size;
    snprintf(path, sizeof path, "%s", temp("c/model.safetensors"));
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    uint64_t header;
    memcpy(&header, text, 8);
    memcpy(text + 8 + header, values, sizeof values);
    CHECK_OK(file_replace(path, text, size, &err), err);
    free(text);
    CHECK_OK(hf_folder_open(temp("c"), &f, &err), err);
    CHECK_OK(hf_folder_count_cast(f, DTYPE_F16, &counts, &err), err);
    CHECK_EQ_INT(counts.became_inf, 2);
    CHECK_EQ_INT(counts.became_zero, 1);
    CHECK_EQ_INT(counts.became_denormal, 1);
    CHECK_EQ_INT(counts.changed, 5);
    counts = (struct hf_cast_counts){0};
    CHECK_OK(hf_folder_count_cast(f, DTYPE_F32, &counts, &err), err);
    CHECK_EQ_INT(counts.changed, 0);
    hf_folder_close(f);
    model_free(&model);
}

static void broken(const char *folder, const char *word) {
    struct err err = {0};
    if (hf_folder_validate(folder, &err) == 0) test_fail(__FILE__, __LINE__, "accepted: %s", word);
    CHECK_CONTAINS(err.text, word);
}

TEST(index_and_files_must_agree) {
    struct err err = {0};
    struct hf_write_options options = {.type = DTYPE_COUNT, .max_shard_bytes = 16000};
    char path[4096];
    snprintf(path, sizeof path, "%s", temp("q/model.safetensors.index.json"));
    for (int kind = 0; kind < 7; kind++) {
        CHECK_OK(hf_folder_convert(golden("qwen2"), temp("q"), &options, NULL, &err), err);
        json_t *tree = json_parse_file(path, &err), *map = json_object_get(tree, "weight_map");
        const char *word = "";
        switch (kind) {
        case 0:
            json_object_set_new(map, "lm_head2.weight",
                                json_string("model-00001-of-00003.safetensors")),
                word = "lm_head2.weight";
            break;
        case 1:
            json_object_del(map, "model.norm.weight"), word = "model.norm.weight";
            break;
        case 2:
            json_object_set_new(map, "model.norm.weight",
                                json_string("model-00009-of-00003.safetensors")),
                word = "model-00009-of-00003";
            break;
        case 3:
            json_object_set_new(map, "model.norm.weight", json_string("../x.safetensors")),
                word = "in this folder";
            break;
        case 4:
            json_object_set_new(json_object_get(tree, "metadata"), "total_size", json_integer(5)),
                word = "total_size";
            break;
        case 5:
            CHECK(truncate(temp("q/model-00002-of-00003.safetensors"), 15000) == 0);
            word = "truncated";
            break;
        default:
            CHECK(unlink(temp("q/model-00002-of-00003.safetensors")) == 0);
            word = "model-00002-of-00003";
            break;
        }
        char *text = json_dumps(tree, 0);
        CHECK_OK(file_replace(path, text, strlen(text), &err), err);
        broken(temp("q"), word);
        free(text);
        json_decref(tree);
    }
}

static void patch_config(const char *folder, const char *key, json_t *value) {
    char path[4096];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *tree = json_parse_file(path, &err);
    json_object_set_new(tree, key, value);
    char *text = json_dumps(tree, 0);
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    free(text);
    json_decref(tree);
}

TEST(tensors_must_be_those_of_the_configuration) {
    struct err err = {0};
    struct hf_write_options options = {.type = DTYPE_COUNT};
    CHECK_OK(hf_folder_convert(golden("llama"), temp("m"), &options, NULL, &err), err);
    patch_config(temp("m"), "num_hidden_layers", json_integer(3));
    broken(temp("m"), "missing: model.layers.2.");
    patch_config(temp("m"), "num_hidden_layers", json_integer(1));
    broken(temp("m"), "unexpected: model.layers.1.");
    patch_config(temp("m"), "num_hidden_layers", json_integer(2));
    patch_config(temp("m"), "intermediate_size", json_integer(44));
    broken(temp("m"), "(stored [40, 32], the configuration needs [44, 32])");
    patch_config(temp("m"), "intermediate_size", json_integer(40));
    patch_config(temp("m"), "tie_word_embeddings", json_true());
    broken(temp("m"), "tie_word_embeddings");
    broken(temp("nowhere"), "nowhere");
    CHECK_OK(file_make_folders(temp("empty"), &err), err);
    broken(temp("empty"), "config.json");
}

TEST(values_that_are_not_finite_are_named) {
    struct err err = {0};
    struct hf_write_options options = {.type = DTYPE_COUNT};
    struct hf_folder *f;
    CHECK_OK(hf_folder_convert(golden("gpt2"), temp("n"), &options, NULL, &err), err);
    struct safetensors st;
    CHECK_OK(safetensors_open(temp("n/model.safetensors"), &st, &err), err);
    int index = safetensors_find(&st, "transformer.h.0.mlp.c_fc.weight");
    uint64_t offset = st.offsets[index] + 2 * 1003;
    safetensors_close(&st);
    FILE *file = fopen(temp("n/model.safetensors"), "r+b");
    fseek(file, (long)offset, SEEK_SET);
    uint16_t nan = 0x7fc0;
    fwrite(&nan, 2, 1, file);
    fclose(file);
    broken(temp("n"), "transformer.h.0.mlp.c_fc.weight");
    CHECK_OK(hf_folder_open(temp("n"), &f, &err), err);
    float out[128 * 32];
    CHECK(hf_folder_read(f, model_param(hf_folder_model(f), 0, PARAM_UP), out, &err) != 0);
    CHECK_CONTAINS(err.text, "transformer.h.0.mlp.c_fc.weight");
    CHECK_CONTAINS(err.text, "1003");
    hf_folder_close(f);
    err = (struct err){0};
    CHECK(hf_folder_convert(temp("n"), temp("n2"), &options, NULL, &err) != 0);
    CHECK_CONTAINS(err.text, "1003");
    CHECK(!file_exists(temp("n2/model.safetensors")) &&
          !file_exists(temp("n2/model.safetensors.partial")));
}

TEST(a_full_disk_keeps_the_earlier_export) {
    struct err err = {0};
    struct hf_write_options options = {.type = DTYPE_COUNT, .max_shard_bytes = 15000};
    CHECK_OK(hf_folder_convert(golden("mistral"), temp("d"), &options, NULL, &err), err);
    for (uint64_t bytes = 0; bytes < 40000; bytes += 4999) {
        struct err full = {0};
        file_fail_after(bytes, ENOSPC);
        int result = hf_folder_convert(golden("mistral"), temp("d"), &options, NULL, &full);
        file_fail_after(0, 0);
        CHECK(result != 0);
        CHECK_CONTAINS(full.text, "No space left");
        CHECK_OK(hf_folder_validate(temp("d"), &err), err);
    }
}

#ifndef WEFT_SANITIZED
TEST(memory_is_a_piece_whatever_the_size) {
    // 200 MB of weights under 96 MB of further address space
    struct model model = sized(64, 50, 1024);
    struct err err = {0};
    struct hf_write_options options = {.type = DTYPE_BF16};
    struct hf_cast_counts counts = {0};
    model.config.layers = 50;
    CHECK_OK(hf_folder_write(temp("big"), &model, &options, fill_pattern, &model, &counts, &err),
             err);
    CHECK_EQ_INT(counts.changed, 0);
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    CHECK(f != NULL && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    struct rlimit limit = {pages * 4096 + (96u << 20), pages * 4096 + (96u << 20)};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    options.type = DTYPE_COUNT;
    CHECK_OK(hf_folder_convert(temp("big"), temp("big2"), &options, &counts, &err), err);
    uint64_t a, b;
    void *x = stored(temp("big"), "model.safetensors", "model.layers.49.mlp.up_proj.weight", &a);
    void *y = stored(temp("big2"), "model.safetensors", "model.layers.49.mlp.up_proj.weight", &b);
    CHECK_BYTES(x, y, a);
    free(x), free(y);
    model_free(&model);
}
#endif

TEST(a_real_checkpoint_opens) {
    if (!test_data_dir()) SKIP("needs DATA");
    char path[4096];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/checkpoints/tinystories_656k", test_data_dir());
    if (!file_exists(path)) SKIP("no %s", path);
    struct hf_folder *f; // tied, and stored as lm_head.weight only
    CHECK_OK(hf_folder_open(path, &f, &err), err);
    CHECK_OK(hf_folder_validate(path, &err), err);
    CHECK_EQ_INT(hf_folder_model(f)->config.hidden, 128);
    hf_folder_close(f);
}
