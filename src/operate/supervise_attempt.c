// One start of a run's ranks: mpirun, what comes from it, and its end. See supervise_parts.h.
//
// The end is made quick and complete: everything of the run on this host but mpirun is killed at
// once; mpirun sees its processes gone, takes away what it keeps in /tmp and /dev/shm, and leaves
// within a tenth of a second; the agents do the same on other hosts.
#include "base/clock.h"
#include "base/log.h"
#include "operate/leftovers.h"
#include "operate/marks.h"
#include "operate/program.h"
#include "operate/supervise_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- start

// What all processes of the run find in their environment. In the child alone: whatever has
// WEFT_RUN is ended with the run.
static void set_environment(const struct supervisor *s, int attempt) {
    char place[300], number[16], key[WIRE_KEY_TEXT];
    wire_key_text(&s->key, key);
    snprintf(place, sizeof place, "%s:%d", s->options->address, control_port(s->control));
    snprintf(number, sizeof number, "%d", attempt);
    setenv("WEFT_RUN", s->state.run, 1);
    setenv("WEFT_CONTROL", place, 1);
    setenv("WEFT_CONTROL_KEY", key, 1);
    setenv("WEFT_ATTEMPT", number, 1);
}

// In a process group of its own, so that Ctrl-C comes to the supervisor alone.
static void run_starter(const struct supervisor *s, char *const *words, int errors, int attempt,
                        pid_t supervisor) {
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != supervisor) _exit(127);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int input = open("/dev/null", O_RDONLY);
    if (input < 0 || dup2(input, STDIN_FILENO) < 0 || dup2(errors, STDERR_FILENO) < 0) _exit(127);
    set_environment(s, attempt);
    execv(words[0], words);
    dprintf(STDERR_FILENO, "%s: %s\n", words[0], strerror(errno));
    _exit(127);
}

static int start_process(struct supervisor *s, char *const *words, int attempt, struct err *err) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return err_set_errno(err, "launch: no pipe to mpirun");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    pid_t self = getpid(), child = fork();
    if (child == 0) run_starter(s, words, ends[1], attempt, self);
    close(ends[1]);
    if (child < 0) {
        err_set_errno(err, "launch: mpirun cannot be started");
        close(ends[0]);
        return -1;
    }
    s->state.starter = s->starter = child;
    s->starter_left = false;
    s->errors = ends[0];
    return 0;
}

// A program that was replaced since the last attempt runs from now on; its bits may differ.
static void look_at_program(struct supervisor *s) {
    char mark[PROGRAM_MARK_BYTES];
    program_mark(s->options->program, mark);
    if (s->program_mark[0] && strcmp(mark, s->program_mark) != 0) {
        char evidence[600];
        snprintf(evidence, sizeof evidence,
                 "%.400s is another file than at the last start; what follows may differ in the "
                 "last bits",
                 s->options->program);
        failure_say(s, INCIDENT_MISMATCH, -1, "", -1, evidence, "the ranks start from it");
    }
    snprintf(s->program_mark, sizeof s->program_mark, "%s", mark);
}

static int take_ranks(struct supervisor *s, struct err *err) {
    int ranks = place_ranks(&s->place);
    int *connection = realloc(s->connection, sizeof *connection * (size_t)ranks);
    if (!connection) return err_set(err, ERR_MEMORY, "no memory for %d ranks", ranks);
    s->connection = connection;
    for (int i = 0; i < ranks; i++) connection[i] = -1;
    s->ranks = ranks;
    s->ended = 0;
    s->begun = clock_seconds();
    s->arrived = s->loaded = 0;
    s->seen = s->seen_loaded = 0;
    s->first_step = -1;
    s->stepped = s->kept = false;
    if (watch_restart(&s->watch, ranks, s->begun, err) != 0) return -1;
    for (int i = 0; i < ranks; i++) s->watch.ranks[i].host = place_host_of(&s->place, i);
    for (int i = 0; i < s->place.count; i++)
        s->watch.hosts[i].in_use = s->place.hosts[i].state == PLACE_IN_USE;
    if (report_open(&s->reader, ranks, s->options->verbose, err) != 0) return -1;
    s->reader.known = s->options->verbose ? NULL : &s->known;
    s->known.learning = s->launched == 0;
    return 0;
}

