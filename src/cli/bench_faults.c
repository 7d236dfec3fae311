// weft bench faults: single bits that flip in a small run: what is found, how soon, and what is
// found by magnitude alone. docs/reliability.md has the figures.
#include "base/file.h"
#include "base/numbers.h"
#include "base/random.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/faults_trial.h"
#include "cli/options.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: weft bench faults [options] [key=value ...]\n\n"
    "Flips single bits in runs of a small model whose ranks are threads: in working weights, in\n"
    "optimizer state (master weights and both moments) and in accumulated gradients at rest, and\n"
    "in messages. Element and bit are drawn, the bit from the sign, the exponent and the upper 7\n"
    "bits of the mantissa. Each run is at step 24 when it begins; the bit flips in step 27.\n"
    "Of each kind: how many were found within 20 steps with guards as they are by default, in\n"
    "which step after the flip (median, latest), how many of these runs then ended with the loss "
    "of\n"
    "the undisturbed one (a run that asks to be started again is); and, without checksums and\n"
    "replays, how many the limits on loss and gradient norm find alone, how many runs break, and\n"
    "how many go on with another loss unnoticed. Then alarms of an undisturbed run.\n\n"
    "  --flips N        of each kind (100)\n"
    "  --clean-steps N  of the undisturbed run (1000)\n"
    "  --ranks N        threads that train (2)\n"
    "  --kind NAME      only flip_weight, flip_optimizer, flip_gradient or flip_message\n"
    "  --seed N         of elements and bits (1)\n"
    "  --show           a line for each flip\n"
    "  --json\n"
    "  key=value        settings beside the trial's own, e.g. parallel.pp=2\n";

// The first update of a process seals what it finds: bits flip behind it.
enum { KINDS = 4, BEGIN = 24, FLIP = BEGIN + 3, WITHIN = 20, STEPS = FLIP + WITHIN };
enum { MOST_FLIPS = 100000 };
static const double MOST_SECONDS = 60;
static const char *const kinds[KINDS] = {"flip_weight", "flip_optimizer", "flip_gradient",
                                         "flip_message"};

struct tally {
    int flips, found, same_end; // with guards
    double *after;              // steps until found
    int by_magnitude, broken, unnoticed, without_effect;
};

struct faults_bench {
    int flips, clean_steps, ranks;
    uint64_t seed;
    bool json, show;
    const char *kind;
    const char *extra[TRIAL_MOST_WORDS / 2];
    int extra_count;
    char folder[200];
    double calm_loss;
    struct tally tally[KINDS];
    int false_alarms;
    char false_alarm[300];
};

// ---- runs ---------------------------------------------------------------------------------------

static int write_data(const struct faults_bench *b, struct err *err) {
    enum { TOKENS = 20000 };
    char path[256];
    uint16_t *ids = malloc(TOKENS * sizeof *ids);
    if (!ids) return err_set(err, ERR_MEMORY, "bench faults: no memory for tokens");
    for (int i = 0; i < TOKENS; i++) { // small ids are frequent: something to learn
        double u = random_uniform(b->seed, (uint64_t)i);
        ids[i] = (uint16_t)(100 * u * u);
    }
    snprintf(path, sizeof path, "%s/tokens.bin", b->folder);
    int result = file_replace(path, ids, TOKENS * sizeof *ids, err);
    free(ids);
    return result;
}

