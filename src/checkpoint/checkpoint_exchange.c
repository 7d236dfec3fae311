// What a rank lacks of a snapshot, since it lies in another host's memory, comes from a rank of
// that host: everybody says which boxes of which pieces it wants, and gets their bytes in that
// order, a bounded number of them at a time. See checkpoint_parts.h.
#include "checkpoint/checkpoint_parts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/together.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUND_BYTES = 32 << 20, LEAST_BYTES = 1 << 16 }; // of all peers; of one

struct want {             // of a piece, dense
    int64_t piece, slice; // slice: of the rank that wants it
    struct box box;
};

struct flow { // with one peer, one way
    struct want *wants;
    int64_t count;
    uint64_t bytes, done; // in all; so far
    int64_t at;           // want that goes on
    uint64_t into;        // bytes of it
};

struct exchange {
    struct checkpoint *c;
    const struct tensor_slice *slices;
    int count, size, rank;
    struct comm_stream *world;
    struct flow *out, *in; // [size] what is read for peers; what they read for this rank
    struct want *wants, *asked;
    uint64_t *numbers; // [4][size] offsets and bytes of a message, both ways
    char *send, *receive;
    uint64_t each; // most bytes of a peer in a round
    struct err why;
    bool failed;
};

static uint64_t width_of(const struct exchange *x, const struct want *w) {
    const struct manifest *m = &x->c->manifest;
    return dtype_bytes(m->tensors[m->pieces[w->piece].tensor].type);
}

static uint64_t want_bytes(const struct exchange *x, const struct want *w) {
    return (uint64_t)box_elements(w->box) * width_of(x, w);
}

// ---- who wants what

// Calls for every box that another rank has; returns how many.
static int64_t each_want(struct exchange *x, struct want *out) {
    const struct manifest *m = &x->c->manifest;
    int64_t count = 0;
    for (int i = 0; i < x->count; i++) {
        struct box box = box_of_slice(&x->slices[i]);
        int tensor = manifest_find(m, x->slices[i].name);
        for (int k = m->first_piece[tensor]; k < m->first_piece[tensor + 1]; k++) {
            struct box part = box_intersect(m->pieces[k].box, box);
            if (x->c->sources[m->pieces[k].part].path || box_elements(part) == 0) continue;
            if (out) out[count] = (struct want){k, i, part};
            count++;
        }
    }
    return count;
}

static int provider_of(const struct exchange *x, const struct want *w) {
    return x->c->sources[x->c->manifest.pieces[w->piece].part].provider;
}

// This rank's wants, one provider behind the other.
static int sort_wants(struct exchange *x, struct err *err) {
    int64_t count = each_want(x, NULL);
    struct want *all = malloc(((size_t)count + 1) * sizeof *all);
    x->wants = malloc(((size_t)count + 1) * sizeof *x->wants);
    if (!all || !x->wants) {
        free(all);
        return err_set(err, ERR_MEMORY, "no memory for the list of what other hosts hold");
    }
    each_want(x, all);
    struct want *to = x->wants;
    for (int peer = 0; peer < x->size; peer++) {
        x->in[peer].wants = to;
        for (int64_t i = 0; i < count; i++)
            if (provider_of(x, &all[i]) == peer) *to++ = all[i];
        x->in[peer].count = to - x->in[peer].wants;
    }
    free(all);
    return 0;
}

static int swap(struct exchange *x, const void *from, void *to, struct err *err) {
    uint64_t *n = x->numbers;
    size_t size = (size_t)x->size;
    return together_wait(
        x->world, comm_all_to_all(x->world, from, n, n + size, to, n + 2 * size, n + 3 * size),
        err);
}

static void place(uint64_t *offsets, const uint64_t *bytes, int size) {
    for (int i = 1; i < size; i++) offsets[i] = offsets[i - 1] + bytes[i - 1];
}

