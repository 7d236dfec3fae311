// Posting and waiting: what compute threads call.
#include "base/clock.h"
#include "base/hash.h"
#include "comm/internal.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- names of spans, which outlive streams -----------------------------------------------------

struct span_name {
    struct span_name *next;
    char text[];
};
static struct span_name *span_names;
static pthread_mutex_t span_names_lock = PTHREAD_MUTEX_INITIALIZER;

// The same text gives the same pointer, for the life of the process. NULL: no memory.
static const char *keep_name(const char *text) {
    pthread_mutex_lock(&span_names_lock);
    struct span_name *found = span_names;
    while (found && strcmp(found->text, text) != 0) found = found->next;
    if (!found && (found = malloc(sizeof *found + strlen(text) + 1))) {
        memcpy(found->text, text, strlen(text) + 1);
        found->next = span_names;
        span_names = found;
    }
    pthread_mutex_unlock(&span_names_lock);
    return found ? found->text : NULL;
}

// ---- streams ------------------------------------------------------------------------------------

// Members compute the same tag without a message; two open streams of a rank that share one are
// refused.
static int stream_tag(const char *name, const int *members, int count) {
    uint64_t hash = hash_string(name) * 31 + hash_bytes(members, (size_t)count * sizeof *members);
    return TRANSPORT_STREAM_TAG | (int)(hash & (TRANSPORT_STREAM_TAG - 1));
}

static int check_members(const struct comm *comm, const char *name, const int *members, int count,
                         int *index, struct err *err) {
    *index = -1;
    for (int i = 0; i < count; i++) {
        if (members[i] < 0 || members[i] >= comm->transport->size)
            return err_set(err, ERR_INTERNAL,
                           "stream %s: member %d is rank %d, expected one of 0..%d", name, i,
                           members[i], comm->transport->size - 1);
        for (int j = 0; j < i; j++)
            if (members[j] == members[i])
                return err_set(err, ERR_INTERNAL, "stream %s: rank %d is in it twice", name,
                               members[i]);
        if (members[i] == comm->transport->rank) *index = i;
    }
    if (*index < 0)
        return err_set(err, ERR_INTERNAL,
                       "stream %s: rank %d opens it and is not among its %d members", name,
                       comm->transport->rank, count);
    return 0;
}

static void stream_free(struct comm_stream *s) {
    free(s->members);
    free(s->transfers);
    free(s->parts);
    free(s->answers);
    free(s->small);
    free(s);
}

static int fill_stream(struct comm_stream *s, const int *members) {
    size_t n = (size_t)s->count;
    s->members = malloc(n * sizeof *s->members);
    s->transfers = calloc(2 * n, sizeof *s->transfers);
    s->parts = calloc(2 * n, sizeof *s->parts);
    s->answers = calloc(n, sizeof *s->answers);
    s->small = calloc((n + 1) * SMALL_VALUES, sizeof *s->small);
    if (!s->members || !s->transfers || !s->parts || !s->answers || !s->small) return -1;
    memcpy(s->members, members, n * sizeof *members);
    int lowest = members[0];
    for (int i = 1; i < s->count; i++)
        if (members[i] < lowest) lowest = members[i];
    for (int k = 0; k < COMM_KIND_COUNT; k++) {
        char text[80];
        snprintf(text, sizeof text, "%s %s@%d", comm_kind_name((enum comm_kind)k), s->name, lowest);
        if (!(s->span_names[k] = keep_name(text))) return -1;
    }
    for (int i = 0; i < s->count; i++) {
        int j = 0;
        while (strcmp(comm_host(s->comm, members[j]), comm_host(s->comm, members[i])) != 0) j++;
        s->hosts += j == i;
    }
    return 0;
}

