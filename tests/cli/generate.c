// weft sample, eval and plot as programs: every kind of model folder gives the same text and
// figures; what cannot be is refused with status 2 or 3.
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *golden(const char *name) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/checkpoints/%s", test_golden_dir(), name);
    return path;
}

static void write_text(const char *name, const char *text) {
    struct err err = {0};
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", test_temp_dir(), name);
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
}

// The ids of a list in expected.json, separated by spaces.
static void expected_ids(const char *model, const char *key, char *out, size_t bytes) {
    struct err err = {0};
    char path[4300];
    snprintf(path, sizeof path, "%s/expected.json", golden(model));
    json_t *tree = json_parse_file(path, &err);
    if (!tree) test_fail(__FILE__, __LINE__, "%s", err.text);
    size_t used = 0, i;
    json_t *id;
    json_array_foreach(json_object_get(tree, key), i, id) used +=
        (size_t)snprintf(out + used, bytes - used, "%d ", (int)json_integer_value(id));
    json_decref(tree);
}

TEST(sample_raw_ids_equal_the_reference) {
    static const char *const models[] = {"gpt2", "llama", "olmo2", "qwen3"};
    for (int i = 0; i < 4; i++) {
        char prompt[1000], continuation[1000], out[4000];
        expected_ids(models[i], "prompt", prompt, sizeof prompt);
        expected_ids(models[i], "greedy", continuation, sizeof continuation);
        CHECK_EQ_INT(test_shell(out, sizeof out,
                                "%s sample %s --raw-ids --prompt '%s' --greedy --tokens 20 "
                                "--precision f32 --quiet --threads 1",
                                test_weft(), golden(models[i]), prompt),
                     0);
        strcat(continuation, "\n");
        CHECK_STR(out, continuation);
    }
}

// Trains a tokenizer and a model of some thousand weights for a few steps.
static void small_run(void) {
    char out[8000];
    struct text text = {0};
    for (int i = 0; i < 400; i++)
        text_printf(&text, "the %s cat sat on the mat; it was caf\xC3\xA9 number %d.\n",
                    i % 3 ? "small" : "large", i % 7);
    write_text("text.txt", text.data);
    text_free(&text);
    const char *folder = test_temp_dir();
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "cd %s && %s tokenizer train --vocab-size 300 --out tok text.txt && "
                            "%s data prepare --tokenizer tok --out data text.txt",
                            folder, test_weft(), test_weft()),
                 0);
    write_text("c.yaml", "model: {family: llama, layers: 2, hidden: 32, heads: 4, context: 32}\n"
                         "data: {train: data/train, validation: data/train, tokenizer: tok}\n"
                         "train: {folder: run, steps: 30, batch: 8, gemm_seconds: 0}\n"
                         "device.threads: 1\n"
                         "optimizer.learning_rate: 0.01\n"
                         "eval.every: 10\n");
    CHECK_EQ_INT(test_shell(out, sizeof out, "cd %s && %s train c.yaml 2>&1", folder, test_weft()),
                 0);
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "cd %s && %s convert run hf 2>&1", folder, test_weft()), 0);
}

TEST(sample_and_eval_know_every_kind_of_folder) {
    static const char *const kinds[] = {"run", "run/checkpoints", "run/checkpoints/step_00000030",
                                        "hf"};
    char first[4000], out[4000];
    const char *folder = test_temp_dir();
    small_run();
    for (int i = 0; i < 4; i++) {
        char *to = i == 0 ? first : out;
        CHECK_EQ_INT(test_shell(to, sizeof out,
                                "cd %s && %s sample %s --prompt 'the small' --tokens 15 --seed 4 "
                                "--quiet --threads 1",
                                folder, test_weft(), kinds[i]),
                     0);
        CHECK_CONTAINS(to, "the small");
        CHECK(strlen(to) > 15);
        if (i > 0) CHECK_STR(out, first);
    }
    double bits = 0;
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(test_shell(out, sizeof out,
                                "cd %s && %s eval %s --text text.txt --json --threads 1", folder,
                                test_weft(), kinds[i]),
                     0);
        char *found = strstr(out, "\"bits_per_byte\": ");
        CHECK(found);
        double value = atof(found + 17);
        CHECK(value > 0 && value < 6);
        if (i == 0) bits = value;
        CHECK_CLOSE(value, bits, 0);
        CHECK_CONTAINS(out, "\"bos\": true");
    }
    // the text without a prompt begins at BOS; another seed is another text
    CHECK_EQ_INT(test_shell(first, sizeof first,
                            "cd %s && %s sample run --quiet --threads 1 --seed 1", folder,
                            test_weft()),
                 0);
    CHECK_EQ_INT(test_shell(out, sizeof out, "cd %s && %s sample run --quiet --threads 1 --seed 2",
                            folder, test_weft()),
                 0);
    CHECK(strcmp(first, out) != 0);
    // the curve
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "cd %s && %s plot run --columns 70", folder, test_weft()), 0);
    CHECK_CONTAINS(out, "training");
    CHECK_CONTAINS(out, "validation");
    CHECK_EQ_INT(test_shell(out, sizeof out, "cd %s && %s plot run --svg a.svg && head -c 4 a.svg",
                            folder, test_weft()),
                 0);
    CHECK_STR(out, "<svg");
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "cd %s && %s plot run --key nothing", folder, test_weft()), 3);
    CHECK_CONTAINS(out, "no line has a number \"nothing\"");
}

