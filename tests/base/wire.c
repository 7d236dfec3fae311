// Messages over TCP: what gets through, and what does not. The other end is played by hand here
// where it is to do what no honest end does.
#include "base/wire.h"
#include "base/clock.h"
#include "test.h"
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GREETING = 20, TAG = 32 };

static struct wire_key key;
static int listener, port;
static struct wire *opened[256]; // all, for the leak checker
static int opened_count;

static void listen_here(void) {
    struct err err = {0};
    CHECK_OK(wire_key_make(&key, &err), err);
    CHECK_OK(wire_listen("127.0.0.1", 0, &listener, &port, &err), err);
    CHECK(port > 0);
}

static struct wire *accept_one(void) {
    struct err err = {0};
    struct pollfd watch = {listener, POLLIN, 0};
    CHECK(poll(&watch, 1, 20000) == 1);
    struct wire *w = wire_accept(listener, &key, &err);
    if (!w) test_fail(__FILE__, __LINE__, "%s", err.text);
    return opened[opened_count++ % 256] = w;
}

// Moves until there is a message or the connection is over.
static int take(struct wire *w, json_t **message, struct err *err) {
    for (double until = clock_seconds() + 20; clock_seconds() < until;) {
        int moved = wire_work(w, err), taken = wire_take(w, message, moved == 0 ? err : NULL);
        if (taken != 0 || moved != 0) return taken != 0 ? taken : -1;
        struct pollfd watch = {wire_descriptor(w), wire_events(w), 0};
        poll(&watch, 1, 1000);
    }
    test_fail(__FILE__, __LINE__, "nothing came");
}

static void expect(struct wire *w, const char *text) {
    struct err err = {0};
    json_t *message;
    if (take(w, &message, &err) != 1) test_fail(__FILE__, __LINE__, "%s", err.text);
    char *found = json_dumps(message, JSON_COMPACT);
    CHECK_STR(found, text);
    free(found);
    json_decref(message);
}

static void expect_refusal(struct wire *w, enum err_kind kind, const char *why) {
    struct err err = {0};
    json_t *message;
    CHECK_EQ_INT(take(w, &message, &err), -1);
    CHECK_EQ_INT(err.kind, kind);
    CHECK_CONTAINS(err.text, why);
    wire_close(w);
}

static void put(struct wire *w, const char *text) {
    struct err err = {0};
    json_t *message = json_loads(text, 0, NULL);
    CHECK(message);
    CHECK_OK(wire_put(w, message, &err), err);
    json_decref(message);
    while (wire_pending(w)) {
        CHECK_OK(wire_work(w, &err), err);
        struct pollfd watch = {wire_descriptor(w), wire_events(w), 0};
        if (wire_pending(w)) poll(&watch, 1, 100);
    }
}

// ---- both ends ----------------------------------------------------------------------------------

struct pair {
    struct wire *near, *far; // the connecting end, the accepting one
};

static void *connect_one(void *argument) {
    struct err err = {0};
    struct pair *p = argument;
    p->near = wire_connect("127.0.0.1", port, &key, 20, &err);
    if (!p->near) printf("%s\n", err.text);
    opened[opened_count++ % 256] = p->near;
    return NULL;
}

static struct pair open_pair(void) {
    struct pair p = {0};
    pthread_t thread;
    struct err err = {0};
    pthread_create(&thread, NULL, connect_one, &p);
    p.far = accept_one();
    CHECK_OK(wire_work(p.far, &err), err);
    pthread_join(thread, NULL);
    CHECK(p.near);
    return p;
}

TEST(wire_messages_both_ways) {
    listen_here();
    struct pair p = open_pair();
    CHECK_CONTAINS(wire_peer(p.near), "127.0.0.1:");
    for (int i = 0; i < 100; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"step\":%d}", i);
        put(p.near, text);
        expect(p.far, text);
        put(p.far, "{\"order\":\"go on \\u00fc\"}");
        expect(p.near, "{\"order\":\"go on ü\"}");
    }
    wire_close(p.near);
    expect_refusal(p.far, ERR_RETRY, "closed the connection");
}