static int tell_wants(struct exchange *x, struct err *err) {
    size_t size = (size_t)x->size;
    uint64_t *n = x->numbers;
    int64_t *counts = calloc(2 * size, sizeof *counts), total = 0, lacking = !counts;
    for (size_t i = 0; i < size; i++) {
        n[i] = n[2 * size + i] = i * sizeof *counts;
        n[size + i] = n[3 * size + i] = sizeof *counts;
        if (counts) counts[i] = x->in[i].count;
    }
    comm_max_integers(x->world, &lacking, 1);
    int result = lacking ? err_set(err, ERR_MEMORY, "a rank has no memory") : 0;
    if (result == 0) result = swap(x, counts, counts + size, err);
    for (size_t i = 0; result == 0 && i < size; i++) total += x->out[i].count = counts[size + i];
    free(counts);
    if (result != 0) return -1;
    x->asked = malloc(((size_t)total + 1) * sizeof *x->asked);
    lacking = !x->asked;
    comm_max_integers(x->world, &lacking, 1);
    if (lacking) return err_set(err, ERR_MEMORY, "a rank has no memory");
    memset(n, 0, 4 * size * sizeof *n);
    for (size_t i = 0; i < size; i++) {
        n[size + i] = (uint64_t)x->in[i].count * sizeof *x->wants;
        n[3 * size + i] = (uint64_t)x->out[i].count * sizeof *x->asked;
    }
    place(n, n + size, x->size);
    place(n + 2 * size, n + 3 * size, x->size);
    for (size_t i = 0; i < size; i++)
        x->out[i].wants = x->asked + n[2 * size + i] / sizeof *x->asked;
    return swap(x, x->wants, x->asked, err);
}

// ---- the bytes

// The next run of a want's bytes that lies in one piece in the piece's file and in the slice's
// memory: at most the rest of a row.
static uint64_t next_run(const struct exchange *x, struct flow *f, uint64_t most, int64_t *row,
                         uint64_t *column_bytes) {
    const struct want *w = &f->wants[f->at];
    uint64_t row_bytes = (uint64_t)w->box.columns * width_of(x, w);
    *row = (int64_t)(f->into / row_bytes);
    *column_bytes = f->into % row_bytes;
    return row_bytes - *column_bytes < most ? row_bytes - *column_bytes : most;
}

static void advance(const struct exchange *x, struct flow *f, uint64_t bytes) {
    f->into += bytes;
    f->done += bytes;
    if (f->into < want_bytes(x, &f->wants[f->at])) return;
    f->at++;
    f->into = 0;
}

// Of a want of another rank, which is as untrusted as anything that comes from outside.
static int read_run(struct exchange *x, const struct want *w, int64_t row, uint64_t column_bytes,
                    uint64_t bytes, char *to, struct err *err) {
    const struct manifest_piece *piece = &x->c->manifest.pieces[w->piece];
    struct safetensors file;
    uint64_t offset, width = width_of(x, w);
    bool temporary;
    if (checkpoint_open_part(x->c, piece->part, &file, &offset, &temporary, err) != 0) return -1;
    uint64_t at =
        piece->begin +
        (uint64_t)(w->box.row + row - piece->box.row) * (uint64_t)piece->box.columns * width +
        (uint64_t)(w->box.column - piece->box.column) * width + column_bytes;
    x->c->read_bytes += bytes;
    int result = safetensors_read_file(&file, offset + at, bytes, to, err);
    if (temporary) close(file.fd);
    free(file.path);
    return result;
}

static void fill(struct exchange *x, struct flow *f, uint64_t bytes, char *to) {
    while (bytes > 0) {
        int64_t row;
        uint64_t column;
        uint64_t now = next_run(x, f, bytes, &row, &column);
        if (!x->failed && read_run(x, &f->wants[f->at], row, column, now, to, &x->why) != 0)
            x->failed = true; // the others still wait for bytes; the end tells
        advance(x, f, now);
        to += now;
        bytes -= now;
    }
}

static void drain(struct exchange *x, struct flow *f, uint64_t bytes, const char *from) {
    while (bytes > 0) {
        int64_t row;
        uint64_t column;
        uint64_t now = next_run(x, f, bytes, &row, &column);
        const struct want *w = &f->wants[f->at];
        const struct tensor_slice *s = &x->slices[w->slice];
        uint64_t width = dtype_bytes(s->type);
        memcpy((char *)s->data +
                   (uint64_t)(w->box.row + row - s->row) * (uint64_t)s->stride * width +
                   (uint64_t)(w->box.column - s->column) * width + column,
               from, now);
        advance(x, f, now);
        from += now;
        bytes -= now;
    }
}

