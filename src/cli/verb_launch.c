// weft launch: a verb as several ranks, through mpirun; a training run under a supervisor
// (operate/supervise.h); and what the operator says to one.
#include "base/text.h"
#include "cli/cli.h"
#include "cli/launch.h"
#include "cli/launch_agent.h"
#include "cli/launch_keeper.h"
#include "cli/launched.h"
#include "comm/comm.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft launch -n RANKS [--hosts FILE] [--dry-run] [--verbose] VERB [ARGUMENTS]\n"
    "       weft launch -n RANKS [options of a supervised run] train CONFIG.yaml [key=value ...]\n"
    "       weft launch -n RANKS --emit-sbatch [options] train CONFIG.yaml [key=value ...]\n"
    "       weft launch --status RUN [--json]\n"
    "       weft launch --reload RUN [PROGRAM] [key=value ...]\n"
    "       weft launch --inject RUN kind=KIND [rank=N] [step=N] [...]\n"
    "\n"
    "Starts \"weft VERB ARGUMENTS\" as RANKS processes of one run, through mpirun: as root too,\n"
    "with more ranks than slots, no rank bound to cores, waiting ranks giving their core away, "
    "and\n"
    "each with its share of the host's cores as threads (unless device.threads, --threads or\n"
    "OMP_NUM_THREADS says otherwise). With -n 1 there is no mpirun and no MPI.\n"
    "\n"
    "  --hosts FILE  the machines, a line \"HOST slots=N\" each; ranks fill one host before the\n"
    "                next. Without it: this machine, or what the scheduler gave\n"
    "  --dry-run     prints the command line and starts nothing\n"
    "  --verbose     shows all that mpirun says itself\n"
    "\n"
    "\"train\" runs under supervision: the configuration is resolved once and kept in "
    "RUN/launch;\n"
    "ranks that die, hang or lose their host are started again from the newest state. Each\n"
    "incident is a line here and in RUN/incidents.jsonl.\n"
    "\n"
    "  --spares K          the last K hosts of the file wait to take the place of one that fails\n"
    "  --fixed-ranks       no fewer ranks when hosts fail and no spare is left: stop with 75\n"
    "  --restarts N        without a new step in between (10); 0: none\n"
    "  --crash-loop WHAT   at the third failure of one step: stop (back, the default), or skip "
    "its\n"
    "                      batch (skip); stop: at the second; retry: kills come from outside,\n"
    "                      --restarts alone counts\n"
    "  --grace SECONDS     for saving when the run is asked to leave (60)\n"
    "  --accept-changes    goes on with a configuration that is not that of the last launch\n"
    "  --listen ADDRESS[:PORT]  where ranks and commands reach the supervisor; the loopback "
    "unless\n"
    "                      ranks run on other hosts\n"
    "\n"
    "  --emit-sbatch       prints a batch script of Slurm that does all this, and is requeued at "
    "75 "
    "and\n"
    "                      76; --ranks-per-node N (1), --time LIMIT (of sbatch), --spares K nodes\n"
    "\n"
    "  --status RUN        what a supervised run is doing; RUN is its train.folder\n"
    "  --reload RUN        saves and restarts it, with the file as it is now, other keys, or\n"
    "                      another program\n"
    "  --inject RUN        a fault for a trial; the keys are those of fault.* (weft config fault)\n"
    "\n"
    "The status is that of the rank that failed first, 128 + N when signal N ended it. Ctrl-C "
    "lets\n"
    "every rank finish its step and save (130); a second one ends them at once. SIGTERM, "
    "SIGUSR1\n"
    "and SIGHUP (where it is not ignored) to weft launch save and leave with 75: the same command "
    "goes\n"
    "on later. Other statuses: 76 no healthy host is left; weft --help lists the rest. mpirun and "
    "srun\n"
    "may start weft directly just as well.\n";

enum { MOST_RANKS = 1 << 20, MOST_RESTARTS = 1000000, MOST_GRACE_SECONDS = 1000000 };