// What the accepting end wants to say before the other end's greeting is here waits for it.
TEST(wire_early_messages_wait_for_the_greeting) {
    listen_here();
    struct pair p = {0};
    pthread_t thread;
    struct err err = {0};
    pthread_create(&thread, NULL, connect_one, &p);
    p.far = accept_one();
    json_t *message = json_pack("{s:i}", "early", 1);
    CHECK_OK(wire_put(p.far, message, &err), err);
    CHECK_OK(wire_put(p.far, message, &err), err);
    json_decref(message);
    CHECK_OK(wire_work(p.far, &err), err);
    pthread_join(thread, NULL);
    put(p.near, "{}");
    expect(p.far, "{}");
    CHECK_OK(wire_work(p.far, &err), err);
    expect(p.near, "{\"early\":1}");
    expect(p.near, "{\"early\":1}");
}

TEST(wire_long_messages) {
    enum { LONG = WIRE_MOST_BYTES - 10 };
    listen_here();
    struct pair p = open_pair();
    struct err err = {0};
    char *text = malloc(LONG + 100);
    memset(text, 'x', LONG + 100);
    put(p.near, "{\"hello\":1}");
    expect(p.far, "{\"hello\":1}");
    json_t *fits = json_pack("{s:s%}", "text", text, (size_t)(LONG - 1)); // 11 bytes beside it
    json_t *too_long = json_pack("{s:s%}", "text", text, (size_t)LONG);
    CHECK_OK(wire_put(p.near, fits, &err), err);
    while (wire_pending(p.near)) {
        json_t *unused;
        CHECK_OK(wire_work(p.near, &err), err);
        CHECK_OK(wire_work(p.far, &err), err);
        if (wire_take(p.far, &unused, &err) == 0) continue;
        CHECK(json_equal(unused, fits));
        json_decref(unused);
        json_decref(fits);
        fits = NULL;
    }
    if (fits) {
        json_t *found;
        CHECK_EQ_INT(take(p.far, &found, &err), 1);
        CHECK(json_equal(found, fits));
        json_decref(found);
        json_decref(fits);
    }
    CHECK(wire_put(p.near, too_long, &err) != 0);
    CHECK_CONTAINS(err.text, "expected 1 to 4194304");
    json_decref(too_long);
    free(text);
}

TEST(wire_calls) {
    listen_here();
    struct pair p = open_pair();
    struct err err = {0};
    json_t *question = json_pack("{s:s}", "order", "status");
    put(p.far, "{\"status\":\"well\"}");
    json_t *answer = wire_call(p.near, question, 20, &err);
    CHECK(answer);
    CHECK_STR(json_string_value(json_object_get(answer, "status")), "well");
    json_decref(answer);
    expect(p.far, "{\"order\":\"status\"}");
    CHECK(!wire_call(p.near, question, 0.05, &err));
    CHECK_EQ_INT(err.kind, ERR_RETRY);
    CHECK_CONTAINS(err.text, "did not answer within");
    // the answer of an end that leaves right behind it is still taken
    put(p.far, "{\"status\":\"bye\"}");
    wire_close(p.far);
    answer = wire_call(p.near, question, 20, &err);
    CHECK(answer);
    CHECK_STR(json_string_value(json_object_get(answer, "status")), "bye");
    json_decref(answer);
    json_decref(question);
}

// An end that does not read must not fill this one's memory.
TEST(wire_does_not_pile_up) {
    listen_here();
    struct pair p = open_pair();
    struct err err = {0};
    char *text = calloc(1, 1 << 20);
    memset(text, 'x', (1 << 20) - 1);
    json_t *message = json_pack("{s:s}", "text", text);
    int puts = 0;
    while (puts < 1000 && wire_put(p.near, message, &err) == 0 && wire_work(p.near, &err) == 0)
        puts++;
    CHECK(puts >= 16 && puts < 100);
    CHECK_CONTAINS(err.text, "does not read");
    json_decref(message);
    free(text);
}

