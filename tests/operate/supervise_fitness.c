// Which hosts take ranks, and what a failure is charged to: the supervisor's parts on agents that
// are not there. The test says what they answer.
#include "base/clock.h"
#include "base/file.h"
#include "operate/agents_parts.h"
#include "operate/launch_report.h"
#include "operate/supervise_hosts_parts.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct supervisor s;
static struct supervise_options options;
static struct hosts hosts;
static char run_folder[4300];

static void changed(void *context, struct text *changes) {
    (void)context, (void)changes;
}

static void show(void *context, const char *bytes, size_t size) {
    (void)context;
    fwrite(bytes, 1, size, stdout);
}

static const struct supervise_calls calls = {.changed = changed, .show = show};

// Agents that are there, and have just been heard.
static void hear_all(void) {
    for (int i = 0; i < s.hosts->count; i++) {
        s.hosts->agents->hosts[i].view.state = AGENT_READY;
        s.hosts->agents->hosts[i].view.heard = clock_seconds();
    }
}

// `count` hosts with a slot each, the last `spares` of them in reserve; ranks have run before.
static void open_hosts(int count, int spares) {
    static struct host list[8];
    static char names[8][16];
    struct err err = {0};
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "192.0.2.%d", i + 1);
        list[i] = (struct host){.name = names[i], .slots = 1};
    }
    hosts = (struct hosts){.list = list, .count = count, .slots = count};
    snprintf(run_folder, sizeof run_folder, "%s", test_path("run"));
    options = (struct supervise_options){.run_folder = run_folder,
                                         .snapshot_folder = test_temp_dir(),
                                         .temporary_folder = test_temp_dir(),
                                         .program = "/nowhere/weft",
                                         .address = "127.0.0.1",
                                         .hosts = &hosts,
                                         .spares = spares,
                                         .most_faults = 3,
                                         .shape = {.unit = 1,
                                                   .replicas = count - spares,
                                                   .batch = 12,
                                                   .micro_batch = 1,
                                                   .elastic = true},
                                         .policy = {.budget = 10}};
    s = (struct supervisor){.options = &options, .calls = &calls, .signals = -1, .errors = -1};
    CHECK_OK(file_make_folders(options.run_folder, &err), err);
    CHECK_OK(wire_key_make(&s.key, &err), err);
    CHECK_OK(incidents_open(&s.incidents, options.run_folder, &err), err);
    CHECK_OK(policy_open(&s.policy, &options.policy, &err), err);
    CHECK_OK(place_open(&s.place, &hosts, spares, &options.shape, &err), err);
    CHECK_OK(watch_open(&s.watch, count - spares, count, &err), err);
    CHECK_OK(control_open(&s.control, options.address, 0, &s.key, &err), err);
    CHECK_OK(hosts_open(&s, &err), err);
    s.ranks = count - spares;
    for (int i = 0; i < s.ranks; i++) s.watch.ranks[i].host = i;
    hear_all();
    for (int i = 0; i < count; i++) s.hosts->agents->hosts[i].view.here = false;
    s.hosts->started = true;
    for (int i = 0; i < s.ranks; i++) s.hosts->list[i].proven = true;
}

// ---- what agents are asked, and answer

static struct agents_order *find_order(int host) {
    struct agents *a = s.hosts->agents;
    for (int i = 0; i < a->order_count; i++)
        if (a->orders[i].host == host) return &a->orders[i];
    return NULL;
}

// The first order of the host is done.
static void answer(int host, json_t *reply, const char *error) {
    struct agents *a = s.hosts->agents;
    struct agents_order *found = find_order(host), order;
    CHECK(found != NULL);
    order = *found;
    a->order_count--;
    memmove(found, found + 1, sizeof *found * (size_t)(a->orders + a->order_count - found));
    order.done(order.context, host, reply, error);
    json_decref(reply);
}

static json_t *one_check(const char *name, bool passed, bool unanswered) {
    return json_pack("{s:s, s:b, s:b}", "name", name, "passed", passed, "unanswered", unanswered);
}

// Of products, a disk and two links.
static json_t *checks(bool right, bool disk, bool link_1, bool link_2) {
    bool passed = right && disk && link_1 && link_2;
    return json_pack("{s:b, s:s, s:[o,o,o,o]}", "passed", passed, "verdict", "this and that",
                     "checks", one_check("gemm fp32", right, false),
                     one_check("disk /run", disk, !disk),
                     one_check("link 192.0.2.1:1", link_1, !link_1),
                     one_check("link 192.0.2.3:1", link_2, !link_2));
}

