// weft bench control: what the supervisor's control plane takes for the heartbeats of many ranks.
// A few other processes play the ranks: one authenticated connection and one beat a second for
// each.
#include "base/clock.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "operate/control.h"
#include "operate/watch.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "usage: weft bench control [options]\n\n"
    "Opens the control plane of a supervisor for N ranks, which another process plays: each has\n"
    "an authenticated connection and sends the beat of a rank in a step, one a second. Prints "
    "what\n"
    "receiving, checking, reading and watching them takes of one core.\n\n"
    "  --ranks N    a multiple of four (16384)\n"
    "  --seconds S  (5)\n"
    "  --json\n";

enum {
    PLAYERS = 8,
    TICKS = 100, // parts of a second in which beats are sent
    FOUND_MOST = 16
};
static const double OPENING_SECONDS = 120;

struct plane {
    int ranks;
    double seconds;
    bool json;
    struct wire_key key;
    struct control *control;
    struct watch watch;
    int64_t came, beats, refused;
    double look_seconds, cpu_seconds, took_seconds, open_seconds;
};

// ---- the ranks ----------------------------------------------------------------------------------

// Of a rank in a step that has begun to wait, a moment ago, for the three beside it.
static json_t *beat_of(int rank, int64_t step) {
    int first = rank - rank % 4;
    return json_pack(
        "{s:s,s:I,s:s,s:f,s:f,s:f,s:I,s:f,s:b,s:{s:s,s:s,s:I,s:f,s:[iiii]},"
        "s:{s:s,s:s,s:I,s:f},s:{s:I,s:I,s:I,s:I},s:i,s:f}",
        "type", "beat", "step", (json_int_t)step, "phase", "step", "phase_seconds", 0.4,
        "step_seconds", 0.98, "compute_seconds", 0.91, "resident_bytes", (json_int_t)7123456789,
        "cpu_seconds", 71.25 + (double)step, "waiting", 1, "waits", "stream", "reduce", "kind",
        "reduce_scatter", "number", (json_int_t)(41 * step), "seconds", 0.02, "ranks", first,
        first + 1, first + 2, first + 3, "last", "stream", "tp", "kind", "all_gather", "number",
        (json_int_t)(977 * step), "seconds", 0.01, "posted", "reduce", (json_int_t)(41 * step),
        "gather", (json_int_t)(41 * step), "tp", (json_int_t)(977 * step), "run",
        (json_int_t)(3 * step), "stage", 0, "time", clock_wall_seconds());
}

static int say(struct wire *w, json_t *message, struct err *err) {
    int status = message ? wire_put(w, message, err) : err_set(err, ERR_MEMORY, "no memory");
    json_decref(message);
    return status == 0 ? wire_work(w, err) : -1;
}

// Player k plays every PLAYERS-th rank.
static int come(struct wire **ranks, const struct plane *p, int player, struct err *err) {
    int port = control_port(p->control);
    for (int i = player; i < p->ranks; i += PLAYERS) {
        ranks[i] = wire_connect("127.0.0.1", port, &p->key, OPENING_SECONDS, err);
        if (!ranks[i]) return -1;
        json_t *hello =
            json_pack("{s:s,s:s,s:i,s:s,s:i,s:i,s:f}", "type", "hello", "role", "rank", "rank", i,
                      "host", "node", "pid", i + 1, "attempt", 0, "time", clock_wall_seconds());
        if (say(ranks[i], hello, err) != 0) return -1;
    }
    return 0;
}

// Until the supervisor's end closes.
static int beat(struct wire **ranks, const struct plane *p, int player, struct err *err) {
    double begin = clock_seconds();
    for (int64_t tick = 0;; tick++) {
        double left = begin + (double)tick / TICKS - clock_seconds();
        if (left > 0) usleep((useconds_t)(left * 1e6));
        for (int64_t i = player + tick % TICKS * PLAYERS; i < p->ranks; i += TICKS * PLAYERS)
            if (say(ranks[i], beat_of((int)i, tick / TICKS + 1), err) != 0) return -1;
    }
}

static void play_ranks(const struct plane *p, int player) {
    struct wire **ranks = calloc((size_t)p->ranks, sizeof *ranks);
    struct err err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ranks && come(ranks, p, player, &err) == 0) {
        beat(ranks, p, player, &err);
        _exit(0);
    }
    fprintf(stderr, "bench control: the ranks: %s\n", err.text);
    _exit(1);
}

// ---- the supervisor -----------------------------------------------------------------------------

static void hear(void *context, const struct control_event *e) {
    struct plane *p = context;
    struct err err = {0};
    if (e->what == CONTROL_LEFT || e->rank >= p->ranks) return;
    if (e->what == CONTROL_CAME) p->came++;
    if (watch_beat(&p->watch, e->rank, e->message, clock_seconds(), &err) != 0)
        p->refused++;
    else if (e->what == CONTROL_SAID)
        p->beats++;
}

