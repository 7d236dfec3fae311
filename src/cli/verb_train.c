// weft train: a configuration becomes a run. Ctrl-C, SIGTERM and SIGUSR1 finish the step and save.
#include "base/file.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include "cli/machine_file.h"
#include "cli/predict_run.h"
#include "cli/supervised.h"
#include "comm/comm.h"
#include "operate/launched.h"
#include "train/config.h"
#include "train/run.h"
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: weft train CONFIG.yaml [key=value ...] [--dry-run] [--json] [--single]\n"
    "                  [--hardware FILE] [--trace FILE]\n"
    "\n"
    "Trains the model that the configuration describes (\"weft config\" documents the keys) and\n"
    "leaves configuration, metrics.jsonl, TensorBoard events and checkpoints in train.folder. A\n"
    "folder with a checkpoint is gone on with.\n"
    "\n"
    "  --dry-run   checks the configuration and prints it as it resolves\n"
    "  --json      prints the result as one JSON object\n"
    "  --single    trains in this process alone, whatever a launcher left in the environment\n"
    "  --hardware FILE  of this machine, as weft bench hardware wrote it (" MACHINE_FILE_HELP ",\n"
    "              where there is one): at the end, what it foretells of the run stands beside "
    "what\n"
    "              was measured; weft plan explain RUN says more\n"
    "  --trace FILE  train.trace: the timeline of every rank, and the foretold one beside it\n"
    "\n"
    "Several ranks: \"weft launch -n N train ...\", \"mpirun -n N weft train ...\" or \"srun\n"
    "--mpi=pmix weft train ...\"; the keys parallel.* say how they share the work.\n"
    "\n"
    "Ctrl-C finishes the step, saves and exits with 130; a second one exits at once. SIGTERM and\n"
    "SIGUSR1, by which schedulers ask for the machine, do the same with status 75: start it "
    "again.\n";

static volatile sig_atomic_t stop, preempted;

static void on_interrupt(int number) {
    (void)number;
    static const char text[] = "\nfinishing the step and saving; once more to exit at once\n";
    if (stop) _exit(130);
    stop = 1;
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
}

// Schedulers repeat themselves; only the user's Ctrl-C ends the program at once.
static void on_preemption(int number) {
    (void)number;
    static const char text[] = "asked to leave: finishing the step and saving\n";
    if (preempted) return;
    preempted = 1;
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
}

// Shards are mapped, not read; a page whose file is no longer that long cannot be had.
static void on_bus_error(int number) {
    (void)number;
    static const char text[] =
        "weft: bus error: a file that is mapped into memory was cut short or cannot be read any "
        "more: a shard of data.train or data.validation, or MPI's own in /dev/shm\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(4);
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    action.sa_handler = on_preemption;
    sigaction(SIGTERM, &action, NULL);
    // the keeper of a rank has it ignored: mpirun's SIGUSR1 is for the keeper
    if (sigaction(SIGUSR1, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGUSR1, &action, NULL);
    action.sa_handler = on_bus_error;
    sigaction(SIGBUS, &action, NULL);
    // a file larger than its limit is an error of write like any other, not the end of the process
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, NULL);
}

static void print_number(const char *name, double value) {
    if (isfinite(value))
        printf(",\"%s\":%.9g", name, value);
    else
        printf(",\"%s\":null", name);
}

static void print_result(const struct run_result *r, struct train_config *config,
                         const struct predict_run *how, bool json) {
    if (!json) {
        printf("step %lld, loss %.4f", (long long)r->step, r->loss);
        if (isfinite(r->validation_loss)) printf(", validation loss %.4f", r->validation_loss);
        printf("\n");
        predict_run_report(how, config, r, false);
        return;
    }
    printf("{\"step\":%lld,\"resumed_from\":%lld", (long long)r->step, (long long)r->resumed_from);
    print_number("loss", r->loss);
    print_number("validation_loss", r->validation_loss);
    print_number("start_seconds", r->start_seconds);
    printf(",\"planned_bytes\":%llu,\"allocated_bytes\":%llu,\"peak_resident_bytes\":%llu",
           (unsigned long long)r->planned_bytes, (unsigned long long)r->allocated_bytes,
           (unsigned long long)r->peak_resident_bytes);
    predict_run_report(how, config, r, true);
    printf("}\n");
}

