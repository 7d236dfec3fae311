// See heartbeat.h.
//
// The compute thread takes the lock for some nanoseconds; the thread never holds it while it waits
// for the network, and asks the messages of the run (comm_status) with another one, so that
// heartbeat_watch can wait until they are not used any more.
#include "guard/heartbeat.h"
#include "base/clock.h"
#include "base/log.h"
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const double BEAT_SECONDS = 1, CONNECT_SECONDS = 1, FAREWELL_SECONDS = 1;
static const double STALL_SECONDS = 0.4; // of a message, to be told of
enum { REPORTS_MOST = 256, FAULTS_MOST = 256 };

static const char *const phase_names[BEAT_PHASES] = {
    [BEAT_START] = "start", [BEAT_LOAD] = "load",
    [BEAT_STEP] = "step",   [BEAT_EVALUATE] = "evaluate",
    [BEAT_SAVE] = "save",   [BEAT_REPLAY] = "replay",
    [BEAT_END] = "end"};

const char *beat_phase_name(enum beat_phase phase) {
    return (unsigned)phase < BEAT_PHASES ? phase_names[phase] : "unknown";
}

struct heartbeat {
    struct heartbeat_options options;
    char host[256];
    pthread_t thread;
    int wake; // eventfd
    pthread_mutex_t lock;
    // under the lock
    enum beat_phase phase;
    int64_t step;
    double phase_began, step_seconds, compute_seconds;
    int stage;
    bool stopping;
    json_t *reports, *faults; // arrays
    // read by the compute thread without it
    atomic_int leave; // enum beat_leave
    atomic_bool has_fault;
    _Atomic double mtbf_seconds;
    // of the messages
    pthread_mutex_t comm_lock;
    struct comm *comm;
    int64_t *stalls; // by peer, since they were told
    // of the thread
    struct wire *wire;
    bool complained;
};

// ---- a beat -------------------------------------------------------------------------------------

// Memory of its own: pages of mapped files come and go as the system likes.
static int64_t resident_bytes(void) {
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long long kilobytes, sum = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %lld kB", &kilobytes) == 1 ||
            sscanf(line, "RssShmem: %lld kB", &kilobytes) == 1)
            sum += kilobytes;
    if (file) fclose(file);
    return sum * 1024;
}

// Through calls, and from disk into mapped files; -1: not counted here.
static int64_t moved_bytes(void) {
    FILE *file = fopen("/proc/self/io", "re");
    char line[256];
    long long bytes, sum = -1;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "rchar: %lld", &bytes) == 1 || sscanf(line, "wchar: %lld", &bytes) == 1 ||
            sscanf(line, "read_bytes: %lld", &bytes) == 1)
            sum = (sum < 0 ? 0 : sum) + bytes;
    if (file) fclose(file);
    return sum;
}

static void put_place(json_t *beat, const char *key, const struct comm_place *place,
                      const int *ranks, int count) {
    if (place->number == 0) return;
    json_t *o =
        json_pack("{s:s,s:s,s:I,s:f}", "stream", place->stream, "kind", comm_kind_name(place->kind),
                  "number", (json_int_t)place->number, "seconds", place->seconds);
    json_t *members = ranks ? json_array() : NULL;
    for (int i = 0; i < count && members; i++)
        json_array_append_new(members, json_integer(ranks[i]));
    if (members) json_object_set_new(o, "ranks", members);
    json_object_set_new(beat, key, o);
}

// A rank may be in two streams of one name; those are told apart by their first members.
static void put_posted(json_t *beat, const struct comm_status *s) {
    json_t *posted = json_object();
    for (int i = 0; i < s->stream_count; i++) {
        bool twin = false;
        for (int j = 0; j < s->stream_count; j++)
            twin |= j != i && strcmp(s->streams[i].stream, s->streams[j].stream) == 0;
        char name[COMM_GROUP_NAME_BYTES + 16];
        snprintf(name, sizeof name, twin ? "%s@%d" : "%s", s->streams[i].stream,
                 s->streams[i].first_member);
        json_object_set_new(posted, name, json_integer((json_int_t)s->streams[i].posted));
    }
    json_object_set_new(beat, "posted", posted);
}