static double thread_cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int wait_for_ranks(struct plane *p, struct err *err) {
    double begin = clock_seconds();
    while (p->came < p->ranks) {
        if (control_wait(p->control, NULL, 0, 0.1, hear, p, err) != 0) return -1;
        if (clock_seconds() - begin > OPENING_SECONDS)
            return err_set(err, ERR_IO, "bench control: %lld of %d ranks came within %.0f s",
                           (long long)p->came, p->ranks, OPENING_SECONDS);
    }
    p->open_seconds = clock_seconds() - begin;
    return watch_restart(&p->watch, p->ranks, clock_seconds(), err);
}

static int listen_to_beats(struct plane *p, struct err *err) {
    struct incident found[FOUND_MOST];
    double begin = clock_seconds(), cpu = thread_cpu_seconds(), look = begin + 1;
    p->beats = 0;
    while (clock_seconds() - begin < p->seconds) {
        if (control_wait(p->control, NULL, 0, 0.1, hear, p, err) != 0) return -1;
        double now = clock_seconds();
        if (now < look) continue;
        look = now + 1;
        watch_look(&p->watch, now, found, FOUND_MOST);
        double took = clock_seconds() - now;
        if (took > p->look_seconds) p->look_seconds = took;
    }
    p->took_seconds = clock_seconds() - begin;
    p->cpu_seconds = thread_cpu_seconds() - cpu;
    return 0;
}

static int measure(struct plane *p, struct err *err) {
    struct rlimit limit;
    rlim_t needed = (rlim_t)p->ranks + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed) {
        limit.rlim_cur = limit.rlim_max;
        if (limit.rlim_max < needed || setrlimit(RLIMIT_NOFILE, &limit) != 0)
            return err_set(err, ERR_USAGE,
                           "bench control: %d ranks need as many open files, %llu are allowed "
                           "(ulimit -Hn)",
                           p->ranks, (unsigned long long)limit.rlim_max);
    }
    if (wire_key_make(&p->key, err) != 0 || watch_open(&p->watch, p->ranks, 1, err) != 0 ||
        control_open(&p->control, "127.0.0.1", 0, &p->key, err) != 0)
        return -1;
    pid_t players[PLAYERS];
    int status = 0, started = 0;
    for (; started < PLAYERS && status == 0; started++) {
        players[started] = fork();
        if (players[started] == 0) play_ranks(p, started);
        if (players[started] < 0) {
            status = err_set_errno(err, "bench control: the ranks cannot be started");
            break;
        }
    }
    if (status == 0) status = wait_for_ranks(p, err);
    if (status == 0) status = listen_to_beats(p, err);
    for (int i = 0; i < started; i++) {
        kill(players[i], SIGKILL);
        waitpid(players[i], NULL, 0);
    }
    return status;
}

static void print(const struct plane *p) {
    double share = p->cpu_seconds / p->took_seconds, rate = (double)p->beats / p->took_seconds;
    double each = p->beats > 0 ? p->cpu_seconds / (double)p->beats : 0;
    uint64_t dropped = control_dropped(p->control, NULL) + (uint64_t)p->refused;
    if (p->json)
        printf("{\"ranks\": %d, \"open_seconds\": %.3f, \"beats_per_second\": %.1f, "
               "\"core_share\": %.4f, \"beat_seconds\": %.9f, \"look_seconds\": %.6f, "
               "\"dropped\": %llu}\n",
               p->ranks, p->open_seconds, rate, share, each, p->look_seconds,
               (unsigned long long)dropped);
    else
        printf("%d ranks came within %.2f s; %.0f beats/s take %.1f %% of one core (%.1f us each); "
               "looking at all ranks takes at most %.1f ms; %llu messages were dropped\n",
               p->ranks, p->open_seconds, rate, 100 * share, 1e6 * each, 1e3 * p->look_seconds,
               (unsigned long long)dropped);
}

int bench_control(int argc, char **argv) {
    static struct plane p;
    const char *words[1];
    int count;
    struct err err = {0};
    p = (struct plane){.ranks = 16384, .seconds = 5};
    const struct option options[] = {
        {"--ranks", OPTION_COUNT, &p.ranks, 4},
        {"--seconds", OPTION_NUMBER, &p.seconds, 0},
        {"--json", OPTION_FLAG, &p.json, 0},
    };
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], words, 0,
                           &count, &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0 && !(p.seconds > 0 && p.seconds <= 3600))
        got =
            err_set(&err, ERR_USAGE, "bench control: --seconds %g: expected up to 3600", p.seconds);
    p.ranks -= p.ranks % 4;
    if (got == 0) got = measure(&p, &err);
    if (got == 0) print(&p);
    control_close(p.control);
    watch_close(&p.watch);
    return got == 0 ? 0 : cli_fail(&err);
}
