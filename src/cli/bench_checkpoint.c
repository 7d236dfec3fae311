// weft bench checkpoint CONFIG: what a checkpoint costs the run (both figures of "blocking of a
// checkpoint", docs/definitions.md), how soon it is safe, and how fast a state is loaded. Steps are
// those of bench step: random tokens, one process.
#include "base/affinity.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/numbers.h"
#include "base/text.h"
#include "checkpoint/saver.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include "train/config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_STEPS = 1000, MOST_ROUNDS = 20, WARM_UP_STEPS = 2, COPY_BYTES = 256 << 20 };

static const char help[] =
    "usage: weft bench checkpoint CONFIG [key=value ...] [--folder DIR] [--steps K] [--rounds N]\n"
    "                             [--json]\n\n"
    "Runs K (10) training steps without a save and K with one, N (2) times in turn, on random "
    "tokens\n"
    "in one process, and prints both figures of \"blocking of a checkpoint\", each over one step\n"
    "time: the stall of the saving step, and the time of K steps with one save less that of K\n"
    "steps without. Then: seconds until the state is complete in memory and durable on disk, the\n"
    "rate of the copy beside that of memory, and seconds to load the state from memory and from\n"
    "disk. Checkpoints go to DIR, a new folder, and are removed; snapshots to\n"
    "checkpoint.snapshot_folder. The larger the batch, the smaller both shares: it is printed.\n";

struct arguments {
    struct bench_target target;
    const char *folder;
    int steps, rounds;
    bool json;
};

struct figures {
    double step_seconds, stall_seconds, longer_seconds; // longer: of K steps with a save
    double copy_seconds, memory_seconds, persist_seconds;
    double memory_rate; // bytes/s of a plain copy by all threads
    double load_memory_seconds, load_disk_seconds;
    uint64_t state_bytes, image_bytes, snapshot_bytes;
    int64_t tokens;
};

struct bench {
    const struct arguments *arguments;
    struct train_config *config;
    struct layout layout;
    struct device device;
    struct model model;
    struct engine *engine;
    struct batch *batches, **list;
    int count, threads;
    struct tensor_slice *slices;
    int slice_count;
    char run[SNAPSHOT_RUN_BYTES], memory[CHECKPOINT_PATH_BYTES], disk[CHECKPOINT_PATH_BYTES];
    struct snapshot *snapshot;
    struct saver *saver;
    int64_t step, saves;
    double waited;
    struct figures out;
};

static int read_arguments(int argc, char **argv, struct arguments *a, struct err *err) {
    static char own[64]; // two at a time must not share their snapshots
    const struct option options[] = {
        {"--steps", OPTION_COUNT, &a->steps, 1},
        {"--rounds", OPTION_COUNT, &a->rounds, 1},
        {"--folder", OPTION_TEXT, &a->folder, 0},
        {"--json", OPTION_FLAG, &a->json, 0},
    };
    snprintf(own, sizeof own, "weft-bench-checkpoint-%ld", (long)getpid());
    *a = (struct arguments){.steps = 10, .rounds = 2, .folder = own};
    int got =
        bench_target_read(&a->target, argc, argv, options, sizeof options / sizeof options[0], err);
    if (got == 0 && (a->steps > MOST_STEPS || a->rounds > MOST_ROUNDS))
        return err_set(err, ERR_USAGE,
                       "bench checkpoint: --steps %d, --rounds %d: expected at most %d, and %d",
                       a->steps, a->rounds, MOST_STEPS, MOST_ROUNDS);
    return got;
}

// ---- steps --------------------------------------------------------------------------------------

static int place_batches(struct bench *b, uint64_t each, struct err *err) {
    b->batches = calloc((size_t)b->count, sizeof *b->batches);
    b->list = calloc((size_t)b->count, sizeof *b->list);
    if (!b->batches || !b->list) return err_set(err, ERR_MEMORY, "no memory for the batches");
    for (int m = 0; m < b->count; m++) {
        batch_place(&b->batches[m], (char *)engine_other_memory(b->engine) + each * (uint64_t)m,
                    b->config->micro_batch, b->config->context);
        bench_fill_batch(&b->batches[m], b->config->model.vocab, (uint64_t)m + 1);
        b->list[m] = &b->batches[m];
    }
    return 0;
}

static bool may_update(void *context, const struct engine_step *step) {
    struct bench *b = context;
    (void)step;
    b->waited += snapshot_wait(b->snapshot);
    return true;
}

