// Bytes and messages on one connection, in turns; see buddy_parts.h.
#include "base/clock.h"
#include "operate/buddy_parts.h"
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>

enum { WAIT_SECONDS = 20 };

void buddy_session_make(unsigned char session[BUDDY_SESSION_BYTES], char text[BUDDY_SESSION_TEXT]) {
    randombytes_buf(session, BUDDY_SESSION_BYTES);
    sodium_bin2hex(text, BUDDY_SESSION_TEXT, session, BUDDY_SESSION_BYTES);
}

int buddy_session_parse(const json_t *message, unsigned char session[BUDDY_SESSION_BYTES]) {
    const char *text = json_string_value(json_object_get(message, "session"));
    size_t size = 0;
    if (!text || strlen(text) != BUDDY_SESSION_TEXT - 1 ||
        sodium_hex2bin(session, BUDDY_SESSION_BYTES, text, strlen(text), NULL, &size, NULL) != 0)
        return -1;
    return size == BUDDY_SESSION_BYTES ? 0 : -1;
}

void buddy_tag(struct buddy_pieces *p, const void *piece, size_t bytes,
               unsigned char tag[BUDDY_TAG_BYTES]) {
    crypto_generichash_state state;
    unsigned char number[8];
    for (int i = 0; i < 8; i++) number[i] = (unsigned char)(p->number >> 8 * i);
    p->number++;
    crypto_generichash_init(&state, p->key->bytes, sizeof p->key->bytes, BUDDY_TAG_BYTES);
    crypto_generichash_update(&state, p->sessions[0], sizeof p->sessions);
    crypto_generichash_update(&state, number, sizeof number);
    crypto_generichash_update(&state, piece, bytes);
    crypto_generichash_final(&state, tag, BUDDY_TAG_BYTES);
}

static int wait_for(struct wire *w, short events, struct err *err) {
    struct pollfd watch = {wire_descriptor(w), events, 0};
    for (;;) {
        int ready = poll(&watch, 1, WAIT_SECONDS * 1000);
        if (ready > 0) return 0;
        if (ready == 0)
            return err_set(err, ERR_RETRY, "%s: nothing moved for %d s", wire_peer(w),
                           WAIT_SECONDS);
        if (errno != EINTR) return err_set_errno(err, "%s", wire_peer(w));
    }
}

int buddy_write(struct wire *w, const void *data, size_t bytes, struct err *err) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = send(wire_descriptor(w), at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (wait_for(w, POLLOUT, err) != 0) return -1;
        } else if (errno != EINTR) {
            return err_set_errno(err, "%s: the connection broke", wire_peer(w));
        }
    }
    return 0;
}

int buddy_read(struct wire *w, void *data, size_t bytes, struct err *err) {
    char *at = data;
    while (bytes > 0) {
        ssize_t n = recv(wire_descriptor(w), at, bytes, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n == 0) {
            return err_set(err, ERR_RETRY, "%s closed the connection", wire_peer(w));
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (wait_for(w, POLLIN, err) != 0) return -1;
        } else if (errno != EINTR) {
            return err_set_errno(err, "%s: the connection broke", wire_peer(w));
        }
    }
    return 0;
}

int buddy_say(struct wire *w, json_t *message, struct err *err) {
    int result = message ? wire_put(w, message, err) : err_set(err, ERR_MEMORY, "no memory");
    json_decref(message);
    while (result == 0 && wire_pending(w)) {
        result = wire_work(w, err);
        if (result == 0 && wire_pending(w)) result = wait_for(w, wire_events(w), err);
    }
    return result;
}

json_t *buddy_hear(struct wire *w, double seconds, struct err *err) {
    double until = clock_seconds() + seconds;
    for (;;) {
        json_t *message;
        int moved = wire_work(w, err), taken = wire_take(w, &message, moved == 0 ? err : NULL);
        if (taken == 1) return message;
        if (moved != 0 || taken != 0) return NULL;
        double left = until - clock_seconds();
        if (left <= 0) break;
        struct pollfd watch = {wire_descriptor(w), wire_events(w), 0};
        poll(&watch, 1, (int)(left * 1000) + 1);
    }
    err_set(err, ERR_RETRY, "%s did not answer within %.1f s", wire_peer(w), seconds);
    return NULL;
}
