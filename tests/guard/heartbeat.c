// A rank's heartbeats, heard by a supervisor that the test plays.
#include "guard/heartbeat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "test.h"
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct wire_key key;
static int listener, port;
static struct wire *rank; // the supervisor's end
static struct heartbeat *heart;
static _Atomic int64_t step_word = -1;

static void listen_here(void) {
    struct err err = {0};
    CHECK_OK(wire_key_make(&key, &err), err);
    CHECK_OK(wire_listen("127.0.0.1", 0, &listener, &port, &err), err);
}

static struct heartbeat_options options(void) {
    return (struct heartbeat_options){.address = "127.0.0.1",
                                      .port = port,
                                      .key = key,
                                      .rank = 3,
                                      .attempt = 2,
                                      .host = "node2",
                                      .step = &step_word};
}

static void open_heart(void) {
    struct err err = {0};
    struct heartbeat_options o = options();
    CHECK_OK(heartbeat_open(&heart, &o, &err), err);
}

static void accept_rank(const struct wire_key *k) {
    struct err err = {0};
    struct pollfd watch = {listener, POLLIN, 0};
    CHECK(poll(&watch, 1, 20000) == 1);
    rank = wire_accept(listener, k, &err);
    if (!rank) test_fail(__FILE__, __LINE__, "%s", err.text);
}

// The next message of this type; those of other types are passed over. NULL: the connection ended.
static json_t *next(const char *type) {
    struct err err = {0};
    json_t *message;
    for (double until = clock_seconds() + 20; clock_seconds() < until;) {
        int moved = wire_work(rank, &err), taken;
        while ((taken = wire_take(rank, &message, NULL)) == 1) {
            if (strcmp(json_string_value(json_object_get(message, "type")), type) == 0)
                return message;
            json_decref(message);
        }
        if (moved != 0 || taken < 0) return NULL;
        struct pollfd watch = {wire_descriptor(rank), wire_events(rank), 0};
        poll(&watch, 1, 1000);
    }
    test_fail(__FILE__, __LINE__, "no %s came", type);
}

static const char *text_of(const json_t *message, const char *name) {
    const char *text = json_string_value(json_object_get(message, name));
    return text ? text : "(none)";
}

static double number_of(const json_t *message, const char *name) {
    const json_t *value = json_object_get(message, name);
    if (!json_is_number(value)) test_fail(__FILE__, __LINE__, "%s is no number", name);
    return json_number_value(value);
}

static json_t *next_beat_in(const char *phase) {
    for (;;) {
        json_t *beat = next("beat");
        CHECK(beat);
        if (strcmp(text_of(beat, "phase"), phase) == 0) return beat;
        json_decref(beat);
    }
}

static void say(const char *text) {
    struct err err = {0};
    json_t *message = json_loads(text, 0, NULL);
    CHECK(message);
    CHECK_OK(wire_put(rank, message, &err), err);
    json_decref(message);
    CHECK_OK(wire_work(rank, &err), err);
}

static void done(void) {
    heartbeat_close(heart);
    wire_close(rank);
}