// As between the steps of a run.
static int look(struct bench *b, struct err *err) {
    int64_t slots[SAVER_SLOTS];
    struct saver_result r;
    saver_report(b->saver, slots);
    if (saver_agree(b->saver, slots, NULL, &r, err) != 0) return -1;
    if (r.news == SAVER_FAILED) return err_set(err, r.why.kind, "%s", r.why.text);
    if (r.news == SAVER_PERSISTED) {
        b->out.persist_seconds = r.seconds;
        b->out.state_bytes = r.bytes;
    }
    return 0;
}

static int one_step(struct bench *b, struct err *err) {
    struct engine_step step = {.learning_rate = b->config->learning_rate,
                               .clip_norm = b->config->clip,
                               .update = ++b->step,
                               .may_update = may_update,
                               .context = b};
    if (engine_run_step(b->engine, b->list, b->count, &step, err) != 0) return -1;
    b->out.tokens = step.processed;
    return look(b, err);
}

static int begin_save(struct bench *b, struct err *err) {
    struct checkpoint_state state = {.step = b->step, .config = "", .binary = "", .isa = ""};
    uint64_t number = (uint64_t)++b->saves;
    int generation = snapshot_begin(b->snapshot, &state, &b->config->model, number, err);
    if (generation < 0) return -1;
    saver_begin(b->saver, b->step, generation, 1, number);
    return 0;
}

// Until it is durable, so that it weighs on none of the steps to come.
static int end_save(struct bench *b, struct err *err) {
    while (!saver_idle(b->saver)) {
        struct timespec moment = {0, 1000000};
        if (look(b, err) != 0) return -1;
        nanosleep(&moment, NULL);
    }
    return 0;
}

// K steps; each one's time into `times`. Their sum includes the save's begin.
static int run_steps(struct bench *b, bool save, double *times, double *stall, struct err *err) {
    double before = clock_seconds();
    b->waited = 0;
    if (save && begin_save(b, err) != 0) return -1;
    *stall = clock_seconds() - before;
    for (int i = 0; i < b->arguments->steps; i++) {
        double begin = i == 0 ? before : clock_seconds();
        if (one_step(b, err) != 0) return -1;
        times[i] = clock_seconds() - begin;
    }
    *stall += b->waited;
    return end_save(b, err);
}

static int measure_blocking(struct bench *b, struct err *err) {
    static double plain[MOST_STEPS * MOST_ROUNDS], saving[MOST_STEPS];
    double stalls[MOST_ROUNDS], longer[MOST_ROUNDS], unused;
    int steps = b->arguments->steps, rounds = b->arguments->rounds;
    for (int i = 0; i < WARM_UP_STEPS; i++)
        if (one_step(b, err) != 0) return -1;
    if (begin_save(b, err) != 0 || one_step(b, err) != 0 || end_save(b, err) != 0) return -1;
    for (int r = 0; r < rounds; r++) {
        double *own = plain + r * steps;
        if (run_steps(b, false, own, &unused, err) != 0 ||
            run_steps(b, true, saving, &stalls[r], err) != 0)
            return -1;
        longer[r] = 0;
        for (int i = 0; i < steps; i++) longer[r] += saving[i] - own[i];
    }
    b->out.step_seconds = numbers_median(plain, (size_t)(steps * rounds));
    b->out.stall_seconds = numbers_median(stalls, (size_t)rounds);
    b->out.longer_seconds = numbers_median(longer, (size_t)rounds);
    b->out.copy_seconds = snapshot_copy_seconds(b->snapshot);
    b->out.memory_seconds = snapshot_seal_seconds(b->snapshot);
    return 0;
}

// ---- rates and loading --------------------------------------------------------------------------

// The best of three copies of a large buffer by all threads.
static double measure_memory(int threads) {
    enum { PIECE_BYTES = 1 << 20, TIMES = 3 };
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    double best = 0;
    if (from) memset(from, 1, COPY_BYTES);
    if (to) memset(to, 2, COPY_BYTES);
    for (int i = 0; from && to && i < TIMES; i++) {
        double begin = clock_seconds();
#pragma omp parallel for num_threads(threads)
        for (int at = 0; at < COPY_BYTES; at += PIECE_BYTES)
            memcpy(to + at, from + at, PIECE_BYTES);
        double rate = COPY_BYTES / (clock_seconds() - begin);
        if (rate > best) best = rate;
    }
    free(from);
    free(to);
    return best;
}

