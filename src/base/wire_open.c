// Keys, listening, and how a connection begins; see wire.h.
#include "base/clock.h"
#include "base/wire_parts.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// A peer that is gone without a word (its host lost power, the cable was cut) ends a connection
// after so long.
static const int SILENT_MILLISECONDS = 10000;
enum { WAITING_CONNECTIONS = 4096 };

// ---- keys ---------------------------------------------------------------------------------------

int wire_key_make(struct wire_key *key, struct err *err) {
    if (sodium_init() < 0)
        return err_set(err, ERR_IO, "no key can be made: the system gives no random numbers");
    crypto_auth_keygen(key->bytes);
    return 0;
}

void wire_key_text(const struct wire_key *key, char text[WIRE_KEY_TEXT]) {
    sodium_bin2hex(text, WIRE_KEY_TEXT, key->bytes, sizeof key->bytes);
}

int wire_key_parse(const char *text, struct wire_key *key) {
    struct wire_key read;
    size_t bytes = 0;
    if (strlen(text) != WIRE_KEY_TEXT - 1 ||
        sodium_hex2bin(read.bytes, sizeof read.bytes, text, WIRE_KEY_TEXT - 1, NULL, &bytes,
                       NULL) != 0 ||
        bytes != sizeof read.bytes)
        return -1;
    *key = read;
    return 0;
}

// ---- addresses ----------------------------------------------------------------------------------

static struct addrinfo *look_up(const char *address, int port, int flags, struct err *err) {
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int result = getaddrinfo(address, service, &hints, &found);
    if (result == 0) return found;
    err_set(err, ERR_RETRY, "%.200s, port %d: %s", address, port, gai_strerror(result));
    return NULL;
}

static void name_peer(struct wire *w) {
    struct sockaddr_storage where;
    socklen_t bytes = sizeof where;
    char host[48], port[8];
    if (getpeername(w->descriptor, (struct sockaddr *)&where, &bytes) != 0 ||
        getnameinfo((struct sockaddr *)&where, bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(w->peer, sizeof w->peer, "unknown");
    else
        snprintf(w->peer, sizeof w->peer, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

// ---- opening ------------------------------------------------------------------------------------

static void cannot_listen(const char *address, int port, struct err *err) {
    char who[64] = "another program";
    if (errno != EADDRINUSE) {
        err_set_errno(err, "cannot listen on %.200s, port %d", address, port);
        return;
    }
    int holder = wire_port_holder(port);
    if (holder > 0) snprintf(who, sizeof who, "process %d", holder);
    err_set(err, ERR_USAGE,
            "cannot listen on %.200s, port %d: %s does; choose another port, or 0 for any", address,
            port, who);
}

int wire_listen(const char *address, int port, int *listener, int *bound_port, struct err *err) {
    struct addrinfo *where = look_up(address, port, AI_PASSIVE, err);
    if (!where) return -1;
    int fd = socket(where->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    char bound[8] = "";
    int status = -1;
    // A port that a supervisor left a moment ago is free.
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, where->ai_addr, where->ai_addrlen) != 0 || listen(fd, WAITING_CONNECTIONS) != 0)
        cannot_listen(address, port, err);
    else if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0 ||
             getnameinfo((struct sockaddr *)&own, bytes, NULL, 0, bound, sizeof bound,
                         NI_NUMERICSERV) != 0)
        err_set_errno(err, "the port of a listener on %.200s cannot be read", address);
    else
        status = 0;
    freeaddrinfo(where);
    if (status != 0) {
        if (fd >= 0) close(fd);
        return -1;
    }
    *listener = fd;
    *bound_port = atoi(bound);
    return 0;
}

struct wire *wire_new(int descriptor, bool accepted, const struct wire_key *key, struct err *err) {
    struct wire *w = sodium_init() < 0 ? NULL : calloc(1, sizeof *w);
    unsigned char greeting[WIRE_GREETING_BYTES];
    if (w) {
        w->descriptor = descriptor;
        w->accepted = accepted;
        w->key = *key;
        randombytes_buf(w->nonces[accepted], WIRE_NONCE_BYTES);
        memcpy(greeting, wire_magic, sizeof wire_magic);
        memcpy(greeting + sizeof wire_magic, w->nonces[accepted], WIRE_NONCE_BYTES);
    }
    if (!w || text_put(&w->out, greeting, sizeof greeting) != 0) {
        err_set(err, ERR_MEMORY, "no memory for a connection");
        free(w);
        close(descriptor);
        return NULL;
    }
    w->out_sealed = w->out.size;
    int one = 1, idle = 5, interval = 2, probes = 3;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &SILENT_MILLISECONDS,
               sizeof SILENT_MILLISECONDS);
    name_peer(w);
    return w;
}

struct wire *wire_accept(int listener, const struct wire_key *key, struct err *err) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) return wire_new(fd, true, key, err);
    // those who left before they were taken in are nobody
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED || errno == EINTR)
        err_set(err, ERR_RETRY, "nobody there");
    else
        err_set_errno(err, "a connection cannot be taken in");
    return NULL;
}

void wire_close(struct wire *w) {
    if (!w) return;
    close(w->descriptor);
    text_free(&w->in);
    text_free(&w->out);
    sodium_memzero(w, sizeof *w);
    free(w);
}

// ---- connecting ---------------------------------------------------------------------------------

// Waits until the descriptor is ready; false when the time is up.
static bool wait_for(int descriptor, short events, double until) {
    for (;;) {
        double left = until - clock_seconds();
        struct pollfd watch = {descriptor, events, 0};
        int ready = poll(&watch, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (ready > 0) return true;
        if (left <= 0 || (ready < 0 && errno != EINTR)) return false;
    }
}

// A connected descriptor, or -1 with errno.
static int connect_to(const struct addrinfo *where, double until) {
    int fd = socket(where->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    int error = connect(fd, where->ai_addr, where->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        socklen_t bytes = sizeof error;
        if (!wait_for(fd, POLLOUT, until))
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
            error = errno;
    }
    if (error == 0) return fd;
    close(fd);
    errno = error;
    return -1;
}

static int greet(struct wire *w, double until, double seconds, struct err *err) {
    for (;;) {
        if (wire_work(w, err) != 0) return -1;
        if (w->greeted) return 0;
        if (!wait_for(w->descriptor, wire_events(w), until))
            return err_set(err, ERR_RETRY, "%s did not answer within %.1f s", w->peer, seconds);
    }
}

struct wire *wire_connect(const char *address, int port, const struct wire_key *key, double seconds,
                          struct err *err) {
    double until = clock_seconds() + seconds;
    struct addrinfo *where = look_up(address, port, 0, err);
    if (!where) return NULL;
    int fd = -1;
    for (struct addrinfo *at = where; at && fd < 0; at = at->ai_next) fd = connect_to(at, until);
    int error = errno;
    freeaddrinfo(where);
    if (fd < 0) {
        err_set(err, ERR_RETRY, "%.200s, port %d: %s", address, port, strerror(error));
        return NULL;
    }
    struct wire *w = wire_new(fd, false, key, err);
    if (w && greet(w, until, seconds, err) != 0) {
        wire_close(w);
        return NULL;
    }
    return w;
}
