// See bench_child.h.
#include "cli/bench_child.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/launched.h"
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int child_arguments_read(struct child_arguments *a, int argc, char **argv,
                         const struct option *options, int count, struct err *err) {
    int got = bench_target_read(&a->target, argc, argv, options, count, err);
    if (got != 0) return got;
    struct launch_environment launched;
    if (cli_launched(&launched, false, err) != 0) return -1;
    if (launched.launcher != LAUNCHER_NONE)
        return err_set(err, ERR_USAGE,
                       "%s launches its own ranks; start it without launcher (%s is set)", argv[0],
                       launched.variable);
    return 0;
}

static int read_all(int from, struct text *out, struct err *err) {
    char block[4096];
    for (;;) {
        ssize_t got = read(from, block, sizeof block);
        if (got == 0) return 0;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set_errno(err, "the output of a run cannot be read");
        if (text_put(out, block, (size_t)got) != 0)
            return err_set(err, ERR_MEMORY, "no memory for the output of a run");
    }
}

static int spawn(const char *const *words, int output, pid_t *child, struct err *err) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    int error = posix_spawn(child, "/proc/self/exe", &actions, NULL, (char *const *)words, environ);
    posix_spawn_file_actions_destroy(&actions);
    errno = error;
    return error == 0 ? 0 : err_set_errno(err, "a run of this program cannot be started");
}

static json_t *run(const char *const *words, struct err *err) {
    int ends[2], status = 0, result;
    struct text output = {0};
    pid_t child;
    if (pipe(ends) != 0) {
        err_set_errno(err, "no pipe for the output of a run");
        return NULL;
    }
    result = spawn(words, ends[1], &child, err);
    close(ends[1]);
    if (result == 0) {
        result = read_all(ends[0], &output, err);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
        if (result == 0 && status != 0) // it has said why
            result = err_set(err, ERR_USAGE, "a run of the benchmark failed (%s ...)", words[1]);
    }
    close(ends[0]);
    json_t *root = NULL;
    if (result == 0)
        root = json_parse(output.data ? output.data : "", output.size, "output of a run", err);
    text_free(&output);
    return root;
}

json_t *child_run(int ranks, const char *const *words, struct err *err) {
    const char *all[CHILD_MOST_WORDS + 8] = {"weft"};
    char number[16];
    int count = 1;
    if (ranks > 1) {
        snprintf(number, sizeof number, "%d", ranks);
        all[count++] = "launch";
        all[count++] = "-n";
        all[count++] = number;
    }
    for (int i = 0; words[i] && i < CHILD_MOST_WORDS; i++) all[count++] = words[i];
    return run(all, err);
}

json_t *child_step(const struct child_arguments *a, int ranks, const char *const *extra,
                   struct err *err) {
    const char *words[CHILD_MOST_WORDS] = {"bench", "step", a->target.config};
    char steps[16];
    int count = 3;
    snprintf(steps, sizeof steps, "%d", a->steps);
    for (int i = 0; i < a->target.setting_count; i++) words[count++] = a->target.settings[i];
    for (int i = 0; extra[i] && count < CHILD_MOST_WORDS - 8; i++) words[count++] = extra[i];
    static const char *const rest[] = {"train.gemm_seconds=0", "--warm-up", "1", "--json",
                                       "--steps"};
    for (int i = 0; i < 5; i++) words[count++] = rest[i];
    words[count] = steps;
    return child_run(ranks, words, err);
}

double child_number(const json_t *root, const char *key) {
    return json_number_value(json_object_get(root, key));
}

double child_messages(const json_t *root, const char *stream, const char *key) {
    double sum = 0;
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(root, "messages"), i, one) {
        const char *name = json_string_value(json_object_get(one, "stream"));
        if (name && strcmp(name, stream) == 0) sum += child_number(one, key);
    }
    return sum;
}