// The words live until the next call.
static void begin_trial(const struct faults_bench *b, const char *name, bool guarded,
                        struct trial *t) {
    static char data[300], folder[400], states[300];
    static const char *const model[] = {"model.family=llama",
                                        "model.layers=2",
                                        "model.hidden=32",
                                        "model.heads=4",
                                        "model.kv_heads=2",
                                        "model.vocab=100",
                                        "model.context=32",
                                        "train.batch=8",
                                        "train.micro_batch=2",
                                        "train.gemm_seconds=0",
                                        "train.tensorboard=false",
                                        "checkpoint.at_end=false",
                                        "checkpoint.every=0",
                                        "checkpoint.snapshot=false",
                                        "device.threads=1",
                                        "guard.counters=false",
                                        NULL};
    static const char *const bare[] = {"guard.optimizer=false",
                                       "guard.gradients=false",
                                       "guard.weights_every=0",
                                       "guard.products_every=0",
                                       "guard.replicas_every=0",
                                       "guard.replay=false",
                                       NULL};
    snprintf(data, sizeof data, "data.train=%s/tokens.bin", b->folder);
    snprintf(folder, sizeof folder, "train.folder=%s/%s", b->folder, name);
    snprintf(states, sizeof states, "checkpoint.folder=%s/states", b->folder);
    *t = (struct trial){.ranks = b->ranks, .checksums = guarded, .most_seconds = MOST_SECONDS};
    trial_words(t, model);
    trial_words(t, (const char *const[]){data, folder, states, NULL});
    if (!guarded) trial_words(t, bare);
    for (int i = 0; i < b->extra_count; i++)
        trial_words(t, (const char *const[]){b->extra[i], NULL});
}

static int must_end(const struct trial_outcome *o, const char *what, struct err *err) {
    if (o->end == TRIAL_DONE) return 0;
    return err_set(err, ERR_INTERNAL, "bench faults: %s did not end well: %s", what, o->why);
}

static int remove_run(const struct faults_bench *b, const char *name, struct err *err) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", b->folder, name);
    return file_remove_tree(path, err);
}

// The state of step BEGIN, and the loss of the undisturbed run.
static int prepare(struct faults_bench *b, struct err *err) {
    char steps[40], stop[40];
    struct trial t;
    struct trial_outcome o;
    snprintf(steps, sizeof steps, "train.steps=%d", STEPS);
    snprintf(stop, sizeof stop, "train.stop_at=%d", BEGIN);
    begin_trial(b, "base", true, &t);
    trial_words(&t, (const char *const[]){steps, stop, "checkpoint.at_end=true", NULL});
    if (write_data(b, err) != 0 || trial_run(&t, &o, err) != 0 ||
        must_end(&o, "the run up to the flips", err) != 0)
        return -1;
    begin_trial(b, "calm", true, &t);
    trial_words(&t, (const char *const[]){steps, NULL});
    if (trial_run(&t, &o, err) != 0 || must_end(&o, "the undisturbed run", err) != 0) return -1;
    b->calm_loss = o.loss;
    return 0;
}

static int one_run(const struct faults_bench *b, const char *kind, int number, bool guarded,
                   struct trial_outcome *first, struct trial_outcome *last, struct err *err) {
    char steps[40], fault[60], step[40], rank[40], seed[60];
    struct trial t;
    snprintf(steps, sizeof steps, "train.steps=%d", STEPS);
    snprintf(fault, sizeof fault, "fault.kind=%s", kind);
    snprintf(step, sizeof step, "fault.step=%d", FLIP);
    snprintf(rank, sizeof rank, "fault.rank=%d", number % b->ranks);
    snprintf(seed, sizeof seed, "fault.seed=%llu",
             (unsigned long long)b->seed * MOST_FLIPS + number);
    begin_trial(b, "trial", guarded, &t);
    trial_words(&t, (const char *const[]){steps, fault, step, rank, seed, NULL});
    if (trial_run(&t, first, err) != 0) return -1;
    *last = *first;
    while (guarded && last->end == TRIAL_RETRY && t.attempt < 3) {
        t.attempt++;
        if (trial_run(&t, last, err) != 0) return -1;
    }
    return remove_run(b, "trial", err);
}

// ---- what was found -----------------------------------------------------------------------------

