// Frames: sealing, moving, opening; see wire.h.
#include "base/clock.h"
#include "base/wire_parts.h"
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

const char wire_magic[4] = {'w', 'f', 't', '1'};

enum {
    LENGTH_BYTES = 4,
    FIRST_MOST_BYTES = 1 << 16, // of the first frame, from somebody who may not have the key
    READ_BYTES = 1 << 16,       // room for one read
    READS_AT_ONCE = 8,          // then others get their turn
    WAITING_MOST_BYTES = 4 * WIRE_MOST_BYTES, // to an end that does not read
    KEPT_BYTES = 1 << 14                      // an empty buffer above it is given back
};

const char *wire_peer(const struct wire *w) {
    return w->peer;
}

int wire_descriptor(const struct wire *w) {
    return w->descriptor;
}

bool wire_pending(const struct wire *w) {
    return w->out_at < w->out.size;
}

short wire_events(const struct wire *w) {
    return w->out_at < w->out_sealed ? POLLIN | POLLOUT : POLLIN;
}

// ---- tags ---------------------------------------------------------------------------------------

static void put_number(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(value >> 8 * i);
}

static uint32_t get_length(const char *from) {
    uint32_t value = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) value = value << 8 | (unsigned char)from[i];
    return value;
}

static void make_tag(const struct wire *w, bool from_accepting, uint64_t number, const char *text,
                     size_t bytes, unsigned char tag[WIRE_TAG_BYTES]) {
    crypto_auth_hmacsha512256_state state;
    unsigned char head[1 + 8] = {from_accepting ? 's' : 'c'};
    put_number(head + 1, number, 8);
    crypto_auth_hmacsha512256_init(&state, w->key.bytes, sizeof w->key.bytes);
    crypto_auth_hmacsha512256_update(&state, w->nonces[0], sizeof w->nonces);
    crypto_auth_hmacsha512256_update(&state, head, sizeof head);
    crypto_auth_hmacsha512256_update(&state, (const unsigned char *)text, bytes);
    crypto_auth_hmacsha512256_final(&state, tag);
}

// Tags need both nonces: frames that were put earlier get theirs when the other end has greeted.
static void seal(struct wire *w) {
    while (w->greeted && w->out_sealed < w->out.size) {
        char *frame = w->out.data + w->out_sealed;
        uint32_t bytes = get_length(frame);
        unsigned char tag[WIRE_TAG_BYTES];
        make_tag(w, w->accepted, w->sealed++, frame + LENGTH_BYTES, bytes, tag);
        memcpy(frame + LENGTH_BYTES + bytes, tag, sizeof tag);
        w->out_sealed += LENGTH_BYTES + bytes + WIRE_TAG_BYTES;
    }
}

// ---- moving -------------------------------------------------------------------------------------

static int ended(struct wire *w, int error, struct err *err) {
    w->ended = true;
    if (error)
        return err_set(err, ERR_RETRY, "the connection to %s broke: %s", w->peer, strerror(error));
    return err_set(err, ERR_RETRY, "%s closed the connection", w->peer);
}

// Throws away what lies before *at.
static void drop_front(struct text *t, size_t *at) {
    if (*at == 0) return;
    t->size -= *at;
    if (t->size > 0) memmove(t->data, t->data + *at, t->size);
    *at = 0;
    if (t->size == 0 && t->capacity > KEPT_BYTES) text_free(t);
}

static int send_out(struct wire *w, struct err *err) {
    while (w->out_at < w->out_sealed) {
        ssize_t n = send(w->descriptor, w->out.data + w->out_at, w->out_sealed - w->out_at,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n < 0) return ended(w, errno, err);
        w->out_at += (size_t)n;
    }
    // what was sent goes when all is, or when it is much: moving the rest costs time
    if (w->out_at == w->out.size || w->out_at > READ_BYTES) {
        w->out_sealed -= w->out_at;
        drop_front(&w->out, &w->out_at);
    }
    return 0;
}

static size_t waiting(const struct wire *w) {
    return w->in.size - w->in_at;
}

// At most one longest frame lies in the buffer unread; the rest waits in the system.
static int read_in(struct wire *w, struct err *err) {
    char bytes[READ_BYTES];
    for (int i = 0; i < READS_AT_ONCE && waiting(w) < WIRE_MOST_BYTES + READ_BYTES; i++) {
        ssize_t n = recv(w->descriptor, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) return ended(w, n < 0 ? errno : 0, err);
        drop_front(&w->in, &w->in_at);
        if (text_put(&w->in, bytes, (size_t)n) != 0) {
            w->ended = true;
            return err_set(err, ERR_MEMORY, "no memory for a message of %s", w->peer);
        }
        if (n < (ssize_t)sizeof bytes) return 0;
    }
    return 0;
}