TEST(heartbeat_hello_and_beats) {
    listen_here();
    open_heart();
    accept_rank(&key);
    json_t *hello = next("hello");
    CHECK_STR(text_of(hello, "role"), "rank");
    CHECK_STR(text_of(hello, "host"), "node2");
    CHECK_EQ_INT(number_of(hello, "rank"), 3);
    CHECK_EQ_INT(number_of(hello, "attempt"), 2);
    CHECK_EQ_INT(number_of(hello, "pid"), getpid());
    CHECK_CLOSE(number_of(hello, "time"), clock_wall_seconds(), 1e-6); // relative: 30 min
    json_decref(hello);
    json_t *beat = next_beat_in("start");
    CHECK_EQ_INT(number_of(beat, "step"), 0);
    CHECK(number_of(beat, "phase_seconds") >= 0);
    CHECK(number_of(beat, "resident_bytes") > 1e5);
    CHECK(number_of(beat, "cpu_seconds") >= 0);
    CHECK(!file_exists("/proc/self/io") || number_of(beat, "io_bytes") > 0);
    CHECK(!json_object_get(beat, "step_seconds") && !json_object_get(beat, "waits") &&
          !json_object_get(beat, "stage"));
    json_decref(beat);
    CHECK_EQ_INT(step_word, -1);
    heartbeat_phase(heart, BEAT_STEP, 17);
    CHECK_EQ_INT(step_word, 17);
    heartbeat_stage(heart, 1);
    json_decref(next_beat_in("step"));
    heartbeat_step(heart, 17, 0.5, 0.25);
    beat = next("beat");
    while (!json_object_get(beat, "step_seconds")) {
        json_decref(beat);
        beat = next("beat");
    }
    CHECK_EQ_INT(number_of(beat, "step"), 17);
    CHECK_EQ_INT(number_of(beat, "stage"), 1);
    CHECK_CLOSE(number_of(beat, "step_seconds"), 0.5, 0);
    CHECK_CLOSE(number_of(beat, "compute_seconds"), 0.25, 0);
    json_decref(beat);
    for (int phase = BEAT_EVALUATE; phase < BEAT_PHASES; phase++) {
        heartbeat_phase(heart, (enum beat_phase)phase, 17);
        json_decref(next_beat_in(beat_phase_name((enum beat_phase)phase)));
    }
    CHECK_EQ_INT(step_word, 17);
    done();
}

TEST(heartbeat_reports_in_order) {
    listen_here();
    open_heart();
    heartbeat_phase(heart, BEAT_STEP, 5);
    // before anybody listens, and behind it
    heartbeat_report(heart, "loss_spike", json_pack("{s:f,s:s}", "loss", 9.5, "text", "too high"));
    heartbeat_report(heart, "nothing_known", NULL);
    accept_rank(&key);
    json_t *report = next("report");
    CHECK_STR(text_of(report, "kind"), "loss_spike");
    CHECK_EQ_INT(number_of(report, "step"), 5);
    CHECK_CLOSE(number_of(json_object_get(report, "evidence"), "loss"), 9.5, 0);
    json_decref(report);
    report = next("report");
    CHECK_STR(text_of(report, "kind"), "nothing_known");
    json_decref(report);
    for (int i = 0; i < 20; i++) heartbeat_report(heart, "counted", json_integer(i));
    for (int i = 0; i < 20; i++) {
        report = next("report");
        CHECK_EQ_INT(number_of(report, "evidence"), i);
        json_decref(report);
    }
    // the last one is out before the thread ends
    heartbeat_report(heart, "last", json_integer(99));
    heartbeat_close(heart);
    report = next("report");
    CHECK_STR(text_of(report, "kind"), "last");
    json_decref(report);
    CHECK(!next("report"));
    wire_close(rank);
}

// Nobody listens for long: the oldest reports are given up.
TEST(heartbeat_keeps_the_latest_reports) {
    listen_here();
    open_heart();
    for (int i = 0; i < 1000; i++) heartbeat_report(heart, "counted", json_integer(i));
    accept_rank(&key);
    int first = -1, last = -1;
    while (last != 999) {
        json_t *report = next("report");
        last = (int)number_of(report, "evidence");
        if (first < 0) first = last;
        json_decref(report);
    }
    CHECK_EQ_INT(first, 1000 - 256);
    done();
}

static void wait_until_set(bool (*is_set)(void)) {
    for (int i = 0; i < 2000 && !is_set(); i++) usleep(10000);
    CHECK(is_set());
}
static bool wants_leave(void) {
    return heartbeat_wants_leave(heart) == BEAT_LEAVES;
}
static bool wants_restart(void) {
    return heartbeat_wants_leave(heart) == BEAT_LEAVES_FOR_A_RESTART;
}
static bool knows_mtbf(void) {
    return heartbeat_mtbf_seconds(heart) > 0;
}

