// Each rule of detection with made-up messages and times, and long clean runs without an alarm.
#include "operate/watch.h"
#include "base/json.h"
#include "test.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct watch w;
static struct incident found[16];

static void begin(int ranks, int ranks_per_host) {
    struct err err = {0};
    int hosts = (ranks + ranks_per_host - 1) / ranks_per_host;
    CHECK_OK(watch_open(&w, ranks, hosts, &err), err);
    for (int i = 0; i < hosts; i++) {
        snprintf(w.hosts[i].name, sizeof w.hosts[i].name, "node%d", i + 1);
        w.hosts[i].in_use = true;
    }
    for (int i = 0; i < ranks; i++) w.ranks[i].host = i / ranks_per_host;
}

static int say(int rank, double now, struct err *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int say(int rank, double now, struct err *err, const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *p = text; *p; p++)
        if (*p == '\'') *p = '"';
    json_t *message = json_parse(text, strlen(text), "test", err);
    if (!message) test_fail(__FILE__, __LINE__, "%s: %s", text, err->text);
    int result = watch_beat(&w, rank, message, now, err);
    json_decref(message);
    return result;
}

#define BEAT(rank, now, ...)                                                                       \
    do {                                                                                           \
        struct err err_ = {0};                                                                     \
        CHECK_OK(say(rank, now, &err_, __VA_ARGS__), err_);                                        \
    } while (0)

