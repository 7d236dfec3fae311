// Copies of snapshots on another host: whole ones arrive, all others do not.
#include "operate/buddy.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/manifest.h"
#include "checkpoint/snapshot.h"
#include "operate/buddy_parts.h"
#include "test.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 2 * BUDDY_PIECE_BYTES + 12345, MORE = 4096 };

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
    unsigned char *data = malloc(BYTES + MORE);
    for (size_t i = 0; i < BYTES + MORE; i++)
        data[i] = (unsigned char)(i * 7 + i / 251 + (size_t)seed);
    return data;
}

// An image as checkpoint/snapshot.h leaves it; `right`: with the hash of its content. Its file is
// longer than what counts.
static void put_part(int generation, int rank, int step, bool right) {
    char path[4400], hash[17];
    struct err err = {0};
    unsigned char *data = bytes_of(step);
    hash_text(hash_bytes(data, BYTES) ^ !right, hash);
    json_t *tree =
        json_pack("{s:i, s:i, s:i, s:i, s:i, s:{s:i}, s:[{s:i, s:i, s:s}], s:s}", "session", 7,
                  "number", step, "image", BYTES, "rank", rank, "ranks", 2, "state", "step", step,
                  "parts", "offset", 0, "bytes", BYTES, "xxh3", hash, "more", "\xc3\xa9 \" \\");
    char *text = manifest_seal(tree, true);
    CHECK(text != NULL);
    snprintf(path, sizeof path, "%s/gen-%d/rank-%05d.part", from, generation, rank);
    CHECK_OK(file_replace(path, data, BYTES + MORE, &err), err);
    snprintf(path, sizeof path, "%s/gen-%d/rank-%05d.json", from, generation, rank);
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    json_decref(tree);
    free(text);
    free(data);
}

static char *name_of(char out[4400], const char *folder, const char *who, int generation, int rank,
                     const char *what) {
    snprintf(out, 4400, "%s/gen-%d/%s-%05d.%s", folder, generation, who, rank, what);
    return out;
}

// Is it there, and the same? What counts of the data.
static bool same(int generation, int rank) {
    static const char *const kinds[] = {"part", "json"};
    for (int i = 0; i < 2; i++) {
        char path[4400], *x = NULL, *y = NULL;
        size_t m, n;
        bool equal = file_read(name_of(path, from, "rank", generation, rank, kinds[i]), 0, &x, &m,
                               NULL) == 0 &&
                     file_read(name_of(path, to, "buddy", generation, rank, kinds[i]), 0, &y, &n,
                               NULL) == 0 &&
                     n == (i == 0 ? BYTES : m) && memcmp(x, y, n) == 0;
        free(x);
        free(y);
        if (!equal) return false;
    }
    return true;
}

static bool there(int generation, int rank) {
    char path[4400];
    return file_exists(name_of(path, to, "buddy", generation, rank, "json"));
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
    CHECK(same(0, 0));
    CHECK(same(0, 1));
    CHECK(same(1, 0));
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    CHECK_EQ_INT(sent, 0); // once is enough
    put_part(0, 0, 30, true);
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    CHECK_EQ_INT(sent, 1);
    CHECK(same(0, 0));
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
    CHECK(!there(0, 0)); // the older one is gone, the new one does not count
    put_part(0, 0, 12, true);
    CHECK_OK(buddy_send_new(link, &known, -1, &sent, &err), err);
    CHECK_EQ_INT(sent, 1);
    CHECK(same(0, 0));
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
static int offer(int rank, int generation, const char *text, bool forge) {
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
                       json_pack("{s:s, s:i, s:i, s:s}", "type", "image", "generation", generation,
                                 "rank", rank, "text", text),
                       &err),
             err);
    json_t *answer = buddy_hear(w, 10, NULL);
    if (answer && forge) {
        unsigned char *piece = calloc(1, BUDDY_PIECE_BYTES), tag[BUDDY_TAG_BYTES];
        buddy_tag(&pieces, piece, BUDDY_PIECE_BYTES, tag);
        piece[3] ^= 1;
        CHECK_OK(buddy_write(w, piece, BUDDY_PIECE_BYTES, &err), err);
        CHECK_OK(buddy_write(w, tag, sizeof tag, &err), err);
        free(piece);
    }
    json_decref(answer);
    if (!forge) wire_close(w);
    int status = end_receiver();
    if (forge) wire_close(w);
    return status;
}

TEST(buddy_refuses_bad_offers) {
    char path[4400], *text;
    size_t size;
    struct err err = {0};
    make_folders();
    put_part(0, 1, 10, true);
    CHECK_OK(file_read(name_of(path, from, "rank", 0, 1, "json"), 0, &text, &size, &err), err);
    CHECK_EQ_INT(offer(1, 2, text, false), 3);
    CHECK_EQ_INT(offer(1, -1, text, false), 3);
    CHECK_EQ_INT(offer(0, 0, text, false), 3);
    CHECK_EQ_INT(offer(-1, 0, text, false), 3);
    CHECK_EQ_INT(offer(1, 0, "{}", false), 3);
    CHECK_EQ_INT(offer(1, 0, "", false), 3);
    CHECK(!file_exists(to)); // up to here nothing was written
    CHECK_EQ_INT(offer(1, 0, text, true), 3);
    CHECK(!there(0, 1));
    CHECK_EQ_INT(offer(1, 0, text, false), 0); // a good one, whose sender leaves
    CHECK(!there(0, 1));
    char *digit = strstr(text, "\"number\":10");
    CHECK(digit != NULL);
    digit[10] = '2'; // its own hash is not right any more
    CHECK_EQ_INT(offer(1, 0, text, false), 3);
    free(text);
}

