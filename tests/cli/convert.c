// weft convert as a program: formats, refusals, counts, exit status.
#include "base/file.h"
#include "base/random.h"
#include "checkpoint/safetensors.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char output[8192];

static int weft(const char *arguments) {
    return test_shell(output, sizeof output, "cd '%s' && '%s' %s", test_temp_dir(), test_weft(),
                      arguments);
}

static void golden(const char *name, const char *options, const char *to) {
    char text[9000];
    snprintf(text, sizeof text, "convert %s %s/checkpoints/%s %s", options, test_golden_dir(), name,
             to);
    if (weft(text) != 0) test_fail(__FILE__, __LINE__, "%s", output);
}

static const char *inside(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", test_temp_dir(), name);
    return path;
}

TEST(convert_explains_itself) {
    CHECK_EQ_INT(weft("convert --help"), 0);
    CHECK_CONTAINS(output, "--lossy");
    CHECK_EQ_INT(weft("convert only-one"), 2);
    CHECK_EQ_INT(weft("convert a b --dtyp f32"), 2);
    CHECK_CONTAINS(output, "--dtype");
    CHECK_EQ_INT(weft("convert nowhere there"), 2);
    CHECK_CONTAINS(output, "nowhere");
    golden("llama", "", "a");
    CHECK_EQ_INT(weft("convert a b --dtype q4_0"), 2);
    CHECK_CONTAINS(output, "q4_0");
    CHECK_EQ_INT(weft("convert a ./a/"), 2);
    CHECK_CONTAINS(output, "same folder");
    CHECK_EQ_INT(weft("convert a a.gguf"), 2); // no tokenizer beside it
    CHECK_CONTAINS(output, "--tokenizer");
    CHECK(!file_exists(inside("a.gguf")));
}

TEST(default_keeps_the_stored_type_and_losses_are_counted) {
    golden("mistral", "", "a");
    // 70144, which bf16 holds and f16 does not
    struct safetensors st;
    struct err err = {0};
    CHECK_OK(safetensors_open(inside("a/model.safetensors"), &st, &err), err);
    uint64_t offset = st.offsets[safetensors_find(&st, "model.layers.0.mlp.up_proj.weight")] + 20;
    safetensors_close(&st);
    FILE *f = fopen(inside("a/model.safetensors"), "r+b");
    uint16_t bits = 0x4789;
    fseek(f, (long)offset, SEEK_SET);
    fwrite(&bits, 2, 1, f);
    fclose(f);
    CHECK_EQ_INT(weft("convert a same && cmp a/model.safetensors same/model.safetensors"), 0);
    CHECK_EQ_INT(weft("convert a half --dtype f16"), 2);
    CHECK_CONTAINS(output, "1 become Inf");
    CHECK(!file_exists(inside("half")));
    CHECK_EQ_INT(weft("convert a half --dtype f16 --lossy --json"), 0);
    CHECK_CONTAINS(output, "\"became_inf\": 1");
    CHECK_EQ_INT(weft("convert --validate half"), 3); // and the result says so
    CHECK_CONTAINS(output, "up_proj");
    CHECK_EQ_INT(weft("convert a wide --dtype f32"), 0);
    CHECK_EQ_INT(
        weft("convert wide back --dtype bf16 && cmp back/model.safetensors a/model.safetensors"),
        0); // nothing is lost, no flag
}

TEST(validate_finds_what_is_broken) {
    golden("qwen2", "", "q");
    CHECK_EQ_INT(weft("convert --validate q"), 0);
    CHECK_CONTAINS(output, "valid");
    uint64_t size;
    CHECK_OK(file_size(inside("q/model.safetensors"), &size, NULL), (struct err){0});
    CHECK(truncate(inside("q/model.safetensors"), (off_t)size - 1) == 0);
    CHECK_EQ_INT(weft("convert --validate q"), 3);
    CHECK_CONTAINS(output, "truncated");
}

TEST(runs_become_folders_and_gguf_files) {
    struct err err = {0};
    char text[8192];
    uint16_t ids[3000];
    for (int i = 0; i < 3000; i++) ids[i] = (uint16_t)(270 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_replace(inside("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 300, "
             "context: 32}\n"
             "data.train: %s\ntrain: {steps: 2, batch: 2, gemm_seconds: 0, folder: "
             "run}\ndevice.threads: 1\n",
             inside("train.bin"));
    CHECK_OK(file_replace(inside("c.yaml"), text, strlen(text), &err), err);
    if (weft("train c.yaml") != 0) test_fail(__FILE__, __LINE__, "%s", output);
    CHECK_EQ_INT(weft("convert run out"), 0);
    CHECK_EQ_INT(weft("convert --validate out"), 0);
    CHECK_EQ_INT(weft("convert run/checkpoints/step_00000002 out2"), 0);
    CHECK_EQ_INT(weft("convert --validate run/checkpoints/step_00000002"), 0);
    CHECK_EQ_INT(weft("convert out again && cmp out/model.safetensors out2/model.safetensors && "
                      "cmp out/model.safetensors again/model.safetensors"),
                 0);
    CHECK_EQ_INT(weft("convert run out3 --dtype bf16"), 2); // FP32 masters
    CHECK_CONTAINS(output, "--lossy");
    CHECK_EQ_INT(weft("convert run out3 --dtype bf16 --lossy --max-shard-mb 1"), 0);
    CHECK_EQ_INT(weft("convert --validate out3"), 0);
    CHECK_OK(file_replace(inside("t.txt"), "the cat and the dog and the mat ", 32, &err), err);
    CHECK_EQ_INT(weft("tokenizer train --vocab-size 262 --special '<|endoftext|>' --out tok t.txt"),
                 0);
    CHECK_EQ_INT(weft("convert run run.gguf --tokenizer tok"), 0);
    CHECK_EQ_INT(weft("convert out out.gguf --name run --tokenizer tok && cmp run.gguf out.gguf"),
                 0);
    CHECK_EQ_INT(weft("convert run q8.gguf --tokenizer tok --dtype q8_0"), 0);
    CHECK(file_exists(inside("q8.gguf")));
    CHECK_EQ_INT(
        weft("convert run with --tokenizer tok && cmp with/tokenizer.json tok/tokenizer.json"), 0);
    CHECK_EQ_INT(weft("convert run run/checkpoints/step_00000002"), 2);
}
