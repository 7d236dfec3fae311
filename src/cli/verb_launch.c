// weft launch: a thin front to mpirun. operate/launch.h makes the command line, this starts it and
// shows what the ranks say (operate/launch_report.h).
#include "base/affinity.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/launch_agent.h"
#include "cli/launch_keeper.h"
#include "cli/launched.h"
#include "comm/comm.h"
#include "operate/launch.h"
#include "operate/launch_report.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char usage[] =
    "usage: weft launch -n RANKS [--hosts FILE] [--dry-run] [--verbose] VERB [ARGUMENTS]\n"
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
    "The status is that of the rank that failed first, 128 + N when signal N ended it. Ctrl-C "
    "lets\n"
    "every rank finish its step and save; a second one ends them at once. mpirun and srun may\n"
    "start weft directly just as well.\n";

enum { MOST_RANKS = 1 << 20, MOST_EXPORTED = 64 };

struct launch_options {
    int ranks;
    const char *hosts;
    bool dry_run, verbose, help;
    char **words; // verb and arguments, ends with NULL
    int word_count;
};

static int read_options(struct launch_options *o, int argc, char **argv, struct err *err) {
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *word = argv[i];
        bool last = i + 1 == argc;
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            o->help = true;
            return 0;
        }
        if (strcmp(word, "--dry-run") == 0) {
            o->dry_run = true;
        } else if (strcmp(word, "--verbose") == 0) {
            o->verbose = true;
        } else if (strcmp(word, "-n") == 0 || strcmp(word, "--hosts") == 0) {
            if (last) return err_set(err, ERR_USAGE, "launch: %s needs a value", word);
            const char *value = argv[++i];
            char *end;
            if (word[1] == '-') {
                o->hosts = value;
                continue;
            }
            errno = 0;
            long ranks = strtol(value, &end, 10);
            if (*value == 0 || *end || errno || ranks < 1 || ranks > MOST_RANKS)
                return err_set(err, ERR_USAGE,
                               "launch: -n \"%.100s\": expected a number of ranks, 1 to %d", value,
                               MOST_RANKS);
            o->ranks = (int)ranks;
        } else {
            static const char *const names[] = {"-n", "--hosts", "--dry-run", "--verbose",
                                                "--help"};
            const char *nearest = text_nearest(word, names, sizeof names / sizeof *names);
            return err_set(err, ERR_USAGE,
                           "launch: unknown option \"%.100s\"%s%s%s; options of the verb stand "
                           "behind it",
                           word, nearest ? ", did you mean " : "", nearest ? nearest : "",
                           nearest ? "?" : "");
        }
    }
    if (o->ranks == 0)
        return err_set(err, ERR_USAGE, "launch: -n RANKS is needed; weft launch --help");
    o->words = argv + i;
    o->word_count = argc - i;
    if (o->word_count == 0)
        return err_set(err, ERR_USAGE,
                       "launch: a verb is needed, as in \"weft launch -n %d train "
                       "CONFIG.yaml\"",
                       o->ranks);
    if (strcmp(o->words[0], "launch") == 0)
        return err_set(err, ERR_USAGE, "launch: does not start itself");
    return 0;
}

// Like the shell: the first of the names in a folder of PATH.
static int find_starter(const char *const *names, char path[PATH_MAX], struct err *err) {
    const char *folders = getenv("PATH");
    for (const char *const *name = names; *name; name++)
        for (const char *at = folders ? folders : "/usr/local/bin:/usr/bin:/bin"; *at;) {
            size_t length = strcspn(at, ":");
            snprintf(path, PATH_MAX, "%.*s/%s", (int)length, at, *name);
            if (length > 0 && access(path, X_OK) == 0) return 0;
            at += length + (at[length] == ':');
        }
    return err_set(err, ERR_USAGE,
                   "launch: neither %s nor %s is in PATH, and this program needs one of them (%s)",
                   names[0], names[1], comm_library());
}

// Variables that a rank on another host needs and that mpirun would not carry there.
static int find_exported(const char **names) {
    static const char *const prefixes[] = {"OMP_",  "GOMP_",           "WEFT_",
                                           "DNNL_", "LD_LIBRARY_PATH", "ONEDNN_"};
    static char found[MOST_EXPORTED][128];
    int count = 0;
    for (char **at = environ; *at && count < MOST_EXPORTED; at++) {
        size_t length = strcspn(*at, "=");
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
            if (length < sizeof found[0] && strncmp(*at, prefixes[i], strlen(prefixes[i])) == 0) {
                snprintf(found[count], sizeof found[0], "%.*s", (int)length, *at);
                names[count] = found[count];
                count++;
                break;
            }
    }
    return count;
}

static bool says_threads(const struct launch_options *o) {
    const char *variable = getenv("OMP_NUM_THREADS");
    if (variable && variable[0]) return true;
    for (int i = 0; i < o->word_count; i++)
        if (strncmp(o->words[i], "device.threads=", 15) == 0 ||
            strcmp(o->words[i], "--threads") == 0)
            return true;
    return false;
}

// Where all ranks stand on this host their share of its cores is known here; on others each rank
// finds its own.
static int threads_of_a_rank(const struct launch_options *o) {
    const char *job = getenv("SLURM_JOB_ID");
    if (o->hosts || (job && job[0]) || says_threads(o)) return 0;
    int share = affinity_cpus() / o->ranks;
    return share > 0 ? share : 1;
}

static void print_word(const char *word) {
    static const char plain[] = "@%+=:,./-_";
    bool quote = word[0] == 0;
    for (const char *p = word; *p; p++)
        quote = quote || !(isalnum((unsigned char)*p) || strchr(plain, *p));
    if (!quote) {
        fputs(word, stdout);
        return;
    }
    putchar('\'');
    for (const char *p = word; *p; p++)
        if (*p == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*p);
    putchar('\'');
}

