// The collectives as rounds of messages: which pieces go where in round number n is a function of
// the operation, the group and n alone. A round begins when all messages of the one before are
// done. Where a sum is due, the contributions lie in slots by then and are added in group order.
#include "comm/internal.h"
#include <string.h>

static const int64_t SUM_PIECE_ELEMENTS = 1 << 18;  // other streams get their turn in between
static const uint64_t WHOLE_BYTES_OF_TWO = 1 << 18; // of two members: no more bytes than in parts
enum { EXCHANGE_MEMBERS = 16 };                     // above: a ring

// ---- choice -------------------------------------------------------------------------------------

// A ring crosses the border between two hosts once per piece, an exchange once per pair; it has as
// many rounds as members, an exchange one.
static enum comm_way gather_way(const struct comm_stream *s) {
    bool shared_links = s->hosts > 1 && s->hosts < s->count;
    return s->count > EXCHANGE_MEMBERS || (shared_links && s->count > 2) ? WAY_RING : WAY_EXCHANGE;
}

enum comm_way collective_way(const struct comm_stream *s, enum comm_kind kind, uint64_t bytes) {
    switch (kind) {
    case COMM_ALL_GATHER:
        return gather_way(s);
    case COMM_ALL_REDUCE:
        return bytes <= (s->count == 2 ? WHOLE_BYTES_OF_TWO : COMM_WHOLE_BYTES) ? WAY_WHOLE
                                                                                : gather_way(s);
    case COMM_BROADCAST:
        return WAY_TREE;
    default:
        return WAY_EXCHANGE;
    }
}

const char *comm_algorithm(const struct comm_stream *s, enum comm_kind kind, uint64_t bytes) {
    if (s->count == 1) return "local";
    enum comm_way way = collective_way(s, kind, bytes);
    switch (kind) {
    case COMM_BROADCAST:
        return "tree";
    case COMM_BARRIER:
        return "dissemination";
    case COMM_ALL_REDUCE:
        if (way == WAY_WHOLE) return "exchange of the whole";
        return way == WAY_RING ? "exchange, then ring" : "exchange in parts";
    default:
        return way == WAY_RING ? "ring" : "exchange";
    }
}

// ---- pieces -------------------------------------------------------------------------------------

// Piece of member i in a gathered buffer. The last pieces of an all-reduce may be short or empty.
static unsigned char *piece(const struct operation *op, int i, uint64_t *bytes) {
    uint64_t at = (uint64_t)i * op->bytes;
    *bytes = op->bytes;
    if (op->kind == COMM_ALL_REDUCE) {
        uint64_t total = (uint64_t)op->elements * op->reduction.wire_bytes;
        if (at > total) at = total;
        if (*bytes > total - at) *bytes = total - at;
    }
    return op->to + at;
}

// Where the contribution of member i lies until it is added; the own one needs no place.
static unsigned char *slot(const struct comm_stream *s, const struct operation *op, int i) {
    return op->scratch + (uint64_t)(i < s->index ? i : i - 1) * op->bytes;
}

// ---- messages of a round ------------------------------------------------------------------------

static void send(struct comm_stream *s, struct operation *op, int to, const void *data,
                 uint64_t bytes) {
    op->sent_bytes += bytes;
    transfer_begin(s->comm, &s->transfers[s->transfer_count++], true, s->members[to], s->tag,
                   (void *)(uintptr_t)data, bytes);
}

static void receive(struct comm_stream *s, int from, void *data, uint64_t bytes) {
    transfer_begin(s->comm, &s->transfers[s->transfer_count++], false, s->members[from], s->tag,
                   data, bytes);
}

static enum round gather(struct comm_stream *s, struct operation *op, int step) {
    int n = s->count, me = s->index;
    uint64_t bytes;
    if (op->way == WAY_RING) { // in step k the piece that arrived in step k - 1 goes on
        if (step == n - 1) return ROUND_END;
        int next = (me + 1) % n, before = (me + n - 1) % n;
        unsigned char *in = piece(op, (before + n - step) % n, &bytes);
        receive(s, before, in, bytes);
        unsigned char *out = piece(op, (me + n - step) % n, &bytes);
        send(s, op, next, out, bytes);
        return ROUND_MESSAGES;
    }
    if (step == 1) return ROUND_END;
    for (int d = 1; d < n; d++) {
        int from = (me + n - d) % n;
        unsigned char *in = piece(op, from, &bytes);
        receive(s, from, in, bytes);
    }
    unsigned char *own = piece(op, me, &bytes);
    for (int d = 1; d < n; d++) send(s, op, (me + d) % n, own, bytes);
    return ROUND_MESSAGES;
}

static enum round all_gather(struct comm_stream *s, struct operation *op) {
    if (op->round == 0) {
        uint64_t bytes;
        unsigned char *own = piece(op, s->index, &bytes);
        if (op->from != own && bytes) memmove(own, op->from, bytes);
    }
    return gather(s, op, op->round);
}

// Contributions to the own piece into the slots, own contributions to the others.
static enum round scatter(struct comm_stream *s, struct operation *op,
                          const unsigned char *contributions) {
    int n = s->count, me = s->index;
    for (int d = 1; d < n; d++) {
        int from = (me + n - d) % n, to = (me + d) % n;
        uint64_t in_bytes = op->bytes, out_bytes = in_bytes;
        const unsigned char *out = contributions + (uint64_t)to * op->bytes;
        if (op->way == WAY_WHOLE) {
            out = contributions;
        } else if (op->kind == COMM_ALL_REDUCE) {
            piece(op, me, &in_bytes);
            out = piece(op, to, &out_bytes);
        }
        receive(s, from, slot(s, op, from), in_bytes);
        send(s, op, to, out, out_bytes);
    }
    return ROUND_MESSAGES;
}

