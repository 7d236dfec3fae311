// Links. After an authenticated exchange of messages both ends send raw bytes over the same
// connection, which costs them nothing but the copy: 64 short ones to and fro for the latency, then
// the agreed amount in each direction, compared piece by piece where it arrives.
//
//   ours -> peer  {"type":"link","bytes":N}
//   peer -> ours  {"type":"ready"}
//   raw: ECHOES times 64 bytes and back; N bytes; back 8 bytes, how many of them were wrong; N
//   bytes back
#include "base/clock.h"
#include "base/numbers.h"
#include "base/text.h"
#include "operate/health_parts.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ECHOES = 64, ECHO_BYTES = 64 };
static const double LINK_SECONDS = 20; // the longest that anything may take
static const uint64_t LINK_MOST_BYTES = (uint64_t)1 << 34;

// ---- raw bytes with an end of patience

static int wait_for(int socket, short events, double until, struct err *err) {
    for (;;) {
        struct pollfd watch = {socket, events, 0};
        double left = until - clock_seconds();
        if (left <= 0) return err_set(err, ERR_RETRY, "no answer within %.0f s", LINK_SECONDS);
        int ready = poll(&watch, 1, (int)(left * 1000) + 1);
        if (ready > 0) return 0;
        if (ready < 0 && errno != EINTR) return err_set_errno(err, "poll");
    }
}

static int put_raw(int socket, const void *bytes, size_t count, double until, struct err *err) {
    for (size_t done = 0; done < count;) {
        ssize_t n = send(socket, (const char *)bytes + done, count - done, MSG_NOSIGNAL);
        if (n > 0) done += (size_t)n;
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return err_set_errno(err, "the connection broke");
        if (n < 0 && errno == EAGAIN && wait_for(socket, POLLOUT, until, err) != 0) return -1;
    }
    return 0;
}

static int take_raw(int socket, void *bytes, size_t count, double until, struct err *err) {
    for (size_t done = 0; done < count;) {
        ssize_t n = recv(socket, (char *)bytes + done, count - done, 0);
        if (n > 0) done += (size_t)n;
        if (n == 0) return err_set(err, ERR_RETRY, "the peer closed the connection");
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return err_set_errno(err, "the connection broke");
        if (n < 0 && errno == EAGAIN && wait_for(socket, POLLIN, until, err) != 0) return -1;
    }
    return 0;
}

static int send_block(int socket, const unsigned char *block, uint64_t pieces, bool damage,
                      double until, struct err *err) {
    for (uint64_t i = 0; i < pieces; i++) {
        const unsigned char *piece = health_piece(block, i);
        unsigned char other = piece[0] ^ 1;
        bool flip = damage && i == 0;
        if (flip && put_raw(socket, &other, 1, until, err) != 0) return -1;
        if (put_raw(socket, piece + flip, HEALTH_BLOCK_BYTES - flip, until, err) != 0) return -1;
    }
    return 0;
}

static int take_block(int socket, const unsigned char *block, uint64_t pieces, uint64_t *wrong,
                      double until, struct err *err) {
    unsigned char *found = malloc(HEALTH_BLOCK_BYTES);
    int result = found ? 0 : err_set(err, ERR_MEMORY, "no memory to receive");
    *wrong = 0;
    for (uint64_t i = 0; i < pieces && result == 0; i++) {
        result = take_raw(socket, found, HEALTH_BLOCK_BYTES, until, err);
        if (result == 0)
            *wrong += health_differing(found, health_piece(block, i), HEALTH_BLOCK_BYTES);
    }
    free(found);
    return result;
}

// ---- the serving end

static json_t *take_message(struct wire *w, double until, struct err *err) {
    json_t *message = NULL;
    for (;;) {
        int taken = wire_take(w, &message, err);
        if (taken > 0) return message;
        if (taken < 0 || wait_for(wire_descriptor(w), wire_events(w), until, err) != 0 ||
            wire_work(w, err) != 0)
            return NULL;
    }
}

static int serve_raw(int socket, uint64_t pieces, double until, struct err *err) {
    unsigned char echo[ECHO_BYTES], *block = health_block(err);
    uint64_t wrong = 0;
    int result = block ? 0 : -1;
    for (int i = 0; i < ECHOES && result == 0; i++) {
        result = take_raw(socket, echo, sizeof echo, until, err);
        if (result == 0) result = put_raw(socket, echo, sizeof echo, until, err);
    }
    if (result == 0) result = take_block(socket, block, pieces, &wrong, until, err);
    if (result == 0) result = put_raw(socket, &wrong, sizeof wrong, until, err);
    if (result == 0) result = send_block(socket, block, pieces, false, until, err);
    free(block);
    return result;
}

int health_serve(struct wire *w, struct err *err) {
    double until = clock_seconds() + LINK_SECONDS;
    json_t *request = take_message(w, until, err);
    int64_t bytes = 0;
    if (!request) return -1;
    int result =
        json_get_int((struct json_at){request, wire_peer(w)}, "bytes", true, 0, &bytes, err);
    json_decref(request);
    if (result != 0) return -1;
    if (bytes < 0 || (uint64_t)bytes > LINK_MOST_BYTES)
        return err_set(err, ERR_DATA, "%s: a link check of %lld bytes", wire_peer(w),
                       (long long)bytes);
    json_t *ready = json_pack("{s:s}", "type", "ready");
    result = wire_put(w, ready, err);
    json_decref(ready);
    while (result == 0 && wire_pending(w)) {
        result = wait_for(wire_descriptor(w), POLLOUT, until, err);
        if (result == 0) result = wire_work(w, err);
    }
    uint64_t pieces = ((uint64_t)bytes + HEALTH_BLOCK_BYTES - 1) / HEALTH_BLOCK_BYTES;
    return result == 0 ? serve_raw(wire_descriptor(w), pieces, until, err) : -1;
}