static int load(struct bench *b, bool memory, double *seconds, struct err *err) {
    struct snapshot_places places = {.memory = memory ? b->memory : NULL,
                                     .run = memory ? b->run : NULL,
                                     .disk = memory ? NULL : b->disk};
    struct snapshot_choice newest = {.most_step = -1};
    struct checkpoint *c;
    const char *from;
    double begin = clock_seconds();
    if (snapshot_open_newest(&places, &newest, NULL, &c, &from, err) != 0) return -1;
    if (!c) return err_set(err, ERR_INTERNAL, "the state that was saved is not found again");
    int result = checkpoint_load_slices(c, b->slices, b->slice_count, NULL, err);
    checkpoint_close(c);
    if (result == 0) engine_weights_changed(b->engine);
    *seconds = clock_seconds() - begin;
    return result;
}

// ---- opening and closing ------------------------------------------------------------------------

static int list_slices(struct bench *b, struct err *err) {
    static const enum engine_part parts[] = {ENGINE_MASTER, ENGINE_MOMENTS, ENGINE_EXPERT_BIAS};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct tensor_slice *some;
        int more;
        if (engine_slices(b->engine, parts[i], &some, &more, err) != 0) return -1;
        struct tensor_slice *all =
            realloc(b->slices, (size_t)(b->slice_count + more + 1) * sizeof *all);
        if (all && more > 0) memcpy(all + b->slice_count, some, (size_t)more * sizeof *all);
        free(some);
        if (!all) return err_set(err, ERR_MEMORY, "no memory for the list of tensors");
        b->slices = all;
        b->slice_count += more;
    }
    return 0;
}

static int open_savers(struct bench *b, struct err *err) {
    b->out.snapshot_bytes = memory_plan_kind_bytes(engine_memory(b->engine), BUFFER_SNAPSHOT);
    struct snapshot_options options = {.folder = b->memory,
                                       .run = b->run,
                                       .ranks = 1,
                                       .session = snapshot_new_session(),
                                       .generation_bytes =
                                           b->out.snapshot_bytes / SNAPSHOT_GENERATIONS,
                                       .part_bytes = b->config->part_bytes,
                                       .threads = b->threads};
    if (snapshot_open(&b->snapshot, &options, err) != 0 ||
        snapshot_slices(b->snapshot, b->slices, b->slice_count, err) != 0)
        return -1;
    struct saver_options saver = {
        .folder = b->disk, .snapshot = b->snapshot, .ranks = 1, .keep_last = 1};
    b->out.image_bytes = snapshot_image_bytes(b->snapshot);
    return saver_open(&b->saver, &saver, err);
}

static int open_all(struct bench *b, struct err *err) {
    const struct train_config *c = b->config;
    struct engine_options options;
    struct device_cpu_options cpu;
    config_device(c, &cpu);
    config_engine(c, &options);
    b->count = options.micro_batches;
    options.snapshots = 1;
    uint64_t each = batch_bytes(options.rows * options.context);
    options.other_bytes = each * (uint64_t)options.micro_batches;
    if (file_exists(b->arguments->folder))
        return err_set(
            err, ERR_USAGE,
            "bench checkpoint: --folder %s exists; it is made and removed again, so give "
            "the name of a new one",
            b->arguments->folder);
    if (file_make_folders(b->arguments->folder, err) != 0 ||
        snapshot_run_id(b->arguments->folder, b->run, err) != 0 ||
        snapshot_home(c->snapshot_folder, err) != 0 ||
        snapshot_run_folder(c->snapshot_folder, b->run, b->memory, err) != 0 ||
        file_join(b->disk, sizeof b->disk, b->arguments->folder, "checkpoints", err) != 0 ||
        device_cpu_open(&b->device, &cpu, err) != 0 ||
        model_describe(&b->model, &c->model, err) != 0)
        return -1;
    b->threads = b->device.threads;
    b->engine = engine_open(&b->model, &b->device, &options, err);
    if (!b->engine) return -1;
    engine_initialise(b->engine, (uint64_t)c->seed);
    if (place_batches(b, each, err) != 0 || list_slices(b, err) != 0) return -1;
    return open_savers(b, err);
}

static void close_all(struct bench *b) {
    saver_close(b->saver);
    snapshot_close(b->snapshot);
    if (b->run[0]) snapshot_forget(b->config->snapshot_folder, b->run, NULL);
    if (b->disk[0]) file_remove_tree(b->arguments->folder, NULL);
    engine_close(b->engine);
    free(b->batches);
    free(b->list);
    free(b->slices);
    model_free(&b->model);
    if (b->device.close) b->device.close(&b->device);
}

