// weft launch of a training run: the configuration is resolved once, kept in the run folder, and
// all ranks of all attempts run from that copy, under a supervisor (operate/supervise.h).
#include "base/file.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/launch.h"
#include "cli/launch_config.h"
#include "operate/program.h"
#include "operate/supervise.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Names of the variables that the supervisor hands down; ends with NULL.
static const char *const own_variables[] = {"WEFT_RUN", "WEFT_CONTROL", "WEFT_CONTROL_KEY",
                                            "WEFT_ATTEMPT", NULL};

struct launch_run {
    const struct launch_options *options;
    struct launch_config config;
    char program[PATH_MAX];
    int unit, replicas; // ranks of a data-parallel replica; replicas that were asked for
    char address[256];  // to listen on
    bool slurm;         // hosts of an allocation, reached through srun
    bool back_is_new;   // checkpoint.back was given with the latest reload
};

bool launch_is_run(const struct launch_options *o) {
    if (strcmp(o->words[0], "train") != 0) return false;
    for (int i = 1; i < o->word_count; i++)
        if (strcmp(o->words[i], "--dry-run") == 0 || strcmp(o->words[i], "--help") == 0 ||
            strcmp(o->words[i], "-h") == 0)
            return false;
    return true;
}

// ---- what the supervisor asks

static int add(char **words, int *count, const char *text) {
    words[*count] = strdup(text);
    return words[*count] ? ((*count)++, 0) : -1;
}

static int add_number(char **words, int *count, const char *key, int number) {
    char text[64];
    snprintf(text, sizeof text, "%s=%d", key, number);
    return add(words, count, text);
}

// Steps to pass over: those of the configuration, and those that failed again and again.
static int add_skips(char **words, int *count, const char *own, const char *more) {
    char text[2 * CONFIG_LIST_BYTES];
    snprintf(text, sizeof text, "train.skip_steps=[%s%s%s]", own, own[0] ? "," : "", more);
    return add(words, count, text);
}

static int make_command(struct launch_run *run, const struct supervise_attempt *a, char **words,
                        struct launch_command *out, struct err *err) {
    if (a->ranks > 1 || a->hosts)
        return launch_words(a->ranks, a->hosts, run->program, words, own_variables, out, err);
    int failed = 0;
    *out = (struct launch_command){.words = calloc(LAUNCH_WORDS + 8, sizeof *out->words)};
    if (!out->words) return err_set(err, ERR_MEMORY, "no memory for a command line");
    failed |= add(out->words, &out->count, run->program);
    failed |= add(out->words, &out->count, "launch") | add(out->words, &out->count, LAUNCH_KEEP);
    for (int i = 0; words[i]; i++) failed |= add(out->words, &out->count, words[i]);
    if (!failed) return 0;
    launch_command_free(out);
    return err_set(err, ERR_MEMORY, "no memory for a command line");
}

static int command(void *context, const struct supervise_attempt *a, struct launch_command *out,
                   struct err *err) {
    struct launch_run *run = context;
    struct launch_config *c = &run->config;
    char *words[LAUNCH_WORDS + 8] = {0};
    int count = 0, failed = add(words, &count, "train") | add(words, &count, c->copy);
    for (int i = 0; i < c->passed_count; i++) failed |= add(words, &count, c->passed[i]);
    // That of the configuration is for one start: again it would go back by further states.
    bool back_is_done = a->resumed && !run->back_is_new && c->resolved->states_back > 0;
    if (a->states_back > 0 || back_is_done)
        failed |= add_number(words, &count, "checkpoint.back", a->states_back);
    run->back_is_new = false;
    if (a->ranks != run->unit * run->replicas)
        failed |= add_number(words, &count, "parallel.dp", a->ranks / run->unit);
    if (a->skip_steps[0])
        failed |= add_skips(words, &count, c->resolved->skip_steps, a->skip_steps);
    int result = failed ? err_set(err, ERR_MEMORY, "no memory for a command line")
                        : make_command(run, a, words, out, err);
    for (int i = 0; i < count; i++) free(words[i]);
    return result;
}

static int reload(void *context, const char *program, char *const *words, int count,
                  struct text *changes, struct err *err) {
    struct launch_run *run = context;
    int back = run->config.resolved->states_back;
    char digest[PROGRAM_DIGEST_BYTES];
    if (program && strlen(program) >= sizeof run->program)
        return err_set(err, ERR_USAGE, "reload: the program's path is too long");
    // A mistake shows while the ranks still run.
    if (program && program_digest(program, digest, err) != 0) return err_context(err, "reload");
    if (launch_config_reload(&run->config, run->unit * run->replicas, words, count, changes, err) !=
        0)
        return -1;
    run->back_is_new = run->config.resolved->states_back != back;
    if (program) snprintf(run->program, sizeof run->program, "%s", program);
    return 0;
}

static void changed(void *context, struct text *changes) {
    struct launch_run *run = context;
    launch_config_changed(&run->config, run->unit * run->replicas, changes);
}

