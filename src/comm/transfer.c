// One message of any length. Its pieces follow one another, so that a receiver that expects several
// messages with one tag gets them in order.
#include "comm/internal.h"

static const uint64_t LONG_BYTES = 1 << 16;

static void next_piece(struct comm *comm, struct transfer *x) {
    uint64_t limit = (uint64_t)comm->options.chunk_bytes, left = x->bytes - x->done_bytes;
    x->request.data = x->data + x->done_bytes;
    x->request.bytes = left < limit ? left : limit;
    x->request.peer = x->peer;
    x->request.tag = x->tag;
    x->state = TRANSFER_MOVING;
    if (!x->sends) {
        comm->transport->calls->receive(comm->transport, &x->request);
    } else if (link_between(comm, comm->transport->rank, x->peer)) {
        link_enter(comm, x, x->request.bytes);
        x->state = TRANSFER_HELD;
    } else {
        comm->transport->calls->send(comm->transport, &x->request);
    }
}

void transfer_begin(struct comm *comm, struct transfer *x, bool sends, int peer, int tag,
                    void *data, uint64_t bytes) {
    x->sends = sends;
    x->peer = peer;
    x->tag = tag;
    x->data = data;
    x->bytes = bytes;
    x->done_bytes = 0;
    x->state = TRANSFER_DONE;
    if (bytes) next_piece(comm, x);
}

int transfer_poll(struct comm *comm, struct transfer *x, bool *moved, struct err *err) {
    if (x->state == TRANSFER_HELD) {
        if (!link_passed(comm, x)) return 0;
        comm->transport->calls->send(comm->transport, &x->request);
        x->state = TRANSFER_MOVING;
        *moved = true;
    }
    while (x->state == TRANSFER_MOVING) {
        int done = comm->transport->calls->test(comm->transport, &x->request, err);
        if (done == 0) comm->long_messages |= x->request.bytes >= LONG_BYTES;
        if (done != 1) return done;
        *moved = true;
        x->done_bytes += x->request.bytes;
        x->state = TRANSFER_DONE;
        if (x->done_bytes < x->bytes) {
            next_piece(comm, x);
            if (x->state == TRANSFER_HELD) return 0;
        }
    }
    return 1;
}