static void count_guarded(const struct faults_bench *b, struct tally *t, const char *kind,
                          int number, const struct trial_outcome *first,
                          const struct trial_outcome *last) {
    int64_t after = -1; // steps behind the one of the flip
    if (first->first_step > 0)
        after = first->first_step - FLIP;
    else if (first->end != TRIAL_DONE)
        after = first->step + 1 - FLIP;
    if (after < 0 && first->first_step > 0) after = 0; // said after going back
    bool found = after >= 0 && after < WITHIN;
    bool same = last->end == TRIAL_DONE && last->loss == b->calm_loss;
    t->flips++;
    if (found) t->after[t->found++] = (double)after;
    t->same_end += same;
    if (!b->show) return;
    printf("%s %d: %s%s\n", kind, number, found ? "found: " : "not found",
           first->first_step > 0 ? first->first : first->why);
    if (!same)
        printf("  ends differently: step %lld, loss %.17g in place of %.17g; %s\n",
               (long long)last->step, last->loss, b->calm_loss, last->why);
    fflush(stdout);
}

static void count_bare(const struct faults_bench *b, struct tally *t,
                       const struct trial_outcome *o) {
    if (o->first_step > 0)
        t->by_magnitude++;
    else if (o->end != TRIAL_DONE)
        t->broken++;
    else if (o->loss == b->calm_loss)
        t->without_effect++;
    else
        t->unnoticed++;
}

static int try_kind(struct faults_bench *b, int k, struct err *err) {
    struct tally *t = &b->tally[k];
    struct trial_outcome first, last;
    t->after = calloc((size_t)b->flips, sizeof *t->after);
    if (!t->after)
        return err_set(err, ERR_MEMORY, "bench faults: no memory for %d flips", b->flips);
    for (int i = 0; i < b->flips; i++) {
        if (one_run(b, kinds[k], i, true, &first, &last, err) != 0) return -1;
        count_guarded(b, t, kinds[k], i, &first, &last);
        if (one_run(b, kinds[k], i, false, &first, &last, err) != 0) return -1;
        count_bare(b, t, &first);
    }
    return 0;
}

static int run_clean(struct faults_bench *b, struct err *err) {
    char steps[40], states[300];
    struct trial t;
    struct trial_outcome o;
    if (b->clean_steps == 0) return 0;
    snprintf(steps, sizeof steps, "train.steps=%d", b->clean_steps);
    snprintf(states, sizeof states, "checkpoint.folder=%s/clean-states", b->folder);
    begin_trial(b, "clean", true, &t);
    trial_words(&t, (const char *const[]){steps, states, NULL});
    t.most_seconds = MOST_SECONDS + b->clean_steps;
    if (trial_run(&t, &o, err) != 0 || must_end(&o, "the clean run", err) != 0) return -1;
    b->false_alarms = o.alarms;
    snprintf(b->false_alarm, sizeof b->false_alarm, "%s", o.first);
    return 0;
}

// ---- report -------------------------------------------------------------------------------------

static void report(const struct faults_bench *b) {
    printf("%d ranks, %d flips of each kind in step %d; found within %d steps\n", b->ranks,
           b->flips, FLIP, WITHIN);
    printf("%-16s %8s %14s %12s   %s\n", "", "found", "steps after it", "end as",
           "without checksums: by");
    printf("%-16s %8s %14s %12s   %s\n", "", "", "median/latest", "undisturbed",
           "magnitude  broken  unnoticed  same loss");
    for (int k = 0; k < KINDS; k++) {
        const struct tally *t = &b->tally[k];
        if (t->flips == 0) continue;
        double latest = 0, median = t->found ? numbers_median(t->after, (size_t)t->found) : 0;
        for (int i = 0; i < t->found; i++)
            if (t->after[i] > latest) latest = t->after[i];
        printf("%-16s %4d/%-4d %9.0f/%-5.0f %6d/%-6d %11d %7d %10d %10d\n", kinds[k], t->found,
               t->flips, median, latest, t->same_end, t->flips, t->by_magnitude, t->broken,
               t->unnoticed, t->without_effect);
    }
    if (b->clean_steps > 0)
        printf("false alarms in %d clean steps: %d%s%s\n", b->clean_steps, b->false_alarms,
               b->false_alarms ? ", the first: " : "", b->false_alarm);
}