static int ready(void) {
    struct err err = {0};
    hear_all();
    return hosts_ready(&s, &err);
}

static enum place_state state_of(int host) {
    return s.place.hosts[host].state;
}

// Host 1 of three, with a spare behind them, is suspected and checked.
static void check_second(json_t *reply, const char *error) {
    open_hosts(4, 1);
    hosts_suspect(&s, 1);
    CHECK_EQ_INT(ready(), 0);
    answer(1, reply, error);
}

static char *incidents_text(void) {
    char *text;
    size_t size;
    return file_read(test_path("run/incidents.jsonl"), 0, &text, &size, NULL) == 0 ? text
                                                                                   : strdup("");
}

// ---- health

TEST(fitness_a_wrong_result_bars_a_host) {
    check_second(checks(false, true, true, true), NULL);
    CHECK_EQ_INT(ready(), 0); // the spare is to be checked now
    CHECK_EQ_INT(state_of(1), PLACE_EVICTED);
    CHECK_EQ_INT(state_of(3), PLACE_IN_USE);
    CHECK_EQ_INT(s.hosts->list[1].barred, true);
    char *text = incidents_text();
    CHECK_CONTAINS(text, "\"kind\":\"health\"");
    CHECK_CONTAINS(text, "the health check of 192.0.2.2 failed: this and that");
    free(text);
    hosts_look(&s, 1, clock_seconds() + 1000);
    CHECK(find_order(1) == NULL); // it is not asked any more
}

TEST(fitness_a_check_that_crashes_bars_a_host) {
    check_second(json_pack("{s:b}", "crashed", true), "ended by signal 4");
    ready();
    CHECK_EQ_INT(state_of(1), PLACE_EVICTED);
    CHECK_EQ_INT(s.hosts->list[1].barred, true);
}

// And is asked again when it is back.
TEST(fitness_a_host_that_does_not_answer_is_lost) {
    check_second(NULL, "the agent of 192.0.2.2 did not answer in time");
    CHECK_EQ_INT(ready(), 0);
    CHECK_EQ_INT(state_of(1), PLACE_EVICTED);
    CHECK_EQ_INT(s.hosts->list[1].barred, false);
    char *text = incidents_text();
    CHECK_CONTAINS(text, "\"kind\":\"host_lost\"");
    CHECK_CONTAINS(text, "came to no end: the agent of 192.0.2.2 did not answer in time");
    free(text);
    hear_all();
    hosts_look(&s, 1, clock_seconds() + 1000);
    answer(1, json_pack("{s:i, s:i}", "killed", 0, "left", 0), NULL);
    answer(1, json_object(), NULL); // to "forget"
    answer(1, checks(true, true, true, true), NULL);
    hosts_look(&s, 1, clock_seconds());
    CHECK_EQ_INT(state_of(1), PLACE_SPARE);
}

TEST(fitness_a_disk_that_does_not_answer_says_nothing_of_the_host) {
    check_second(checks(true, false, true, true), NULL);
    ready();
    CHECK_EQ_INT(state_of(1), PLACE_EVICTED);
    CHECK_EQ_INT(s.hosts->list[1].barred, false);
}

TEST(fitness_a_silent_peer_says_nothing_of_the_host) {
    check_second(checks(true, true, true, false), NULL);
    CHECK_EQ_INT(ready(), 1);
    CHECK_EQ_INT(state_of(1), PLACE_IN_USE);
    CHECK_EQ_INT(state_of(3), PLACE_SPARE);
}

TEST(fitness_a_host_that_nobody_hears_is_lost) {
    check_second(checks(true, true, false, false), NULL);
    ready();
    CHECK_EQ_INT(state_of(1), PLACE_EVICTED);
    CHECK_EQ_INT(s.hosts->list[1].barred, false);
}

// A spare that is tried, too.
TEST(fitness_of_a_spare) {
    open_hosts(4, 2);
    s.failing = true;
    s.failure = (struct policy_failure){.kind = INCIDENT_HOST_LOST, .host = 0};
    for (int i = 2; i < 4; i++) hosts_look(&s, i, clock_seconds());
    answer(2, NULL, "the agent of 192.0.2.3 did not answer in time");
    answer(3, checks(false, true, true, true), NULL);
    for (int i = 2; i < 4; i++) hosts_look(&s, i, clock_seconds());
    CHECK_EQ_INT(state_of(2), PLACE_EVICTED);
    CHECK_EQ_INT(state_of(3), PLACE_EVICTED);
    CHECK_EQ_INT(s.hosts->list[2].barred, false);
    CHECK_EQ_INT(s.hosts->list[3].barred, true);
}