// ---- an end played by hand ----------------------------------------------------------------------

static int connect_plain(void) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static void write_plain(int fd, const void *bytes, size_t count) {
    CHECK(send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
}

struct hand {
    int fd;
    unsigned char nonces[32]; // own, the other one's
    uint64_t number;
    struct wire *far;
};

static struct hand open_hand(void) {
    struct hand h = {.fd = connect_plain()};
    struct err err = {0};
    unsigned char greeting[GREETING] = "wft1";
    h.far = accept_one();
    for (int i = 0; i < 16; i++) greeting[4 + i] = (unsigned char)(7 * i);
    write_plain(h.fd, greeting, sizeof greeting);
    memcpy(h.nonces, greeting + 4, 16);
    CHECK_OK(wire_work(h.far, &err), err);
    CHECK(recv(h.fd, greeting, sizeof greeting, MSG_WAITALL) == sizeof greeting);
    CHECK_BYTES(greeting, "wft1", 4);
    memcpy(h.nonces + 16, greeting + 4, 16);
    return h;
}

// A frame as this room's header says, with another implementation of the sum: crypto_auth over the
// joined bytes.
static size_t frame(const struct hand *h, const struct wire_key *k, char direction, uint64_t number,
                    const void *text, size_t bytes, unsigned char *out) {
    unsigned char *all = malloc(41 + bytes);
    memcpy(all, h->nonces, 32);
    all[32] = (unsigned char)direction;
    for (int i = 0; i < 8; i++) all[33 + i] = (unsigned char)(number >> 8 * i);
    memcpy(all + 41, text, bytes);
    for (int i = 0; i < 4; i++) out[i] = (unsigned char)(bytes >> 8 * i);
    memcpy(out + 4, text, bytes);
    crypto_auth(out + 4 + bytes, all, 41 + bytes, k->bytes);
    free(all);
    return 4 + bytes + TAG;
}

static size_t next_frame(struct hand *h, const char *text, unsigned char *out) {
    return frame(h, &key, 'c', h->number++, text, strlen(text), out);
}

TEST(wire_format_is_as_documented) {
    unsigned char bytes[200];
    listen_here();
    struct hand h = open_hand();
    write_plain(h.fd, bytes, next_frame(&h, "{\"a\":1}", bytes));
    expect(h.far, "{\"a\":1}");
    write_plain(h.fd, bytes, next_frame(&h, "{\"a\":2}", bytes));
    expect(h.far, "{\"a\":2}");
    put(h.far, "{\"b\":3}");
    unsigned char expected[4 + 7 + TAG], found[4 + 7 + TAG];
    frame(&h, &key, 's', 0, "{\"b\":3}", 7, expected);
    CHECK(recv(h.fd, found, sizeof found, MSG_WAITALL) == sizeof found);
    CHECK_BYTES(found, expected, sizeof found);
}

TEST(wire_byte_by_byte) {
    unsigned char bytes[200];
    listen_here();
    struct hand h = open_hand();
    struct err err = {0};
    for (int i = 0; i < 3; i++) {
        json_t *message;
        size_t count = next_frame(&h, "{\"slow\":true}", bytes);
        for (size_t at = 0; at < count - 1; at++) {
            write_plain(h.fd, bytes + at, 1);
            CHECK_OK(wire_work(h.far, &err), err);
            CHECK_EQ_INT(wire_take(h.far, &message, &err), 0);
        }
        write_plain(h.fd, bytes + count - 1, 1);
        expect(h.far, "{\"slow\":true}");
    }
}

TEST(wire_forged_and_damaged_frames) {
    unsigned char bytes[200];
    static const char text[] = "{\"order\":\"leave\"}";
    enum { LENGTH = sizeof text - 1 };
    listen_here();
    // another key
    struct hand h = open_hand();
    struct wire_key other = key;
    other.bytes[31] ^= 1;
    write_plain(h.fd, bytes, frame(&h, &other, 'c', 0, text, LENGTH, bytes));
    expect_refusal(h.far, ERR_DATA, "forged or damaged");
    // every single byte of text and tag
    for (size_t at = 4; at < 4 + LENGTH + TAG; at++) {
        h = open_hand();
        size_t count = next_frame(&h, text, bytes);
        bytes[at] ^= (unsigned char)(1 << at % 8);
        write_plain(h.fd, bytes, count);
        expect_refusal(h.far, ERR_DATA, "forged or damaged");
        close(h.fd);
    }
    // no text at all
    h = open_hand();
    memset(bytes, 0, sizeof bytes);
    write_plain(h.fd, bytes, 4 + TAG);
    expect_refusal(h.far, ERR_DATA, "forged or damaged");
}

TEST(wire_replayed_frames) {
    unsigned char first[200], second[200];
    static const char text[] = "{\"order\":\"leave\"}";
    listen_here();
    // the same once more
    struct hand h = open_hand();
    size_t count = next_frame(&h, text, first);
    write_plain(h.fd, first, count);
    write_plain(h.fd, first, count);
    expect(h.far, text);
    expect_refusal(h.far, ERR_DATA, "forged or damaged");
    // in another order
    h = open_hand();
    next_frame(&h, text, first);
    next_frame(&h, text, second);
    write_plain(h.fd, second, count);
    expect_refusal(h.far, ERR_DATA, "forged or damaged");
    // of another connection, of which this end has chosen the same nonce: the attacker's may be
    // anything, that of the accepting end is new
    h = open_hand();
    write_plain(h.fd, first, count);
    expect_refusal(h.far, ERR_DATA, "forged or damaged");
    // its own words turned back at it
    h = open_hand();
    put(h.far, text);
    CHECK(recv(h.fd, first, count, MSG_WAITALL) == (ssize_t)count);
    write_plain(h.fd, first, count);
    expect_refusal(h.far, ERR_DATA, "forged or damaged");
}

// A recorded supervisor, played to a rank that connects: greeting and frame are as they were.
static unsigned char record[GREETING + 200];
static size_t record_bytes;

static void *play_record(void *unused) {
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    write_plain(fd, record, record_bytes);
    return unused;
}

TEST(wire_recorded_supervisor) {
    static const char text[] = "{\"order\":\"leave\"}";
    listen_here();
    struct hand h = open_hand();
    put(h.far, text);
    memcpy(record, "wft1", 4);
    memcpy(record + 4, h.nonces + 16, 16);
    record_bytes = GREETING + 4 + sizeof text - 1 + TAG;
    CHECK(recv(h.fd, record + GREETING, record_bytes - GREETING, MSG_WAITALL) ==
          (ssize_t)(record_bytes - GREETING));
    struct pair p = {0};
    pthread_t player;
    // a listener waits for nobody
    CHECK(accept(listener, NULL, NULL) < 0);
    struct wire *none = wire_accept(listener, &key, NULL);
    CHECK(!none);
    pthread_create(&player, NULL, connect_one, &p);
    struct pollfd watch = {listener, POLLIN, 0};
    CHECK(poll(&watch, 1, 20000) == 1);
    play_record(NULL);
    pthread_join(player, NULL);
    CHECK(p.near);
    expect_refusal(p.near, ERR_DATA, "forged or damaged");
}

TEST(wire_what_is_no_message) {
    unsigned char bytes[1000];
    static const char *const texts[][2] = {
        {"{\"a\":", "not valid JSON"},   {"[1]", "no JSON object"}, {"17", "no JSON object"},
        {"\xff\xfe", "not valid JSON"},  {"", "not valid JSON"},    {"{\"a\":1,\"a\":2}", "JSON"},
        {"{\"a\":1}}", "not valid JSON"}};
    listen_here();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct hand h = open_hand();
        write_plain(h.fd, bytes, next_frame(&h, texts[i][0], bytes));
        expect_refusal(h.far, ERR_DATA, texts[i][1]);
        close(h.fd);
    }
    struct hand h = open_hand();
    char deep[600];
    memset(deep, '[', sizeof deep);
    deep[sizeof deep - 1] = 0;
    write_plain(h.fd, bytes, next_frame(&h, deep, bytes));
    expect_refusal(h.far, ERR_DATA, "nested deeper");
}