static void report_json(const struct faults_bench *b) {
    printf("{\"ranks\":%d,\"within_steps\":%d,\"kinds\":[", b->ranks, WITHIN);
    bool comma = false;
    for (int k = 0; k < KINDS; k++) {
        const struct tally *t = &b->tally[k];
        if (t->flips == 0) continue;
        printf("%s{\"kind\":\"%s\",\"flips\":%d,\"found\":%d,\"end_as_undisturbed\":%d,"
               "\"by_magnitude\":%d,\"broken\":%d,\"unnoticed\":%d,\"without_effect\":%d}",
               comma ? "," : "", kinds[k], t->flips, t->found, t->same_end, t->by_magnitude,
               t->broken, t->unnoticed, t->without_effect);
        comma = true;
    }
    printf("],\"clean_steps\":%d,\"false_alarms\":%d}\n", b->clean_steps, b->false_alarms);
}

static int check(struct faults_bench *b, struct err *err) {
    bool known = b->kind == NULL;
    for (int k = 0; k < KINDS; k++) known = known || strcmp(b->kind, kinds[k]) == 0;
    if (!known)
        return err_set(err, ERR_USAGE,
                       "bench faults: --kind %.60s: expected flip_weight, flip_optimizer, "
                       "flip_gradient or flip_message",
                       b->kind);
    if (b->ranks > TRIAL_MOST_RANKS || b->flips > MOST_FLIPS)
        return err_set(err, ERR_USAGE, "bench faults: at most %d ranks and %d flips",
                       TRIAL_MOST_RANKS, MOST_FLIPS);
    for (int i = 0; i < b->extra_count; i++)
        if (!strchr(b->extra[i], '='))
            return err_set(err, ERR_USAGE, "bench faults: expected key=value, found \"%.100s\"",
                           b->extra[i]);
    return 0;
}

static int carry_out(struct faults_bench *b, struct err *err) {
    const char *temporary = getenv("TMPDIR");
    snprintf(b->folder, sizeof b->folder, "%.150s/weft-faults-XXXXXX",
             temporary && temporary[0] ? temporary : "/tmp");
    if (!mkdtemp(b->folder)) return err_set_errno(err, "%s: cannot be made", b->folder);
    int result = prepare(b, err);
    for (int k = 0; k < KINDS && result == 0; k++)
        if (!b->kind || strcmp(b->kind, kinds[k]) == 0) result = try_kind(b, k, err);
    if (result == 0) result = run_clean(b, err);
    struct err ignored = {0};
    file_remove_tree(b->folder, &ignored);
    return result;
}

int bench_faults(int argc, char **argv) {
    struct faults_bench b = {.flips = 100, .clean_steps = 1000, .ranks = 2, .seed = 1};
    const struct option options[] = {
        {"--flips", OPTION_COUNT, &b.flips, 0}, {"--clean-steps", OPTION_COUNT, &b.clean_steps, 0},
        {"--ranks", OPTION_COUNT, &b.ranks, 1}, {"--kind", OPTION_TEXT, &b.kind, 0},
        {"--seed", OPTION_SEED, &b.seed, 0},    {"--show", OPTION_FLAG, &b.show, 0},
        {"--json", OPTION_FLAG, &b.json, 0},
    };
    struct err err = {0};
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], b.extra,
                           TRIAL_MOST_WORDS / 2, &b.extra_count, &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0) got = check(&b, &err);
    if (got == 0) got = carry_out(&b, &err);
    if (got == 0) b.json ? report_json(&b) : report(&b);
    for (int k = 0; k < KINDS; k++) free(b.tally[k].after);
    return got == 0 ? 0 : cli_fail(&err);
}