// There is no other, and a machine that is busy is not worse for that.
TEST(fitness_of_the_only_machine) {
    open_hosts(1, 0);
    s.hosts->agents->hosts[0].view.here = true;
    hosts_suspect(&s, 0);
    CHECK_EQ_INT(ready(), 0);
    answer(0, NULL, "the agent of here did not answer in time");
    CHECK_EQ_INT(ready(), 1);
    hosts_suspect(&s, 0);
    CHECK_EQ_INT(ready(), 0);
    answer(0, checks(false, true, true, true), NULL);
    CHECK_EQ_INT(ready(), -1);
}

// ---- damaged messages

TEST(fitness_damaged_messages_are_counted_by_host) {
    open_hosts(4, 1);
    CHECK_EQ_INT(hosts_damaged(&s, 0, 1), false);
    CHECK_EQ_INT(hosts_damaged(&s, 1, 2), false);
    CHECK_EQ_INT(hosts_damaged(&s, 1, 1), false);
    CHECK_EQ_INT(ready(), 1);
    CHECK_EQ_INT(hosts_damaged(&s, 2, 1), true); // the fourth of 192.0.2.2
    CHECK_EQ_INT(ready(), 0);
    CHECK(find_order(0) == NULL);
    answer(2, checks(true, true, true, true), NULL);
    answer(1, checks(false, true, true, true), NULL);
    ready();
    CHECK_EQ_INT(state_of(1), PLACE_EVICTED);
    CHECK_EQ_INT(state_of(2), PLACE_IN_USE);
    CHECK_EQ_INT(hosts_damaged(&s, 2, 0), false); // it has begun anew
}

// ---- a host that comes back

static void lose_second(void) {
    struct text action = {0};
    open_hosts(2, 0);
    CHECK_EQ_INT(failure_evict(&s, 1, &action), 0);
    text_free(&action);
    CHECK_EQ_INT(s.place.replicas, 1);
}

// While another agent is awaited before a start: the ranks of that start are more already.
TEST(fitness_a_host_that_is_back_before_the_start_is_used) {
    struct err err = {0};
    lose_second();
    s.hosts->agents->hosts[0].view.state = AGENT_STARTING;
    CHECK_EQ_INT(hosts_ready(&s, &err), 0);
    hosts_look(&s, 1, clock_seconds() + 1000);
    s.hosts->list[1].check = CHECK_PASSED; // as answers say, see above
    s.hosts->list[1].passed = clock_seconds();
    hosts_look(&s, 1, clock_seconds());
    CHECK_EQ_INT(state_of(1), PLACE_SPARE);
    CHECK_EQ_INT(ready(), 0);
    CHECK_EQ_INT(ready(), 1);
    CHECK_EQ_INT(s.place.replicas, 2);
    CHECK_EQ_INT(state_of(1), PLACE_IN_USE);
    char *text = incidents_text();
    CHECK_CONTAINS(text, "taken by the start that is under way");
    free(text);
}

// ---- processes that do not end

TEST(fitness_ranks_wait_for_processes_that_are_left) {
    open_hosts(3, 1);
    hosts_kill(&s);
    CHECK_EQ_INT(s.pending, 3);
    answer(1, json_pack("{s:i, s:i}", "killed", 1, "left", 1), NULL);
    answer(0, json_pack("{s:i, s:i}", "killed", 1, "left", 0), NULL);
    answer(2, json_pack("{s:i, s:i}", "killed", 0, "left", 0), NULL);
    CHECK_EQ_INT(ready(), 0);
    CHECK(find_order(1) == NULL); // not at once again
    s.hosts->list[1].left_tried -= 10;
    CHECK_EQ_INT(ready(), 0);
    answer(1, json_pack("{s:i, s:i}", "killed", 1, "left", 1), NULL);
    s.hosts->list[1].left_tried -= 10;
    CHECK_EQ_INT(ready(), 0);
    answer(1, json_pack("{s:i, s:i}", "killed", 1, "left", 0), NULL);
    CHECK_EQ_INT(ready(), 1);
    CHECK_EQ_INT(state_of(1), PLACE_IN_USE);
}

