// Copies of snapshots on another host: whole ones arrive, all others do not.
#include "operate/buddy.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "operate/buddy_parts.h"
#include "test.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 2 * BUDDY_PIECE_BYTES + 12345 };

static char from[4200], to[4200];

static void make_folders(void) {
    struct err err = {0};
    snprintf(from, sizeof from, "%s/from", test_temp_dir());
    snprintf(to, sizeof to, "%s/to", test_temp_dir());
    for (int g = 0; g < 2; g++) {
        char path[4300];
        snprintf(path, sizeof path, "%s/gen-%d", from, g);
        CHECK_OK(file_make_folders(path, &err), err);
    }
}

static unsigned char *bytes_of(int seed) {
    unsigned char *data = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) data[i] = (unsigned char)(i * 7 + i / 251 + (size_t)seed);
    return data;
}

// A part as checkpoint/snapshot.h leaves it; `right`: with its hash.
static void put_part(int generation, int rank, int step, bool right) {
    char path[4400], text[256], hash[17];
    struct err err = {0};
    unsigned char *data = bytes_of(step);
    hash_text(hash_bytes(data, BYTES) ^ !right, hash);
    snprintf(path, sizeof path, "%s/gen-%d/rank-%05d.part", from, generation, rank);
    CHECK_OK(file_replace(path, data, BYTES, &err), err);
    snprintf(path, sizeof path, "%s/gen-%d/rank-%05d.json", from, generation, rank);
    snprintf(text, sizeof text, "{\"step\":%d,\"bytes\":%d,\"hash\":\"%s\",\"more\":\"\\u00e9\"}",
             step, BYTES, hash);
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    free(data);
}

static bool same(const char *name, int generation) {
    char a[4400], b[4400], *x = NULL, *y = NULL;
    size_t m, n;
    snprintf(a, sizeof a, "%s/gen-%d/%s", from, generation, name);
    snprintf(b, sizeof b, "%s/gen-%d/buddy-%s", to, generation, name);
    bool equal = file_read(a, 0, &x, &m, NULL) == 0 && file_read(b, 0, &y, &n, NULL) == 0 &&
                 m == n && memcmp(x, y, m) == 0;
    free(x);
    free(y);
    return equal;
}

static bool there(const char *name, int generation) {
    char path[4400];
    snprintf(path, sizeof path, "%s/gen-%d/buddy-%s", to, generation, name);
    return file_exists(path);
}

static pid_t receiver; // keeps what one connection sends
static int port;

static void open_receiver(const struct wire_key *key) {
    struct err err = {0};
    int listener;
    CHECK_OK(wire_listen("127.0.0.1", 0, &listener, &port, &err), err);
    receiver = fork();
    CHECK(receiver >= 0);
    if (receiver == 0) {
        struct pollfd watch = {listener, POLLIN, 0};
        poll(&watch, 1, -1);
        struct wire *w = wire_accept(listener, key, &err);
        json_t *hello = w ? buddy_hear(w, 10, &err) : NULL;
        int result = hello ? buddy_receive(w, hello, to, key, &err) : -1;
        fprintf(stderr, "%s\n", err.text);
        // 3: what came is not of this protocol or key; 0: the sender left
        _exit(result == 0 ? 1 : err.kind == ERR_DATA ? 3 : 0);
    }
    close(listener);
}