static int take_greeting(struct wire *w, struct err *err) {
    if (w->greeted) return 0;
    const char *at = w->in.data + w->in_at;
    size_t have = waiting(w) < sizeof wire_magic ? waiting(w) : sizeof wire_magic;
    if (have > 0 && memcmp(at, wire_magic, have) != 0)
        return err_set(err, ERR_DATA, "%s: does not speak this protocol", w->peer);
    if (waiting(w) < WIRE_GREETING_BYTES) return 0;
    memcpy(w->nonces[!w->accepted], at + sizeof wire_magic, WIRE_NONCE_BYTES);
    w->in_at += WIRE_GREETING_BYTES;
    w->greeted = true;
    seal(w);
    return 0;
}

int wire_work(struct wire *w, struct err *err) {
    if (w->ended) return ended(w, 0, err);
    if (read_in(w, err) != 0 || take_greeting(w, err) != 0) return -1;
    return send_out(w, err);
}

// ---- messages -----------------------------------------------------------------------------------

int wire_put(struct wire *w, const json_t *message, struct err *err) {
    size_t begin = w->out.size;
    size_t bytes = json_dumpb(message, NULL, 0, JSON_COMPACT);
    if (bytes == 0 || bytes > WIRE_MOST_BYTES)
        return err_set(err, ERR_INTERNAL,
                       "a message to %s has %zu bytes, expected 1 to %d: it is not sent", w->peer,
                       bytes, WIRE_MOST_BYTES);
    if (begin - w->out_at > WAITING_MOST_BYTES)
        return err_set(err, ERR_RETRY, "%s does not read: %zu bytes wait for it", w->peer,
                       begin - w->out_at);
    if (text_reserve(&w->out, LENGTH_BYTES + bytes + WIRE_TAG_BYTES) != 0)
        return err_set(err, ERR_MEMORY, "no memory for a message to %s", w->peer);
    char *frame = w->out.data + begin;
    put_number((unsigned char *)frame, bytes, LENGTH_BYTES);
    json_dumpb(message, frame + LENGTH_BYTES, bytes, JSON_COMPACT);
    w->out.size += LENGTH_BYTES + bytes + WIRE_TAG_BYTES;
    seal(w);
    return 0;
}

static json_t *parse(const struct wire *w, const char *text, size_t bytes, struct err *err) {
    json_t *message = json_parse(text, bytes, w->peer, err);
    if (message && json_is_object(message)) return message;
    if (message) err_set(err, ERR_DATA, "%s: the message is no JSON object", w->peer);
    json_decref(message);
    return NULL;
}

int wire_take(struct wire *w, json_t **message, struct err *err) {
    if (take_greeting(w, err) != 0) return -1;
    if (!w->greeted || waiting(w) < LENGTH_BYTES) return 0;
    const char *frame = w->in.data + w->in_at;
    size_t bytes = get_length(frame);
    size_t most = w->opened == 0 ? FIRST_MOST_BYTES : WIRE_MOST_BYTES;
    if (bytes > most)
        return err_set(err, ERR_DATA, "%s: the message is longer than %zu bytes (%zu)", w->peer,
                       most, bytes);
    if (waiting(w) < LENGTH_BYTES + bytes + WIRE_TAG_BYTES) return 0;
    unsigned char tag[WIRE_TAG_BYTES];
    const char *text = frame + LENGTH_BYTES;
    make_tag(w, !w->accepted, w->opened, text, bytes, tag);
    if (sodium_memcmp(tag, text + bytes, sizeof tag) != 0)
        return err_set(
            err, ERR_DATA,
            "%s: the message is forged or damaged (its tag is not that of the run's key)", w->peer);
    w->opened++;
    json_t *found = parse(w, text, bytes, err);
    if (!found) return -1;
    w->in_at += LENGTH_BYTES + bytes + WIRE_TAG_BYTES;
    *message = found;
    return 1;
}

json_t *wire_call(struct wire *w, const json_t *message, double seconds, struct err *err) {
    double until = clock_seconds() + seconds;
    json_t *answer = NULL;
    if (wire_put(w, message, err) != 0) return NULL;
    for (;;) {
        int moved = wire_work(w, err), taken = wire_take(w, &answer, moved == 0 ? err : NULL);
        if (taken == 1) return answer;
        if (moved != 0 || taken != 0) return NULL;
        double left = until - clock_seconds();
        if (left <= 0) break;
        struct pollfd watch = {w->descriptor, wire_events(w), 0};
        poll(&watch, 1, (int)(left * 1000) + 1);
    }
    err_set(err, ERR_RETRY, "%s did not answer within %.1f s", w->peer, seconds);
    return NULL;
}
