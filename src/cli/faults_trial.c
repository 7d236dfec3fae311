// See faults_trial.h.
#include "cli/faults_trial.h"
#include "base/log.h"
#include "comm/comm.h"
#include "train/config.h"
#include "train/run.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct trial_rank {
    struct comm *comm;
    const struct trial *trial;
    struct run_result result;
    struct err err;
    int status;
    pthread_t thread;
};

void trial_words(struct trial *t, const char *const *words) {
    for (; *words && t->word_count < TRIAL_MOST_WORDS; words++) t->words[t->word_count++] = *words;
}

// ---- in the process of the run ------------------------------------------------------------------

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// What guards say is "step N: ACTION: WHAT", by one rank.
static void hear(enum log_level level, const char *line, void *context) {
    struct trial_outcome *out = context;
    long long step;
    int at = 0;
    if (level < LOG_WARN || sscanf(line, "step %lld: %n", &step, &at) != 1 || at == 0) return;
    pthread_mutex_lock(&lock);
    if (out->alarms++ == 0) {
        out->first_step = step;
        snprintf(out->first, sizeof out->first, "%.*s", (int)sizeof out->first - 1, line + at);
    }
    pthread_mutex_unlock(&lock);
}

static void *run_rank(void *argument) {
    struct trial_rank *r = argument;
    struct run_control control = {.comm = r->comm, .attempt = r->trial->attempt};
    struct train_config *config = calloc(1, sizeof *config);
    char *words[TRIAL_MOST_WORDS];
    for (int i = 0; i < r->trial->word_count; i++) words[i] = (char *)(uintptr_t)r->trial->words[i];
    r->status = config ? config_load(config, NULL, words, r->trial->word_count, &r->err)
                       : err_set(&r->err, ERR_MEMORY, "no memory for a configuration");
    if (r->status == 0) r->status = train_run(config, &control, &r->result, &r->err);
    return NULL; // the process ends soon: memory that messages may still use stays
}

static void take_end(const struct trial_rank *ranks, int count, struct trial_outcome *out) {
    out->end = TRIAL_DONE;
    out->step = ranks[0].result.step;
    out->loss = ranks[0].result.loss;
    for (int i = 0; i < count; i++) {
        const struct trial_rank *r = &ranks[i];
        if (r->status == 0 || (out->end != TRIAL_DONE && r->result.silent)) continue;
        out->end = r->err.kind == ERR_RETRY ? TRIAL_RETRY : TRIAL_FAILED;
        snprintf(out->why, sizeof out->why, "%.*s", (int)sizeof out->why - 1, r->err.text);
    }
}

static void carry_out(const struct trial *t, struct trial_outcome *out) {
    struct trial_rank ranks[TRIAL_MOST_RANKS] = {{0}};
    struct comm *ends[TRIAL_MOST_RANKS] = {NULL};
    struct comm_options options = {.watchdog_seconds = t->most_seconds / 3,
                                   .checksums = t->checksums};
    struct err err = {0};
    log_to(hear, out, LOG_WARN);
    if (t->ranks > 1 && comm_open_threads(ends, t->ranks, &options, &err) != 0) {
        out->end = TRIAL_FAILED;
        snprintf(out->why, sizeof out->why, "%.*s", (int)sizeof out->why - 1, err.text);
        return;
    }
    for (int i = 0; i < t->ranks; i++) {
        ranks[i].comm = ends[i];
        ranks[i].trial = t;
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) != 0) {
            out->end = TRIAL_FAILED;
            snprintf(out->why, sizeof out->why, "no thread for rank %d", i);
            return; // with the process
        }
    }
    for (int i = 0; i < t->ranks; i++) pthread_join(ranks[i].thread, NULL);
    take_end(ranks, t->ranks, out);
}

// ---- in that of the benchmark -------------------------------------------------------------------

// The outcome comes whole or not at all: it is shorter than what a pipe takes at once.
static bool read_outcome(int from, double seconds, struct trial_outcome *out) {
    struct pollfd ready = {.fd = from, .events = POLLIN};
    int got;
    do {
        got = poll(&ready, 1, (int)(seconds * 1000));
    } while (got < 0 && errno == EINTR);
    return got > 0 && read(from, out, sizeof *out) == (ssize_t)sizeof *out;
}

int trial_run(const struct trial *t, struct trial_outcome *out, struct err *err) {
    int ends[2], status = 0;
    if (pipe(ends) != 0) return err_set_errno(err, "bench faults: no pipe");
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        close(ends[0]);
        close(ends[1]);
        return err_set_errno(err, "bench faults: no process for a run");
    }
    if (child == 0) {
        static struct trial_outcome own;
        close(ends[0]);
        carry_out(t, &own);
        _exit(write(ends[1], &own, sizeof own) == (ssize_t)sizeof own ? 0 : 1);
    }
    close(ends[1]);
    struct trial_outcome found = {.end = TRIAL_STOOD};
    bool heard = read_outcome(ends[0], t->most_seconds, &found);
    close(ends[0]);
    if (!heard && waitpid(child, &status, WNOHANG) == 0) {
        usleep(100000); // one that dies closes its pipe a little before
        if (waitpid(child, &status, WNOHANG) == 0) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            snprintf(found.why, sizeof found.why, "stood still for %.0f s", t->most_seconds);
            *out = found;
            return 0;
        }
    }
    if (heard) waitpid(child, &status, 0);
    if (!heard) {
        found.end = TRIAL_DIED;
        snprintf(found.why, sizeof found.why, "ended by signal %d",
                 WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
    *out = found;
    return 0;
}
