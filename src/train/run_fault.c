// See run_fault.h.
#include "train/run_fault.h"
#include "base/file.h"
#include "base/log.h"
#include "engine/guards.h"
#include "guard/fault.h"
#include "train/run_parts.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS_OF_A_SAVE = 8 }; // a strike in a save comes at one of the first so many of its calls

struct leaked {
    struct leaked *next;
};
struct run_faults {
    struct fault list[FAULT_MOST];
    int count;
    double computed_seconds; // of the step before, without what slow added
    double added_seconds;    // by slow, in this step
    bool link_disturbed;
    struct leaked *leaked;
    // asked by whatever thread writes a file
    char folders[2][CONFIG_TEXT_BYTES];
    atomic_int disk_error;      // of writes below these folders
    atomic_int calls_to_strike; // 1: the next call; 0: none
    struct fault strikes;       // set before the above
};

// ---- files --------------------------------------------------------------------------------------

static bool is_below(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return length > 0 && strncmp(path, folder, length) == 0 &&
           (path[length] == '/' || path[length] == 0);
}

// Ranks that are threads of one process share the hook: the last one to ask has it. One call at a
// time, so that a hang is the whole process's as soon as it touches a file.
static int meet_file_call(struct run_faults *f, const char *call, const char *path) {
    if (!is_below(path, f->folders[0]) && !is_below(path, f->folders[1])) return 0;
    int left = atomic_load(&f->calls_to_strike);
    while (left > 0 && !atomic_compare_exchange_weak(&f->calls_to_strike, &left, left - 1)) {
    }
    if (left == 1) fault_strike(&f->strikes);
    int number = atomic_load(&f->disk_error);
    bool writes =
        strcmp(call, "write") == 0 || strcmp(call, "mkdir") == 0 || strcmp(call, "ftruncate") == 0;
    bool syncs = strcmp(call, "fsync") == 0;
    return writes || (syncs && number == EIO) ? number : 0;
}

static int on_file_call(void *context, const char *call, const char *path) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    int number = meet_file_call(context, call, path);
    pthread_mutex_unlock(&one_at_a_time);
    return number;
}

static void watch_files(struct run *run) {
    struct run_faults *f = run->faults;
    snprintf(f->folders[0], sizeof f->folders[0], "%s", run->config->checkpoint_folder);
    snprintf(f->folders[1], sizeof f->folders[1], "%s", run->config->second_folder);
    file_hook_calls(on_file_call, f);
}

// ---- opening ------------------------------------------------------------------------------------

static int check_ranks(const struct run *run, struct err *err) {
    const struct run_faults *f = run->faults;
    int attempt = run->control ? run->control->attempt : 0;
    for (int i = 0; i < f->count && attempt == 0; i++) {
        int rank = f->list[i].rank, peer = f->list[i].peer;
        if (rank >= run->ranks || peer >= run->ranks)
            return err_set(err, ERR_USAGE, "fault.%s: the run has ranks 0 to %d, found %d",
                           rank >= run->ranks ? "rank" : "peer", run->ranks - 1,
                           rank >= run->ranks ? rank : peer);
    }
    return 0;
}

int run_fault_open(struct run *run, struct err *err) {
    char text[160];
    struct run_faults *f = calloc(1, sizeof *f);
    if (!f) return err_set(err, ERR_MEMORY, "no memory for the list of faults");
    run->faults = f;
    if (config_faults(run->config, f->list, &f->count, err) != 0 || check_ranks(run, err) != 0)
        return -1;
    for (int i = 0; i < f->count && run_leads(run); i++)
        log_line(LOG_WARN, "fault: %s is to be injected", fault_text(&f->list[i], text));
    return 0;
}

void run_fault_close(struct run *run) {
    struct run_faults *f = run->faults;
    if (!f) return;
    if (f->folders[0][0]) file_hook_calls(NULL, NULL);
    while (f->leaked) {
        struct leaked *next = f->leaked->next;
        free(f->leaked);
        f->leaked = next;
    }
    free(f);
    run->faults = NULL;
}

// ---- what the supervisor orders -----------------------------------------------------------------

static void take_order(struct run *run, const json_t *order) {
    struct run_faults *f = run->faults;
    struct fault fault;
    struct err err = {0};
    char text[160];
    int at = 0;
    if (fault_read(&fault, order, &err) != 0) {
        if (run_leads(run)) log_line(LOG_WARN, "fault: not injected: %s", err.text);
        return;
    }
    while (at < f->count && !f->list[at].done) at++; // the place of one that is over
    if (at == FAULT_MOST) {
        log_line(LOG_WARN, "fault: not injected: %d others wait or last", FAULT_MOST);
        return;
    }
    if (!fault.in_save && fault.step <= run->step) fault.step = run->step + 1;
    f->list[at] = fault;
    f->count += at == f->count;
    if (run_leads(run)) log_line(LOG_WARN, "fault: %s is to be injected", fault_text(&fault, text));
}

static void take_orders(struct run *run) {
    struct heartbeat *h = run->control ? run->control->heartbeat : NULL;
    for (json_t *order = heartbeat_fault(h); order; order = heartbeat_fault(h)) {
        take_order(run, order);
        json_decref(order);
    }
}

// ---- in a step ----------------------------------------------------------------------------------

static struct fault *due(struct run *run, enum fault_kind kind, bool in_save) {
    struct run_faults *f = run->faults;
    return fault_due(f->list, f->count, kind, in_save, run->rank, run->step + !in_save,
                     run->control ? run->control->attempt : 0);
}