static int read_number(const char *name, const char *text, long least, long most, long *out,
                       struct err *err) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end || errno || value < least || value > most)
        return err_set(err, ERR_USAGE, "launch: %s \"%.100s\": expected a number of %s, %ld to %ld",
                       name, text,
                       strcmp(name, "-n") == 0                 ? "ranks"
                       : strcmp(name, "--ranks-per-node") == 0 ? "ranks"
                       : strcmp(name, "--spares") == 0         ? "hosts"
                       : strcmp(name, "--grace") == 0          ? "seconds"
                                                               : "restarts",
                       least, most);
    *out = value;
    return 0;
}

static int read_listen(struct launch_options *o, const char *text, struct err *err) {
    const char *colon = strrchr(text, ':');
    long port = 0;
    if (colon && strchr(text, ':') != colon) colon = NULL; // an address of version 6
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    char *end = NULL;
    if (colon) port = strtol(colon + 1, &end, 10);
    if (length == 0 || length >= sizeof o->listen ||
        (colon && (colon[1] == 0 || *end || port < 1 || port > 65535)))
        return err_set(err, ERR_USAGE,
                       "launch: --listen \"%.100s\": expected ADDRESS or ADDRESS:PORT", text);
    snprintf(o->listen, sizeof o->listen, "%.*s", (int)length, text);
    o->port = (int)port;
    return 0;
}

static int read_crash_loop(struct launch_options *o, const char *text, struct err *err) {
    static const char *const names[] = {"back", "skip", "stop", "retry"};
    static const enum crash_loop values[] = {CRASH_LOOP_BACK, CRASH_LOOP_SKIP, CRASH_LOOP_STOP,
                                             CRASH_LOOP_RETRY};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            o->policy.crash_loop = values[i];
            return 0;
        }
    return err_set(err, ERR_USAGE,
                   "launch: --crash-loop \"%.100s\": expected back, skip, stop or retry", text);
}

static int unknown(const char *word, struct err *err) {
    static const char *const names[] = {"-n",
                                        "--hosts",
                                        "--dry-run",
                                        "--verbose",
                                        "--help",
                                        "--spares",
                                        "--restarts",
                                        "--crash-loop",
                                        "--grace",
                                        "--listen",
                                        "--status",
                                        "--reload",
                                        "--inject",
                                        "--json",
                                        "--fixed-ranks",
                                        "--accept-changes",
                                        "--emit-sbatch",
                                        "--ranks-per-node",
                                        "--time"};
    const char *nearest = text_nearest(word, names, sizeof names / sizeof *names);
    return err_set(err, ERR_USAGE,
                   "launch: unknown option \"%.100s\"%s%s%s; options of the verb stand behind it",
                   word, nearest ? ", did you mean " : "", nearest ? nearest : "",
                   nearest ? "?" : "");
}

static int read_value(struct launch_options *o, const char *name, const char *value,
                      struct err *err) {
    long number = 0;
    if (strcmp(name, "--hosts") == 0) {
        o->hosts = value;
        return 0;
    }
    if (strcmp(name, "--time") == 0) {
        o->time_limit = value;
        return 0;
    }
    if (strcmp(name, "--listen") == 0) return read_listen(o, value, err);
    if (strcmp(name, "--crash-loop") == 0) return read_crash_loop(o, value, err);
    if (strcmp(name, "-n") == 0) {
        if (read_number(name, value, 1, MOST_RANKS, &number, err) != 0) return -1;
        o->ranks = (int)number;
    } else if (strcmp(name, "--ranks-per-node") == 0) {
        if (read_number(name, value, 1, MOST_RANKS, &number, err) != 0) return -1;
        o->ranks_per_node = (int)number;
    } else if (strcmp(name, "--spares") == 0) {
        if (read_number(name, value, 0, MOST_RANKS, &number, err) != 0) return -1;
        o->spares = (int)number;
    } else if (strcmp(name, "--restarts") == 0) {
        if (read_number(name, value, 0, MOST_RESTARTS, &number, err) != 0) return -1;
        o->policy.budget = (int)number;
    } else if (strcmp(name, "--grace") == 0) {
        if (read_number(name, value, 0, MOST_GRACE_SECONDS, &number, err) != 0) return -1;
        o->grace_seconds = (double)number;
    } else {
        o->order = name;
        o->run = value;
    }
    return 0;
}

static bool is_one_of(const char *word, const char *const *names) {
    while (*names && strcmp(word, *names) != 0) names++;
    return *names != NULL;
}

