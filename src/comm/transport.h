// What carries single messages between ranks: nothing but send, receive and test. Three kinds of
// world fill this table: one process alone and ranks that are threads (transport_threads.c), and
// MPI (transport_mpi.c). All calls of one transport are made by one thread, the communication
// thread of its rank.
#pragma once
#include "base/error.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct comm_options;

enum {
    TRANSPORT_TAG_LIMIT = 1 << 28,  // all tags are below; Open MPI and MPICH allow as many
    TRANSPORT_STREAM_TAG = 1 << 27, // tags of streams have this bit, those of comm_send do not
    TRANSPORT_NOTE_TAG = 1 << 24,   // reserved
    TRANSPORT_ORDER_TAG = 1 << 25,  // reserved
    TRANSPORT_HOST_BYTES = 64
};

// Wakes a communication thread that sleeps. Ringing is cheap when it does not.
struct doorbell {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    _Atomic uint64_t rings;
    atomic_bool asleep;
};
void doorbell_open(struct doorbell *bell);
void doorbell_close(struct doorbell *bell);
void doorbell_ring(struct doorbell *bell);
// Sleeps until somebody has rung since `seen`, at most `seconds`. Returns the present count.
uint64_t doorbell_wait(struct doorbell *bell, uint64_t seen, double seconds);

// One message under way. The memory is the caller's and must stay until the test says that it is
// done, or until the transport was told to withdraw.
struct transport_request {
    void *data; // of a send: only read
    uint64_t bytes;
    int peer, tag;
    // the transport's own
    int origin;
    bool sends;
    uint64_t copied_bytes;
    struct transport_request *next, *match;
    atomic_bool done;
    union {
        void *pointer;
        int number;
    } handle;
};

// A small message outside of all order, of the communication threads to each other: questions about
// an operation that takes long, and the news of a failure. May be lost.
enum transport_note_kind { NOTE_FAILED, NOTE_ASKS, NOTE_ANSWERS, NOTE_PROBES, NOTE_PROBED };
struct transport_note {
    int32_t kind, from;
    int32_t error;           // NOTE_FAILED: enum err_kind
    uint32_t stream;         // tag of the stream
    uint64_t number, posted; // the operation in question; operations that the answering rank posted
                             // (NOTE_FAILED: whether messages failed)
    char text[1024];         // NOTE_FAILED
    uint64_t checksum;       // of all before it
};

struct transport;
struct transport_calls {
    void (*send)(struct transport *t, struct transport_request *r);
    void (*receive)(struct transport *t, struct transport_request *r);
    // 1: done, 0: not yet, -1: broken (err). A length that differs from the expected one is broken.
    int (*test)(struct transport *t, struct transport_request *r, struct err *err);
    void (*note_send)(struct transport *t, int peer, const struct transport_note *note);
    bool (*note_receive)(struct transport *t, struct transport_note *note);
    // After a failure: when it returns, nobody reads or writes the memory of this rank's requests
    // (MPI cannot promise that: the process has to end).
    void (*withdraw)(struct transport *t);
    bool (*leave)(struct transport *t);              // 1 when all ranks want to close
    void (*close)(struct transport *t, bool failed); // frees it
};

struct transport {
    const struct transport_calls *calls;
    int rank, size;
    struct doorbell *bell;               // of this rank's communication thread
    bool polled;                         // messages arrive without ringing
    char (*hosts)[TRANSPORT_HOST_BYTES]; // host name of each rank
    // When a link between hosts is free again, in nanoseconds of the monotonic clock, for each
    // (host of sender, host of receiver); shared by all ranks. NULL: no simulated link.
    _Atomic int64_t *link_free_ns;
};

// `count` ranks of one process: fills ends[0..count).
int transport_open_threads(struct transport **ends, int count, const struct comm_options *options,
                           struct err *err);
// To be called on the communication thread, which then makes all further calls.
int transport_open_mpi(struct transport **out, const struct comm_options *options, struct err *err);
bool transport_mpi_built(void);
const char *transport_mpi_library(void);
void transport_mpi_abort(int status); // does not return when MPI is there