static void slow_down(struct run *run) {
    struct run_faults *f = run->faults;
    const struct fault *slow = due(run, FAULT_SLOW, false);
    f->added_seconds = 0;
    if (!slow || fault_factor(slow) <= 1) return;
    f->added_seconds = (fault_factor(slow) - 1) * f->computed_seconds;
    struct timespec left = {(time_t)f->added_seconds,
                            (long)((f->added_seconds - floor(f->added_seconds)) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static void leak(struct run *run) {
    const struct fault *fault = due(run, FAULT_LEAK, false);
    if (!fault) return;
    size_t bytes = (size_t)(fault_factor(fault) * 1e6) + sizeof(struct leaked);
    struct leaked *more = malloc(bytes);
    if (!more) return; // there is no more: what was wanted
    memset(more, 0x5a, bytes);
    more->next = run->faults->leaked;
    run->faults->leaked = more;
}

static void flip_at_rest(struct run *run, enum fault_kind kind) {
    static const enum engine_target optimizer[] = {TARGET_MASTER, TARGET_MOMENT1, TARGET_MOMENT2};
    const struct fault *fault = due(run, kind, false);
    int bytes = 0;
    char parameter[128] = "";
    if (!fault) return;
    uint64_t draw = fault_draw(fault);
    enum engine_target target = kind == FAULT_FLIP_WEIGHT ? TARGET_WEIGHT : optimizer[draw % 3];
    void *element = engine_element(run->engine, target, draw / 3, &bytes, parameter);
    if (!element) {
        log_line(LOG_WARN, "fault: rank %d holds nothing that %s could hit", run->rank,
                 fault_kind_name(kind));
        return;
    }
    fault_flip(fault, element, bytes, 1);
    log_line(LOG_WARN, "fault: step %lld: rank %d: bit %d of an element of %s flipped",
             (long long)run->step + 1, run->rank, fault_bit(fault), parameter);
}

static void disturb_messages(struct run *run) {
    enum { FIRST_MESSAGES = 8 };
    const struct fault *fault = due(run, FAULT_FLIP_MESSAGE, false);
    if (!run->comm) return;
    if (fault) {
        uint64_t draw = fault_draw(fault);
        comm_inject(run->comm, &(struct comm_fault){.peer = -1,
                                                    .flip_in = 1 + (int64_t)(draw % FIRST_MESSAGES),
                                                    .flip_bit = fault_bit(fault),
                                                    .flip_word = draw / FIRST_MESSAGES});
    }
    const struct fault *drop = due(run, FAULT_LINK_DROP, false),
                       *flap = due(run, FAULT_LINK_FLAP, false);
    bool *disturbed = &run->faults->link_disturbed;
    if (drop)
        comm_inject(run->comm, &(struct comm_fault){.peer = drop->peer, .drop = true});
    else if (flap)
        comm_inject(run->comm,
                    &(struct comm_fault){.peer = flap->peer, .flap_seconds = fault_factor(flap)});
    else if (*disturbed)
        comm_inject(run->comm, &(struct comm_fault){.peer = -1}); // it is over
    *disturbed = drop || flap;
}

static void disturb_disk(struct run *run) {
    bool fails = due(run, FAULT_DISK_FAIL, false), full = due(run, FAULT_DISK_FULL, false);
    int number = fails ? EIO : full ? ENOSPC : 0;
    if (number != 0) watch_files(run);
    atomic_store(&run->faults->disk_error, number);
}

void run_fault_step(struct run *run) {
    take_orders(run);
    if (run->faults->count == 0) return;
    for (int kind = FAULT_EXIT; kind <= FAULT_HANG; kind++) {
        const struct fault *fault = due(run, (enum fault_kind)kind, false);
        if (fault) fault_strike(fault);
    }
    slow_down(run);
    leak(run);
    flip_at_rest(run, FAULT_FLIP_WEIGHT);
    flip_at_rest(run, FAULT_FLIP_OPTIMIZER);
    disturb_messages(run);
    disturb_disk(run);
}

void run_fault_pass(struct run *run) {
    static const struct {
        enum fault_kind fault;
        int kind;
    } kinds[] = {{FAULT_NAN, ENGINE_FAULT_NAN},
                 {FAULT_SPIKE, ENGINE_FAULT_SCALE},
                 {FAULT_FLIP_GRADIENT, ENGINE_FAULT_GRADIENT},
                 {FAULT_FLIP_PRODUCT, ENGINE_FAULT_PRODUCT}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const struct fault *fault = due(run, kinds[i].fault, false);
        if (!fault) continue;
        struct engine_fault disturbance = {
            .element = fault_draw(fault), .bit = fault_bit(fault), .factor = fault_factor(fault)};
        memcpy(&disturbance.kind, &kinds[i].kind, sizeof disturbance.kind);
        engine_inject(run->engine, &disturbance);
    }
}

void run_fault_computed(struct run *run, double seconds) {
    run->faults->computed_seconds = fmax(seconds - run->faults->added_seconds, 0);
}

void run_fault_save(struct run *run) {
    struct run_faults *f = run->faults;
    if (f->count == 0) return;
    for (int kind = FAULT_EXIT; kind <= FAULT_HANG; kind++) {
        const struct fault *fault = due(run, (enum fault_kind)kind, true);
        if (!fault) continue;
        watch_files(run);
        f->strikes = *fault;
        atomic_store(&f->calls_to_strike, 1 + (int)(fault_draw(fault) % CALLS_OF_A_SAVE));
    }
}