// A file that was edited meanwhile changes nothing by itself; that is told, once.
static void look_at_changes(struct supervisor *s) {
    struct text changes = {0};
    s->calls->changed(s->calls->context, &changes);
    const char *now = changes.data ? changes.data : "", *told = s->changed.data;
    if (now[0] && strcmp(now, told ? told : "") != 0) {
        struct text line = {0};
        supervise_one_line(&line, "the configuration was edited while the run goes on: ", now);
        failure_say(s, INCIDENT_CONFIG, -1, "", -1, line.data ? line.data : "",
                    "not taken; weft launch --reload RUN takes it");
        text_free(&line);
    }
    text_free(&s->changed);
    s->changed = changes;
}

int attempt_start(struct supervisor *s, struct err *err) {
    struct launch_command command = {0};
    struct hosts hosts = {0};
    int number = s->state.attempts;
    look_at_program(s);
    if (s->launched > 0) look_at_changes(s);
    if (take_ranks(s, err) != 0) return -1;
    int result = s->options->hosts ? place_hosts(&s->place, &hosts, err) : 0;
    struct supervise_attempt attempt = {.number = number,
                                        .ranks = s->ranks,
                                        .hosts = s->options->hosts ? &hosts : NULL,
                                        .states_back = s->states_back,
                                        .resumed = s->resumed,
                                        .skip_steps = s->state.skip};
    if (result == 0) result = s->calls->command(s->calls->context, &attempt, &command, err);
    s->state.attempts = number + 1;
    control_attempt(s->control, number);
    if (result == 0) result = start_process(s, command.words, number, err);
    if (result == 0) supervise_keep(s); // while the ranks are being started
    if (result != 0) report_close(&s->reader);
    launch_command_free(&command);
    hosts_free(&hosts);
    s->launched++;
    return result;
}

// ---- what is said

void attempt_read(struct supervisor *s) {
    char bytes[16384];
    struct text show = {0};
    if (s->starter <= 0) return;                     // no attempt: there is no reader
    for (int i = 0; s->errors >= 0 && i < 16; i++) { // others want their turn
        ssize_t n = read(s->errors, bytes, sizeof bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) break;
        if (n <= 0) {
            close(s->errors);
            s->errors = -1;
            break;
        }
        report_put(&s->reader, bytes, (size_t)n, &show);
    }
    if (show.size > 0) s->calls->show(s->calls->context, show.data, show.size);
    text_free(&show);
    s->ended = 0;
    for (int i = 0; i < s->ranks; i++) {
        if (!s->reader.rank[i].ended) continue;
        s->watch.ranks[i].ended = true;
        s->ended++;
    }
}

void attempt_reap(struct supervisor *s) {
    int status;
    if (s->starter <= 0 || s->starter_left) return;
    pid_t found = waitpid(s->starter, &status, WNOHANG);
    if (found == 0 || (found < 0 && errno == EINTR)) return;
    s->starter_left = true;
    s->starter_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void attempt_interrupt(struct supervisor *s) {
    if (s->starter > 0 && !s->starter_left) kill(s->starter, SIGUSR1);
}

// ---- the end

bool attempt_kill(struct supervisor *s, int *left) {
    bool patient = s->starter > 0 && !s->starter_left && clock_seconds() < s->deadline;
    marks_kill(s->state.run, patient ? s->starter : 0, false, 0, left);
    attempt_reap(s);
    if (!patient && s->starter > 0 && !s->starter_left) kill(s->starter, SIGKILL);
    return *left == 0 && (s->starter <= 0 || s->starter_left);
}

void attempt_close(struct supervisor *s, struct text *show) {
    if (s->starter <= 0) return;
    attempt_read(s);
    if (s->errors >= 0) close(s->errors);
    s->errors = -1;
    leftovers_remove(s->options->temporary_folder, "/dev/shm", s->starter);
    s->state.starter = s->starter = 0;
    s->state.seconds += clock_seconds() - s->begun;
    s->status = report_finish(&s->reader, s->starter_status, show);
    report_close(&s->reader);
}