// A link with both ends, and what is known.
struct ends {
    struct wire_key key;
    struct buddy_link *link;
    struct buddy_known known;
    int report; // what the sender says
    int sent;
};

static int hear_from; // the other end of `report`

static void open_ends(struct ends *e) {
    struct err err = {0};
    int pipes[2];
    *e = (struct ends){.key = make_key()};
    CHECK(pipe(pipes) == 0);
    e->report = pipes[1];
    hear_from = pipes[0];
    open_receiver(&e->key);
    struct buddy_target t = target(&e->key);
    e->link = buddy_connect(&t, &err);
    if (!e->link) test_fail(__FILE__, __LINE__, "%s", err.text);
}

static void send_new(struct ends *e, int expected) {
    struct err err = {0};
    CHECK_OK(buddy_send_new(e->link, &e->known, e->report, &e->sent, &err), err);
    CHECK_EQ_INT(e->sent, expected);
}

static void close_ends(struct ends *e) {
    buddy_disconnect(e->link);
    buddy_known_free(&e->known);
    close(e->report);
    close(hear_from);
    CHECK_EQ_INT(end_receiver(), 0);
}

// The last line that the sender has said.
static const char *said(void) {
    static char text[1 << 16];
    ssize_t n = read(hear_from, text, sizeof text - 1);
    CHECK(n > 1);
    text[n - 1] = 0;
    const char *line = strrchr(text, '\n');
    return line ? line + 1 : text;
}

// An image that cannot be kept: the others are all the same; it is said, and not tried all the
// time.
TEST(buddy_that_cannot_be_kept_holds_up_no_other) {
    struct ends e;
    char path[4400];
    struct err err = {0};
    make_folders();
    put_part(0, 0, 10, true);
    put_part(1, 0, 20, true);
    snprintf(path, sizeof path, "%s/gen-1/buddy-00000.part", to); // a folder in its place
    CHECK_OK(file_make_folders(path, &err), err);
    open_ends(&e);
    send_new(&e, 1);
    CHECK(same(0, 0));
    const struct buddy_image *bad = buddy_trouble(&e.known);
    CHECK(bad != NULL);
    CHECK_STR(bad->name, "gen-1/rank-00000");
    CHECK_CONTAINS(bad->why, "buddy-00000.part");
    CHECK_CONTAINS(said(), "\"error\":");
    CHECK(bad->pause >= 1);
    double pause = bad->pause;
    e.known.list[0].again = 0; // the moment has come
    send_new(&e, 0);
    bad = buddy_trouble(&e.known);
    CHECK(bad && bad->pause >= 2 * pause && bad->again > clock_seconds());
    CHECK(rmdir(path) == 0);
    put_part(1, 0, 30, true); // a new one is tried at once
    send_new(&e, 1);
    CHECK(same(1, 0));
    CHECK(buddy_trouble(&e.known) == NULL);
    CHECK(strstr(said(), "\"error\":") == NULL);
    close_ends(&e);
}

TEST(buddy_with_a_flipped_bit_is_not_sent_all_the_time) {
    struct ends e;
    make_folders();
    put_part(1, 0, 20, false);
    put_part(0, 0, 10, true);
    put_part(0, 1, 10, true);
    open_ends(&e);
    send_new(&e, 2);
    CHECK(same(0, 0) && same(0, 1) && !there(1, 0));
    CHECK(buddy_trouble(&e.known) != NULL);
    CHECK_CONTAINS(buddy_trouble(&e.known)->why, "damaged");
    send_new(&e, 0);
    CHECK(buddy_trouble(&e.known)->pause < 2); // it was not tried
    char path[4400];
    CHECK(unlink(name_of(path, from, "rank", 1, 0, "json")) == 0); // of a rank that is gone
    CHECK(unlink(name_of(path, from, "rank", 1, 0, "part")) == 0);
    send_new(&e, 0);
    CHECK(buddy_trouble(&e.known) == NULL);
    close_ends(&e);
}

// No room: nothing is taken of what there is, and the copy that is there stays.
TEST(buddy_without_room_keeps_what_it_has) {
    struct ends e;
    struct stat before, now;
    char path[4400];
    make_folders();
    put_part(0, 0, 10, true);
    open_ends(&e);
    send_new(&e, 1);
    close_ends(&e);
    CHECK(truncate(name_of(path, to, "buddy", 0, 0, "part"), BYTES / 2) == 0); // a larger one comes
    CHECK(stat(path, &before) == 0);
    put_part(0, 0, 20, true);
    snapshot_pretend_available(1 << 20); // of the receiver, which is forked
    open_ends(&e);
    send_new(&e, 0);
    CHECK_CONTAINS(buddy_trouble(&e.known)->why, "no room for ");
    CHECK_CONTAINS(said(), "\"rank\":0");
    CHECK(stat(path, &now) == 0 && now.st_size == before.st_size);
    CHECK(there(0, 0));
    close_ends(&e);
    snapshot_pretend_available(0);
}

// The run went back while copies of what it went back behind were on their way.
TEST(buddy_keeps_nothing_that_was_discarded) {
    struct ends e;
    struct err err = {0};
    make_folders();
    put_part(0, 0, 10, true);
    put_part(1, 0, 20, true);
    CHECK_OK(file_make_folders(to, &err), err);
    CHECK_OK(snapshot_discard_newer(to, 10, 7, 20, &err), err); // numbers are as the steps
    open_ends(&e);
    send_new(&e, 1);
    CHECK(same(0, 0) && !there(1, 0));
    put_part(1, 0, 30, true); // of a later save
    send_new(&e, 1);
    CHECK(same(1, 0));
    close_ends(&e);
}