static void print_command(char *const *words) {
    for (int i = 0; words[i]; i++) {
        if (i > 0) putchar(' ');
        print_word(words[i]);
    }
    putchar('\n');
}

// ---- running it

static volatile sig_atomic_t interrupts;
static int wake[2]; // a signal makes the loop below look

static void on_signal(int number) {
    (void)number;
    interrupts++;
    int error = errno;
    ssize_t ignored = write(wake[1], "", 1);
    (void)ignored;
    errno = error;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

// In a process group of its own, so that Ctrl-C comes to this program alone.
static void run_starter(char *const *words, const int errors[2], pid_t launcher) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launcher) _exit(127);
    signal(SIGPIPE, SIG_DFL);
    if (isatty(STDIN_FILENO)) { // a group in the background must not read the terminal
        int none = open("/dev/null", O_RDONLY);
        if (none >= 0) dup2(none, STDIN_FILENO);
    }
    dup2(errors[1], STDERR_FILENO);
    execv(words[0], words);
    dprintf(STDERR_FILENO, "%s: %s\n", words[0], strerror(errno));
    _exit(127);
}

static void show_text(struct text *show) {
    if (show->size > 0) fwrite(show->data, 1, show->size, stderr);
    fflush(stderr);
    show->size = 0;
}

static void pass_interrupt(pid_t starter, int *passed) {
    char byte;
    ssize_t ignored = read(wake[0], &byte, 1);
    (void)ignored;
    if (*passed == interrupts) return;
    kill(starter, *passed == 0 ? SIGUSR1 : SIGTERM);
    *passed = interrupts;
}

static int follow(pid_t starter, int errors, struct report_reader *reader) {
    struct text show = {0};
    struct pollfd watch[2] = {{errors, POLLIN, 0}, {wake[0], POLLIN, 0}};
    char bytes[8192];
    int passed = 0, status = 0;
    for (;;) {
        if (poll(watch, 2, -1) < 0 && errno != EINTR) break;
        if (watch[1].revents & POLLIN) pass_interrupt(starter, &passed);
        if (!watch[0].revents) continue;
        ssize_t n = read(errors, bytes, sizeof bytes);
        if (n == 0 || (n < 0 && errno != EINTR)) break;
        if (n > 0) report_put(reader, bytes, (size_t)n, &show);
        show_text(&show);
    }
    while (waitpid(starter, &status, 0) < 0 && errno == EINTR) continue;
    int left = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    left = report_finish(reader, left, &show);
    show_text(&show);
    text_free(&show);
    return left;
}

static int run_command(const struct launch_command *command, const struct launch_options *o,
                       struct err *err) {
    struct report_reader reader;
    int errors[2];
    if (report_open(&reader, o->ranks, o->verbose, err) != 0) return cli_fail(err);
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0 || pipe2(errors, O_CLOEXEC) != 0) {
        err_set_errno(err, "launch: no pipe to mpirun");
        return cli_fail(err);
    }
    catch_signals();
    pid_t self = getpid(), starter = fork();
    if (starter == 0) run_starter(command->words, errors, self);
    close(errors[1]);
    int status;
    if (starter < 0) {
        err_set_errno(err, "launch: mpirun cannot be started");
        status = cli_fail(err);
    } else {
        status = follow(starter, errors[0], &reader);
    }
    close(errors[0]);
    close(wake[0]);
    close(wake[1]);
    report_close(&reader);
    return status;
}

static int program_path(char path[PATH_MAX], struct err *err) {
    ssize_t size = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (size < 0) return err_set_errno(err, "/proc/self/exe");
    path[size] = 0;
    return 0;
}

static int launch(const struct launch_options *o, struct err *err) {
    char starter[PATH_MAX], program[PATH_MAX];
    const char *exported[MOST_EXPORTED];
    struct hosts hosts = {0};
    struct launch_command command = {0};
    struct launch_request request = {.starter = starter,
                                     .program = program,
                                     .ranks = o->ranks,
                                     .is_root = geteuid() == 0,
                                     .threads = threads_of_a_rank(o),
                                     .exported = exported,
                                     .words = o->words,
                                     .word_count = o->word_count};
    if (launch_mpi_of(comm_library(), &request.mpi, err) != 0 ||
        find_starter(launch_starters(request.mpi), starter, err) != 0 ||
        program_path(program, err) != 0 || (o->hosts && hosts_read(&hosts, o->hosts, err) != 0))
        return cli_fail(err);
    if (o->hosts) request.hosts = &hosts;
    request.exported_count = find_exported(exported);
    int status;
    if (o->hosts && hosts.slots < o->ranks)
        fprintf(stderr,
                "weft: launch: %d ranks on %ld slots of %s: hosts take more than their "
                "slots\n",
                o->ranks, hosts.slots, o->hosts);
    if (launch_command_make(&command, &request, err) != 0) {
        status = cli_fail(err);
    } else if (o->dry_run) {
        print_command(command.words);
        status = 0;
    } else {
        status = run_command(&command, o, err);
    }
    launch_command_free(&command);
    hosts_free(&hosts);
    return status;
}

// One rank needs no mpirun: this process becomes it.
static int launch_one(const struct launch_options *o, char *name, struct err *err) {
    char program[PATH_MAX];
    if (program_path(program, err) != 0) return cli_fail(err);
    char **words = o->words - 1; // the place of an option of this verb
    words[0] = o->dry_run ? program : name;
    if (o->dry_run) {
        print_command(words);
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
    struct launch_options options = {0};
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
    if (options.ranks == 1 && !options.hosts) return launch_one(&options, name, &err);
    return launch(&options, &err);
}