static void serve_one(struct wire *w) {
    struct err err = {0};
    json_t *hello = take_message(w, clock_seconds() + LINK_SECONDS, &err);
    const char *role = json_string_value(json_object_get(hello, "role"));
    if (role && strcmp(role, "link") == 0) health_serve(w, &err);
    json_decref(hello);
}

int health_listen(int listener, const struct wire_key *key, const volatile bool *stop,
                  struct err *err) {
    while (!*stop) {
        struct pollfd watch = {listener, POLLIN, 0};
        int ready = poll(&watch, 1, 500);
        if (ready < 0 && errno != EINTR) return err_set_errno(err, "poll");
        if (ready <= 0) continue;
        struct wire *w = wire_accept(listener, key, NULL);
        if (w) serve_one(w);
        wire_close(w);
    }
    return 0;
}

// ---- the asking end

struct link_found {
    double latency_seconds, there_seconds, back_seconds;
    uint64_t wrong_there, wrong_back, wrong_echoes;
};

static int measure_raw(int socket, uint64_t pieces, bool damage, struct link_found *f, double until,
                       struct err *err) {
    unsigned char echo[ECHO_BYTES], *block = health_block(err);
    double seconds[ECHOES];
    int result = block ? 0 : -1;
    for (uint64_t i = 0; i < ECHOES && result == 0; i++) {
        double begin = clock_seconds();
        result = put_raw(socket, health_piece(block, i), ECHO_BYTES, until, err);
        if (result == 0) result = take_raw(socket, echo, ECHO_BYTES, until, err);
        if (result == 0)
            f->wrong_echoes += health_differing(echo, health_piece(block, i), ECHO_BYTES);
        seconds[i] = clock_seconds() - begin;
    }
    double begin = clock_seconds();
    if (result == 0) result = send_block(socket, block, pieces, damage, until, err);
    if (result == 0) result = take_raw(socket, &f->wrong_there, sizeof f->wrong_there, until, err);
    double middle = clock_seconds();
    if (result == 0) result = take_block(socket, block, pieces, &f->wrong_back, until, err);
    f->there_seconds = middle - begin;
    f->back_seconds = clock_seconds() - middle;
    if (result == 0) f->latency_seconds = numbers_median(seconds, ECHOES);
    free(block);
    return result;
}

static int measure(const struct health_options *o, const char *peer, uint64_t pieces, bool damage,
                   struct link_found *f, struct err *err) {
    char address[256];
    const char *colon = strrchr(peer, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!colon || end == colon + 1 || *end || port < 1 || port > 65535)
        return err_set(err, ERR_USAGE, "health: peer \"%s\": expected HOST:PORT", peer);
    snprintf(address, sizeof address, "%.*s", (int)(colon - peer), peer);
    double until = clock_seconds() + LINK_SECONDS;
    struct wire *w = wire_connect(address, (int)port, o->key, 5, err);
    if (!w) return -1;
    json_t *hello = json_pack("{s:s, s:s}", "type", "hello", "role", "link");
    json_t *request =
        json_pack("{s:s, s:I}", "type", "link", "bytes", (json_int_t)(pieces * HEALTH_BLOCK_BYTES));
    json_t *answer = NULL;
    if (wire_put(w, hello, err) == 0) answer = wire_call(w, request, LINK_SECONDS, err);
    int result = -1;
    if (answer) result = measure_raw(wire_descriptor(w), pieces, damage, f, until, err);
    json_decref(hello);
    json_decref(request);
    json_decref(answer);
    wire_close(w);
    return result;
}

static void say(struct health_check *check, const struct link_found *f, uint64_t pieces) {
    double bytes = (double)pieces * HEALTH_BLOCK_BYTES;
    uint64_t wrong = f->wrong_there + f->wrong_back + f->wrong_echoes;
    double there = bytes / f->there_seconds, back = bytes / f->back_seconds;
    check->rate = there < back ? there : back;
    check->seconds = f->latency_seconds;
    check->passed = wrong == 0;
    snprintf(
        check->found, sizeof check->found,
        "there and back %.0f us, %.0f MB/s there, %.0f MB/s back, %llu bytes of %.0f MB are wrong",
        1e6 * f->latency_seconds, there / 1e6, back / 1e6, (unsigned long long)wrong,
        2 * bytes / 1e6);
}

int health_links(const struct health_options *o, struct health *out, struct err *err) {
    uint64_t bytes = o->link_bytes ? o->link_bytes : 64 << 20;
    uint64_t pieces = (bytes + HEALTH_BLOCK_BYTES - 1) / HEALTH_BLOCK_BYTES;
    for (int i = 0; i < o->peer_count; i++) {
        struct link_found found = {0};
        struct err why = {0};
        struct health_check *check = health_add(out, err, "link %s", o->peers[i]);
        if (!check) return -1;
        if (!o->key) return err_set(err, ERR_USAGE, "health: peers need the key that they have");
        if (measure(o, o->peers[i], pieces, health_breaks(o, check->name), &found, &why) == 0) {
            say(check, &found, pieces);
        } else if (why.kind == ERR_USAGE) {
            return err_set(err, why.kind, "%s", why.text);
        } else {
            check->passed = false;
            check->unanswered = true;
            snprintf(check->found, sizeof check->found, "%.250s", why.text);
        }
    }
    return 0;
}