TEST(wire_too_long) {
    listen_here();
    // a stranger's first frame is short
    struct hand h = open_hand();
    write_plain(h.fd, "\x01\x00\x01\x00", 4);
    expect_refusal(h.far, ERR_DATA, "longer than 65536 bytes");
    // and no frame is longer than the limit
    unsigned char bytes[200];
    h = open_hand();
    write_plain(h.fd, bytes, next_frame(&h, "{}", bytes));
    write_plain(h.fd, "\x01\x00\x40\x00", 4);
    expect(h.far, "{}");
    expect_refusal(h.far, ERR_DATA, "longer than 4194304 bytes");
    h = open_hand();
    write_plain(h.fd, "\xff\xff\xff\xff", 4);
    expect_refusal(h.far, ERR_DATA, "longer than");
}

// Streams of good frames in which something was changed, cut out or put in, in pieces of any
// length: what is taken is what was sent, in order, up to the first change.
static uint64_t draw(uint64_t *state, uint64_t most) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % most;
}

static size_t damage(uint64_t *state, unsigned char *bytes, size_t count) {
    size_t at = (size_t)draw(state, count), some = 1 + (size_t)draw(state, 40);
    switch (draw(state, 4)) {
    case 0:
        bytes[at] ^= (unsigned char)(1 << draw(state, 8));
        return count;
    case 1: // put in
        memmove(bytes + at + some, bytes + at, count - at);
        for (size_t i = 0; i < some; i++) bytes[at + i] = (unsigned char)draw(state, 256);
        return count + some;
    case 2: // cut out
        if (some > count - at) some = count - at;
        memmove(bytes + at, bytes + at + some, count - at - some);
        return count - some;
    default: // all from there on
        for (size_t i = at; i < count; i++) bytes[i] = (unsigned char)draw(state, 256);
        return count;
    }
}