static int dry_run(struct train_config *config, struct err *err) {
    struct text out = {0};
    if (config_check_run(config, err) != 0) return cli_fail(err);
    if (config_print(config, true, &out) == 0) fwrite(out.data, 1, out.size, stdout);
    text_free(&out);
    return 0;
}

struct train_words {
    const char *path;
    bool dry, json, single, help;
    const char *hardware;
    char trace[CONFIG_TEXT_BYTES + 16]; // a setting, or ""
    char **settings;                    // key=value
    int setting_count;
};

// The settings are gathered at the beginning of argv.
static int read_words(struct train_words *w, int argc, char **argv, struct err *err) {
    w->settings = argv;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            w->help = true;
            return 0;
        }
        if (strcmp(argv[i], "--dry-run") == 0)
            w->dry = true;
        else if (strcmp(argv[i], "--json") == 0)
            w->json = true;
        else if (strcmp(argv[i], "--single") == 0)
            w->single = true;
        else if (strcmp(argv[i], "--hardware") == 0 && i + 1 < argc)
            w->hardware = argv[++i];
        else if (strcmp(argv[i], "--trace") == 0 && i + 1 < argc && w->setting_count < i) {
            snprintf(w->trace, sizeof w->trace, "train.trace=%s", argv[++i]);
            w->settings[w->setting_count++] = w->trace; // never behind the word that is read
        } else if (argv[i][0] == '-' || (w->path && !strchr(argv[i], '=')))
            return err_set(err, ERR_USAGE, "train: unexpected \"%.200s\"; weft train --help",
                           argv[i]);
        else if (!w->path && !strchr(argv[i], '='))
            w->path = argv[i];
        else
            w->settings[w->setting_count++] = argv[i];
    }
    if (!w->path)
        return err_set(err, ERR_USAGE, "train: a configuration is needed; weft train --help");
    if (w->hardware && !file_exists(w->hardware)) // not at the end of a long run
        return err_set(err, ERR_USAGE,
                       "train: --hardware %.200s is not there; weft bench hardware --out writes it",
                       w->hardware);
    return 0;
}

static int train(struct train_config *config, const struct launch_environment *launched,
                 const struct train_words *words, struct err *err) {
    struct run_result result = {0};
    struct run_control control = {.stop = &stop, .preempted = &preempted, .launch = launched};
    cli_settle_threads(launched, config->threads);
    if (cli_supervised(launched, &control.heartbeat, &control.attempt, err) != 0)
        return cli_fail(err);
    catch_signals();
    int ended = train_run(config, &control, &result, err);
    heartbeat_close(control.heartbeat);
    struct predict_run how = {words->hardware, words->settings, words->setting_count,
                              launched->ranks > 0 ? launched->ranks : 1,
                              cli_threads(launched, config->threads)};
    if (ended != 0) {
        // an interrupted run is set beside its prediction too
        if (err->kind == ERR_INTERRUPT && launched->rank <= 0 && !words->json)
            predict_run_report(&how, config, &result, false);
        // Of what all ranks know, as of the user's Ctrl-C, one speaks.
        bool silent = result.silent || (err->kind == ERR_INTERRUPT && !launched_speaks(launched));
        int status = silent ? err_exit_status(err) : cli_fail(err);
        if (result.broken) comm_abort(result.broken, status);
        return status;
    }
    if (launched->rank <= 0) print_result(&result, config, &how, words->json);
    return 0;
}

int verb_train(int argc, char **argv) {
    struct err err = {0};
    struct train_words words = {0};
    struct launch_environment launched;
    if (read_words(&words, argc, argv, &err) != 0) return cli_fail(&err);
    if (words.help) {
        fputs(usage, stdout);
        return 0;
    }
    if (cli_launched(&launched, words.single, &err) != 0) return cli_fail(&err);
    if (!words.dry && launched_check(&launched, comm_library(), &err) != 0)
        return launched_speaks(&launched) ? cli_fail(&err) : err_exit_status(&err);
    struct train_config *config = calloc(1, sizeof *config);
    int status;
    if (!config) {
        err_set(&err, ERR_MEMORY, "no memory for the configuration");
        status = cli_fail(&err);
    } else if (config_load(config, words.path, words.settings, words.setting_count, &err) != 0) {
        status = cli_fail(&err);
    } else if (words.dry) {
        status = dry_run(config, &err);
    } else {
        status = train(config, &launched, &words, &err);
    }
    free(config);
    return status;
}