static void facts(int host, double now, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void facts(int host, double now, const char *format, ...) {
    char text[1024];
    struct err err = {0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *p = text; *p; p++)
        if (*p == '\'') *p = '"';
    json_t *message = json_parse(text, strlen(text), "test", &err);
    if (!message) test_fail(__FILE__, __LINE__, "%s: %s", text, err.text);
    CHECK_OK(watch_facts(&w, host, message, now, &err), err);
    json_decref(message);
}

static int look(double now) {
    return watch_look(&w, now, found, 16);
}

static void all_facts(double now) {
    for (int i = 0; i < w.host_count; i++) facts(i, now, "{'type':'facts','time':1}");
}

// Steps of 0.2 s on all ranks until `until`, a beat and a look a second.
static double run_steps(double now, double until) {
    for (; now < until; now += 1) {
        all_facts(now);
        for (int i = 0; i < w.rank_count; i++)
            BEAT(i, now,
                 "{'type':'beat','step':%d,'phase':'step','phase_seconds':0.1,'step_seconds':0.2,"
                 "'compute_seconds':0.15,'waiting':false,'posted':{'reduce':%d,'tp':%d}}",
                 (int)(5 * now), (int)(5 * now), (int)(50 * now));
        CHECK_EQ_INT(look(now), 0);
    }
    return now;
}

// ---- hosts

TEST(watch_host_silent_is_lost) {
    begin(4, 2);
    double t = run_steps(1, 20), last = t - 1;
    for (; t < last + 5; t += 0.5) {
        facts(0, t, "{'type':'facts'}");
        for (int i = 0; i < 2; i++)
            BEAT(
                i, t,
                "{'type':'beat','step':95,'phase':'step','waiting':true,'waits':{'stream':'reduce',"
                "'kind':'all_reduce','number':96,'seconds':%g,'ranks':[0,1,2,3]},"
                "'posted':{'reduce':96,'tp':960}}",
                t - last);
        CHECK_EQ_INT(look(t), 0);
    }
    facts(0, last + 5.5, "{'type':'facts'}");
    CHECK_EQ_INT(look(last + 5.5), 1); // the waiting ranks are no hang beside it
    CHECK_EQ_INT(found[0].kind, INCIDENT_HOST_LOST);
    CHECK_STR(found[0].host, "node2");
    CHECK_EQ_INT(found[0].rank, -1);
    CHECK_CONTAINS(found[0].evidence, "5.5 s");
    facts(0, last + 6, "{'type':'facts'}");
    CHECK_EQ_INT(look(last + 6), 0); // said once
    facts(0, last + 8, "{'type':'facts'}");
    facts(1, last + 8, "{'type':'facts'}");
    for (int i = 0; i < 4; i++) BEAT(i, last + 8, "{'type':'beat','step':96,'phase':'step'}");
    CHECK_EQ_INT(look(last + 8), 0); // it is back
    for (t = last + 9; t < last + 13; t++) {
        facts(0, t, "{'type':'facts'}");
        for (int i = 0; i < 2; i++) BEAT(i, t, "{'type':'beat','step':96,'phase':'step'}");
        CHECK_EQ_INT(look(t), 0);
    }
    facts(0, last + 13.5, "{'type':'facts'}");
    CHECK_EQ_INT(look(last + 13.5), 1); // and lost again
    watch_close(&w);
}

// An agent that is gone while the ranks of its host go on is no lost host.
TEST(watch_host_of_heard_ranks_is_there) {
    begin(2, 1);
    double t = run_steps(1, 10);
    for (double until = t + 20; t < until; t++) {
        facts(0, t, "{'type':'facts'}");
        for (int i = 0; i < 2; i++)
            BEAT(i, t, "{'type':'beat','step':%d,'phase':'step'}", (int)(5 * t));
        CHECK_EQ_INT(look(t), 0);
    }
    watch_close(&w);
}

TEST(watch_spare_silent_is_said) {
    begin(1, 1);
    struct err err = {0};
    CHECK_OK(watch_set_hosts(&w, 2, &err), err);
    strcpy(w.hosts[1].name, "spare1");
    double t = run_steps(1, 5);
    for (double until = t + 5; t < until; t++) {
        facts(0, t, "{'type':'facts'}");
        BEAT(0, t, "{'type':'beat','step':%d,'phase':'step'}", (int)(5 * t));
        CHECK_EQ_INT(look(t), 0);
    }
    facts(0, t, "{'type':'facts'}");
    BEAT(0, t, "{'type':'beat','step':1000,'phase':'step'}");
    CHECK_EQ_INT(look(t), 1);
    CHECK_STR(found[0].host, "spare1");
    CHECK_CONTAINS(found[0].evidence, "a spare");
    watch_close(&w);
}

// The supervisor itself stood still: nobody is blamed for messages that it has not read.
TEST(watch_own_pause_blames_nobody) {
    begin(2, 1);
    double t = run_steps(1, 10) + 30;
    CHECK_EQ_INT(look(t), 0);
    CHECK_EQ_INT(look(t + 0.1), 0);
    run_steps(t + 1, t + 10);
    watch_close(&w);
}

// ---- hangs

// Rank `rank` stands still from `since` on, the others wait for it in an all-reduce.
static void others_wait(int rank, double now, double since, int step, bool beats) {
    all_facts(now);
    for (int i = 0; i < w.rank_count; i++) {
        if (i != rank)
            BEAT(i, now,
                 "{'type':'beat','step':%d,'phase':'step','phase_seconds':%g,'waiting':true,"
                 "'waits':{'stream':'reduce','kind':'all_reduce','number':41,'seconds':%g,"
                 "'ranks':[0,1,2,3]},'last':{'stream':'reduce','kind':'all_reduce','number':41},"
                 "'posted':{'reduce':41,'tp':978}}",
                 step, now - since, now - since);
        else if (beats)
            BEAT(i, now,
                 "{'type':'beat','step':%d,'phase':'step','phase_seconds':%g,'waiting':false,"
                 "'last':{'stream':'tp','kind':'all_gather','number':977},"
                 "'posted':{'reduce':40,'tp':977}}",
                 step, now - since);
    }
}

TEST(watch_hang_names_who_has_not_arrived) {
    begin(4, 2);
    double t = run_steps(1, 20), since = t - 0.8;
    for (; t < since + 5; t += 0.5) {
        others_wait(2, t, since, 100, true);
        CHECK_EQ_INT(look(t), 0);
    }
    others_wait(2, t, since, 100, true);
    CHECK_EQ_INT(look(t), 1); // at most 5.5 s after the others began to wait
    CHECK_EQ_INT(found[0].kind, INCIDENT_HANG);
    CHECK_EQ_INT(found[0].rank, 2);
    CHECK_STR(found[0].host, "node2");
    CHECK_EQ_INT(found[0].step, 100);
    CHECK_CONTAINS(found[0].evidence, "rank 2 (node2) has not arrived");
    CHECK_CONTAINS(found[0].evidence, "outside of all operations");
    CHECK_CONTAINS(found[0].evidence, "all_gather 977 of tp");
    CHECK_CONTAINS(found[0].evidence, "3 of 4 ranks wait: rank 0 in all_reduce 41 of reduce");
    CHECK_CONTAINS(found[0].evidence, "for 2 (at 40)");
    others_wait(2, t + 1, since, 100, true);
    CHECK_EQ_INT(look(t + 1), 0); // said once
    watch_close(&w);
}

// SIGSTOP: its beats end, its host's agent goes on.
// It may have posted the operation in which the others wait, or not.
TEST(watch_hang_names_the_silent_rank) {
    for (int posted = 40; posted <= 41; posted++) {
        begin(4, 4);
        double t = run_steps(1, 20), last = t;
        BEAT(1, last, "{'type':'beat','step':98,'phase':'step','posted':{'reduce':%d,'tp':977}}",
             posted);
        for (; t <= last + 5; t += 0.5) {
            others_wait(1, t, last, 100, false);
            CHECK_EQ_INT(look(t), 0);
        }
        others_wait(1, t, last, 100, false);
        CHECK_EQ_INT(look(t), 1);
        CHECK_EQ_INT(found[0].kind, INCIDENT_HANG);
        CHECK_EQ_INT(found[0].rank, 1);
        CHECK_EQ_INT(found[0].step, 100); // that of the others
        CHECK_CONTAINS(found[0].evidence, "is silent for");
        watch_close(&w);
    }
}

// Only the beats of a rank are lost; it and the others go on.
TEST(watch_silent_rank_of_a_going_run_is_no_hang) {
    begin(3, 3);
    double t = run_steps(1, 10);
    for (double until = t + 60; t < until; t++) {
        all_facts(t);
        for (int i = 0; i < 2; i++)
            BEAT(i, t, "{'type':'beat','step':%d,'phase':'step','step_seconds':0.2}", (int)(5 * t));
        CHECK_EQ_INT(look(t), 0);
    }
    watch_close(&w);
}

// Pipeline of four stages: stage 1 hangs; 2 waits for its message, 3 for that of 2, 0 for the
// gradient of 1. Its own receive, posted ahead, is in flight.
TEST(watch_hang_follows_a_pipeline) {
    begin(4, 1);
    double t = run_steps(1, 20), since = t;
    for (int round = 0;; round++, t += 0.5) {
        static const int from[] = {1, 2, 1, 2};
        all_facts(t);
        for (int i = 0; i < 4; i++)
            BEAT(i, t,
                 "{'type':'beat','step':100,'phase':'step','waiting':%s,'waits':{'stream':'',"
                 "'kind':'receive','number':7,'seconds':%g,'ranks':[%d]},'posted':{'reduce':40}}",
                 i == 1 ? "false" : "true", t - since, from[i]);
        if (look(t) > 0) break;
        CHECK(round < 20);
    }
    CHECK(t - since <= 6);
    CHECK_EQ_INT(found[0].kind, INCIDENT_HANG);
    CHECK_EQ_INT(found[0].rank, 1);
    CHECK_CONTAINS(found[0].evidence, "does not wait for others");
    watch_close(&w);
}

// Rank 1 has left out an all-reduce and waits in the next operation of another stream: all wait.
TEST(watch_hang_of_all_names_who_is_behind) {
    begin(3, 3);
    double t = run_steps(1, 20), since = t;
    for (int round = 0;; round++, t += 0.5) {
        all_facts(t);
        for (int i = 0; i < 3; i++)
            BEAT(i, t,
                 "{'type':'beat','step':7,'phase':'step','waiting':true,'waits':{'stream':'%s',"
                 "'kind':'%s','number':%d,'seconds':%g,'ranks':[0,1,2]},"
                 "'posted':{'grad':%d,'norm':%d}}",
                 i == 1 ? "norm" : "grad", i == 1 ? "all_gather" : "all_reduce", i == 1 ? 8 : 41,
                 t - since, i == 1 ? 40 : 41, i == 1 ? 8 : 7);
        if (look(t) > 0) break;
        CHECK(round < 20);
    }
    CHECK_EQ_INT(found[0].rank, 1);
    CHECK_CONTAINS(found[0].evidence, "rank 1 (node1) is behind: it waits in all_gather 8 of norm");
    CHECK_CONTAINS(found[0].evidence, "rank 0 in all_reduce 41 of grad");
    CHECK_CONTAINS(found[0].evidence, "for 1 (at 40)");
    watch_close(&w);
}

// All have posted: the messages themselves do not arrive.
TEST(watch_hang_of_a_link) {
    begin(3, 1);
    double t = run_steps(1, 20), since = t;
    for (int round = 0;; round++, t += 0.5) {
        all_facts(t);
        for (int i = 0; i < 3; i++)
            BEAT(i, t,
                 "{'type':'beat','step':7,'phase':'step','waiting':true,'waits':{'stream':'grad',"
                 "'kind':'all_reduce','number':41,'seconds':%g,'ranks':[0,1,2]},"
                 "'posted':{'grad':41}%s}",
                 t - since, i == 0 && round == 3 ? ",'retries':{'2':1}" : "");
        if (look(t) > 0) break;
        CHECK(round < 20);
    }
    CHECK_EQ_INT(found[0].rank, 2);
    CHECK_CONTAINS(found[0].evidence, "messages of all_reduce 41 of grad do not arrive");
    watch_close(&w);
}

// Streams of one name belong to different groups: what counts is that of the own group.
TEST(watch_hang_tells_groups_of_one_name_apart) {
    begin(4, 4);
    double t = run_steps(1, 20), since = t;
    for (int round = 0;; round++, t += 0.5) {
        all_facts(t);
        // ranks 0, 1 and 2, 3 are groups of "tp"; rank 2 has many of another group "tp@0"
        BEAT(2, t,
             "{'type':'beat','step':7,'phase':'step','waiting':false,"
             "'posted':{'tp@0':900,'tp@2':40}}");
        BEAT(3, t,
             "{'type':'beat','step':7,'phase':'step','waiting':true,'waits':{'stream':'tp','kind':"
             "'all_gather','number':41,'seconds':%g,'ranks':[2,3]},'posted':{'tp@2':41}}",
             t - since);
        for (int i = 0; i < 2; i++)
            BEAT(i, t,
                 "{'type':'beat','step':7,'phase':'step','waiting':true,'waits':{'stream':'reduce',"
                 "'kind':'all_gather','number':3,'seconds':%g,'ranks':[%d,%d]},"
                 "'posted':{'reduce':3}}",
                 t - since, i, i + 2);
        if (look(t) > 0) break;
        CHECK(round < 20);
    }
    CHECK_EQ_INT(found[0].rank, 2);
    CHECK_CONTAINS(found[0].evidence, "rank 3 in all_gather 41 of tp");
    watch_close(&w);
}

TEST(watch_hang_of_a_single_rank) {
    begin(1, 1);
    double t = run_steps(1, 20), last = t - 1;
    for (;; t += 0.5) {
        facts(0, t, "{'type':'facts'}");
        BEAT(0, t,
             "{'type':'beat','step':95,'phase':'step','waiting':false,"
             "'posted':{'reduce':95,'tp':950}}");
        if (look(t) > 0) break;
        CHECK(t < last + 7);
    }
    CHECK(t >= last + 5);
    CHECK_EQ_INT(found[0].kind, INCIDENT_HANG);
    CHECK_EQ_INT(found[0].rank, 0);
    watch_close(&w);
}

// A rank that has begun long work and says so, or is in a phase that takes its time, is waited for;
// the others are no hang either.
static void waited_for(const char *phase, const char *more, double seconds) {
    begin(4, 4);
    double t = run_steps(1, 20), since = t;
    for (; t < since + seconds; t++) {
        others_wait(0, t, since, 100, false);
        BEAT(0, t,
             "{'type':'beat','step':100,'phase':'%s','waiting':false%s,"
             "'posted':{'reduce':40,'tp':977}}",
             phase, more);
        CHECK_EQ_INT(look(t), 0);
    }
    watch_close(&w);
}

TEST(watch_long_work_is_no_hang) {
    waited_for("step", ",'busy':'builds the index of shards'", 600);
}

// A file server that is gone: rank 1 cannot end its part of a save. The others are done with theirs
// and ask it again and again how far it is, or wait in one message.
static int stuck_in_a_save(double seconds, bool asks, const char *more) {
    begin(4, 2);
    double t = run_steps(1, 20), since = t;
    int found_count = 0;
    for (; t < since + seconds && found_count == 0; t++) {
        int number = asks ? (int)(50 * t) : 41;
        all_facts(t);
        for (int i = 0; i < 4; i++) {
            double writes = 1e9 + (i == 1 ? 0 : 1e4 * (t - since)); // messages
            if (i != 1 && !asks)
                BEAT(i, t,
                     "{'type':'beat','step':100,'phase':'save','waiting':true,'io_bytes':%g,"
                     "'waits':{'stream':'run','kind':'all_reduce','number':41,'seconds':%g,"
                     "'ranks':[0,1,2,3]},'posted':{'run':41}}",
                     writes, t - since);
            else
                BEAT(i, t,
                     "{'type':'beat','step':100,'phase':'save','waiting':false,'io_bytes':%g,"
                     "'last':{'stream':'run','kind':'all_reduce','number':%d},'posted':{'run':%d}"
                     "%s}",
                     i == 1 && more[0] == '+' ? 1e9 + 2e6 * (t - since) : writes, number,
                     i == 1 && !asks ? 40 : number, i == 1 ? more + (more[0] == '+') : "");
        }
        found_count = look(t);
    }
    if (found_count > 0) CHECK(t > since + 600 && t < since + 605);
    return found_count;
}

TEST(watch_work_that_does_not_end_is_a_hang) {
    for (int asks = 0; asks < 2; asks++) {
        CHECK_EQ_INT(stuck_in_a_save(900, asks, ",'busy':'writes a checkpoint'"), 1);
        CHECK_EQ_INT(found[0].kind, INCIDENT_HANG);
        CHECK_EQ_INT(found[0].rank, 1);
        CHECK_STR(found[0].host, "node1");
        CHECK_CONTAINS(found[0].evidence, "does not get on: \"writes a checkpoint\" since 601 s");
        CHECK_CONTAINS(found[0].evidence, "in phase save of step 100");
        watch_close(&w);
    }
}

// However long it takes: a slow disk is none that is gone.
TEST(watch_work_that_gets_on_is_no_hang) {
    for (int asks = 0; asks < 2; asks++) {
        CHECK_EQ_INT(stuck_in_a_save(3000, asks, "+,'busy':'writes a checkpoint'"), 0);
        watch_close(&w);
    }
}

// All have announced the same, and wait within it for the one that stands still.
TEST(watch_of_all_who_load_the_one_that_stands_still_is_named) {
    begin(4, 2);
    double t = 1;
    int hangs = 0;
    for (; t < 900 && hangs == 0; t++) {
        all_facts(t);
        for (int i = 0; i < 4; i++)
            BEAT(i, t,
                 "{'type':'beat','step':0,'phase':'load','busy':'loads its weights','waiting':%s,"
                 "'waits':{'stream':'%s','kind':'all_reduce','number':7,'seconds':%g,"
                 "'ranks':[0,1,2,3]},'posted':{'run':%d}}",
                 i == 2 ? "false" : "true", i == 2 ? "" : "run", t - 1, i == 2 ? 6 : 7);
        hangs = look(t);
    }
    CHECK_EQ_INT(hangs, 1);
    CHECK(t > 600 && t < 606);
    CHECK_EQ_INT(found[0].rank, 2);
    watch_close(&w);
}

TEST(watch_first_save_is_no_hang) {
    waited_for("save", "", 500);
}

TEST(watch_first_evaluation_is_no_hang) {
    waited_for("evaluate", "", 500);
}

TEST(watch_save_without_end_is_a_hang) {
    begin(2, 2);
    double t = run_steps(1, 20);
    for (int i = 0; i < 3; i++) { // saves of 4 s
        for (double until = t + 4; t < until; t++) {
            all_facts(t);
            for (int r = 0; r < 2; r++) BEAT(r, t, "{'type':'beat','step':100,'phase':'save'}");
            CHECK_EQ_INT(look(t), 0);
        }
        t = run_steps(t, t + 5);
    }
    CHECK_CLOSE(watch_patience(&w, 0, t), 5, 1e-9);
    double since = t;
    for (;; t++) {
        all_facts(t);
        for (int r = 0; r < 2; r++) BEAT(r, t, "{'type':'beat','step':900,'phase':'save'}");
        if (look(t) > 0) break;
        CHECK(t < since + 20);
    }
    CHECK_EQ_INT(found[0].kind, INCIDENT_HANG);
    CHECK(t - since > 3 * 3.5);
    watch_close(&w);
}

// Nobody knows how long a first step takes: one that computes is given time, one that takes no
// processor time less.
TEST(watch_first_step) {
    for (int idle = 0; idle < 2; idle++) {
        begin(2, 2);
        double t = 1, since = 5;
        for (; t < since; t++)
            for (int i = 0; i < 2; i++) BEAT(i, t, "{'type':'beat','step':0,'phase':'load'}");
        int hangs = 0;
        for (t = since; t < since + 300 && hangs == 0; t++) {
            BEAT(0, t,
                 "{'type':'beat','step':1,'phase':'step','waiting':true,'cpu_seconds':1,'waits':{"
                 "'stream':'grad','kind':'all_reduce','number':1,'seconds':%g,'ranks':[0,1]},"
                 "'posted':{'grad':1}}",
                 t - since);
            BEAT(1, t,
                 "{'type':'beat','step':1,'phase':'step','waiting':false,'cpu_seconds':%g,"
                 "'posted':{'grad':0}}",
                 idle ? 3 : t - since);
            hangs = look(t);
        }
        CHECK_EQ_INT(hangs, idle);
        if (idle) {
            CHECK_EQ_INT(found[0].rank, 1);
            CHECK(t - since > 29 && t - since < 33);
        }
        watch_close(&w);
    }
}

// Patience is three times the slowest recent step, of whichever rank.
TEST(watch_patience_follows_steps) {
    begin(2, 2);
    double t = 1;
    for (int i = 0; i < 40; i++, t += 1)
        for (int r = 0; r < 2; r++)
            BEAT(r, t, "{'type':'beat','step':%d,'phase':'step','step_seconds':%g}", i,
                 i == 30 && r == 1 ? 7.0 : 0.9);
    CHECK_CLOSE(watch_patience(&w, 0, t), 21, 1e-9);
    for (int i = 40; i < 60; i++, t += 1)
        for (int r = 0; r < 2; r++)
            BEAT(r, t, "{'type':'beat','step':%d,'phase':'step','step_seconds':0.9}", i);
    CHECK_CLOSE(watch_patience(&w, 0, t), 5, 1e-9);
    watch_close(&w);
}

// After an end that the launcher has seen the rest waits for it.
TEST(watch_end_of_a_rank_is_no_hang) {
    begin(4, 4);
    double t = run_steps(1, 20), since = t;
    w.ranks[2].ended = true;
    for (; t < since + 30; t++) {
        others_wait(2, t, since, 100, false);
        CHECK_EQ_INT(look(t), 0);
    }
    struct err err = {0};
    CHECK_OK(watch_restart(&w, 4, t, &err), err);
    CHECK_EQ_INT(w.ranks[2].ended, false);
    CHECK_EQ_INT(w.step, -1);
    watch_close(&w);
}

// ---- slow ranks, memory, links, disks, clocks

static void step_of(int rank, double now, int step, double compute, double bytes) {
    BEAT(rank, now,
         "{'type':'beat','step':%d,'phase':'step','phase_seconds':0.01,'step_seconds':1,"
         "'compute_seconds':%g,'resident_bytes':%.0f}",
         step, compute, bytes);
}

TEST(watch_straggler_among_its_stage) {
    for (int known = 0; known < 2; known++) {
        begin(4, 2);
        for (int r = 0; known && r < 4; r++) w.ranks[r].stage = r / 2; // stage 1 has twice the work
        int said = 0, at = 0;
        for (int step = 0; step < 100; step++) {
            double t = step + 1;
            all_facts(t);
            for (int r = 0; r < 4; r++) {
                double noise = 1 + 0.1 * ((step * 7 + r * 3) % 5 - 2) / 2;
                double slow = r == 3 && step >= 50 ? 1.5 : 1;
                step_of(r, t, step, 0.1 * noise * (r / 2 + 1) * slow, 1e9);
            }
            int count = look(t);
            if (count > 0) at = step;
            said += count;
            if (step < 50) CHECK_EQ_INT(count, 0);
        }
        CHECK_EQ_INT(said, 1);
        CHECK(at >= 57 && at <= 60);
        CHECK_EQ_INT(found[0].kind, INCIDENT_STRAGGLER);
        CHECK_EQ_INT(found[0].rank, 3);
        CHECK_STR(found[0].host, "node2");
        watch_close(&w);
    }
}

// Slow for a few steps now and then: the machine has other work too.
TEST(watch_short_slowness_is_no_straggler) {
    begin(2, 1);
    for (int r = 0; r < 2; r++) w.ranks[r].stage = 0;
    for (int step = 0; step < 200; step++) {
        all_facts(step + 1);
        for (int r = 0; r < 2; r++)
            step_of(r, step + 1, step, r == 0 && step % 10 < 6 ? 0.3 : 0.1, 1e9);
        CHECK_EQ_INT(look(step + 1), 0);
    }
    watch_close(&w);
}

TEST(watch_memory_growth) {
    begin(2, 2);
    int at = 0;
    for (int step = 0; step < 200 && at == 0; step++) {
        facts(0, step + 1,
              "{'type':'facts','memory_free_bytes':50000000000,"
              "'memory_total_bytes':100000000000}");
        // rank 0 rises once and stays; rank 1 leaks 100 MB a step from step 50 on
        step_of(0, step + 1, step, 0.1, step < 60 ? 1e9 : 9e9);
        step_of(1, step + 1, step, 0.1, 1e9 + (step > 50 ? 1e8 * (step - 50) : 0));
        if (look(step + 1) > 0) at = step;
    }
    CHECK(at > 100 && at < 110); // 5 GB
    CHECK_EQ_INT(found[0].kind, INCIDENT_MEMORY_GROWTH);
    CHECK_EQ_INT(found[0].rank, 1);
    CHECK_CONTAINS(found[0].evidence, "100.0 GB");
    watch_close(&w);
}

TEST(watch_link_that_flaps) {
    begin(6, 3);
    int said = 0, at = 0;
    for (int second = 1; second < 200; second++) {
        all_facts(second);
        for (int r = 0; r < 6; r++)
            BEAT(r, second, "{'type':'beat','step':%d,'phase':'step','retries':{%s}}", second,
                 r == 4 && second >= 100 && second % 4 == 0 ? "'1':1" : "");
        int count = look(second);
        if (count > 0) at = second;
        said += count;
    }
    CHECK_EQ_INT(said, 1);
    CHECK_EQ_INT(at, 116); // the fifth
    CHECK_EQ_INT(found[0].kind, INCIDENT_LINK);
    CHECK_CONTAINS(found[0].evidence, "rank 1 (node1) and rank 4 (node2)");
    watch_close(&w);
}

TEST(watch_stalls_everywhere_are_no_link) {
    begin(6, 3);
    for (int second = 1; second < 200; second++) {
        all_facts(second);
        for (int r = 0; r < 6; r++)
            BEAT(r, second, "{'type':'beat','step':%d,'phase':'step','retries':{'%d':1}}", second,
                 (r + second) % 6 == r ? 0 : (r + second) % 6);
        CHECK_EQ_INT(look(second), 0);
    }
    watch_close(&w);
}

TEST(watch_disk_and_clock) {
    begin(2, 1);
    facts(0, 1, "{'type':'facts','disk_free_bytes':600,'disk_total_bytes':10000}");
    facts(1, 1,
          "{'type':'facts','disk_free_bytes':400,'disk_total_bytes':10000,"
          "'clock_offset_seconds':-3.5}");
    CHECK_EQ_INT(look(1), 2);
    CHECK_EQ_INT(found[0].kind, INCIDENT_DISK);
    CHECK_STR(found[0].host, "node2");
    CHECK_CONTAINS(found[0].evidence, "4.0 %");
    CHECK_EQ_INT(found[1].kind, INCIDENT_CLOCK);
    CHECK_CONTAINS(found[1].evidence, "3.5 s behind");
    CHECK_EQ_INT(look(2), 0);
    facts(0, 3, "{'type':'facts'}");
    facts(1, 3, "{'type':'facts','disk_free_bytes':900,'clock_offset_seconds':0.1}");
    CHECK_EQ_INT(look(3), 0);
    facts(1, 4, "{'type':'facts','disk_free_bytes':400}");
    CHECK_EQ_INT(look(4), 1);
    w.hosts[0].clock_offset_seconds = (double)NAN; // not known
    facts(0, 5, "{'type':'facts'}");
    CHECK_EQ_INT(look(5), 0);
    watch_close(&w);
}

TEST(watch_room_for_one_says_the_rest_later) {
    begin(2, 1);
    for (int i = 0; i < 2; i++)
        facts(i, 1, "{'type':'facts','disk_free_bytes':1,'disk_total_bytes':10000}");
    CHECK_EQ_INT(watch_look(&w, 1, found, 1), 1);
    CHECK_STR(found[0].host, "node1");
    CHECK_EQ_INT(watch_look(&w, 2, found, 1), 1);
    CHECK_STR(found[0].host, "node2");
    CHECK_EQ_INT(watch_look(&w, 3, found, 1), 0);
    watch_close(&w);
}

// ---- clean runs

static double uniform(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

struct clean {
    int ranks, stages;
    double step_seconds, first_step_seconds;
    int evaluate_every, save_every;
    double evaluate_seconds, save_seconds;
};

// A lock-step run: in each step the ranks compute for different times and wait for the slowest.
// Beats come a second apart, late by up to a second, at odd moments.
static void clean_run(const struct clean *c, uint64_t seed) {
    uint64_t state = seed;
    begin(c->ranks, 2);
    for (int i = 0; i < c->ranks; i++) {
        w.ranks[i].stage = i % c->stages;
        w.ranks[i].heard = 0;
    }
    double t = 1, step_began = 1, step_ends = 20, compute[16] = {0}, last_compute[16] = {0};
    double next[16], took = 0;
    int step = 0;
    const char *phase = "load";
    for (int i = 0; i < c->ranks; i++) next[i] = t + uniform(&state);
    for (; t < 1500; t += 0.25) {
        while (t >= step_ends) { // the next phase
            bool in_step = strcmp(phase, "step") == 0;
            double now = step_ends;
            if (in_step) took = now - step_began;
            if (in_step && c->evaluate_every && step % c->evaluate_every == 0) {
                phase = "evaluate";
                step_ends = now + c->evaluate_seconds * (1 + uniform(&state));
            } else if (in_step && c->save_every && step % c->save_every == 0) {
                phase = "save";
                step_ends = now + c->save_seconds * (1 + uniform(&state));
            } else {
                phase = "step";
                step++;
                double longest = 0, base = step == 1 ? c->first_step_seconds : c->step_seconds;
                memcpy(last_compute, compute, sizeof compute);
                for (int i = 0; i < c->ranks; i++) {
                    double slow = uniform(&state) < 0.01 ? 2 : 1;
                    compute[i] =
                        base * (0.9 + 0.2 * uniform(&state)) * slow * (1 + 0.5 * (i % c->stages));
                    if (compute[i] > longest) longest = compute[i];
                }
                step_ends = now + longest;
            }
            step_began = now;
        }
        for (int h = 0; h < w.host_count; h++)
            facts(h, t,
                  "{'type':'facts','memory_total_bytes':64000000000,"
                  "'disk_free_bytes':50,'disk_total_bytes':100}");
        for (int i = 0; i < c->ranks; i++) {
            if (t < next[i]) continue;
            next[i] = t + 1 + uniform(&state);
            bool waiting = t > step_began + compute[i] && strcmp(phase, "step") == 0;
            BEAT(i, t,
                 "{'type':'beat','step':%d,'phase':'%s','phase_seconds':%g,'step_seconds':%g,"
                 "'compute_seconds':%g,'resident_bytes':%g,'cpu_seconds':%g,'waiting':%s,"
                 "'waits':{'stream':'%s','kind':'all_reduce','number':%d,'seconds':%g,"
                 "'ranks':[0,1,2,3]},'posted':{'reduce':%d},'retries':{'%d':%d}}",
                 step, phase, t - step_began, took, last_compute[i], 1e9 + 1e7 * uniform(&state), t,
                 waiting ? "true" : "false", waiting ? "reduce" : "", step,
                 waiting ? t - step_began - compute[i] : 0, waiting || step == 0 ? step : step - 1,
                 (i + 1) % c->ranks, uniform(&state) < 0.005);
        }
        if (look(t) > 0)
            test_fail(__FILE__, __LINE__, "at %g s, step %d, seed %d: %s", t, step, (int)seed,
                      found[0].evidence);
    }
    CHECK(step > 10);
    watch_close(&w);
}

TEST(watch_clean_runs_alarm_nobody) {
    static const struct clean runs[] = {
        {4, 1, 0.2, 0.3, 0, 0, 0, 0},      {4, 1, 0.3, 25, 100, 40, 20, 3},
        {4, 4, 1.0, 60, 200, 100, 60, 12}, {8, 2, 12, 300, 10, 15, 100, 90},
        {8, 4, 0.6, 2, 50, 10, 0.2, 0.1},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) clean_run(&runs[i], seed);
}

// ---- messages that are not what they should be

TEST(watch_refuses_bad_messages) {
    static const char *const bad[] = {
        "{'step':1,'phase':'step'}",
        "{'type':'beat','phase':'step'}",
        "{'type':'beat','step':1}",
        "{'type':'bear','step':1,'phase':'step'}",
        "{'type':'beat','step':'1','phase':'step'}",
        "{'type':'beat','step':1,'phase':'dance'}",
        "{'type':'beat','step':1,'phase':'step','step_seconds':-1}",
        "{'type':'beat','step':1,'phase':'step','compute_seconds':'x'}",
        "{'type':'beat','step':1,'phase':'step','waits':[]}",
        "{'type':'beat','step':1,'phase':'step','waits':{'kind':'send','number':-3}}",
        "{'type':'beat','step':1,'phase':'step','waits':{'kind':'send','ranks':[9]}}",
        "{'type':'beat','step':1,'phase':'step','waits':{'kind':'send','ranks':['0']}}",
        "{'type':'beat','step':1,'phase':'step','waiting':1}",
        "{'type':'beat','step':1,'phase':'step','posted':{'tp':-1}}",
        "{'type':'beat','step':1,'phase':'step','posted':{'tp':'many'}}",
        "{'type':'beat','step':1,'phase':'step','retries':{'2':1}}",
        "{'type':'beat','step':1,'phase':'step','retries':{'1x':1}}",
        "{'type':'beat','step':1,'phase':'step','retries':{'1':-1}}",
        "{'type':'hello','pid':-4}",
        "{'type':'hello','stage':-4}",
    };
    begin(2, 1);
    BEAT(0, 1, "{'type':'beat','step':12,'phase':'step','posted':{'tp':7}}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        struct watch_rank before = w.ranks[0];
        CHECK_EQ_INT(say(0, 2, &err, "%s", bad[i]), -1);
        CHECK(err.text[0] != 0);
        CHECK_BYTES(&w.ranks[0], &before, sizeof before);
    }
    struct err err = {0};
    CHECK_EQ_INT(say(2, 2, &err, "{'type':'beat','step':1,'phase':'step'}"), -1);
    CHECK_CONTAINS(err.text, "rank 2, of 2");
    BEAT(0, 3, "{'type':'hello','role':'rank','rank':0,'host':'node1','pid':71,'attempt':0}");
    CHECK_EQ_INT(w.ranks[0].pid, 71);
    CHECK_EQ_INT(w.ranks[0].stage, -1);
    BEAT(0, 3, "{'type':'beat','step':12,'phase':'step','stage':3}");
    CHECK_EQ_INT(w.ranks[0].stage, 3);
    BEAT(0, 4, "{'type':'report','kind':'loss_spike','step':12}");
    BEAT(0, 5, "{'type':'journal','text':''}");
    CHECK_CLOSE(w.ranks[0].heard, 5, 0);
    CHECK_CLOSE(w.ranks[0].moved, 1, 0);
    CHECK_EQ_INT(w.ranks[0].connected, true);
    CHECK_EQ_INT(w.ranks[0].step, 12);
    watch_close(&w);
}