TEST(eval_windows_score_each_token_once) {
    char out[4000];
    small_run();
    double losses[4];
    static const char *const windows[] = {"--context 32 --stride 32", "--context 32 --stride 1",
                                          "--context 1 --stride 1", "--context 32 --stride 7"};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(test_shell(out, sizeof out,
                                "cd %s && head -c 700 text.txt >part.txt && %s eval run --text "
                                "part.txt --json --precision f32 --threads 1 %s",
                                test_temp_dir(), test_weft(), windows[i]),
                     0);
        char *found = strstr(out, "\"predicted_tokens\": "), *tokens = strstr(out, "\"tokens\": ");
        CHECK(found && tokens);
        CHECK_EQ_INT(atoi(found + 20), atoi(tokens + 10));
        losses[i] = atof(strstr(out, "\"loss\": ") + 8);
    }
    CHECK(losses[1] < losses[0]); // more in front of each token helps
    CHECK(losses[0] < losses[2]);
    CHECK(losses[3] < losses[0]);
}

TEST(sample_and_eval_refuse_what_cannot_be) {
    static const struct {
        const char *words; // %s: a model folder with a vocabulary of 80
        int status;
        const char *message;
    } cases[] = {
        {"sample nowhere", 2, "nowhere: there is no such model folder"},
        {"sample .", 2, "no model in it; expected config.json"},
        {"sample text.txt", 2, "a file; expected a folder"},
        {"sample empty", 3, "no checkpoint in it yet"},
        {"sample %s --prompt a", 2, "no tokenizer beside the model"},
        {"sample %s --prompt a --tokenizer tok", 2,
         "the tokenizer has 294 ids, the model's vocabulary only 80"},
        {"sample %s --raw-ids --prompt '1 80'", 2, "expected an id from 0 to 79"},
        {"sample %s --raw-ids", 2, "the prompt is empty"},
        {"sample %s --raw-ids --prompt \"$(seq -s ' ' 0 65)\"", 2,
         "66 tokens, but the context holds 64"},
        {"sample %s --raw-ids --prompt 1 --top-p 2", 2, "top-p 2: expected a share"},
        {"sample %s --raw-ids --prompt 1 --tokens x", 2, "expected a whole number"},
        {"sample %s --raw-ids --prompt 1 --temprature 1", 2, "did you mean --temperature?"},
        {"sample %s --raw-ids --prompt 1 --precision f16", 2, "expected bf16 or f32"},
        {"sample %s --raw-ids --prompt 1 --prompt-file x", 2, "not both"},
        {"sample", 2, "a model is needed"},
        {"eval %s --text missing --tokenizer tok", 2, "only 80"},
        {"eval hf --text missing", 4, "missing: cannot open"},
        {"eval hf --text none.txt", 3, "no token to predict"},
        {"eval hf --text text.txt --context 33", 2, "longer than the model's, which is 32"},
        {"eval hf --text text.txt --context 16 --stride 17", 2, "tokens would be left out"},
        {"eval hf", 2, "--text FILE are needed"},
        {"plot nowhere", 4, "nowhere"},
        {"plot run --columns 3", 2, "expected at least"},
    };
    char out[4000], command[5000];
    small_run();
    write_text("none.txt", "");
    CHECK_EQ_INT(test_shell(out, sizeof out, "mkdir -p %s/empty/checkpoints", test_temp_dir()), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(command, sizeof command, cases[i].words, golden("llama"));
        int status = test_shell(out, sizeof out, "cd %s && OMP_NUM_THREADS=1 %s %s",
                                test_temp_dir(), test_weft(), command);
        if (status != cases[i].status || !strstr(out, cases[i].message))
            test_fail(__FILE__, __LINE__, "weft %s: status %d, expected %d with \"%s\": %s",
                      command, status, cases[i].status, cases[i].message, out);
    }
}

TEST(sample_refuses_weights_that_are_not_numbers) {
    char out[4000];
    // the last two bytes of the file become a NaN of bf16
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "cp -r %s %s/bad && cd %s/bad && chmod u+w model.safetensors && "
                            "truncate -s -2 model.safetensors && "
                            "printf '\\300\\177' >>model.safetensors && "
                            "%s sample . --raw-ids --prompt 1",
                            golden("llama"), test_temp_dir(), test_temp_dir(), test_weft()),
                 3);
    CHECK_CONTAINS(out, "not finite at index 31");
}

// A model that others trained; text and loss are those of transformers in FP32.
TEST(sample_and_eval_of_a_real_checkpoint) {
    char out[4000], folder[4200];
    if (!test_data_dir()) SKIP("needs DATA");
    snprintf(folder, sizeof folder, "%s/checkpoints/tinystories_656k", test_data_dir());
    if (!file_exists(folder)) SKIP("%s is not there", folder);
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "%s sample %s --greedy --tokens 60 --prompt 'Once upon a time' "
                            "--precision f32 --threads 1 --quiet",
                            test_weft(), folder),
                 0);
    CHECK_STR(out,
              "Once upon a time, a little girl named Lily lived in a small house with her mom, "
              "dad, and her dog, Spot, Spot, loved to play all day. One day, Lily saw a small "
              "bird on the ground. She picked it up and tried to reach the bird and see what "
              "it was.\nLily had an idea. She asked her mom if she could help the bird. Her "
              "mom said, \"Okay, let's go inside and see if you want\n");
    write_text("story.txt", "Tom and Lily went to the park. <|end_story|>");
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "%s eval %s --text %s/story.txt --precision f32 --threads 1 --json "
                            "--parse-special",
                            test_weft(), folder, test_temp_dir()),
                 0);
    CHECK_CLOSE(atof(strstr(out, "\"loss\": ") + 8), 9.3354187, 1e-5);
}