TEST(fitness_a_host_whose_processes_do_not_end_is_lost) {
    open_hosts(3, 1);
    hosts_kill(&s);
    answer(1, json_pack("{s:i, s:i}", "killed", 1, "left", 2), NULL);
    CHECK_EQ_INT(ready(), 0);
    s.hosts->list[1].left_since -= 1000;
    ready();
    CHECK_EQ_INT(state_of(1), PLACE_EVICTED);
    CHECK_EQ_INT(state_of(2), PLACE_IN_USE);
    CHECK_EQ_INT(s.hosts->list[1].barred, false);
    char *text = incidents_text();
    CHECK_CONTAINS(text, "2 processes of the last attempt on 192.0.2.2 do not end");
    free(text);
}

// On this machine no order is needed.
TEST(fitness_ranks_wait_for_processes_here) {
    open_hosts(2, 0);
    snprintf(s.state.run, sizeof s.state.run, "0123456789abcdef");
    s.hosts->agents->hosts[0].view.here = true;
    hosts_left_here(&s, 1);
    CHECK_EQ_INT(ready(), 0);
    s.hosts->list[0].left_tried -= 10; // none has the name of this run
    CHECK_EQ_INT(ready(), 1);
}

// ---- what a failure is charged to

static void said(int rank, const char *line, int status) {
    struct text records = {0}, rest = {0}, shown = {0};
    if (line) report_lines(&records, &rest, rank, line, strlen(line), true);
    report_end(&records, rank, status, 0, "here", clock_wall_seconds(), 12);
    report_put(&s.reader, records.data, records.size, &shown);
    s.ended = 0;
    for (int i = 0; i < s.ranks; i++) s.ended += s.reader.rank[i].ended;
    text_free(&records);
    text_free(&rest);
    text_free(&shown);
}

TEST(failure_is_charged_to_the_rank_that_failed) {
    struct err err = {0};
    open_hosts(3, 0);
    CHECK_OK(report_open(&s.reader, 3, false, &err), err);
    said(1, "weft: rank 2 (here) reports: disk: Input/output error\n", 4);
    failure_look(&s);
    CHECK_EQ_INT(s.phase, SUPERVISE_COLLECT);
    s.deadline = clock_seconds() + 1000;
    CHECK_EQ_INT(s.failure.rank, 1);
    CHECK_EQ_INT(s.failure.hearsay, true);
    said(0, NULL, 4);
    failure_look(&s);
    CHECK_EQ_INT(s.failure.hearsay, true);
    said(2, "weft: disk: Input/output error\n", 4);
    failure_look(&s);
    CHECK_EQ_INT(s.failure.rank, 2);
    CHECK_EQ_INT(s.failure.host, 2);
    CHECK_EQ_INT(s.failure.hearsay, false);
    CHECK_STR(s.incident.host, "192.0.2.3");
    report_close(&s.reader);
}

// A link or a memory that flips a bit now and then: each time another start mends it, for weeks.
TEST(failure_of_damaged_messages_has_both_hosts_checked) {
    struct err err = {0};
    pid_t child = fork();
    if (child == 0) _exit(0);
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    open_hosts(3, 0);
    for (int i = 0; i < 4; i++) {
        s.phase = SUPERVISE_RUN;
        s.starter = child;
        s.starter_left = true;
        CHECK_OK(report_open(&s.reader, 3, false, &err), err);
        said(2, "weft: rank 1 (b) reports: 512 bytes from rank 0 (a) to rank 1 (b) were damaged\n",
             75);
        said(1,
             "weft: 512 bytes from rank 0 (a) to rank 1 (b) were damaged on their way: checksum 1 "
             "expected, 2 found\n",
             75);
        failure_look(&s);
        CHECK_EQ_INT(s.failure.rank, 1);
        policy_progress(s.policy, 12 + i); // it does go on
        CHECK(!s.hosts->list[0].suspected && !s.hosts->list[1].suspected);
        failure_settle(&s);
        CHECK_EQ_INT(s.phase, SUPERVISE_WAIT);
    }
    CHECK(s.hosts->list[0].suspected && s.hosts->list[1].suspected);
    CHECK(!s.hosts->list[2].suspected);
    char *text = incidents_text();
    CHECK_CONTAINS(text, "again and again: 192.0.2.1 and 192.0.2.2 have to pass a health check");
    free(text);
}