// Puts it on the list that the communication thread looks through.
static int enlist(struct comm *comm, struct comm_stream *s, struct err *err) {
    int result = 0;
    pthread_mutex_lock(&comm->lock);
    for (int i = 0; i < comm->stream_count && result == 0; i++)
        if (comm->streams[i]->tag == s->tag)
            result = err_set(err, ERR_INTERNAL,
                             "stream %s: stream %s is open and has the same members; streams with "
                             "the same members need names of their own",
                             s->name, comm->streams[i]->name);
    if (result == 0 && comm->stream_count == STREAM_LIMIT)
        result =
            err_set(err, ERR_INTERNAL, "stream %s: %d streams are open, more are not provided for",
                    s->name, STREAM_LIMIT);
    if (result == 0) {
        comm->streams[comm->stream_count++] = s;
        comm->streams_version++;
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

struct comm_stream *comm_stream_open(struct comm *comm, const char *name, const int *members,
                                     int count, struct err *err) {
    int index;
    if (strlen(name) >= COMM_GROUP_NAME_BYTES) {
        err_set(err, ERR_INTERNAL, "stream %s: the name is longer than %d bytes", name,
                COMM_GROUP_NAME_BYTES - 1);
        return NULL;
    }
    if (check_members(comm, name, members, count, &index, err) != 0) return NULL;
    struct comm_stream *s = calloc(1, sizeof *s);
    if (!s) {
        err_set(err, ERR_MEMORY, "stream %s: no memory", name);
        return NULL;
    }
    s->comm = comm;
    s->count = count;
    s->index = index;
    s->tag = stream_tag(name, members, count);
    snprintf(s->name, sizeof s->name, "%s", name);
    if (fill_stream(s, members) != 0) {
        err_set(err, ERR_MEMORY, "stream %s: no memory for %d members", name, count);
        stream_free(s);
        return NULL;
    }
    if (enlist(comm, s, err) != 0) {
        stream_free(s);
        return NULL;
    }
    return s;
}

void comm_stream_close(struct comm_stream *s) {
    if (!s) return;
    struct comm *comm = s->comm;
    pthread_mutex_lock(&comm->lock);
    while (atomic_load(&s->completed) < atomic_load(&s->posted) && !atomic_load(&comm->settled))
        pthread_cond_wait(&comm->changed, &comm->lock);
    int at = 0;
    while (comm->streams[at] != s) at++;
    comm->streams[at] = comm->streams[--comm->stream_count];
    uint64_t version = ++comm->streams_version;
    doorbell_ring(comm->bell);
    while (comm->streams_taken < version) pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    stream_free(s);
}

struct comm *comm_stream_comm(const struct comm_stream *s) {
    return s->comm;
}

void comm_stream_lane(struct comm_stream *s, struct record_lane *lane) {
    s->lane = lane;
}

int comm_stream_size(const struct comm_stream *s) {
    return s->count;
}

int comm_stream_index(const struct comm_stream *s) {
    return s->index;
}

void comm_stream_counts(const struct comm_stream *s, enum comm_kind kind, struct comm_counts *out) {
    pthread_mutex_lock(&s->comm->lock);
    *out = s->counts[kind];
    pthread_mutex_unlock(&s->comm->lock);
}

void comm_point_counts(const struct comm *comm, enum comm_kind kind, struct comm_counts *out) {
    struct comm *c = (struct comm *)(uintptr_t)comm; // for its lock only
    pthread_mutex_lock(&c->lock);
    *out = comm->point_counts[kind];
    pthread_mutex_unlock(&c->lock);
}

// ---- waiting ------------------------------------------------------------------------------------

static bool ended(const struct operation *op, uint64_t number) {
    return atomic_load_explicit(&op->finished, memory_order_acquire) >= number;
}

bool comm_done(struct comm_event event) {
    return !event.operation || ended(event.operation, event.number) ||
           atomic_load(&event.comm->settled);
}

// Under the lock. The time counts as exposed of that operation.
static void wait_locked(struct comm *comm, struct operation *op, uint64_t number,
                        struct record_lane *lane) {
    if (ended(op, number)) return;
    double begin = clock_seconds();
    const char *name = op->name;
    struct comm_counts *counts = op->counts;
    history_wait(comm, 1);
    while (!ended(op, number) && !atomic_load(&comm->settled))
        pthread_cond_wait(&comm->changed, &comm->lock);
    history_wait(comm, -1);
    counts->exposed_seconds += clock_seconds() - begin;
    record_end(lane, RECORD_COMM_WAIT, name, (int64_t)number, begin);
}

void comm_wait(struct comm_event event, struct record_lane *lane) {
    if (!event.operation || ended(event.operation, event.number)) return;
    pthread_mutex_lock(&event.comm->lock);
    wait_locked(event.comm, event.operation, event.number, lane);
    pthread_mutex_unlock(&event.comm->lock);
}

// ---- posting of collectives ---------------------------------------------------------------------

static void carry_out_alone(struct comm_stream *s, struct operation *op) {
    struct comm *comm = s->comm;
    collective_alone(op);
    pthread_mutex_lock(&comm->lock);
    s->counts[op->kind].operations++;
    pthread_mutex_unlock(&comm->lock);
}

// Copies `filled` into the next slot of the stream. Nothing is posted in a world that has failed.
static struct comm_event post(struct comm_stream *s, const struct operation *filled) {
    struct comm *comm = s->comm;
    pthread_mutex_lock(&comm->lock);
    uint64_t number = atomic_load(&s->posted) + 1;
    struct operation *op = &s->slots[number % COMM_STREAM_DEPTH];
    if (number > COMM_STREAM_DEPTH) wait_locked(comm, op, number - COMM_STREAM_DEPTH, NULL);
    while (comm->order && order_full(comm) && !atomic_load(&comm->settled))
        pthread_cond_wait(&comm->changed, &comm->lock);
    struct comm_event event = {0};
    if (!atomic_load(&comm->failed)) {
        size_t kept = offsetof(struct operation, kind);
        memcpy((char *)op + kept, (const char *)filled + kept, sizeof *op - kept);
        op->number = number;
        op->name = s->span_names[op->kind];
        op->counts = &s->counts[op->kind];
        op->posted_seconds = clock_seconds();
        op->site = comm_call_site;
        history_post(comm, s, op);
        if (comm->order) order_post(comm, s, op);
        atomic_store(&s->posted, number);
        event = (struct comm_event){comm, op, number};
    }
    pthread_mutex_unlock(&comm->lock);
    doorbell_ring(comm->bell);
    return event;
}

static struct comm_event start(struct comm_stream *s, struct operation *op) {
    if (s->count > 1) return post(s, op);
    comm_call_site = NULL;
    carry_out_alone(s, op);
    return (struct comm_event){0};
}

struct comm_event comm_all_gather(struct comm_stream *s, const void *own, void *all,
                                  uint64_t bytes_each) {
    struct operation op = {.kind = COMM_ALL_GATHER,
                           .way = collective_way(s, COMM_ALL_GATHER, bytes_each),
                           .from = own,
                           .to = all,
                           .bytes = bytes_each,
                           .agreed_bytes = bytes_each};
    return start(s, &op);
}

struct comm_event comm_reduce_scatter(struct comm_stream *s, const void *parts, void *scratch,
                                      void *out, int64_t elements_each,
                                      const struct comm_reduction *reduction) {
    uint64_t bytes = (uint64_t)elements_each * reduction->wire_bytes;
    struct operation op = {.kind = COMM_REDUCE_SCATTER,
                           .way = WAY_EXCHANGE,
                           .from = parts,
                           .to = out,
                           .scratch = scratch,
                           .bytes = bytes,
                           .elements = elements_each,
                           .reduction = *reduction,
                           .agreed_bytes = bytes};
    return start(s, &op);
}

uint64_t comm_reduce_scatter_scratch(const struct comm_stream *s, int64_t elements_each,
                                     const struct comm_reduction *reduction) {
    return (uint64_t)(s->count - 1) * (uint64_t)elements_each * reduction->wire_bytes;
}

static struct operation all_reduce(const struct comm_stream *s, int64_t elements,
                                   const struct comm_reduction *reduction) {
    enum { ALIGN = 16 }; // elements; parts begin at whole vectors
    uint64_t total = (uint64_t)elements * reduction->wire_bytes;
    struct operation op = {.kind = COMM_ALL_REDUCE,
                           .way = collective_way(s, COMM_ALL_REDUCE, total),
                           .bytes = total,
                           .elements = elements,
                           .reduction = *reduction,
                           .agreed_bytes = total};
    int64_t part = (elements + s->count - 1) / s->count;
    part = (part + ALIGN - 1) / ALIGN * ALIGN;
    if (op.way != WAY_WHOLE) op.bytes = (uint64_t)part * reduction->wire_bytes;
    return op;
}

struct comm_event comm_all_reduce(struct comm_stream *s, void *data, void *scratch,
                                  int64_t elements, const struct comm_reduction *reduction) {
    struct operation op = all_reduce(s, elements, reduction);
    op.to = data;
    op.scratch = scratch;
    return start(s, &op);
}

uint64_t comm_all_reduce_scratch(const struct comm_stream *s, int64_t elements,
                                 const struct comm_reduction *reduction) {
    struct operation op = all_reduce(s, elements, reduction);
    return (uint64_t)(s->count - 1) * op.bytes;
}

struct comm_event comm_all_to_all(struct comm_stream *s, const void *from,
                                  const uint64_t *from_offset, const uint64_t *from_bytes, void *to,
                                  const uint64_t *to_offset, const uint64_t *to_bytes) {
    struct operation op = {.kind = COMM_ALL_TO_ALL,
                           .way = WAY_EXCHANGE,
                           .from = from,
                           .to = to,
                           .from_offset = from_offset,
                           .from_bytes = from_bytes,
                           .to_offset = to_offset,
                           .to_bytes = to_bytes};
    return start(s, &op);
}

struct comm_event comm_broadcast(struct comm_stream *s, int root, void *data, uint64_t bytes) {
    struct operation op = {.kind = COMM_BROADCAST,
                           .way = WAY_TREE,
                           .to = data,
                           .bytes = bytes,
                           .root = root,
                           .agreed_bytes = bytes};
    return start(s, &op);
}

struct comm_event comm_barrier(struct comm_stream *s) {
    struct operation op = {.kind = COMM_BARRIER, .way = WAY_TREE};
    return start(s, &op);
}