TEST(heartbeat_orders) {
    listen_here();
    open_heart();
    accept_rank(&key);
    json_decref(next("hello"));
    CHECK(!heartbeat_wants_leave(heart) && !heartbeat_fault(heart));
    CHECK(heartbeat_mtbf_seconds(heart) == 0);
    // what makes no sense is passed over
    say("{\"type\":\"order\"}");
    say("{\"type\":\"order\",\"order\":7}");
    say("{\"type\":\"order\",\"order\":\"dance\"}");
    say("{\"type\":\"order\",\"order\":\"fault\",\"fault\":\"nan\"}");
    say("{\"order\":\"leave\"}");
    say("{\"type\":\"facts\",\"mtbf_seconds\":\"often\"}");
    say("{\"type\":\"order\",\"order\":\"fault\",\"fault\":{\"kind\":\"nan\",\"step\":1}}");
    say("{\"type\":\"order\",\"order\":\"fault\",\"fault\":{\"kind\":\"slow\",\"step\":2}}");
    say("{\"type\":\"facts\",\"mtbf_seconds\":-5}");
    say("{\"type\":\"facts\",\"mtbf_seconds\":3600.5}");
    wait_until_set(knows_mtbf);
    CHECK_CLOSE(heartbeat_mtbf_seconds(heart), 3600.5, 0);
    CHECK(!heartbeat_wants_leave(heart));
    json_t *fault = heartbeat_fault(heart);
    CHECK_STR(text_of(fault, "kind"), "nan");
    json_decref(fault);
    fault = heartbeat_fault(heart);
    CHECK_STR(text_of(fault, "kind"), "slow");
    json_decref(fault);
    CHECK(!heartbeat_fault(heart));
    say("{\"type\":\"order\",\"order\":\"leave\",\"again\":true}");
    wait_until_set(wants_restart);
    say("{\"type\":\"order\",\"order\":\"leave\"}");
    wait_until_set(wants_leave);
    say("{\"type\":\"order\",\"order\":\"leave\",\"again\":true}"); // said before: for good
    say("{\"type\":\"facts\",\"mtbf_seconds\":7}");
    while (heartbeat_mtbf_seconds(heart) > 7) usleep(1000);
    CHECK(wants_leave());
    done();
}

TEST(heartbeat_comes_again) {
    log_to(NULL, NULL, LOG_NONE);
    listen_here();
    open_heart();
    heartbeat_stage(heart, 1);
    for (int i = 0; i < 3; i++) {
        accept_rank(&key);
        json_t *hello = next("hello");
        CHECK_EQ_INT(number_of(hello, "rank"), 3);
        if (i > 0) CHECK_EQ_INT(number_of(hello, "stage"), 1);
        json_decref(hello);
        json_decref(next("beat"));
        wire_close(rank);
    }
    heartbeat_close(heart);
}

// Somebody else at the supervisor's place is not obeyed.
TEST(heartbeat_obeys_its_supervisor_alone) {
    log_to(NULL, NULL, LOG_NONE);
    listen_here();
    struct wire_key other = key;
    other.bytes[5] ^= 4;
    open_heart();
    accept_rank(&other);
    say("{\"type\":\"order\",\"order\":\"leave\"}");
    CHECK(!next("hello")); // nor is it understood
    wire_close(rank);
    accept_rank(&key);
    json_decref(next("hello"));
    CHECK(!heartbeat_wants_leave(heart));
    done();
}

TEST(heartbeat_without_a_supervisor) {
    listen_here();
    close(listener);
    log_to(NULL, NULL, LOG_NONE);
    open_heart();
    heartbeat_phase(heart, BEAT_STEP, 1);
    heartbeat_report(heart, "x", NULL);
    heartbeat_close(heart);
    CHECK_EQ_INT(step_word, 1);
    // none at all
    heartbeat_phase(NULL, BEAT_STEP, 1);
    heartbeat_step(NULL, 1, 1, 1);
    heartbeat_stage(NULL, 0);
    heartbeat_watch(NULL, NULL);
    heartbeat_report(NULL, "x", json_object());
    CHECK(!heartbeat_wants_leave(NULL) && !heartbeat_fault(NULL));
    CHECK(heartbeat_mtbf_seconds(NULL) == 0);
    heartbeat_close(NULL);
}

// ---- messages of the run ------------------------------------------------------------------------

