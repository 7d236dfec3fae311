// weft train and weft config as programs: messages and exit status, signals, kill -9, file limits.
#include "base/file.h"
#include "base/random.h"
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// A configuration for a model of 30,000 parameters over random tokens, in the test's folder.
static void write_inputs(int steps) {
    struct err err = {0};
    char text[2048];
    uint16_t ids[6000];
    for (int i = 0; i < 6000; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_replace(test_path("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 32}\n"
             "data.train: %s\n"
             "train: {steps: %d, batch: 4, micro_batch: 2, gemm_seconds: 0, folder: %s}\n"
             "device.threads: 1\n"
             "checkpoint.every: 3\n",
             test_path("train.bin"), steps, test_path("run"));
    CHECK_OK(file_replace(test_path("c.yaml"), text, strlen(text), &err), err);
}

static void wait_milliseconds(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&time, &time) != 0 && errno == EINTR) continue;
}

// Starts "weft train c.yaml WORD" in a process of its own, its output into NAME.
static pid_t start(const char *word, const char *output) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    int file = open(test_path(output), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(file, 1);
    dup2(file, 2);
    execl(test_weft(), "weft", "train", test_path("c.yaml"), word, (char *)NULL);
    _exit(127);
}

static int finish(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static char *read_output(const char *name) {
    char *text;
    size_t size;
    struct err err = {0};
    CHECK_OK(file_read(test_path(name), 0, &text, &size, &err), err);
    return text;
}

// loss_hex and grad_norm_hex of every step of a run folder, in order.
static char *losses(const char *folder) {
    static char out[2][1 << 16];
    static int turn;
    turn = 1 - turn;
    CHECK_EQ_INT(test_shell(out[turn], sizeof out[0],
                            "grep -v '\"event\"' '%s/metrics.jsonl' | sed "
                            "'s/.*\"step\":\\([0-9]*\\).*\"loss_hex\":\"\\([^\"]*\\)\".*"
                            "\"grad_norm_hex\":\"\\([^\"]*\\)\".*/\\1 \\2 \\3/'",
                            test_path(folder)),
                 0);
    return out[turn];
}

static void same_weights(const char *a, const char *b, int step) {
    char out[2000];
    if (test_shell(
            out, sizeof out,
            "cd '%s' && ls %s/checkpoints/step_%08d/part* >/dev/null && for f in "
            "%s/checkpoints/step_%08d/part*; do cmp $f %s/checkpoints/step_%08d/$(basename $f) || "
            "exit 1; done",
            test_temp_dir(), a, step, a, step, b, step) != 0)
        test_fail(__FILE__, __LINE__, "weights of %s and %s differ: %s", a, b, out);
}

TEST_LIMIT(train_survives_30_kills, 300) {
    enum { KILLS = 30, STEPS = 400 };
    char out[4000], word[4300];
    write_inputs(STEPS);
    snprintf(word, sizeof word, "train.folder=%s", test_path("whole"));
    CHECK_EQ_INT(finish(start(word, "whole.log")), 0);
    int killed = 0;
    for (int i = 0; i < KILLS; i++) {
        pid_t child = start("train.log_every=1", "killed.log");
        wait_milliseconds(20 + (long)(120 * random_uniform(9, (uint64_t)i)));
        kill(child, SIGKILL);
        killed += finish(child) == 128 + SIGKILL;
    }
    CHECK(killed >= KILLS / 3); // else the run was over too early to say anything
    if (test_shell(out, sizeof out, "%s train %s 2>&1", test_weft(), test_path("c.yaml")) != 0)
        test_fail(__FILE__, __LINE__, "does not go on: %s", out);
    CHECK_STR(losses("run"), losses("whole"));
    same_weights("whole", "run", STEPS);
}

// The folder of checkpoints is there before the first step; its first entry shows that steps were
// made.
static bool has_entries(const char *folder) {
    char **names;
    size_t count;
    if (file_list(folder, &names, &count, NULL) != 0) return false;
    file_list_free(names, count);
    return count > 0;
}

TEST(train_interrupt_saves_and_goes_on) {
    char out[4000], word[4300];
    for (int i = 0; i < 3; i++) {
        static const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
        int number = signals[i];
        write_inputs(300000);
        file_remove_tree(test_path("run"), NULL);
        pid_t child = start("train.log_every=1", "log");
        for (int tries = 0; tries < 400 && !has_entries(test_path("run/checkpoints")); tries++)
            wait_milliseconds(25);
        kill(child, number);
        CHECK_EQ_INT(finish(child), number == SIGINT ? 130 : 75);
        char *text = read_output("log");
        const char *said =
            number == SIGINT ? "interrupted after step" : "asked to leave after step";
        CHECK_CONTAINS(text, "finishing the step and saving");
        CHECK_CONTAINS(text, said);
        long long step = atoll(strstr(text, said) + strlen(said));
        CHECK(step >= 3);
        free(text);
        snprintf(word, sizeof word, "train.stop_at=%lld", step + 2);
        CHECK_EQ_INT(
            test_shell(out, sizeof out, "%s train %s %s", test_weft(), test_path("c.yaml"), word),
            0);
        snprintf(word, sizeof word, "step %lld,", step);
        CHECK_CONTAINS(out, "resumed from");
        CHECK_CONTAINS(out, word);
    }
}

TEST(train_second_interrupt_exits_at_once) {
    write_inputs(100000);
    // one long step: the first signal waits for its end, the second does not
    pid_t child = start("train.batch=40000", "log");
    for (int tries = 0; tries < 400 && !file_exists(test_path("run/metrics.jsonl")); tries++)
        wait_milliseconds(25);
    wait_milliseconds(100);
    kill(child, SIGINT);
    wait_milliseconds(100);
    kill(child, SIGINT);
    CHECK_EQ_INT(finish(child), 130);
    char *text = read_output("log");
    CHECK(strstr(text, "interrupted after step") == NULL);
    free(text);
}

TEST(train_file_limit_is_a_full_disk) {
    char out[8000];
    write_inputs(9);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s train.stop_at=3", test_weft(),
                            test_path("c.yaml")),
                 0);
    // 60 blocks of 512 or 1024 bytes: the journal fits, a checkpoint does not
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "ulimit -f 60; %s train %s", test_weft(), test_path("c.yaml")),
        4);
    CHECK_CONTAINS(out, "checkpoint of step 6 failed, training goes on");
    CHECK_CONTAINS(out, "step 9 could not be saved");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s", test_weft(), test_path("c.yaml")), 0);
    CHECK_CONTAINS(out, "step_00000003: step 3");
}

