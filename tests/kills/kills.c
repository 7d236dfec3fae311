// Runs that are killed: kill -9 of one rank, of all of them, or of everything that belongs to the
// run, at random moments of runs of a few seconds that save every few steps. However often that
// happens, the run must end with the very losses, gradient norms, weights and moments of the
// undisturbed one.
//
// A seed decides layout, moments and victims. `make test` tries a few; `make test-kills` 200:
//   WEFT_KILLS_SEEDS=FROM-TO   seeds (1-5)
//   WEFT_KILLS_FOLDER=DIR      runs that did not end as they should stay there (the test's own
//                              folder, which is removed)
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "processes.h"
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 40, MOST_KILLS = 4, MOST_LAUNCHES = 12, FIGURES_BYTES = 1 << 14 };
static const double LONGEST_SECONDS = 120; // of a run with all its restarts
static const double SLOW_SECONDS = 5;      // more than this over thrice the calm time: worth a look

static const struct variant {
    int ranks;
    const char *words;
} variants[] = {
    {1, ""},
    {1, "checkpoint.every=1"},
    {2, "parallel.zero=1"},
    {2, "parallel.pp=2"},
    {2, "parallel.tp=2 checkpoint.every=2"},
    {4, "parallel.zero=2"},
    {4, "parallel.pp=2 parallel.zero=1"},
    {4, "parallel.tp=2 parallel.pp=2"},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static struct outcome { // of an undisturbed run
    bool known;
    double seconds;
    char figures[FIGURES_BYTES];
    uint64_t state;
} calm[VARIANTS];

static char folder[2048]; // of all runs here
static char memory[64];   // and of their snapshots

static const char *path_of(const char *name) {
    static char paths[4][2400];
    static int turn;
    char *out = paths[turn = (turn + 1) % 4];
    snprintf(out, sizeof paths[0], "%s/%s", folder, name);
    return out;
}

static void write_inputs(void) {
    struct err err = {0};
    char text[4096];
    uint16_t ids[8000];
    for (int i = 0; i < 8000; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_make_folders(folder, &err), err);
    CHECK_OK(file_replace(path_of("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 4, hidden: 64, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 64}\n"
             "data.train: %s\n"
             "train: {steps: %d, batch: 16, micro_batch: 4, gemm_seconds: 0, tensorboard: false, "
             "dropout: 0.1}\n"
             "checkpoint: {every: 4, keep_last: 3}\n"
             "device.threads: 1\n",
             path_of("train.bin"), STEPS);
    CHECK_OK(file_replace(path_of("c.yaml"), text, strlen(text), &err), err);
}

// ---- what is compared ---------------------------------------------------------------------------

// Losses and norms of all steps, in hexadecimal; false: a step is missing, or there twice.
static bool read_figures(const char *run, char *out) {
    char path[2500], *text;
    size_t size;
    int64_t step = 0;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    out[0] = 0;
    if (file_read(path, 0, &text, &size, &err) != 0) return false;
    size_t used = 0;
    bool right = true;
    for (char *line = strtok(text, "\n"); line && right; line = strtok(NULL, "\n")) {
        const char *loss = strstr(line, "\"loss_hex\":\""),
                   *norm = strstr(line, "\"grad_norm_hex\":\""),
                   *number = strstr(line, "\"step\":");
        if (!loss || !norm || !number || strstr(line, "\"event\":")) continue;
        right = strtoll(number + 7, NULL, 10) == ++step;
        used += (size_t)snprintf(out + used, FIGURES_BYTES - used, "%lld %.*s %.*s\n",
                                 (long long)step, (int)strcspn(loss + 12, "\""), loss + 12,
                                 (int)strcspn(norm + 17, "\""), norm + 17);
        CHECK(used < FIGURES_BYTES);
    }
    free(text);
    return right && step == STEPS;
}

// All tensors of the last checkpoint: weights and moments.
static bool hash_state(const char *run, uint64_t *out) {
    char checkpoints[2500], path[CHECKPOINT_PATH_BYTES];
    struct checkpoint *c;
    struct hash_stream h;
    struct err err = {0};
    int count;
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", run);
    if (checkpoint_step_path(checkpoints, STEPS, path, &err) != 0 ||
        checkpoint_open(path, &c, &err) != 0) {
        printf("  %s\n", err.text);
        return false;
    }
    const struct tensor *tensors = checkpoint_tensors(c, &count);
    bool right = count > 10;
    hash_begin(&h);
    for (int i = 0; i < count && right; i++) {
        void *values = malloc(tensor_bytes(&tensors[i]));
        right = values && checkpoint_read(c, tensors[i].name, values, &err) == 0;
        hash_put(&h, tensors[i].name, strlen(tensors[i].name));
        if (right) hash_put(&h, values, tensor_bytes(&tensors[i]));
        free(values);
    }
    checkpoint_close(c);
    *out = hash_end(&h);
    return right;
}

// ---- launches -----------------------------------------------------------------------------------

static pid_t begin_launch(const struct variant *v, const char *run, const char *mark) {
    char command[4096], log[2500];
    snprintf(log, sizeof log, "%s.log", run);
    snprintf(command, sizeof command,
             "exec %s launch -n %d --crash-loop retry train %s train.folder=%s "
             "checkpoint.snapshot_folder=%s %s",
             test_weft(), v->ranks, path_of("c.yaml"), run, memory, v->words);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    int file = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    setenv(PROCESSES_MARK, mark, 1);
    setenv("OMPI_MCA_orte_tmpdir_base", path_of("mpi"), 1); // what killed launchers leave
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

// Waits until the launch has ended or the time is there. True: it has ended.
static bool wait_until(pid_t launch, double end, int *status) {
    while (waitpid(launch, status, WNOHANG) == 0) {
        if (clock_seconds() >= end) return false;
        usleep(1000);
    }
    return true;
}

static void run_calmly(int which) {
    struct outcome *o = &calm[which];
    char name[40];
    int status;
    if (o->known) return;
    snprintf(name, sizeof name, "calm-%d", which);
    char run[2400];
    snprintf(run, sizeof run, "%s", path_of(name));
    struct err err = {0};
    CHECK_OK(file_make_folders(run, &err), err);
    double begin = clock_seconds();
    pid_t launch = begin_launch(&variants[which], run, "calm");
    bool ended = wait_until(launch, begin + LONGEST_SECONDS, &status);
    if (!ended) processes_kill("calm", PROCESSES_ALL, 0);
    if (!ended || status != 0 || !read_figures(run, o->figures) || !hash_state(run, &o->state)) {
        char output[20000];
        test_shell(output, sizeof output, "tail -c 15000 %s.log", run);
        test_fail(__FILE__, __LINE__, "the undisturbed run of %d ranks, %s: status %d\n%s",
                  variants[which].ranks, variants[which].words, status, output);
    }
    o->seconds = clock_seconds() - begin;
    o->known = true;
    CHECK_OK(file_remove_tree(run, &err), err);
}

// ---- kills --------------------------------------------------------------------------------------

struct plan {
    int variant, kills;
    struct {
        double share; // of the undisturbed time since the launch, or the kill before
        bool in_save;
        enum processes_victim victim;
        uint64_t draw;
    } kill[MOST_KILLS];
};

static struct plan plan_of(uint64_t seed) {
    uint64_t key = random_key(seed, "kills"), turn = 0;
    struct plan p = {.variant = (int)(random_uniform(key, turn++) * VARIANTS)};
    double many = random_uniform(key, turn++);
    p.kills = many < 0.5 ? 1 : many < 0.8 ? 2 : many < 0.95 ? 3 : 4;
    for (int i = 0; i < p.kills; i++) {
        double victim = random_uniform(key, turn++);
        p.kill[i].share = 0.05 + 0.9 * random_uniform(key, turn++);
        p.kill[i].in_save = random_uniform(key, turn++) < 0.4;
        p.kill[i].victim = victim < 0.45   ? PROCESSES_ONE_RANK
                           : victim < 0.75 ? PROCESSES_RANKS
                                           : PROCESSES_ALL;
        p.kill[i].draw = (uint64_t)(random_uniform(key, turn++) * 1e6);
    }
    return p;
}

// A save is under way: a staging folder is there.
static bool saves_now(const char *run) {
    char path[2500], **names;
    size_t count;
    struct err err = {0};
    bool found = false;
    snprintf(path, sizeof path, "%s/checkpoints", run);
    if (!file_is_folder(path) || file_list(path, &names, &count, &err) != 0) return false;
    for (size_t i = 0; i < count; i++) found |= strstr(names[i], ".tmp") != NULL;
    file_list_free(names, count);
    return found;
}

// Carries out the plan; returns whether the run ended well by itself, and tells what happened.
static bool run_with_kills(const struct plan *p, double scale, const char *run, const char *mark,
                           char *story, size_t story_bytes, int *hits) {
    static const char *const victims[] = {"a rank", "all ranks", "everything"};
    const struct variant *v = &variants[p->variant];
    double begin = clock_seconds(), from = begin;
    int done = 0, status, launches = 1, used = 0;
    bool launcher_killed = false;
    pid_t launch = begin_launch(v, run, mark);
    for (;;) {
        bool more = done < p->kills;
        double end = begin + LONGEST_SECONDS;
        if (more) end = from + scale * p->kill[done].share * calm[p->variant].seconds;
        bool ended = wait_until(launch, end, &status);
        if (!ended && more && p->kill[done].in_save) // at most until the next save comes
            for (double last = clock_seconds() + 1; !ended && !saves_now(run);) {
                ended = waitpid(launch, &status, WNOHANG) != 0;
                if (clock_seconds() > last) break;
            }
        if (!ended && more) {
            int hit = processes_kill(mark, p->kill[done].victim, p->kill[done].draw);
            used += snprintf(story + used, story_bytes - (size_t)used, "%s%s (%d) at %.2f s%s",
                             used ? ", " : "", victims[p->kill[done].victim], hit,
                             clock_seconds() - begin, p->kill[done].in_save ? " in a save" : "");
            *hits += hit;
            launcher_killed = p->kill[done].victim == PROCESSES_ALL;
            from = clock_seconds();
            done++;
            if (launcher_killed) waitpid(launch, &status, 0);
            ended = launcher_killed;
        }
        if (!ended && clock_seconds() > begin + LONGEST_SECONDS) {
            processes_kill(mark, PROCESSES_ALL, 0);
            waitpid(launch, &status, 0);
            snprintf(story + used, story_bytes - (size_t)used, "; stood still and was ended");
            return false;
        }
        if (!ended) continue;
        if (status == 0) return true;
        if (!launcher_killed || launches == MOST_LAUNCHES) {
            snprintf(story + used, story_bytes - (size_t)used, "; the launch gave up: status %d",
                     WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
            return false;
        }
        launcher_killed = false; // nobody is left to start it again but the user
        launches++;
        launch = begin_launch(v, run, mark);
    }
}

// A line of the trial, at once also into a file beside the runs: long trials are looked at
// meanwhile.
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    char line[2000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    printf("%s\n", line);
    fflush(stdout);
    FILE *file = fopen(path_of("results.txt"), "a");
    if (!file) return;
    fprintf(file, "%s\n", line);
    fclose(file);
}

static bool try_seed(uint64_t seed) {
    struct plan p = plan_of(seed);
    struct outcome *o = &calm[p.variant];
    char run[2400], name[40], mark[60], story[600] = "", figures[FIGURES_BYTES];
    uint64_t state = 0;
    struct err err = {0};
    run_calmly(p.variant);
    snprintf(name, sizeof name, "seed-%llu", (unsigned long long)seed);
    snprintf(run, sizeof run, "%s", path_of(name));
    snprintf(mark, sizeof mark, "%d-%llu", getpid(), (unsigned long long)seed);
    static const double scales[] = {1, 0.7, 1.3, 0.5, 1.6};
    enum { SCALES = sizeof scales / sizeof scales[0] };
    double seconds = 0;
    bool right = true;
    // other moments where the run had ended by then, or no rank was there yet
    for (int turn = 0, hits = 0; right && hits == 0 && turn < SCALES; turn++) {
        if (file_exists(run)) CHECK_OK(file_remove_tree(run, &err), err);
        CHECK_OK(file_make_folders(run, &err), err);
        double begin = clock_seconds();
        right = run_with_kills(&p, scales[turn], run, mark, story, sizeof story, &hits);
        seconds = clock_seconds() - begin;
        processes_kill(mark, PROCESSES_ALL, 0); // what an end may have left
    }
    const char *why = right ? "" : "did not end well";
    if (right && !(right = read_figures(run, figures))) why = "steps are missing or there twice";
    if (right && !(right = strcmp(figures, o->figures) == 0)) why = "other losses or norms";
    if (right && !(right = hash_state(run, &state) && state == o->state)) why = "another state";
    say("%s seed %llu: %d ranks%s%s: %s: %.1f s%s%s", right ? "ok" : "FAILED",
        (unsigned long long)seed, variants[p.variant].ranks,
        variants[p.variant].words[0] ? ", " : "", variants[p.variant].words, story, seconds,
        right ? "" : ": ", why);
    bool slow = seconds > 3 * o->seconds + SLOW_SECONDS;
    if (slow) say("  slow: incidents stay in %s", run);
    if (right && !(slow && getenv("WEFT_KILLS_FOLDER"))) {
        char log[2500];
        snprintf(log, sizeof log, "%s.log", run);
        CHECK_OK(file_remove_tree(run, &err), err);
        unlink(log);
    } else if (!getenv("WEFT_KILLS_FOLDER")) {
        char output[20000];
        test_shell(output, sizeof output, "tail -c 15000 %s.log", run);
        printf("%s\n", output);
    }
    return right;
}

TEST_LIMIT(kills_end_with_the_same_bits, 100000) {
    unsigned long long from = 1, to = 5, failed = 0;
    const char *seeds = getenv("WEFT_KILLS_SEEDS"), *kept = getenv("WEFT_KILLS_FOLDER");
    if (!comm_built_with_mpi()) SKIP("built without MPI");
    if (seeds && (sscanf(seeds, "%llu-%llu", &from, &to) != 2 || from > to))
        test_fail(__FILE__, __LINE__, "WEFT_KILLS_SEEDS=%s: expected FROM-TO", seeds);
    snprintf(folder, sizeof folder, "%s", kept ? kept : test_temp_dir());
    snprintf(memory, sizeof memory, "/dev/shm/weft-kills-%d", getpid());
    write_inputs();
    for (unsigned long long seed = from; seed <= to; seed++) failed += !try_seed(seed);
    say("seeds %llu to %llu: %llu of %llu runs ended bit-identical to the undisturbed one", from,
        to, to - from + 1 - failed, to - from + 1);
    struct err ignored = {0};
    file_remove_tree(memory, &ignored);
    CHECK_EQ_INT(failed, 0);
}