// An incident that the run was about when it was asked to leave is on record all the same.
TEST(failure_is_told_where_the_run_leaves) {
    struct err err = {0};
    open_hosts(2, 0);
    CHECK_OK(report_open(&s.reader, 2, false, &err), err);
    said(1, "weft: disk: Input/output error\n", 4);
    failure_look(&s);
    s.leave = LEAVE_PREEMPT;
    failure_settle(&s);
    CHECK_EQ_INT(s.phase, SUPERVISE_OVER);
    CHECK_EQ_INT(s.status, 75);
    char *text = incidents_text();
    CHECK_CONTAINS(text, "rank 1 on here ended with status 4");
    free(text);
}

// Each gives the grace time once, and Ctrl-C twice ends all at once.
TEST(failure_time_to_leave_is_given_once) {
    open_hosts(2, 0);
    options.grace_seconds = 1000;
    s.connection = calloc(2, sizeof *s.connection);
    s.phase = SUPERVISE_RUN;
    supervise_ask_to_leave(&s, LEAVE_PREEMPT);
    double until = s.leave_by;
    usleep(1000);
    supervise_ask_to_leave(&s, LEAVE_PREEMPT);
    CHECK(s.leave_by == until);
    s.interrupts = 1;
    supervise_ask_to_leave(&s, LEAVE_INTERRUPT);
    CHECK_EQ_INT(s.phase, SUPERVISE_RUN); // it leaves already
    CHECK_EQ_INT(s.leave, LEAVE_PREEMPT);
    s.interrupts = 2;
    supervise_ask_to_leave(&s, LEAVE_INTERRUPT);
    CHECK_EQ_INT(s.phase, SUPERVISE_STOP);
    free(s.connection);
}

// mpirun left, and what the last rank had to say was lost with its host.
TEST(failure_of_a_rank_that_nobody_heard_of) {
    struct err err = {0};
    open_hosts(2, 0);
    CHECK_OK(report_open(&s.reader, 2, false, &err), err);
    s.failure = (struct policy_failure){.kind = INCIDENT_HANG, .rank = 1, .host = 1};
    said(0, NULL, 0);
    s.starter_left = true;
    failure_look(&s);
    CHECK_EQ_INT(s.phase, SUPERVISE_STOP);
    CHECK_EQ_INT(s.failure.kind, INCIDENT_EXIT);
    CHECK_EQ_INT(s.failure.rank, -1);
    said(1, NULL, 0); // it was only late
    s.starter = getpid();
    failure_settle(&s);
    CHECK_EQ_INT(s.phase, SUPERVISE_OVER);
    CHECK_EQ_INT(s.status, 0);
}

// ---- what is kept

TEST(supervise_state_is_kept) {
    struct err err = {0};
    struct supervise_state out;
    open_hosts(1, 0);
    snprintf(s.state.run, sizeof s.state.run, "0123456789abcdef");
    CHECK_OK(file_make_folders(test_path("run/launch"), &err), err);
    policy_recall(s.policy, &(struct policy_history){.newest = 100000,
                                                     .vain = 3,
                                                     .loop_step = 100001,
                                                     .loop_failures = 2,
                                                     .loop_skipped = true});
    supervise_keep(&s);
    CHECK_OK(supervise_read_state(options.run_folder, &out, &err), err);
    CHECK_EQ_INT(out.history.newest, 100000);
    CHECK_EQ_INT(out.history.vain, 3);
    CHECK_EQ_INT(out.history.loop_step, 100001);
    CHECK_EQ_INT(out.history.loop_failures, 2);
    CHECK_EQ_INT(out.history.loop_skipped, true);
    // of a launch before these were kept
    static const char old[] = "{\"run\":\"0123456789abcdef\",\"attempts\":3}";
    CHECK_OK(file_replace(test_path("run/launch/state.json"), old, sizeof old - 1, &err), err);
    CHECK_OK(supervise_read_state(options.run_folder, &out, &err), err);
    CHECK_EQ_INT(out.attempts, 3);
    CHECK_EQ_INT(out.history.newest, 0);
    CHECK_EQ_INT(out.history.loop_step, -1);
    static const char bad[] = "{\"run\":\"0123456789abcdef\",\"attempts\":3,\"newest_step\":-4}";
    CHECK_OK(file_replace(test_path("run/launch/state.json"), bad, sizeof bad - 1, &err), err);
    CHECK_EQ_INT(supervise_read_state(options.run_folder, &out, &err), -1);
}