TEST(wire_damaged_streams) {
    enum { FRAMES = 5, STREAMS = 400 };
    unsigned char bytes[2000], good[2000];
    uint64_t state = 5;
    listen_here();
    for (int round = 0; round < STREAMS; round++) {
        struct hand h = open_hand();
        struct err err = {0};
        size_t ends[FRAMES], count = 0, first = 0, at = 0;
        for (int i = 0; i < FRAMES; i++) {
            char text[300];
            snprintf(text, sizeof text, "{\"n\":%d,\"x\":\"%0*d\"}", i, 1 + (int)draw(&state, 200),
                     7);
            count += next_frame(&h, text, bytes + count);
            ends[i] = count;
        }
        memcpy(good, bytes, sizeof good);
        count = damage(&state, bytes, count);
        while (first < count && bytes[first] == good[first]) first++;
        int taken = 0, status = 0;
        while (status >= 0 && at < count) {
            size_t piece = 1 + (size_t)draw(&state, 150);
            if (piece > count - at) piece = count - at;
            write_plain(h.fd, bytes + at, piece);
            at += piece;
            if (at == count) close(h.fd);
            status = wire_work(h.far, &err);
            json_t *message;
            int got;
            while ((got = wire_take(h.far, &message, &err)) == 1) {
                CHECK_EQ_INT(json_integer_value(json_object_get(message, "n")), taken);
                taken++;
                json_decref(message);
            }
            if (got < 0) status = -1;
        }
        for (int i = 0; i < taken; i++) CHECK(ends[i] <= first);
        if (at < count) close(h.fd);
        wire_close(h.far);
        opened_count--;
    }
}