static int end_receiver(void) {
    int status;
    CHECK_EQ_INT(waitpid(receiver, &status, 0), receiver);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static struct buddy_target target(const struct wire_key *key) {
    return (struct buddy_target){
        .folder = from, .own = "a", .host = "b", .address = "127.0.0.1", .port = port, .key = *key};
}

static struct wire_key make_key(void) {
    struct wire_key key;
    struct err err = {0};
    CHECK_OK(wire_key_make(&key, &err), err);
    return key;
}

TEST(buddy_copies_what_is_complete) {
    struct wire_key key = make_key();
    struct err err = {0};
    struct buddy_known known = {0};
    int sent;
    make_folders();
    open_receiver(&key);
    struct buddy_target t = target(&key);
    struct buddy_link *link = buddy_connect(&t, &err);
    if (!link) test_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    CHECK_EQ_INT(sent, 0); // nothing there yet
    put_part(0, 0, 10, true);
    put_part(0, 1, 10, true);
    put_part(1, 0, 20, true);
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    CHECK_EQ_INT(sent, 3);
    CHECK(same("rank-00000.part", 0) && same("rank-00000.json", 0));
    CHECK(same("rank-00001.part", 0) && same("rank-00001.json", 0));
    CHECK(same("rank-00000.part", 1) && same("rank-00000.json", 1));
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    CHECK_EQ_INT(sent, 0); // once is enough
    put_part(0, 0, 30, true);
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    CHECK_EQ_INT(sent, 1);
    CHECK(same("rank-00000.part", 0) && same("rank-00000.json", 0));
    buddy_disconnect(link);
    buddy_known_free(&known);
    CHECK_EQ_INT(end_receiver(), 0);
}

TEST(buddy_drops_what_changed_meanwhile) {
    struct wire_key key = make_key();
    struct err err = {0};
    struct buddy_known known = {0};
    int sent;
    make_folders();
    open_receiver(&key);
    struct buddy_target t = target(&key);
    struct buddy_link *link = buddy_connect(&t, &err);
    CHECK(link != NULL);
    put_part(0, 0, 10, true);
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    put_part(0, 0, 12, false); // its bytes are not what its text says
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    CHECK_EQ_INT(sent, 0);
    CHECK(!there("rank-00000.json", 0)); // the older one is gone, the new one does not count
    put_part(0, 0, 12, true);
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    CHECK_EQ_INT(sent, 1);
    CHECK(same("rank-00000.json", 0));
    buddy_disconnect(link);
    buddy_known_free(&known);
    CHECK_EQ_INT(end_receiver(), 0);
}

TEST(buddy_wants_the_key) {
    struct wire_key key = make_key(), wrong = make_key();
    struct err err = {0};
    make_folders();
    open_receiver(&key);
    struct buddy_target t = target(&wrong);
    CHECK(buddy_connect(&t, &err) == NULL);
    CHECK_EQ_INT(end_receiver(), 3);
    CHECK(!file_exists(to));
}

// Whoever has the connection but not the key cannot put bytes on it; and nobody writes elsewhere.
static int offer(const char *name, int generation, json_int_t bytes, bool forge) {
    struct wire_key key = make_key();
    struct err err = {0};
    struct buddy_pieces pieces = {.key = &key};
    char session[BUDDY_SESSION_TEXT];
    open_receiver(&key);
    struct wire *w = wire_connect("127.0.0.1", port, &key, 10, &err);
    CHECK(w != NULL);
    buddy_session_make(pieces.sessions[0], session);
    CHECK_OK(buddy_say(
                 w,
                 json_pack("{s:s, s:s, s:s}", "type", "hello", "role", "buddy", "session", session),
                 &err),
             err);
    json_t *welcome = buddy_hear(w, 10, &err);
    CHECK(welcome && buddy_session_parse(welcome, pieces.sessions[1]) == 0);
    json_decref(welcome);
    CHECK_OK(buddy_say(w,
                       json_pack("{s:s, s:i, s:s, s:I, s:s, s:I, s:s}", "type", "part",
                                 "generation", generation, "name", name, "bytes", bytes, "hash",
                                 "0123456789abcdef", "step", (json_int_t)1, "text", "{}"),
                       &err),
             err);
    json_t *answer = buddy_hear(w, 10, NULL);
    if (answer && forge) {
        unsigned char piece[10] = {0}, tag[BUDDY_TAG_BYTES];
        buddy_tag(&pieces, piece, sizeof piece, tag);
        piece[3] ^= 1;
        CHECK_OK(buddy_write(w, piece, sizeof piece, &err), err);
        CHECK_OK(buddy_write(w, tag, sizeof tag, &err), err);
    }
    json_decref(answer);
    if (!forge) wire_close(w);
    int status = end_receiver();
    if (forge) wire_close(w);
    return status;
}

TEST(buddy_refuses_bad_offers) {
    static const char *const names[] = {"rank-",   "rank-1/../../../x", "../rank-1",
                                        "rank-1x", "buddy-rank-1",      ""};
    make_folders();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK_EQ_INT(offer(names[i], 0, 10, false), 3);
    CHECK_EQ_INT(offer("rank-00001", 2, 10, false), 3);
    CHECK_EQ_INT(offer("rank-00001", -1, 10, false), 3);
    CHECK_EQ_INT(offer("rank-00001", 0, 0, false), 3);
    CHECK_EQ_INT(offer("rank-00001", 0, -5, false), 3);
    CHECK_EQ_INT(offer("rank-00001", 0, 10, true), 3);
    CHECK(!there("rank-00001.json", 0));
    CHECK_EQ_INT(offer("rank-00001", 0, 10, false), 0); // a good one, whose sender leaves
    CHECK(!there("rank-00001.json", 0));
}

// No room there is said, and the connection goes on.
TEST(buddy_without_room_says_so) {
    struct wire_key key = make_key();
    struct err err = {0};
    struct buddy_known known = {0};
    char path[4400];
    int sent;
    make_folders();
    put_part(0, 0, 10, true);
    snprintf(path, sizeof path, "%s/gen-0/buddy-rank-00000.part", to); // a folder in its place
    CHECK_OK(file_make_folders(path, &err), err);
    open_receiver(&key);
    struct buddy_target t = target(&key);
    struct buddy_link *link = buddy_connect(&t, &err);
    CHECK(link != NULL);
    CHECK(buddy_send_new(link, &known, -1, &sent, &err) != 0);
    CHECK_CONTAINS(err.text, "does not keep rank-00000: ");
    CHECK_EQ_INT(sent, 0);
    buddy_disconnect(link);
    buddy_known_free(&known);
    CHECK_EQ_INT(end_receiver(), 0);
}