static void put_stalls(json_t *beat, struct heartbeat *h) {
    json_t *retries = NULL;
    comm_stalls(h->comm, STALL_SECONDS, h->stalls);
    for (int i = 0; i < comm_size(h->comm); i++) {
        if (h->stalls[i] == 0) continue;
        char peer[16];
        snprintf(peer, sizeof peer, "%d", i);
        if (!retries) retries = json_object();
        json_object_set_new(retries, peer, json_integer(h->stalls[i]));
        h->stalls[i] = 0;
    }
    if (retries) json_object_set_new(beat, "retries", retries);
}

static void put_messages(json_t *beat, struct heartbeat *h) {
    struct comm_status s;
    pthread_mutex_lock(&h->comm_lock);
    if (h->comm) {
        comm_status(h->comm, &s);
        json_object_set_new(beat, "waiting", json_boolean(s.waiting));
        if (s.busy[0]) json_object_set_new(beat, "busy", json_string(s.busy));
        put_place(beat, "waits", &s.oldest, s.members, s.member_count);
        put_place(beat, "last", &s.last, NULL, 0);
        put_posted(beat, &s);
        put_stalls(beat, h);
    }
    pthread_mutex_unlock(&h->comm_lock);
}

static json_t *make_beat(struct heartbeat *h) {
    json_t *beat = json_object();
    json_object_set_new(beat, "type", json_string("beat"));
    pthread_mutex_lock(&h->lock);
    json_object_set_new(beat, "step", json_integer(h->step));
    json_object_set_new(beat, "phase", json_string(beat_phase_name(h->phase)));
    json_object_set_new(beat, "phase_seconds", json_real(clock_seconds() - h->phase_began));
    if (h->step_seconds > 0) {
        json_object_set_new(beat, "step_seconds", json_real(h->step_seconds));
        json_object_set_new(beat, "compute_seconds", json_real(h->compute_seconds));
    }
    if (h->stage >= 0) json_object_set_new(beat, "stage", json_integer(h->stage));
    pthread_mutex_unlock(&h->lock);
    json_object_set_new(beat, "resident_bytes", json_integer(resident_bytes()));
    json_object_set_new(beat, "cpu_seconds", json_real(clock_process_cpu_seconds()));
    int64_t moved = moved_bytes();
    if (moved >= 0) json_object_set_new(beat, "io_bytes", json_integer(moved));
    put_messages(beat, h);
    json_object_set_new(beat, "time", json_real(clock_wall_seconds()));
    return beat;
}

static json_t *make_hello(struct heartbeat *h) {
    json_t *hello = json_pack("{s:s,s:s,s:i,s:s,s:i,s:i,s:f}", "type", "hello", "role", "rank",
                              "rank", h->options.rank, "host", h->host, "pid", (int)getpid(),
                              "attempt", h->options.attempt, "time", clock_wall_seconds());
    pthread_mutex_lock(&h->lock);
    if (hello && h->stage >= 0) json_object_set_new(hello, "stage", json_integer(h->stage));
    pthread_mutex_unlock(&h->lock);
    return hello;
}

static int put(struct heartbeat *h, json_t *message, struct err *err) {
    int status = message ? wire_put(h->wire, message, err)
                         : err_set(err, ERR_MEMORY, "no memory for a message to the supervisor");
    json_decref(message);
    return status;
}

// ---- what the supervisor says -------------------------------------------------------------------

static json_t *make_journal(struct heartbeat *h) {
    struct text text = {0};
    pthread_mutex_lock(&h->comm_lock);
    if (h->comm) comm_journal_text(h->comm, &text);
    pthread_mutex_unlock(&h->comm_lock);
    json_t *journal = json_pack("{s:s,s:s}", "type", "journal", "text", text.size ? text.data : "");
    text_free(&text);
    return journal;
}

static void take_order(struct heartbeat *h, const json_t *message) {
    const char *order = json_string_value(json_object_get(message, "order"));
    json_t *fault = json_object_get(message, "fault");
    if (!order) return;
    bool again = json_is_true(json_object_get(message, "again"));
    if (strcmp(order, "leave") == 0 && atomic_load(&h->leave) != BEAT_LEAVES)
        atomic_store(&h->leave, again ? BEAT_LEAVES_FOR_A_RESTART : BEAT_LEAVES);
    struct err err = {0}; // a connection that is gone shows itself
    if (strcmp(order, "journal") == 0) put(h, make_journal(h), &err);
    if (strcmp(order, "fault") != 0 || !json_is_object(fault)) return;
    pthread_mutex_lock(&h->lock);
    if (json_array_size(h->faults) < FAULTS_MOST) json_array_append(h->faults, fault);
    atomic_store(&h->has_fault, json_array_size(h->faults) > 0);
    pthread_mutex_unlock(&h->lock);
}

