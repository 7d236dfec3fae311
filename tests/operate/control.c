// The supervisor's end of the control plane: who may speak, and what is heard.
#include "operate/control.h"
#include "base/clock.h"
#include "base/log.h"
#include "test.h"
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static struct wire_key key;
static struct control *control;
static char heard[4000];             // events in order, "came rank 3 node2; said rank 3 ...; "
static int connection_of[3], events; // by role, the latest
static struct wire *clients[64];
static int client_count;
static double offset, delay;

static void hear(void *context, const struct control_event *e) {
    static const char *const what[] = {"came", "said", "left"};
    static const char *const role[] = {"rank", "agent", "command"};
    size_t used = strlen(heard);
    const char *type = json_string_value(json_object_get(e->message, "type"));
    snprintf(heard + used, sizeof heard - used, "%s %s %d %s%s%s; ", what[e->what], role[e->role],
             e->rank, e->host ? e->host : "-", type ? " " : "", type ? type : "");
    connection_of[e->role] = e->connection;
    offset = e->clock_offset_seconds;
    delay = e->delay_seconds;
    events++;
    CHECK((e->message == NULL) == (e->what == CONTROL_LEFT));
    if (context) *(int *)context = 1;
}

static void open_control(void) {
    struct err err = {0};
    CHECK_OK(wire_key_make(&key, &err), err);
    CHECK_OK(control_open(&control, "127.0.0.1", 0, &key, &err), err);
    CHECK(control_port(control) > 0);
}

static void turn(void) {
    struct err err = {0};
    CHECK_OK(control_wait(control, NULL, 0, 0.01, hear, NULL, &err), err);
}

static void wait_for(const char *text) {
    for (int i = 0; i < 2000; i++) {
        if (strstr(heard, text)) return;
        turn();
    }
    test_fail(__FILE__, __LINE__, "\"%s\" was not heard: %s", text, heard);
}

static void wait_for_dropped(uint64_t count, const char *why) {
    const char *found = "";
    for (int i = 0; i < 2000 && control_dropped(control, &found) < count; i++) turn();
    CHECK_EQ_INT(control_dropped(control, &found), count);
    CHECK_CONTAINS(found, why);
}

struct connecting {
    struct wire *wire;
    const struct wire_key *key;
};
static void *connect_one(void *argument) {
    struct err err = {0};
    struct connecting *c = argument;
    c->wire = wire_connect("127.0.0.1", control_port(control), c->key, 20, &err);
    return NULL;
}

static struct wire *connect_with(const struct wire_key *k) {
    struct connecting c = {NULL, k};
    pthread_t thread;
    pthread_create(&thread, NULL, connect_one, &c);
    while (pthread_tryjoin_np(thread, NULL) != 0) turn();
    CHECK(c.wire);
    return clients[client_count++ % 64] = c.wire;
}

static void put(struct wire *w, const char *text) {
    struct err err = {0};
    json_t *message = json_loads(text, 0, NULL);
    CHECK(message);
    CHECK_OK(wire_put(w, message, &err), err);
    json_decref(message);
    while (wire_pending(w)) CHECK_OK(wire_work(w, &err), err);
}

static struct wire *come(const char *hello) {
    struct wire *w = connect_with(&key);
    put(w, hello);
    return w;
}

static const char *next(struct wire *w) {
    static char text[400];
    json_t *message;
    for (int i = 0; i < 2000; i++) {
        struct err err = {0};
        int moved = wire_work(w, &err), taken = wire_take(w, &message, &err);
        if (taken == 1) {
            char *found = json_dumps(message, JSON_COMPACT);
            snprintf(text, sizeof text, "%s", found);
            free(found);
            json_decref(message);
            return text;
        }
        if (moved != 0) return "gone";
        turn();
    }
    return "nothing";
}

#define RANK "{\"type\":\"hello\",\"role\":\"rank\",\"rank\":3,\"attempt\":0,\"host\":\"node2\"}"
#define AGENT "{\"type\":\"hello\",\"role\":\"agent\",\"host\":\"node2\"}"
#define COMMAND "{\"type\":\"hello\",\"role\":\"command\"}"