TEST(train_two_in_one_folder) {
    char out[4000];
    write_inputs(300000);
    pid_t child = start("train.log_every=1", "log");
    for (int tries = 0; tries < 400 && !file_exists(test_path("run/metrics.jsonl")); tries++)
        wait_milliseconds(25);
    int status = test_shell(out, sizeof out, "%s train %s", test_weft(), test_path("c.yaml"));
    kill(child, SIGKILL);
    finish(child);
    CHECK_EQ_INT(status, 2);
    CHECK_CONTAINS(out, "another process trains in this folder");
}

TEST(train_and_config_messages) {
    char out[8000], digest[64], again[64];
    write_inputs(3);
    const char *c = test_path("c.yaml");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train", test_weft()), 2);
    CHECK_CONTAINS(out, "a configuration is needed");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train --help", test_weft()), 0);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train /nowhere.yaml", test_weft()), 4);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s learning_rat=1e-3", test_weft(), c), 2);
    CHECK_CONTAINS(out, "did you mean \"optimizer.learning_rate\"?");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s train.folder=/proc/none", test_weft(), c),
                 4);
    CHECK_CONTAINS(out, "/proc/none");
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "%s train %s train.trace=/nowhere/t.json train.folder=%s", test_weft(),
                            c, test_path("traced")),
                 4);
    CHECK_CONTAINS(out, "train.trace: /nowhere/t.json");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s --dry-run", test_weft(), c), 0);
    CHECK_CONTAINS(out, "head_dim: 8");
    CHECK(!file_exists(test_path("run")));
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s train %s --json 2>/dev/null", test_weft(), c), 0);
    CHECK_CONTAINS(out, "{\"step\":3,");

    CHECK_EQ_INT(test_shell(digest, sizeof digest, "%s config show %s --digest", test_weft(), c),
                 0);
    CHECK_EQ_INT(test_shell(again, sizeof again, "%s config show %s/config.yaml --digest",
                            test_weft(), test_path("run")),
                 0);
    CHECK_STR(digest, again);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s config train.steps", test_weft()), 0);
    CHECK_CONTAINS(out, "optimizer steps of the whole run");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s config train.stepz", test_weft()), 2);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s config presets", test_weft()), 0);
    CHECK_CONTAINS(out, "gpt2-124m");
}