static int samples(void *context, int64_t step, struct text *out, struct err *err) {
    struct launch_run *run = context;
    return launch_config_samples(&run->config, step, out, err);
}

static void show(void *context, const char *bytes, size_t size) {
    (void)context;
    fwrite(bytes, 1, size, stderr);
    fflush(stderr);
}

// Would a layout of so many replicas do?
static bool fits(void *context, int replicas) {
    const struct launch_run *run = context;
    return launch_config_fits(&run->config, replicas * run->unit, replicas);
}

// ---- the run

// The program that leads to other hosts: what the MPI was told to use, if anything.
static const char *remote_shell(void) {
    static const char *const names[] = {"OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent",
                                        "HYDRA_LAUNCHER_EXEC"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && value[0]) return value;
    }
    return NULL;
}

// Ranks and agents of other hosts do not find the loopback of this one.
static int choose_address(struct launch_run *run, const struct hosts *hosts, struct err *err) {
    snprintf(run->address, sizeof run->address, "%s",
             run->options->listen[0] ? run->options->listen : "127.0.0.1");
    for (int i = 0; i < hosts->count && !run->options->listen[0]; i++)
        if (!hosts_is_here(hosts->list[i].name))
            return hosts_address_towards(hosts->list[i].name, run->address, sizeof run->address,
                                         err);
    return 0;
}

static int supervise_run(struct launch_run *run, const struct hosts *hosts, const char *changes,
                         struct err *err) {
    const struct launch_options *o = run->options;
    const struct train_config *c = run->config.resolved;
    struct supervise_calls calls = {run, command, reload, changed, samples, show};
    struct supervise_options options = {.run_folder = c->folder,
                                        .snapshot_folder = c->snapshot_folder,
                                        .temporary_folder =
                                            getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
                                        .program = run->program,
                                        .address = run->address,
                                        .port = o->port,
                                        .hosts = hosts,
                                        .spares = o->spares,
                                        .remote = remote_shell(),
                                        .slurm = run->slurm,
                                        .loader_path = getenv("LD_LIBRARY_PATH"),
                                        .shape = {.unit = run->unit,
                                                  .replicas = run->replicas,
                                                  .batch = c->batch,
                                                  .micro_batch = c->micro_batch,
                                                  .elastic = !o->fixed_ranks,
                                                  .fits = fits,
                                                  .context = run},
                                        .policy = o->policy,
                                        .most_faults = c->most_faults,
                                        .changes = changes,
                                        .grace_seconds = o->grace_seconds,
                                        .verbose = o->verbose};
    int status = supervise(&options, &calls, err);
    return status < 0 ? cli_fail(err) : status;
}

static int with_lock(struct launch_run *run, const struct hosts *hosts, struct err *err) {
    const struct launch_options *o = run->options;
    struct text changes = {0};
    int changed = launch_config_compare(&run->config, &changes, err), status;
    if (changed > 0) {
        const char *text = changes.data ? changes.data : "";
        log_line(LOG_WARN, "the configuration is not that of the last launch of this run:\n%.*s",
                 (int)changes.size - 1, text);
        if (!o->accept_changes)
            changed = err_set(err, ERR_USAGE,
                              "%s: %d key%s changed since the last launch (above); give the old "
                              "values, or take the new ones with --accept-changes",
                              run->config.resolved->folder, changed, changed == 1 ? "" : "s");
    }
    if (changed < 0 || launch_config_keep(&run->config, err) != 0)
        status = cli_fail(err);
    else
        status = supervise_run(run, hosts, changed > 0 ? changes.data : "", err);
    text_free(&changes);
    return status;
}

int launch_train(const struct launch_options *given, struct err *err) {
    struct launch_options options = *given, *o = &options;
    struct launch_run run = {.options = o};
    struct hosts hosts = {0};
    char starter[PATH_MAX];
    bool has_hosts = false;
    int status;
    if (launch_program(run.program, err) != 0 ||
        launch_hosts(o, &hosts, &has_hosts, &run.slurm, err) != 0 ||
        (o->ranks > 1 && launch_find_starter(starter, err) != 0) ||
        choose_address(&run, &hosts, err) != 0 ||
        launch_config_open(&run.config, o->words, o->word_count, o->ranks, err) != 0) {
        status = cli_fail(err);
    } else {
        run.unit = run.config.unit;
        run.replicas = o->ranks / run.unit;
        if (has_hosts && hosts.slots < o->ranks)
            fprintf(stderr,
                    "weft: launch: %d ranks on %ld slots of %s: hosts take more than their "
                    "slots\n",
                    o->ranks, hosts.slots, run.slurm ? "the allocation" : o->hosts);
        int lock = supervise_lock(run.config.resolved->folder, err);
        status = lock < 0 ? cli_fail(err) : with_lock(&run, has_hosts ? &hosts : NULL, err);
        if (lock >= 0) close(lock);
    }
    hosts_free(&hosts);
    launch_config_close(&run.config);
    return status;
}