static void take_message(struct heartbeat *h, const json_t *message) {
    const char *type = json_string_value(json_object_get(message, "type"));
    const json_t *mtbf = json_object_get(message, "mtbf_seconds");
    if (type && strcmp(type, "order") == 0) take_order(h, message);
    if (type && strcmp(type, "facts") == 0 && json_is_number(mtbf))
        atomic_store(&h->mtbf_seconds, fmax(0, json_number_value(mtbf)));
}

// ---- the thread ---------------------------------------------------------------------------------

static void lose(struct heartbeat *h, const struct err *why) {
    bool stopping;
    wire_close(h->wire);
    h->wire = NULL;
    pthread_mutex_lock(&h->lock);
    stopping = h->stopping;
    pthread_mutex_unlock(&h->lock);
    if (!stopping && !h->complained)
        log_line(LOG_WARN,
                 "rank %d does not reach its supervisor, and tries again every second: %s",
                 h->options.rank, why->text);
    h->complained = true;
}

static void reach(struct heartbeat *h) {
    struct err err = {0};
    const struct heartbeat_options *o = &h->options;
    h->wire = wire_connect(o->address, o->port, &o->key, CONNECT_SECONDS, &err);
    if (h->wire && put(h, make_hello(h), &err) == 0)
        h->complained = false;
    else
        lose(h, &err);
}

// Reports go when the beats before them are out, and are forgotten when they are in the system's
// hands too.
static int put_reports(struct heartbeat *h, struct err *err) {
    pthread_mutex_lock(&h->lock);
    json_t *reports = h->reports;
    json_t *empty = json_array_size(reports) > 0 ? json_array() : NULL;
    if (empty) h->reports = empty;
    pthread_mutex_unlock(&h->lock);
    int status = 0;
    for (size_t i = 0; empty && i < json_array_size(reports) && status == 0; i++)
        status = wire_put(h->wire, json_array_get(reports, i), err);
    if (empty) json_decref(reports);
    return status;
}

static int say(struct heartbeat *h, struct err *err) {
    if (put(h, make_beat(h), err) != 0) return -1;
    return put_reports(h, err);
}

static int hear(struct heartbeat *h, struct err *err) {
    json_t *message;
    int moved = wire_work(h->wire, err), taken;
    while ((taken = wire_take(h->wire, &message, moved == 0 ? err : NULL)) == 1) {
        take_message(h, message);
        json_decref(message);
    }
    return moved == 0 ? taken : -1;
}

static void sleep_until(struct heartbeat *h, double until) {
    double left = fmin(fmax(until - clock_seconds(), 0), BEAT_SECONDS);
    struct pollfd watch[2] = {{h->wake, POLLIN, 0}, {-1, 0, 0}};
    if (h->wire) watch[1] = (struct pollfd){wire_descriptor(h->wire), wire_events(h->wire), 0};
    poll(watch, 2, (int)ceil(left * 1000));
}

// True: the compute thread has something to say now.
static bool was_woken(struct heartbeat *h) {
    uint64_t count;
    return read(h->wake, &count, sizeof count) == sizeof count;
}

static void *beat(void *argument) {
    struct heartbeat *h = argument;
    double next = 0, end = 0;
    for (;;) {
        bool woken = was_woken(h);
        double now = clock_seconds();
        pthread_mutex_lock(&h->lock);
        if (h->stopping && end == 0) end = now + FAREWELL_SECONDS;
        pthread_mutex_unlock(&h->lock);
        bool due = now >= next;
        if (due) next = now + BEAT_SECONDS;
        if (!h->wire && due && end == 0) reach(h);
        struct err err = {0};
        if (h->wire && (((due || woken) && say(h, &err) != 0) || hear(h, &err) != 0)) lose(h, &err);
        if (end > 0 && (!h->wire || !wire_pending(h->wire) || now > end)) break;
        sleep_until(h, next);
    }
    wire_close(h->wire);
    h->wire = NULL;
    return NULL;
}

static void wake(struct heartbeat *h) {
    uint64_t one = 1;
    ssize_t ignored = write(h->wake, &one, sizeof one);
    (void)ignored;
}

// ---- opening ------------------------------------------------------------------------------------