// From a text to a trained model: vocabulary and the ends of texts follow from the tokenizer, and
// shards of another tokenizer are refused.
TEST(train_from_a_text) {
    char out[16000], text[20000];
    struct err err = {0};
    size_t size = 0;
    for (int i = 0; size + 40 < sizeof text; i++)
        size += (size_t)snprintf(text + size, sizeof text - size,
                                 "line %d of %d lines, and so on\n", i, i * i % 97);
    CHECK_OK(file_replace(test_path("a.txt"), text, size, &err), err);
    const char *prepare =
        "cd '%s' && %s tokenizer train --vocab-size %d --out tok%s a.txt && %s data prepare "
        "--tokenizer tok%s --out data%s a.txt";
    CHECK_EQ_INT(test_shell(out, sizeof out, prepare, test_temp_dir(), test_weft(), 300, "",
                            test_weft(), "", ""),
                 0);
    CHECK_EQ_INT(test_shell(out, sizeof out, prepare, test_temp_dir(), test_weft(), 270, "2",
                            test_weft(), "2", "2"),
                 0);
    const char *train = "cd '%s' && %s train --json /dev/stdin %s <<END\n"
                        "model: {family: llama, layers: 2, hidden: 32, heads: 4, context: 32}\n"
                        "data: {train: data/train, validation: data/train, tokenizer: tok}\n"
                        "train: {steps: 30, batch: 4, gemm_seconds: 0, folder: run}\n"
                        "optimizer.learning_rate: 0.01\n"
                        "device.threads: 1\n"
                        "END";
    CHECK_EQ_INT(test_shell(out, sizeof out, train, test_temp_dir(), test_weft(), ""), 0);
    CHECK_CONTAINS(out, "bits per byte");
    CHECK(file_exists(test_path("run/tokenizer.json")));
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "grep -E ' (vocab|eos): ' %s", test_path("run/config.yaml")),
        0);
    CHECK_CONTAINS(out, "vocab: 300");
    CHECK(strstr(out, "eos: -1") == NULL);
    CHECK_EQ_INT(
        test_shell(out, sizeof out, train, test_temp_dir(), test_weft(), "model.vocab=280"), 2);
    CHECK_CONTAINS(out, "smaller than the vocabulary of the tokenizer");
    CHECK(test_shell(out, sizeof out, train, test_temp_dir(), test_weft(),
                     "data.train=data2/train train.folder=run2") != 0);
    CHECK_CONTAINS(out, "data2/train");
}

TEST(train_with_too_little_memory_shows_the_plan) {
#ifdef WEFT_SANITIZED
    SKIP("AddressSanitizer reserves more address space than the limit");
#endif
    char out[8000];
    write_inputs(3);
    // a limit that the program itself fits into; the model wants more
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "ulimit -v 1000000; %s train %s model.hidden=2048 model.heads=32 "
                            "model.kv_heads=32 model.head_dim=64 model.ffn=8192",
                            test_weft(), test_path("c.yaml")),
                 5);
    CHECK_CONTAINS(out, "GB planned (weights");
    CHECK_CONTAINS(out, "moments");
    CHECK(!file_exists(test_path("run/metrics.jsonl")));
}

TEST(man_page_names_every_verb) {
    char out[8000], path[4200], *page;
    size_t size;
    int verbs = 0;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/docs/weft.1", WEFT_SOURCE_DIR);
    CHECK_OK(file_read(path, 0, &page, &size, &err), err);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s --help | sed -n 's/^  \\([a-z]*\\)  .*/\\1/p'",
                            test_weft()),
                 0);
    for (char *verb = strtok(out, "\n"); verb; verb = strtok(NULL, "\n"), verbs++) {
        char line[64];
        snprintf(line, sizeof line, ".TP\n.B %.40s\n", verb);
        if (!strstr(page, line))
            test_fail(__FILE__, __LINE__, "docs/weft.1 has no verb \"%s\"", verb);
    }
    CHECK(verbs >= 8);
    free(page);
}