TEST(control_ranks_agents_and_commands) {
    open_control();
    struct wire *rank = come(RANK), *agent = come(AGENT), *command = come(COMMAND);
    wait_for("came rank 3 node2 hello; ");
    int to_rank = connection_of[CONTROL_RANK];
    wait_for("came agent -1 node2 hello; ");
    wait_for("came command -1 - hello; ");
    int to_command = connection_of[CONTROL_COMMAND];
    put(rank, "{\"type\":\"beat\"}");
    wait_for("said rank 3 node2 beat; ");
    put(agent, "{\"type\":\"facts\"}");
    wait_for("said agent -1 node2 facts; ");
    put(command, "{\"type\":\"status\"}");
    wait_for("said command -1 - status; ");
    json_t *message = json_pack("{s:s}", "order", "leave");
    control_send_ranks(control, message);
    CHECK_STR(next(rank), "{\"order\":\"leave\"}");
    CHECK_EQ_INT(control_send(control, to_command, message), 0);
    CHECK_STR(next(command), "{\"order\":\"leave\"}");
    control_end(control, to_command);
    CHECK_STR(next(command), "gone");
    CHECK(!strstr(heard, "left command"));
    CHECK(control_send(control, to_command, message) != 0);
    wire_close(rank);
    wait_for("left rank 3 node2; ");
    CHECK(control_send(control, to_rank, message) != 0);
    CHECK(control_send(control, -1, message) != 0 && control_send(control, 12345, message) != 0);
    wire_close(agent);
    wait_for("left agent -1 node2; ");
    CHECK_EQ_INT(control_dropped(control, NULL), 0);
    json_decref(message);
    control_close(control);
}

// What was said before the end is heard before the end.
TEST(control_last_words) {
    open_control();
    struct wire *rank = come(RANK);
    put(rank, "{\"type\":\"report\"}");
    wire_close(rank);
    wait_for("left rank 3 node2; ");
    CHECK_CONTAINS(heard, "came rank 3 node2 hello; said rank 3 node2 report; left rank");
}