// ---- the report ---------------------------------------------------------------------------------

static int report_json(const struct bench *b) {
    const struct figures *f = &b->out;
    json_t *out = json_pack(
        "{s:I,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "tokens_per_step",
        (json_int_t)f->tokens, "threads", b->threads, "steps", b->arguments->steps, "rounds",
        b->arguments->rounds, "step_seconds", f->step_seconds, "stall_seconds", f->stall_seconds,
        "stall_over_step", f->stall_seconds / f->step_seconds, "longer_seconds", f->longer_seconds,
        "longer_over_step", f->longer_seconds / f->step_seconds, "copy_seconds", f->copy_seconds,
        "memory_seconds", f->memory_seconds, "persist_seconds", f->persist_seconds);
    json_object_set_new(out, "copy_bytes_per_second",
                        json_real((double)f->image_bytes / f->copy_seconds));
    json_object_set_new(out, "memory_bytes_per_second", json_real(f->memory_rate));
    json_object_set_new(out, "load_memory_seconds", json_real(f->load_memory_seconds));
    json_object_set_new(out, "load_disk_seconds", json_real(f->load_disk_seconds));
    json_object_set_new(out, "state_bytes", json_integer((json_int_t)f->state_bytes));
    json_object_set_new(out, "snapshot_bytes", json_integer((json_int_t)f->snapshot_bytes));
    json_dumpf(out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(out);
    return 0;
}

static void report_text(const struct bench *b) {
    const struct figures *f = &b->out;
    const struct train_config *c = b->config;
    char state[32], memory[32];
    printf("state %s, snapshot memory %s (two generations); %d thread%s\n",
           text_bytes(f->state_bytes, state), text_bytes(f->snapshot_bytes, memory), b->threads,
           b->threads == 1 ? "" : "s");
    printf("step: %lld tokens (%d x %d in %d micro-batch%s), step time %.3f s\n",
           (long long)f->tokens, c->batch, c->context, b->count, b->count == 1 ? "" : "es",
           f->step_seconds);
    printf("blocking of a checkpoint, stall of the saving step:            %8.4f s  %6.2f %% of a "
           "step\n",
           f->stall_seconds, 100 * f->stall_seconds / f->step_seconds);
    printf("blocking of a checkpoint, %d steps with one save less without: %8.4f s  %6.2f %% of a "
           "step\n",
           b->arguments->steps, f->longer_seconds, 100 * f->longer_seconds / f->step_seconds);
    printf("copy: %.4f s, %.2f GB/s (memory copies at %.2f GB/s with all threads)\n",
           f->copy_seconds, 1e-9 * (double)f->image_bytes / f->copy_seconds, 1e-9 * f->memory_rate);
    printf("complete in memory after %.3f s, durable on disk after %.3f s (%.2f GB/s)\n",
           f->memory_seconds, f->persist_seconds,
           1e-9 * (double)f->state_bytes / f->persist_seconds);
    printf("load: from memory %.3f s, from disk %.3f s\n", f->load_memory_seconds,
           f->load_disk_seconds);
}

static int measure(struct bench *b, struct err *err) {
    if (open_all(b, err) != 0 || measure_blocking(b, err) != 0 ||
        load(b, true, &b->out.load_memory_seconds, err) != 0 ||
        load(b, false, &b->out.load_disk_seconds, err) != 0)
        return -1;
    b->out.memory_rate = measure_memory(b->threads);
    return 0;
}

int bench_checkpoint(int argc, char **argv) {
    static struct train_config config;
    static struct bench bench;
    struct arguments arguments;
    struct err err = {0};
    int got = read_arguments(argc, argv, &arguments, &err);
    if (got < 0) return cli_fail(&err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    bench = (struct bench){.arguments = &arguments, .config = &config};
    int status = 0;
    if (config_load(&config, arguments.target.config, arguments.target.settings,
                    arguments.target.setting_count, &err) != 0 ||
        config_layout(&config, 1, &bench.layout, &err) != 0)
        return cli_fail(&err);
    if (measure(&bench, &err) != 0)
        status = cli_fail(&err);
    else if (arguments.json)
        status = report_json(&bench);
    else
        report_text(&bench);
    close_all(&bench);
    return status;
}
