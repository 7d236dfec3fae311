// Fault injection: messages that stop, stand still for a while again and again, or lose a bit.
// What a compute thread asks for is taken over by the communication thread in its next round, and
// before it begins an operation: what is posted after the call meets the fault.
#include "base/clock.h"
#include "base/log.h"
#include "comm/internal.h"
#include <math.h>
#include <string.h>

// What stands still and what flips are two things: either is replaced by the next one of its kind.
void comm_inject(struct comm *comm, const struct comm_fault *fault) {
    pthread_mutex_lock(&comm->lock);
    struct comm_fault *f = &comm->fault_wanted;
    if (fault->flip_in > 0) {
        f->flip_in = fault->flip_in;
        f->flip_bit = fault->flip_bit;
        f->flip_word = fault->flip_word;
    } else {
        f->peer = fault->peer;
        f->drop = fault->drop;
        f->flap_seconds = fault->flap_seconds;
    }
    atomic_store(&comm->fault_changed, true);
    pthread_mutex_unlock(&comm->lock);
    doorbell_ring(comm->bell);
}

uint64_t comm_injected(struct comm *comm) {
    return atomic_load(&comm->flipped);
}

void inject_take_over(struct comm *comm) {
    if (!atomic_load(&comm->fault_changed)) return;
    pthread_mutex_lock(&comm->lock);
    int64_t flip_in = comm->fault.flip_in; // one that is on its way stays
    comm->fault = comm->fault_wanted;
    if (comm->fault.flip_in == 0) comm->fault.flip_in = flip_in;
    comm->fault_wanted.flip_in = 0;
    atomic_store(&comm->fault_changed, false);
    pthread_mutex_unlock(&comm->lock);
}

bool inject_holds(struct comm *comm, int peer) {
    const struct comm_fault *f = &comm->fault;
    if (peer == comm->transport->rank || (f->peer >= 0 && f->peer != peer)) return false;
    if (f->drop) return true;
    if (f->flap_seconds <= 0) return false;
    double now = clock_seconds(), into = fmod(now, 4 * f->flap_seconds);
    if (into >= f->flap_seconds) return false;
    int64_t until_ns = (int64_t)((now + f->flap_seconds - into) * 1e9);
    if (until_ns < comm->next_ns) comm->next_ns = until_ns;
    return true;
}

void inject_flip(struct comm *comm, struct transfer *x) {
    struct comm_fault *f = &comm->fault;
    uint64_t words = x->piece_bytes / sizeof(uint32_t);
    if (f->flip_in == 0 || words == 0 || x->peer == comm->transport->rank || --f->flip_in > 0)
        return;
    uint64_t at = f->flip_word % words * sizeof(uint32_t) + (uint64_t)(f->flip_bit & 31) / 8;
    x->data[x->done_bytes + at] ^= (unsigned char)(1 << (f->flip_bit & 7));
    log_line(LOG_WARN, "fault: bit %d of word %llu of %llu bytes from rank %d to rank %d flipped",
             f->flip_bit & 31, (unsigned long long)(f->flip_word % words),
             (unsigned long long)x->piece_bytes, x->peer, comm->transport->rank);
    atomic_fetch_add(&comm->flipped, 1);
}
