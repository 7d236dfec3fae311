// Opening and closing, and what can be asked about a world.
#include "base/clock.h"
#include "comm/internal.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double WATCHDOG_SECONDS = 600;
// MPI moves a long message a little with each question; the end of a piece tells that it moves.
static const int CHUNK_BYTES = 1 << 30, CHUNK_BYTES_MPI = 1 << 24;

static const char *const kind_names[COMM_KIND_COUNT] = {
    [COMM_ALL_GATHER] = "all_gather",
    [COMM_REDUCE_SCATTER] = "reduce_scatter",
    [COMM_ALL_REDUCE] = "all_reduce",
    [COMM_ALL_TO_ALL] = "all_to_all",
    [COMM_BROADCAST] = "broadcast",
    [COMM_BARRIER] = "barrier",
    [COMM_SEND] = "send",
    [COMM_RECEIVE] = "receive",
};

const char *comm_kind_name(enum comm_kind kind) {
    return (unsigned)kind < COMM_KIND_COUNT ? kind_names[kind] : "unknown";
}

bool comm_built_with_mpi(void) {
    return transport_mpi_built();
}

const char *comm_library(void) {
    return transport_mpi_library();
}

// ---- opening ------------------------------------------------------------------------------------

static void comm_free(struct comm *comm) {
    order_close(comm);
    history_close(comm);
    record_lane_close(&comm->lane);
    pthread_cond_destroy(&comm->changed);
    pthread_mutex_destroy(&comm->lock);
    free(comm->points);
    free(comm);
}

static struct comm *comm_new(const struct comm_options *options, int chunk_bytes, struct err *err) {
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        err_set(err, ERR_MEMORY, "no memory for the state of communication");
        return NULL;
    }
    comm->options = *options;
    if (comm->options.watchdog_seconds <= 0) comm->options.watchdog_seconds = WATCHDOG_SECONDS;
    if (comm->options.chunk_bytes <= 0) comm->options.chunk_bytes = chunk_bytes;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    comm->new_points_end = &comm->new_points;
    comm->moving_end = &comm->moving;
    comm->points = calloc(COMM_POINT_DEPTH, sizeof *comm->points);
    if (!comm->points || record_lane_open(&comm->lane, "communication", options->trace_spans)) {
        err_set(err, ERR_MEMORY, "no memory for %d messages and %llu spans of communication",
                COMM_POINT_DEPTH, (unsigned long long)options->trace_spans);
        comm_free(comm);
        return NULL;
    }
    for (int i = COMM_POINT_DEPTH - 1; i >= 0; i--) {
        comm->points[i].next = comm->free_points;
        comm->free_points = &comm->points[i];
    }
    return comm;
}

static void set_ready(struct comm *comm) {
    pthread_mutex_lock(&comm->lock);
    comm->ready = true;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void stop(struct comm *comm) {
    pthread_mutex_lock(&comm->lock);
    comm->stopping = true;
    pthread_mutex_unlock(&comm->lock);
    doorbell_ring(comm->bell);
    pthread_join(comm->thread, NULL);
}

// Starts the communication thread and waits until the transport is there. Signals stay with the
// other threads.
static int start(struct comm *comm, struct err *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&comm->thread, NULL, comm_thread, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return err_set(err, ERR_IO, "the communication thread cannot be started: %s",
                       strerror(failed));
    pthread_setname_np(comm->thread, "weft-comm");
    pthread_mutex_lock(&comm->lock);
    while (!comm->opened) pthread_cond_wait(&comm->changed, &comm->lock);
    bool broken = atomic_load(&comm->failed);
    pthread_mutex_unlock(&comm->lock);
    if (broken) {
        pthread_join(comm->thread, NULL);
        if (err) *err = comm->failure;
        return -1;
    }
    int result = history_open(comm, err);
    if (result == 0 && comm->options.check_order) result = order_open(comm, err);
    set_ready(comm);
    if (result != 0) stop(comm);
    return result;
}

int comm_open_threads(struct comm **ends, int count, const struct comm_options *options,
                      struct err *err) {
    if (count < 1)
        return err_set(err, ERR_INTERNAL, "a world of %d ranks: expected at least 1", count);
    struct transport **transports = calloc((size_t)count, sizeof *transports);
    if (!transports) return err_set(err, ERR_MEMORY, "no memory for %d ranks", count);
    int result = transport_open_threads(transports, count, options, err), opened = 0;
    while (result == 0 && opened < count) {
        struct comm *comm = comm_new(options, CHUNK_BYTES, err);
        if (comm) {
            comm->transport = transports[opened];
            if (start(comm, err) == 0) {
                ends[opened++] = comm;
                continue;
            }
            if (comm->opened) transports[opened] = NULL; // its thread has closed it
            comm_free(comm);
        }
        result = -1;
    }
    if (result != 0) {
        for (int i = 0; i < opened; i++) comm_close(ends[i]);
        for (int i = opened; i < count; i++)
            if (transports[i]) transports[i]->calls->close(transports[i], true);
    }
    free(transports);
    return result;
}

int comm_open_self(struct comm **out, const struct comm_options *options, struct err *err) {
    return comm_open_threads(out, 1, options, err);
}

int comm_open_mpi(struct comm **out, const struct comm_options *options, struct err *err) {
    struct comm *comm = comm_new(options, CHUNK_BYTES_MPI, err);
    if (!comm) return -1;
    comm->open = transport_open_mpi;
    if (start(comm, err) != 0) {
        comm_free(comm);
        return -1;
    }
    *out = comm;
    return 0;
}

void comm_close(struct comm *comm) {
    if (!comm) return;
    stop(comm);
    comm_free(comm);
}

// The communication thread makes the call; the process ends meanwhile.
void comm_abort(struct comm *comm, int status) {
    if (!comm || !comm->open) return;
    pthread_mutex_lock(&comm->lock);
    comm->aborting = true;
    comm->abort_status = status;
    pthread_mutex_unlock(&comm->lock);
    doorbell_ring(comm->bell);
    pthread_join(comm->thread, NULL);
}

// ---- questions ----------------------------------------------------------------------------------

int comm_rank(const struct comm *comm) {
    return comm->transport->rank;
}

int comm_size(const struct comm *comm) {
    return comm->transport->size;
}

const char *comm_host(const struct comm *comm, int rank) {
    return comm->transport->hosts[rank];
}

const struct record_lane *comm_lane(const struct comm *comm) {
    return &comm->lane;
}

int comm_check(struct comm *comm, struct err *err) {
    if (!atomic_load(&comm->failed)) return 0;
    pthread_mutex_lock(&comm->lock);
    if (err) *err = comm->failure;
    pthread_mutex_unlock(&comm->lock);
    return -1;
}

bool comm_failed_elsewhere(const struct comm *comm) {
    return atomic_load(&comm->failed) && comm->peers_know; // which does not change any more
}

void comm_busy(struct comm *comm, const char *what) {
    pthread_mutex_lock(&comm->lock);
    memset(comm->busy, 0, sizeof comm->busy);
    comm->busy_seconds = clock_seconds();
    comm->busy_rests = false;
    if (what) snprintf(comm->busy, sizeof comm->busy, "%s", what);
    pthread_mutex_unlock(&comm->lock);
}

void comm_busy_rests(struct comm *comm, bool rests) {
    pthread_mutex_lock(&comm->lock);
    comm->busy_rests = rests;
    pthread_mutex_unlock(&comm->lock);
}

void comm_fail(struct comm *comm, const struct err *why) {
    pthread_mutex_lock(&comm->lock);
    comm_fail_locked(comm, why, false);
    pthread_mutex_unlock(&comm->lock);
}
