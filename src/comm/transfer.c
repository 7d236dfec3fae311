// One message of any length. Its pieces follow one another, so that a receiver that expects several
// messages with one tag gets them in order.
//
// With checksums a piece travels as two messages of the transport, its bytes and then their
// checksum, both under way at once; where it is short, as one that holds both, so that the latency
// of small messages stays. Sender and receiver take the checksum slice by slice between two looks
// at the transport: the sender while the bytes already move.
#include "base/hash.h"
#include "comm/internal.h"
#include <string.h>

static const uint64_t LONG_BYTES = 1 << 16;
static const uint64_t SLICE_BYTES = 1 << 18; // hashed between two looks at other messages
static const uint64_t MIX = 0x9e3779b97f4a7c15;

static bool is_small(const struct transfer *x) {
    return x->piece_bytes <= SMALL_MESSAGE_BYTES;
}

static unsigned char *piece(const struct transfer *x) {
    return x->data + x->done_bytes;
}

// An odd factor keeps every change of a slice's hash, and the order of slices.
static bool hash_slice(struct transfer *x) {
    uint64_t left = x->piece_bytes - x->hashed_bytes;
    uint64_t bytes = left < SLICE_BYTES ? left : SLICE_BYTES;
    x->checksum = x->checksum * MIX + hash_bytes(piece(x) + x->hashed_bytes, bytes);
    x->hashed_bytes += bytes;
    return x->hashed_bytes == x->piece_bytes;
}

static void send_tail_when_hashed(struct comm *comm, struct transfer *x) {
    if (!hash_slice(x)) return;
    x->tail_value = x->checksum;
    comm->transport->calls->send(comm->transport, &x->tail);
    x->tail_begun = true;
}

static void send_piece(struct comm *comm, struct transfer *x) {
    x->state = TRANSFER_MOVING;
    comm->transport->calls->send(comm->transport, &x->request);
    if (comm->options.checksums && !is_small(x)) send_tail_when_hashed(comm, x);
}

// A short piece and its checksum side by side.
static void pack_small(struct transfer *x) {
    if (x->sends) {
        hash_slice(x);
        memcpy(x->small, piece(x), x->piece_bytes);
        memcpy(x->small + x->piece_bytes, &x->checksum, sizeof x->checksum);
    }
    x->request.data = x->small;
    x->request.bytes = x->piece_bytes + sizeof x->checksum;
}

static void next_piece(struct comm *comm, struct transfer *x) {
    uint64_t limit = (uint64_t)comm->options.chunk_bytes, left = x->bytes - x->done_bytes;
    bool checksums = comm->options.checksums;
    x->piece_bytes = left < limit ? left : limit;
    x->hashed_bytes = x->checksum = 0;
    x->arrived = x->tail_begun = x->tail_done = false;
    x->request.data = piece(x);
    x->request.bytes = x->piece_bytes;
    x->request.peer = x->peer;
    x->request.tag = x->tag;
    if (checksums && is_small(x)) pack_small(x);
    x->tail.data = &x->tail_value;
    x->tail.bytes = sizeof x->tail_value;
    x->tail.peer = x->peer;
    x->tail.tag = x->tag;
    x->state = TRANSFER_MOVING;
    if (!x->sends) {
        comm->transport->calls->receive(comm->transport, &x->request);
        if (checksums && !is_small(x)) {
            comm->transport->calls->receive(comm->transport, &x->tail);
            x->tail_begun = true;
        }
        return;
    }
    x->on_link = link_between(comm, comm->transport->rank, x->peer);
    if (x->on_link) link_enter(comm, x, x->piece_bytes);
    if (x->on_link || inject_holds(comm, x->peer))
        x->state = TRANSFER_HELD;
    else
        send_piece(comm, x);
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

// ---- progress -----------------------------------------------------------------------------------

static int damaged(struct comm *comm, const struct transfer *x, uint64_t expected,
                   struct err *err) {
    int own = comm->transport->rank;
    return err_set(
        err, ERR_RETRY,
        "%llu bytes from rank %d (%s) to rank %d (%s) were damaged on their way: "
        "checksum %016llx expected, %016llx found. The run goes on from its newest state "
        "when it is started again; when this repeats, look at the memory and the network "
        "of both hosts",
        (unsigned long long)x->piece_bytes, x->peer, comm_host(comm, x->peer), own,
        comm_host(comm, own), (unsigned long long)expected, (unsigned long long)x->checksum);
}

// Bytes that have just come; from here on they count as in this rank's memory.
static void take_arrived(struct comm *comm, struct transfer *x) {
    x->arrived = true;
    if (x->sends) return;
    if (comm->options.checksums && is_small(x)) memcpy(piece(x), x->small, x->piece_bytes);
    inject_flip(comm, x);
}

// 1: the bytes that came are those that were sent; 0: not yet known.
static int verify(struct comm *comm, struct transfer *x, bool *moved, struct err *err) {
    uint64_t expected = x->tail_value;
    *moved = true;
    if (!hash_slice(x)) return 0;
    if (is_small(x)) memcpy(&expected, x->small + x->piece_bytes, sizeof expected);
    return expected == x->checksum ? 1 : damaged(comm, x, expected, err);
}

static int poll_tail(struct comm *comm, struct transfer *x, bool *moved, struct err *err) {
    if (!x->tail_begun) {
        *moved = true;
        send_tail_when_hashed(comm, x);
        if (!x->tail_begun) return 0;
    }
    int done = comm->transport->calls->test(comm->transport, &x->tail, err);
    x->tail_done = done == 1;
    return done;
}

// The piece under way: 1: done, 0: not yet, -1: broken.
static int poll_piece(struct comm *comm, struct transfer *x, bool *moved, struct err *err) {
    if (!x->arrived) {
        int done = comm->transport->calls->test(comm->transport, &x->request, err);
        if (done < 0) return -1;
        if (done == 1) take_arrived(comm, x);
        *moved |= done == 1;
    }
    bool tail = comm->options.checksums && !is_small(x);
    if (tail && !x->tail_done && poll_tail(comm, x, moved, err) < 0) return -1;
    if (!x->arrived || (tail && !x->tail_done)) {
        comm->long_messages |= x->piece_bytes >= LONG_BYTES;
        return 0;
    }
    return x->sends || !comm->options.checksums ? 1 : verify(comm, x, moved, err);
}

int transfer_poll(struct comm *comm, struct transfer *x, bool *moved, struct err *err) {
    for (;;) {
        if (x->state == TRANSFER_DONE) return 1;
        if (x->state == TRANSFER_HELD) {
            if (inject_holds(comm, x->peer) || (x->on_link && !link_passed(comm, x))) return 0;
            send_piece(comm, x);
            *moved = true;
        }
        int done = poll_piece(comm, x, moved, err);
        if (done != 1) return done;
        *moved = true;
        x->done_bytes += x->piece_bytes;
        x->state = TRANSFER_DONE;
        if (x->done_bytes < x->bytes) next_piece(comm, x);
    }
}