TEST(control_drops_strangers) {
    static const char *const hellos[][2] = {
        {"{\"type\":\"beat\",\"step\":7}", "the first message is \"beat\", expected \"hello\""},
        {"{}", "type"},
        {"{\"type\":3}", "type"},
        {"{\"type\":\"hello\"}", "role"},
        {"{\"type\":\"hello\",\"role\":\"king\"}", "role \"king\""},
        {"{\"type\":\"hello\",\"role\":\"rank\",\"attempt\":0,\"host\":\"a\"}", "rank"},
        {"{\"type\":\"hello\",\"role\":\"rank\",\"rank\":-1,\"attempt\":0,\"host\":\"a\"}",
         "rank -1"},
        {"{\"type\":\"hello\",\"role\":\"rank\",\"rank\":99999999,\"attempt\":0,\"host\":\"a\"}",
         "rank 99999999"},
        {"{\"type\":\"hello\",\"role\":\"rank\",\"rank\":1.5,\"attempt\":0,\"host\":\"a\"}",
         "rank"},
        {"{\"type\":\"hello\",\"role\":\"rank\",\"rank\":1,\"attempt\":0}", "host"},
        {"{\"type\":\"hello\",\"role\":\"rank\",\"rank\":1,\"host\":\"a\"}", "attempt"},
        {"{\"type\":\"hello\",\"role\":\"rank\",\"rank\":1,\"attempt\":1,\"host\":\"a\"}",
         "rank 1 of attempt 1, now is attempt 0"},
        {"{\"type\":\"hello\",\"role\":\"agent\",\"host\":7}", "host"},
    };
    enum { COUNT = sizeof hellos / sizeof hellos[0] };
    open_control();
    struct wire *good = come(RANK);
    wait_for("came rank 3");
    for (int i = 0; i < COUNT; i++) {
        struct wire *w = come(hellos[i][0]);
        wait_for_dropped((uint64_t)i + 1, hellos[i][1]);
        CHECK_STR(next(w), "gone");
        wire_close(w);
    }
    // with another key
    struct wire_key other = key;
    other.bytes[0] ^= 1;
    struct wire *w = connect_with(&other);
    put(w, RANK);
    wait_for_dropped(COUNT + 1, "forged or damaged");
    // what speaks something else
    struct wire *plain = connect_with(&key);
    CHECK(send(wire_descriptor(plain), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
    wait_for_dropped(COUNT + 2, "longer than");
    // all this while the rank was well
    put(good, "{\"type\":\"beat\"}");
    wait_for("said rank 3 node2 beat; ");
    CHECK_EQ_INT(events, 2);
    // and a rank that becomes strange is dropped with an event
    put(good, "{\"type\":\"beat\"}");
    wait_for("said rank 3 node2 beat; said rank 3 node2 beat; ");
    control_drop(control, connection_of[CONTROL_RANK], "rank 3: step: expected a number");
    wait_for("left rank 3 node2; ");
    wait_for_dropped(COUNT + 3, "rank 3: step");
}

// A rank whose connection broke comes again, before this end has noticed.
TEST(control_a_rank_comes_again) {
    open_control();
    struct wire *first = come(RANK);
    wait_for("came rank 3 node2 hello; ");
    int before = connection_of[CONTROL_RANK];
    struct wire *second = come(RANK);
    wait_for("came rank 3 node2 hello; came rank 3 node2 hello; ");
    CHECK(connection_of[CONTROL_RANK] != before);
    CHECK_STR(next(first), "gone");
    wire_close(first);
    json_t *message = json_pack("{s:i}", "n", 1);
    CHECK(control_send(control, before, message) != 0);
    control_send_ranks(control, message);
    json_decref(message);
    CHECK_STR(next(second), "{\"n\":1}");
    struct wire *agent = come(AGENT), *again = come(AGENT);
    wait_for("came agent -1 node2 hello; came agent -1 node2 hello; ");
    CHECK_CONTAINS(next(agent), "echo");
    CHECK_STR(next(agent), "gone");
    CHECK_CONTAINS(next(again), "echo");
    CHECK(!strstr(heard, "left"));
}

TEST(control_attempts) {
    open_control();
    struct wire *old = come(RANK), *agent = come(AGENT);
    wait_for("came rank 3");
    wait_for("came agent");
    CHECK_CONTAINS(next(agent), "echo");
    control_attempt(control, 1);
    CHECK_STR(next(old), "gone");
    CHECK(!strstr(heard, "left"));
    struct wire *late = come(RANK);
    wait_for_dropped(1, "rank 3 of attempt 0, now is attempt 1");
    CHECK_STR(next(late), "gone");
    heard[0] = 0;
    come("{\"type\":\"hello\",\"role\":\"rank\",\"rank\":3,\"attempt\":1,\"host\":\"node2\"}");
    wait_for("came rank 3 node2 hello; ");
    put(agent, "{\"type\":\"facts\"}");
    wait_for("said agent -1 node2 facts; ");
}

TEST(control_clocks_of_hosts) {
    open_control();
    struct wire *agent = come(AGENT);
    wait_for("came agent");
    CHECK(isnan(offset) && isnan(delay));
    CHECK_STR(next(agent), "{\"type\":\"order\",\"order\":\"echo\",\"id\":-1}");
    char text[200];
    snprintf(text, sizeof text, "{\"type\":\"done\",\"id\":-1,\"time\":%.6f}",
             clock_wall_seconds() + 1000);
    put(agent, text);
    put(agent, "{\"type\":\"done\",\"id\":7,\"time\":1}");
    wait_for("said agent -1 node2 done; ");
    CHECK(delay >= 0 && delay < 60);
    CHECK_CLOSE(offset, 1000, 0.06);
    // an answer to no question counts nothing
    put(agent, "{\"type\":\"done\",\"id\":-1,\"time\":1}");
    put(agent, "{\"type\":\"facts\"}");
    wait_for("said agent -1 node2 facts; ");
    CHECK_CLOSE(offset, 1000, 0.06);
}

TEST(control_waits_for_others_too) {
    struct err err = {0};
    int ends[2];
    open_control();
    CHECK(pipe(ends) == 0);
    struct pollfd others[2] = {{ends[0], POLLIN, 0}, {-1, POLLIN, 0}};
    CHECK_OK(control_wait(control, others, 2, 0, hear, NULL, &err), err);
    CHECK_EQ_INT(others[0].revents, 0);
    CHECK(write(ends[1], "x", 1) == 1);
    CHECK_OK(control_wait(control, others, 2, 30, hear, NULL, &err), err);
    CHECK_EQ_INT(others[0].revents, POLLIN);
    CHECK(control_wait(control, others, 65, 0, hear, NULL, &err) != 0);
}

// The handler may end and send what it likes.
static void answer(void *context, const struct control_event *e) {
    json_t *message = json_pack("{s:i}", "n", 1);
    if (e->what == CONTROL_SAID) {
        control_send(context, e->connection, message);
        control_end(context, e->connection);
        control_drop(context, e->connection, "ended already");
    }
    json_decref(message);
}

TEST(control_handler_may_end_connections) {
    struct err err = {0};
    open_control();
    struct wire *w = come(COMMAND);
    wait_for("came command");
    put(w, "{\"type\":\"a\"}");
    put(w, "{\"type\":\"b\"}");
    for (int i = 0; i < 10; i++)
        CHECK_OK(control_wait(control, NULL, 0, 0.02, answer, control, &err), err);
    CHECK_STR(next(w), "{\"n\":1}");
    CHECK_STR(next(w), "gone");
    CHECK_EQ_INT(control_dropped(control, NULL), 0);
}

// ---- many ---------------------------------------------------------------------------------------

enum { MANY = 4000 };
static struct wire *many[MANY];
static atomic_bool over;

static void *supervise(void *unused) {
    struct err err = {0};
    while (!over) CHECK_OK(control_wait(control, NULL, 0, 0.1, hear, NULL, &err), err);
    return unused;
}

static void count(void *context, const struct control_event *e) {
    int *counts = context;
    counts[e->what]++;
    events++;
}

static int counts[3];
static void *supervise_many(void *unused) {
    struct err err = {0};
    while (!over) CHECK_OK(control_wait(control, NULL, 0, 0.1, count, counts, &err), err);
    return unused;
}

TEST(control_thousands_of_ranks) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_cur < 2 * MANY + 100)
        SKIP("only %llu descriptors", (unsigned long long)limit.rlim_cur);
    open_control();
    pthread_t thread;
    pthread_create(&thread, NULL, supervise_many, NULL);
    for (int i = 0; i < MANY; i++) {
        struct err err = {0};
        char text[200];
        many[i] = wire_connect("127.0.0.1", control_port(control), &key, 60, &err);
        if (!many[i]) test_fail(__FILE__, __LINE__, "%d: %s", i, err.text);
        snprintf(text, sizeof text,
                 "{\"type\":\"hello\",\"role\":\"rank\",\"rank\":%d,\"attempt\":0,\"host\":\"a\"}",
                 i);
        put(many[i], text);
    }
    for (int beat = 0; beat < 3; beat++)
        for (int i = 0; i < MANY; i++) put(many[i], "{\"type\":\"beat\",\"step\":1}");
    for (int i = 0; i < MANY; i++) wire_close(many[i]);
    double until = clock_seconds() + 60;
    while (clock_seconds() < until && *(volatile int *)&counts[CONTROL_LEFT] < MANY) usleep(10000);
    over = true;
    pthread_join(thread, NULL);
    CHECK_EQ_INT(counts[CONTROL_CAME], MANY);
    CHECK_EQ_INT(counts[CONTROL_SAID], 3 * MANY);
    CHECK_EQ_INT(counts[CONTROL_LEFT], MANY);
    CHECK_EQ_INT(control_dropped(control, NULL), 0);
    control_close(control);
}

// Without a free descriptor nobody else comes in, and the others are heard.
TEST(control_out_of_descriptors) {
    struct rlimit limit;
    open_control();
    struct wire *rank = come(RANK);
    wait_for("came rank 3");
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int next_free = dup(0);
    limit.rlim_cur = (rlim_t)next_free + 1; // the client's socket
    close(next_free);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    log_to(NULL, NULL, LOG_NONE);
    struct err err = {0};
    CHECK(!wire_connect("127.0.0.1", control_port(control), &key, 0.3, &err));
    for (int i = 0; i < 5; i++) turn();
    put(rank, "{\"type\":\"beat\"}");
    wait_for("said rank 3 node2 beat; ");
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    pthread_t thread;
    pthread_create(&thread, NULL, supervise, NULL);
    struct wire *agent = clients[client_count++] =
        wire_connect("127.0.0.1", control_port(control), &key, 20, &err);
    CHECK(agent);
    put(agent, AGENT);
    over = true;
    pthread_join(thread, NULL);
    wait_for("came agent");
}