static enum round prepare_sum(struct comm_stream *s, struct operation *op,
                              const unsigned char *own) {
    for (int i = 0; i < s->count; i++) s->parts[i] = i == s->index ? own : slot(s, op, i);
    op->summed = 0;
    return ROUND_SUM;
}

// The own range of a sum: elements, and where the result goes.
static int64_t sum_range(const struct comm_stream *s, const struct operation *op,
                         unsigned char **out) {
    *out = op->to;
    if (op->kind == COMM_REDUCE_SCATTER || op->way == WAY_WHOLE) return op->elements;
    uint64_t bytes;
    *out = piece(op, s->index, &bytes);
    return (int64_t)(bytes / op->reduction.wire_bytes);
}

bool sum_piece(struct comm_stream *s, struct operation *op) {
    unsigned char *out;
    int64_t left = sum_range(s, op, &out) - op->summed;
    int64_t n = left < SUM_PIECE_ELEMENTS ? left : SUM_PIECE_ELEMENTS;
    const struct comm_reduction *r = &op->reduction;
    if (n > 0) {
        const void **shifted = s->parts + s->count;
        for (int i = 0; i < s->count; i++)
            shifted[i] = (const unsigned char *)s->parts[i] + (uint64_t)op->summed * r->wire_bytes;
        r->sum(r->context, shifted, s->count, n, out + (uint64_t)op->summed * r->out_bytes);
    }
    op->summed += n;
    return n == left;
}

static enum round reduce_scatter(struct comm_stream *s, struct operation *op) {
    if (op->round == 0) return scatter(s, op, op->from);
    if (op->round == 1) return prepare_sum(s, op, op->from + (uint64_t)s->index * op->bytes);
    return ROUND_END;
}

static enum round all_reduce(struct comm_stream *s, struct operation *op) {
    uint64_t bytes;
    if (op->round == 0) return scatter(s, op, op->to);
    if (op->round == 1)
        return prepare_sum(s, op, op->way == WAY_WHOLE ? op->to : piece(op, s->index, &bytes));
    return op->way == WAY_WHOLE ? ROUND_END : gather(s, op, op->round - 2);
}

static enum round all_to_all(struct comm_stream *s, struct operation *op) {
    if (op->round == 1) return ROUND_END;
    int n = s->count, me = s->index;
    if (op->from_bytes[me])
        memmove(op->to + op->to_offset[me], op->from + op->from_offset[me], op->from_bytes[me]);
    for (int d = 1; d < n; d++) {
        int from = (me + n - d) % n;
        receive(s, from, op->to + op->to_offset[from], op->to_bytes[from]);
    }
    for (int d = 1; d < n; d++) {
        int to = (me + d) % n;
        send(s, op, to, op->from + op->from_offset[to], op->from_bytes[to]);
    }
    return ROUND_MESSAGES;
}

// A binomial tree: counted from the root, member v has the parent v without its lowest set bit.
static enum round broadcast(struct comm_stream *s, struct operation *op) {
    int n = s->count, v = (s->index + n - op->root) % n;
    if (op->round == 2) return ROUND_END;
    if (op->round == 0) {
        if (v != 0) receive(s, ((v & (v - 1)) + op->root) % n, op->to, op->bytes);
        return ROUND_MESSAGES;
    }
    int reach = v ? v & -v : n; // children are v + 1, v + 2, v + 4, ... below v + reach
    int bit = 1;
    while (bit < reach && v + bit < n) bit <<= 1;
    for (bit >>= 1; bit >= 1; bit >>= 1) // the largest subtree first
        send(s, op, (v + bit + op->root) % n, op->to, op->bytes);
    return ROUND_MESSAGES;
}

// Dissemination: in round k a byte goes 2^k places on; after the last one everybody has heard,
// through others, of everybody.
static enum round barrier(struct comm_stream *s, struct operation *op) {
    int n = s->count, distance = 1 << op->round;
    if (distance >= n) return ROUND_END;
    receive(s, (s->index + n - distance) % n, &op->token[1], 1);
    send(s, op, (s->index + distance) % n, &op->token[0], 1);
    return ROUND_MESSAGES;
}

enum round collective_round(struct comm_stream *s, struct operation *op) {
    s->transfer_count = 0;
    switch (op->kind) {
    case COMM_ALL_GATHER:
        return all_gather(s, op);
    case COMM_REDUCE_SCATTER:
        return reduce_scatter(s, op);
    case COMM_ALL_REDUCE:
        return all_reduce(s, op);
    case COMM_ALL_TO_ALL:
        return all_to_all(s, op);
    case COMM_BROADCAST:
        return broadcast(s, op);
    case COMM_BARRIER:
        return barrier(s, op);
    default:
        return ROUND_END;
    }
}

void collective_alone(struct operation *op) {
    const struct comm_reduction *r = &op->reduction;
    const void *part = op->kind == COMM_ALL_REDUCE ? op->to : op->from;
    switch (op->kind) {
    case COMM_ALL_GATHER:
        if (op->from != op->to && op->bytes) memmove(op->to, op->from, op->bytes);
        break;
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_REDUCE:
        if (op->elements) r->sum(r->context, &part, 1, op->elements, op->to);
        break;
    case COMM_ALL_TO_ALL:
        if (op->from_bytes[0])
            memmove(op->to + op->to_offset[0], op->from + op->from_offset[0], op->from_bytes[0]);
        break;
    default:
        break;
    }
}