TEST(wire_other_protocols) {
    static const char *const greetings[] = {"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-x\r\n", "wft2", "x"};
    listen_here();
    for (size_t i = 0; i < sizeof greetings / sizeof greetings[0]; i++) {
        int fd = connect_plain();
        struct wire *w = accept_one();
        write_plain(fd, greetings[i], strlen(greetings[i]));
        expect_refusal(w, ERR_DATA, "does not speak this protocol");
        close(fd);
    }
    int fd = connect_plain();
    struct wire *w = accept_one();
    close(fd);
    expect_refusal(w, ERR_RETRY, "closed the connection");
}

// Messages that came before the end are taken; a frame that was cut off is none.
TEST(wire_peer_that_is_gone) {
    unsigned char bytes[200];
    listen_here();
    struct hand h = open_hand();
    size_t count = next_frame(&h, "{\"last\":1}", bytes);
    write_plain(h.fd, bytes, count);
    count = next_frame(&h, "{\"last\":2}", bytes);
    write_plain(h.fd, bytes, count - 1);
    close(h.fd);
    expect(h.far, "{\"last\":1}");
    expect_refusal(h.far, ERR_RETRY, "closed the connection");
    // with a reset
    h = open_hand();
    struct linger linger = {1, 0};
    setsockopt(h.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(h.fd);
    expect_refusal(h.far, ERR_RETRY, "the connection");
}

// ---- opening ------------------------------------------------------------------------------------

TEST(wire_nobody_there) {
    struct err err = {0};
    listen_here();
    close(listener);
    CHECK(!wire_connect("127.0.0.1", port, &key, 5, &err));
    CHECK_EQ_INT(err.kind, ERR_RETRY);
    CHECK_CONTAINS(err.text, "127.0.0.1, port ");
    CHECK_CONTAINS(err.text, "refused");
    err = (struct err){0};
    CHECK(!wire_connect("no.such.host.invalid", 1, &key, 5, &err));
    CHECK_CONTAINS(err.text, "no.such.host.invalid");
    // one that takes the connection and says nothing
    listen_here();
    err = (struct err){0};
    CHECK(!wire_connect("127.0.0.1", port, &key, 0.1, &err));
    CHECK_CONTAINS(err.text, "did not answer within 0.1 s");
}

TEST(wire_port_in_use) {
    struct err err = {0};
    int second, bound;
    listen_here();
    CHECK(wire_listen("127.0.0.1", port, &second, &bound, &err) != 0);
    char expected[16];
    snprintf(expected, sizeof expected, "port %d", port);
    CHECK_CONTAINS(err.text, expected);
    CHECK_CONTAINS(err.text, "choose another port");
    err = (struct err){0};
    CHECK(wire_listen("192.0.2.7", 0, &second, &bound, &err) != 0); // of no interface
    CHECK_CONTAINS(err.text, "192.0.2.7");
}

TEST(wire_keys_as_text) {
    struct err err = {0};
    struct wire_key a, b = {{0}};
    char text[WIRE_KEY_TEXT + 1];
    CHECK_OK(wire_key_make(&a, &err), err);
    CHECK_OK(wire_key_make(&key, &err), err);
    CHECK(memcmp(&a, &key, sizeof a) != 0);
    wire_key_text(&a, text);
    CHECK_EQ_INT(strlen(text), 64);
    CHECK_EQ_INT(wire_key_parse(text, &b), 0);
    CHECK_BYTES(&b, &a, sizeof a);
    text[63] = 'x';
    CHECK(wire_key_parse(text, &b) != 0);
    text[63] = 0;
    CHECK(wire_key_parse(text, &b) != 0);
    CHECK(wire_key_parse("", &b) != 0);
    wire_key_text(&a, text);
    strcpy(text + 64, "0");
    CHECK(wire_key_parse(text, &b) != 0);
    CHECK_BYTES(&b, &a, sizeof a); // as it was
}