static void free_all(struct heartbeat *h) {
    if (h->wake >= 0) close(h->wake);
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->comm_lock);
    json_decref(h->reports);
    json_decref(h->faults);
    free(h->stalls);
    free(h);
}

int heartbeat_open(struct heartbeat **out, const struct heartbeat_options *options,
                   struct err *err) {
    struct heartbeat *h = calloc(1, sizeof *h);
    if (!h) return err_set(err, ERR_MEMORY, "no memory for the heartbeat");
    h->options = *options;
    snprintf(h->host, sizeof h->host, "%s", options->host ? options->host : "");
    h->options.host = h->host;
    h->stage = -1;
    h->phase_began = clock_seconds();
    h->reports = json_array();
    h->faults = json_array();
    h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->comm_lock, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = h->wake < 0 ? errno : 0;
    if (!failed && (!h->reports || !h->faults)) failed = ENOMEM;
    if (!failed) failed = pthread_create(&h->thread, NULL, beat, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free_all(h);
        return err_set(err, ERR_IO, "the heartbeat cannot be started: %s", strerror(failed));
    }
    pthread_setname_np(h->thread, "weft-beat");
    *out = h;
    return 0;
}

void heartbeat_close(struct heartbeat *h) {
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    h->stopping = true;
    pthread_mutex_unlock(&h->lock);
    wake(h);
    pthread_join(h->thread, NULL);
    free_all(h);
}

void heartbeat_watch(struct heartbeat *h, struct comm *comm) {
    if (!h) return;
    int64_t *stalls = comm ? calloc((size_t)comm_size(comm), sizeof *stalls) : NULL;
    pthread_mutex_lock(&h->comm_lock);
    int64_t *before = h->stalls;
    h->stalls = stalls;
    h->comm = stalls ? comm : NULL;
    pthread_mutex_unlock(&h->comm_lock);
    free(before);
}

// ---- what the compute thread says and asks ------------------------------------------------------

void heartbeat_phase(struct heartbeat *h, enum beat_phase phase, int64_t step) {
    if (!h) return;
    if (h->options.step && phase == BEAT_STEP) atomic_store(h->options.step, step);
    pthread_mutex_lock(&h->lock);
    bool changed = h->phase != phase;
    if (changed || h->step != step) h->phase_began = clock_seconds();
    h->phase = phase;
    h->step = step;
    pthread_mutex_unlock(&h->lock);
    if (changed) wake(h);
}

void heartbeat_step(struct heartbeat *h, int64_t step, double seconds, double compute_seconds) {
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    bool first = h->step_seconds == 0;
    h->step = step;
    h->step_seconds = seconds;
    h->compute_seconds = compute_seconds;
    pthread_mutex_unlock(&h->lock);
    if (first) wake(h); // the supervisor waits for it
}

void heartbeat_stage(struct heartbeat *h, int stage) {
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    h->stage = stage;
    pthread_mutex_unlock(&h->lock);
}

void heartbeat_report(struct heartbeat *h, const char *kind, json_t *evidence) {
    if (!h) {
        json_decref(evidence);
        return;
    }
    pthread_mutex_lock(&h->lock);
    json_t *report =
        json_pack("{s:s,s:s,s:I,s:f,s:o?}", "type", "report", "kind", kind, "step",
                  (json_int_t)h->step, "time", clock_wall_seconds(), "evidence", evidence);
    if (json_array_size(h->reports) >= REPORTS_MOST) json_array_remove(h->reports, 0);
    json_array_append_new(h->reports, report);
    pthread_mutex_unlock(&h->lock);
    wake(h);
}

enum beat_leave heartbeat_wants_leave(const struct heartbeat *h) {
    return h ? (enum beat_leave)atomic_load(&h->leave) : BEAT_STAYS;
}

double heartbeat_mtbf_seconds(const struct heartbeat *h) {
    return h ? atomic_load(&h->mtbf_seconds) : 0;
}

json_t *heartbeat_fault(struct heartbeat *h) {
    if (!h || !atomic_load(&h->has_fault)) return NULL;
    pthread_mutex_lock(&h->lock);
    json_t *fault = json_array_get(h->faults, 0);
    json_incref(fault);
    json_array_remove(h->faults, 0);
    atomic_store(&h->has_fault, json_array_size(h->faults) > 0);
    pthread_mutex_unlock(&h->lock);
    return fault;
}