static uint64_t this_round(const struct exchange *x, const struct flow *f) {
    return f->bytes - f->done < x->each ? f->bytes - f->done : x->each;
}

static int one_round(struct exchange *x, struct err *err) {
    size_t size = (size_t)x->size;
    uint64_t *n = x->numbers;
    for (size_t i = 0; i < size; i++) {
        n[i] = n[2 * size + i] = i * x->each;
        n[size + i] = this_round(x, &x->out[i]);
        n[3 * size + i] = this_round(x, &x->in[i]);
        fill(x, &x->out[i], n[size + i], x->send + n[i]);
    }
    if (swap(x, x->send, x->receive, err) != 0) return -1;
    for (size_t i = 0; i < size; i++)
        drain(x, &x->in[i], n[3 * size + i], x->receive + n[2 * size + i]);
    return 0;
}

// A request that no rank of this program makes.
static int check_asked(const struct exchange *x, struct err *err) {
    const struct manifest *m = &x->c->manifest;
    for (int i = 0; i < x->size; i++)
        for (int64_t k = 0; k < x->out[i].count; k++) {
            const struct want *w = &x->out[i].wants[k];
            if (w->piece < 0 || w->piece >= m->piece_count || box_elements(w->box) < 1 ||
                !box_inside(w->box, m->pieces[w->piece].box))
                return err_set(err, ERR_INTERNAL, "rank %d asks for a piece that is none", i);
        }
    return 0;
}

static int carry(struct exchange *x, struct err *err) {
    int64_t rounds = 0;
    for (int i = 0; i < x->size; i++)
        for (int way = 0; way < 2; way++) {
            struct flow *f = way ? &x->in[i] : &x->out[i];
            for (int64_t k = 0; k < f->count; k++) f->bytes += want_bytes(x, &f->wants[k]);
            int64_t needed = (int64_t)((f->bytes + x->each - 1) / x->each);
            if (needed > rounds) rounds = needed;
        }
    comm_max_integers(x->world, &rounds, 1);
    x->send = malloc((size_t)x->size * x->each);
    x->receive = malloc((size_t)x->size * x->each);
    int64_t lacking = !x->send || !x->receive;
    comm_max_integers(x->world, &lacking, 1);
    if (lacking) return err_set(err, ERR_MEMORY, "a rank has no memory to send pieces of a state");
    for (int64_t r = 0; r < rounds; r++)
        if (one_round(x, err) != 0) return -1;
    return 0;
}

static int work_of(void *context, const atomic_bool *stop, struct err *err) {
    const struct exchange *x = context;
    (void)stop;
    return x->failed ? err_set(err, x->why.kind, "%s", x->why.text) : 0;
}

static int prepare(void *context, const atomic_bool *stop, struct err *err) {
    struct exchange *x = context;
    size_t size = (size_t)x->size;
    (void)stop;
    x->in = calloc(size, sizeof *x->in);
    x->out = calloc(size, sizeof *x->out);
    x->numbers = calloc(4 * size, sizeof *x->numbers);
    if (!x->in || !x->out || !x->numbers)
        return err_set(err, ERR_MEMORY, "no memory for %zu ranks", size);
    return sort_wants(x, err);
}

int checkpoint_exchange(struct checkpoint *c, const struct tensor_slice *slices, int count,
                        struct comm_stream *world, struct err *err) {
    if (together_size(world) == 1) return 0;
    struct exchange x = {.c = c,
                         .slices = slices,
                         .count = count,
                         .size = together_size(world),
                         .rank = together_rank(world),
                         .world = world};
    x.each = (uint64_t)ROUND_BYTES / (uint64_t)x.size;
    if (x.each < LEAST_BYTES) x.each = LEAST_BYTES;
    int result = together_run(world, "rank", prepare, &x, err);
    if (result == 0) result = tell_wants(&x, err);
    if (result == 0) {
        x.failed = check_asked(&x, &x.why) != 0;
        result = together_run(world, "rank", work_of, &x, err);
    }
    if (result == 0) result = carry(&x, err);
    if (result == 0) result = together_run(world, "rank", work_of, &x, err);
    free(x.in);
    free(x.out);
    free(x.numbers);
    free(x.wants);
    free(x.asked);
    free(x.send);
    free(x.receive);
    return result;
}