static int read_options(struct launch_options *o, int argc, char **argv, struct err *err) {
    static const char *const valued[] = {"-n",       "--hosts",  "--spares",         "--restarts",
                                         "--grace",  "--listen", "--crash-loop",     "--status",
                                         "--reload", "--inject", "--ranks-per-node", "--time",
                                         NULL};
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {{"--help", &o->help},
                 {"-h", &o->help},
                 {"--dry-run", &o->dry_run},
                 {"--verbose", &o->verbose},
                 {"--json", &o->json},
                 {"--accept-changes", &o->accept_changes},
                 {"--fixed-ranks", &o->fixed_ranks},
                 {"--emit-sbatch", &o->emit_sbatch}};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        size_t flag = 0, count = sizeof flags / sizeof *flags;
        while (flag < count && strcmp(argv[i], flags[flag].name) != 0) flag++;
        if (flag < count) {
            *flags[flag].flag = true;
            if (o->help) return 0;
            continue;
        }
        if (!is_one_of(argv[i], valued)) return unknown(argv[i], err);
        if (i + 1 == argc) return err_set(err, ERR_USAGE, "launch: %s needs a value", argv[i]);
        if (read_value(o, argv[i], argv[i + 1], err) != 0) return -1;
        i++;
    }
    o->words = argv + i;
    o->word_count = argc - i;
    if (o->order) return 0;
    if (o->ranks == 0)
        return err_set(err, ERR_USAGE, "launch: -n RANKS is needed; weft launch --help");
    if (o->word_count == 0)
        return err_set(err, ERR_USAGE,
                       "launch: a verb is needed, as in \"weft launch -n %d train "
                       "CONFIG.yaml\"",
                       o->ranks);
    if (strcmp(o->words[0], "launch") == 0)
        return err_set(err, ERR_USAGE, "launch: does not start itself");
    return 0;
}

static int start(const struct launch_options *o, struct err *err) {
    char program[PATH_MAX];
    struct hosts hosts = {0};
    struct launch_command command = {0};
    int status;
    if (launch_program(program, err) != 0 || (o->hosts && hosts_read(&hosts, o->hosts, err) != 0))
        return cli_fail(err);
    if (o->hosts && hosts.slots < o->ranks)
        fprintf(stderr,
                "weft: launch: %d ranks on %ld slots of %s: hosts take more than their "
                "slots\n",
                o->ranks, hosts.slots, o->hosts);
    if (launch_words(o->ranks, o->hosts ? &hosts : NULL, program, o->words, NULL, &command, err) !=
        0) {
        status = cli_fail(err);
    } else if (o->dry_run) {
        launch_print(command.words);
        status = 0;
    } else {
        status = launch_simple(&command, o, err);
    }
    launch_command_free(&command);
    hosts_free(&hosts);
    return status;
}

// One rank needs no mpirun: this process becomes it.
static int start_one(const struct launch_options *o, char *name, struct err *err) {
    char program[PATH_MAX];
    if (launch_program(program, err) != 0) return cli_fail(err);
    char **words = o->words - 1; // the place of an option of this verb
    words[0] = o->dry_run ? program : name;
    if (o->dry_run) {
        launch_print(words);
        return 0;
    }
    fflush(NULL);
    cli_execute(words);
    err_set_errno(err, "%s", program);
    return cli_fail(err);
}

int verb_launch(int argc, char **argv) {
    static char name[] = "weft";
    struct err err = {0};
    struct launch_options options = {
        .policy = {.budget = 10, .back_off_seconds = 1, .back_off_most_seconds = 60},
        .grace_seconds = 60};
    if (argc > 1 && strcmp(argv[1], LAUNCH_KEEP) == 0) {
        argv[1] = name;
        return launch_keeper(argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], LAUNCH_AGENT) == 0) return launch_agent(argc - 1, argv + 1);
    if (read_options(&options, argc, argv, &err) != 0) return cli_fail(&err);
    if (options.help) {
        fputs(usage, stdout);
        return 0;
    }
    if (options.order) return launch_order(&options, &err);
    if (options.emit_sbatch) return launch_sbatch(&options, argc, argv, &err);
    if (!options.dry_run && launch_is_run(&options)) return launch_train(&options, &err);
    if (options.ranks == 1 && !options.hosts) return start_one(&options, name, &err);
    return start(&options, &err);
}
