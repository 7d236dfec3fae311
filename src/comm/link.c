// A simulated link between hosts: a send to another "host" is held back on the side of the sender
// until a link of the wanted rate and latency would have delivered it. All ranks of a host share
// one link to each other host. A message takes the link piece by piece, so that several messages
// share it; a piece that is looked at late begins where its predecessor ended, not where it was
// looked at, so that the rate does not depend on how often the thread looks.
#include "comm/internal.h"
#include <time.h>

static const uint64_t PIECE_BYTES = 1 << 16;
static const double PIECE_SECONDS = 5e-4; // a piece is not less than this long

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int host_of(const struct comm *comm, int rank) {
    return rank / comm->options.ranks_per_host;
}

bool link_between(const struct comm *comm, int a, int b) {
    const struct comm_options *o = &comm->options;
    return o->ranks_per_host > 0 && comm->transport->link_free_ns &&
           (o->link_latency_seconds > 0 || o->link_bytes_per_second > 0) &&
           host_of(comm, a) != host_of(comm, b);
}

// Takes the link for `ns` from the later of `from_ns` and its being free. Returns the end.
static int64_t take_link(struct comm *comm, int peer, int64_t from_ns, int64_t ns) {
    _Atomic int64_t *free_ns =
        &comm->transport
             ->link_free_ns[(int64_t)host_of(comm, comm->transport->rank) * comm->transport->size +
                            host_of(comm, peer)];
    int64_t found = atomic_load(free_ns), end;
    do {
        end = (found > from_ns ? found : from_ns) + ns;
    } while (!atomic_compare_exchange_weak(free_ns, &found, end));
    return end;
}

static void take_piece(struct comm *comm, struct transfer *x) {
    double rate = comm->options.link_bytes_per_second;
    uint64_t piece = x->link_left_bytes;
    int64_t ns = 0;
    if (rate > 0) {
        uint64_t most = (uint64_t)(rate * PIECE_SECONDS);
        if (most < PIECE_BYTES) most = PIECE_BYTES;
        if (piece > most) piece = most;
        ns = (int64_t)((double)piece / rate * 1e9);
    }
    x->link_left_bytes -= piece;
    x->link_ns = take_link(comm, x->peer, x->link_ns, ns);
}

void link_enter(struct comm *comm, struct transfer *x, uint64_t bytes) {
    x->link_left_bytes = bytes;
    x->link_ns = now_ns();
    take_piece(comm, x);
}

bool link_passed(struct comm *comm, struct transfer *x) {
    int64_t now = now_ns();
    while (x->link_left_bytes > 0 && x->link_ns <= now) take_piece(comm, x);
    int64_t due = x->link_ns;
    if (x->link_left_bytes == 0) {
        due += (int64_t)(comm->options.link_latency_seconds * 1e9);
        if (due <= now) return true;
    }
    if (due < comm->next_ns) comm->next_ns = due;
    return false;
}