static json_t *next_beat_with(const char *member) {
    for (;;) {
        json_t *beat = next("beat");
        CHECK(beat);
        if (json_object_get(beat, member)) return beat;
        json_decref(beat);
    }
}

TEST(heartbeat_tells_who_waits_for_whom) {
    struct comm *ends[3];
    struct comm_options none = {0};
    struct err err = {0};
    static const int all[] = {0, 1, 2}, two[] = {2, 0};
    float values[3] = {0}, scratch[16];
    struct comm_reduction sum = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    CHECK_OK(comm_open_threads(ends, 3, &none, &err), err);
    struct comm_stream *s[3], *twin[3];
    for (int r = 0; r < 3; r++) {
        s[r] = comm_stream_open(ends[r], "grad", all, 3, &err);
        twin[r] = r == 1 ? NULL : comm_stream_open(ends[r], "grad", two, 2, &err);
        CHECK(s[r] && (r == 1 || twin[r]));
    }
    listen_here();
    open_heart();
    heartbeat_watch(heart, ends[2]);
    accept_rank(&key);
    json_t *beat = next_beat_with("posted");
    CHECK_EQ_INT(number_of(json_object_get(beat, "posted"), "grad@0"), 0);
    CHECK(!json_object_get(beat, "waits") && !json_object_get(beat, "last") &&
          !json_object_get(beat, "retries") && !json_object_get(beat, "busy"));
    CHECK(json_is_false(json_object_get(beat, "waiting")));
    json_decref(beat);
    struct comm_event e[3];
    for (int r = 0; r < 3; r += 2)
        e[r] = comm_all_reduce(s[r], &values[r], scratch + 4 * r, 1, &sum);
    comm_busy(ends[2], "reads the shards");
    heartbeat_phase(heart, BEAT_STEP, 7);
    beat = next_beat_with("waits");
    const json_t *waits = json_object_get(beat, "waits"), *last = json_object_get(beat, "last");
    CHECK_STR(text_of(waits, "stream"), "grad");
    CHECK_STR(text_of(waits, "kind"), "all_reduce");
    CHECK_EQ_INT(number_of(waits, "number"), 1);
    CHECK(number_of(waits, "seconds") >= 0);
    CHECK_EQ_INT(json_array_size(json_object_get(waits, "ranks")), 3);
    CHECK_EQ_INT(json_integer_value(json_array_get(json_object_get(waits, "ranks"), 1)), 1);
    CHECK_STR(text_of(last, "kind"), "all_reduce");
    CHECK_STR(text_of(beat, "busy"), "reads the shards");
    CHECK_EQ_INT(number_of(json_object_get(beat, "posted"), "grad@0"), 1);
    json_decref(beat);
    comm_mark(ends[2], "step 7");
    say("{\"type\":\"order\",\"order\":\"journal\"}");
    json_t *journal = next("journal");
    CHECK_CONTAINS(text_of(journal, "text"), "rank 2 (");
    CHECK_CONTAINS(text_of(journal, "text"), "in step 7: stands outside of messages, busy: reads");
    CHECK_CONTAINS(text_of(journal, "text"), "all_reduce number 1 of stream grad at heartbeat.c:");
    CHECK_CONTAINS(text_of(journal, "text"), "NOT DONE");
    json_decref(journal);
    e[1] = comm_all_reduce(s[1], &values[1], scratch + 4, 1, &sum);
    for (int r = 0; r < 3; r++) comm_wait(e[r], NULL);
    do {
        beat = next("beat");
        CHECK(beat);
        waits = json_object_get(beat, "waits");
        json_decref(beat);
    } while (waits);
    heartbeat_watch(heart, NULL);
    say("{\"type\":\"order\",\"order\":\"journal\"}");
    journal = next("journal");
    CHECK_STR(text_of(journal, "text"), "");
    json_decref(journal);
    for (int r = 0; r < 3; r++) {
        comm_stream_close(s[r]);
        comm_stream_close(twin[r]);
    }
    for (int r = 0; r < 3; r++) comm_close(ends[r]);
    done();
}
