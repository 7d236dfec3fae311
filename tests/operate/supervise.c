// The supervisor's loop over hosts and ranks that are not there: this test program stands in for
// the agents of all hosts and for mpirun with its ranks, so that they end as a test wants.
#include "operate/supervise.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/version.h"
#include "base/wire.h"
#include "guard/heartbeat.h"
#include "operate/launch_report.h"
#include "test.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AS_AGENT "WEFT_TEST_AGENT" // what the agent was to be started with
#define AS_RANKS "WEFT_TEST_RANKS" // how many
#define PLAN "WEFT_TEST_PLAN"      // how they end, see below
#define UNFIT "WEFT_TEST_UNFIT"    // host that fails its check
#define FOLDER "WEFT_TEST_FOLDER"  // of the file "events"
enum { RANKS_MOST = 8 };

// What happened, a line each, in its order.
__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    char path[4300], line[400];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[size++] = '\n';
    snprintf(path, sizeof path, "%s/events", getenv(FOLDER));
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file < 0 || write(file, line, (size_t)size) != size) abort();
    close(file);
}

// ---- in an agent's place ------------------------------------------------------------------------

static int read_word(const char *words, const char *name, char *text, size_t bytes) {
    char begin[64];
    snprintf(begin, sizeof begin, "'%s' '", name);
    const char *at = strstr(words, begin);
    if (!at) return -1;
    at += strlen(begin);
    snprintf(text, bytes, "%.*s", (int)strcspn(at, "'"), at);
    return 0;
}

static bool obey(struct wire *w, const char *host, const json_t *message) {
    const char *order = json_string_value(json_object_get(message, "order"));
    const char *unfit = getenv(UNFIT);
    bool fit = !unfit || strcmp(unfit, host) != 0;
    if (!order) return false;
    json_t *done =
        json_pack("{s:s, s:O, s:f, s:b, s:s}", "type", "done", "id", json_object_get(message, "id"),
                  "time", clock_wall_seconds(), "passed", fit, "verdict", "2 and 2 is 5 there");
    if (strcmp(order, "health") == 0) note("%s: health", host);
    wire_put(w, done, NULL);
    json_decref(done);
    return strcmp(order, "leave") == 0;
}

static void serve(struct wire *w, const char *host) {
    bool leave = false;
    double told = 0;
    while (!leave && wire_work(w, NULL) == 0) {
        json_t *message;
        while (wire_take(w, &message, NULL) == 1) {
            leave = obey(w, host, message) || leave;
            json_decref(message);
        }
        if (clock_seconds() > told + 0.3) {
            json_t *facts = json_pack("{s:s, s:f}", "type", "facts", "time", clock_wall_seconds());
            wire_put(w, facts, NULL);
            json_decref(facts);
            told = clock_seconds();
        }
        struct pollfd watch = {wire_descriptor(w), wire_events(w), 0};
        poll(&watch, 1, 300);
    }
    wire_work(w, NULL);
}

static int be_an_agent(const char *words) {
    char key_text[WIRE_KEY_TEXT + 2], address[64], port[16], host[64];
    struct wire_key key;
    if (!fgets(key_text, sizeof key_text, stdin)) return 1;
    key_text[strcspn(key_text, "\n")] = 0;
    if (wire_key_parse(key_text, &key) != 0 ||
        read_word(words, "--address", address, sizeof address) != 0 ||
        read_word(words, "--port", port, sizeof port) != 0 ||
        read_word(words, "--host", host, sizeof host) != 0)
        return 2;
    struct wire *w = wire_connect(address, atoi(port), &key, 10, NULL);
    if (!w) return 3;
    json_t *hello = json_pack("{s:s, s:s, s:s, s:i, s:f, s:s, s:s, s:s, s:i, s:s}", "type", "hello",
                              "role", "agent", "host", host, "pid", (int)getpid(), "time",
                              clock_wall_seconds(), "isa", "portable", "binary", version_digest(),
                              "address", host, "port", 1, "machine", host);
    wire_put(w, hello, NULL);
    json_decref(hello);
    serve(w, host);
    wire_close(w);
    return 0;
}

// ---- in the place of mpirun and the ranks -------------------------------------------------------

// The part of PLAN for this attempt: attempts are divided by spaces, ranks by commas. "E76": that
// rank leaves with 76; "S9": signal 9 ends it; "-": nothing is said of it; a "+" in front: half a
// second later than the rank before.
static void end_as_planned(int ranks, int attempt, int *left) {
    struct text records = {0};
    const char *plan = getenv(PLAN);
    for (int i = 0; i < attempt && plan; i++)
        plan = strchr(plan, ' ') ? strchr(plan, ' ') + 1 : NULL;
    for (int rank = 0; rank < ranks && plan; rank++) {
        if (*plan == '+') usleep(500000);
        plan += *plan == '+';
        int number = atoi(plan + 1);
        if (*plan != '-')
            report_end(&records, rank, *plan == 'E' ? number : 0, *plan == 'S' ? number : 0, "here",
                       clock_wall_seconds(), 10 * (attempt + 1));
        if (number != 0) *left = 1;
        if (records.size > 0 && write(2, records.data, records.size) < 0) abort();
        records.size = 0;
        plan += strcspn(plan, ", ");
        plan += *plan == ',';
    }
    text_free(&records);
}

static int be_the_ranks(int ranks) {
    struct err err = {0};
    struct heartbeat *beats[RANKS_MOST] = {0};
    const char *number = getenv("WEFT_ATTEMPT"), *place = getenv("WEFT_CONTROL"),
               *key = getenv("WEFT_CONTROL_KEY");
    if (!number || !place || !key) return 2;
    int attempt = atoi(number), left = 0;
    struct heartbeat_options options = {.attempt = attempt, .host = "here"};
    if (sscanf(place, "%63[^:]:%d", options.address, &options.port) != 2 ||
        wire_key_parse(key, &options.key) != 0)
        return 2;
    for (int i = 0; i < ranks; i++) {
        options.rank = i;
        if (heartbeat_open(&beats[i], &options, &err) != 0) return 3;
        heartbeat_phase(beats[i], BEAT_STEP, 10 * (attempt + 1));
    }
    usleep(300000); // that they run
    for (int i = 0; i < ranks && attempt > 0; i++) {
        for (int moment = 0; moment < 1000 && heartbeat_mtbf_seconds(beats[i]) <= 0; moment++)
            usleep(10000);
        note("attempt %d: rank %d was told %.9g s", attempt, i, heartbeat_mtbf_seconds(beats[i]));
    }
    end_as_planned(ranks, attempt, &left);
    for (int i = 0; i < ranks; i++) heartbeat_close(beats[i]);
    return left;
}

__attribute__((constructor)) static void look(void) {
    const char *words = getenv(AS_AGENT), *ranks = getenv(AS_RANKS);
    if (words) exit(be_an_agent(words));
    if (ranks) exit(be_the_ranks(atoi(ranks)));
}

// ---- runs of them -------------------------------------------------------------------------------

static char self[4096];

static int command(void *context, const struct supervise_attempt *attempt,
                   struct launch_command *made, struct err *err) {
    char hosts[200] = "", ranks[64];
    (void)context, (void)err;
    for (int i = 0; i < attempt->hosts->count; i++)
        snprintf(hosts + strlen(hosts), sizeof hosts - strlen(hosts), " %s",
                 attempt->hosts->list[i].name);
    note("attempt %d on%s", attempt->number, hosts);
    snprintf(ranks, sizeof ranks, AS_RANKS "=%d", attempt->ranks);
    const char *words[] = {"/usr/bin/env", ranks, self};
    made->words = calloc(4, sizeof *made->words);
    for (made->count = 0; made->count < 3; made->count++)
        made->words[made->count] = strdup(words[made->count]);
    return 0;
}

static void changed(void *context, struct text *changes) {
    (void)context, (void)changes;
}

static void show(void *context, const char *bytes, size_t size) {
    (void)context;
    fwrite(bytes, 1, size, stdout);
}

static char *content(const char *name) {
    char *text;
    size_t size;
    return file_read(test_path(name), 0, &text, &size, NULL) == 0 ? text : strdup("");
}

// Two ranks on "a" and "b", with "c" as a spare; returns the exit status.
static int run(const char *plan, const char *unfit) {
    static struct host list[] = {{.name = "203.0.113.1", .slots = 1},
                                 {.name = "203.0.113.2", .slots = 1},
                                 {.name = "203.0.113.3", .slots = 1}};
    const struct hosts hosts = {.list = list, .count = 3, .slots = 3};
    const struct supervise_calls calls = {.command = command, .changed = changed, .show = show};
    struct supervise_options options = {
        .run_folder = test_path("run"),
        .snapshot_folder = test_temp_dir(),
        .temporary_folder = test_temp_dir(),
        .program = self,
        .address = "127.0.0.1",
        .hosts = &hosts,
        .spares = 1,
        .shape = {.unit = 1, .replicas = 2, .batch = 2, .micro_batch = 1, .elastic = true},
        .policy = {.budget = 10}};
    struct err err = {0};
    char script[4400], shell[4300];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(size > 0);
    self[size] = 0;
    snprintf(script, sizeof script, "#!/bin/sh\n" AS_AGENT "=\"$*\" exec %s\n", self);
    snprintf(shell, sizeof shell, "%s", test_path("shell"));
    CHECK_OK(file_replace(shell, script, strlen(script), &err), err);
    CHECK_EQ_INT(chmod(shell, 0700), 0);
    options.remote = shell;
    setenv(FOLDER, test_temp_dir(), 1);
    setenv(PLAN, plan, 1);
    if (unfit) setenv(UNFIT, unfit, 1);
    int lock = supervise_lock(options.run_folder, &err);
    int status = lock < 0 ? -1 : supervise(&options, &calls, &err);
    if (status < 0) test_fail(__FILE__, __LINE__, "%s", err.text);
    close(lock);
    return status;
}

// Each is where the one before it has been seen.
static void check_order(const char *text, const char *const *parts) {
    const char *at = text;
    for (; *parts; parts++) {
        at = strstr(at, *parts);
        if (!at)
            test_fail(__FILE__, __LINE__, "\"%s\" is missing, or too early:\n%s", *parts, text);
    }
}
#define CHECK_ORDER(text, ...) check_order(text, (const char *const[]){__VA_ARGS__, NULL})

// Either of two replicas that contradict each other may be the wrong one.
TEST(supervise_checks_the_second_of_two_accused_hosts) {
    CHECK_EQ_INT(run("E76,E76 E0,E0", NULL), 0);
    char *events = content("events"), *incidents = content("run/incidents.jsonl");
    CHECK_ORDER(events, "attempt 0 on 203.0.113.1 203.0.113.2\n", "203.0.113.2: health\n",
                "attempt 1 on 203.0.113.3 203.0.113.2\n");
    CHECK_CONTAINS(incidents, "evict 203.0.113.1, 203.0.113.3 takes its place");
    CHECK_CONTAINS(incidents, "rank 1 on 203.0.113.2 accuses its host, too");
    free(events);
    free(incidents);
    events = content("run/launch/evicted");
    CHECK_STR(events, "203.0.113.1\n");
    free(events);
}

TEST(supervise_takes_out_both_accused_hosts_where_both_are_unfit) {
    CHECK_EQ_INT(run("E76,E76 E0", "203.0.113.2"), 0);
    char *events = content("events"), *incidents = content("run/incidents.jsonl");
    CHECK_ORDER(events, "attempt 0 on 203.0.113.1 203.0.113.2\n", "203.0.113.2: health\n",
                "attempt 1 on 203.0.113.3\n");
    CHECK_CONTAINS(incidents, "the health check of 203.0.113.2 failed: 2 and 2 is 5 there");
    CHECK_CONTAINS(incidents, "1 of 2 data-parallel replicas go on");
    free(events);
    free(incidents);
    events = content("run/launch/evicted");
    CHECK_STR(events, "203.0.113.1\n203.0.113.2\n");
    free(events);
}

// Each leaves at its own pace.
TEST(supervise_waits_for_the_second_rank_that_accuses_its_host) {
    CHECK_EQ_INT(run("E76,+E76 E0,E0", NULL), 0);
    char *events = content("events");
    CHECK_ORDER(events, "attempt 0 on ", "203.0.113.2: health\n", "attempt 1 on ");
    free(events);
}

// Over all launches: the time that ranks ran, by the failures.
TEST(supervise_tells_the_ranks_the_time_between_failures) {
    double told[3] = {0}, rank_1;
    CHECK_EQ_INT(run("S9,- -,S9 E0,E0", NULL), 0);
    char *events = content("events");
    for (int attempt = 1; attempt < 3; attempt++) {
        char part[64];
        snprintf(part, sizeof part, "attempt %d: rank 0 was told ", attempt);
        const char *at = strstr(events, part);
        CHECK(at != NULL);
        CHECK_EQ_INT(sscanf(at + strlen(part), "%lf", &told[attempt]), 1);
        part[strlen("attempt 1: rank ")] = '1';
        at = strstr(events, part);
        CHECK(at != NULL && sscanf(at + strlen(part), "%lf", &rank_1) == 1);
        CHECK(rank_1 == told[attempt]);
    }
    free(events);
    struct err err = {0};
    json_t *state = json_parse_file(test_path("run/launch/state.json"), &err);
    if (!state) test_fail(__FILE__, __LINE__, "%s", err.text);
    double seconds = json_number_value(json_object_get(state, "seconds"));
    CHECK_EQ_INT(json_integer_value(json_object_get(state, "failures")), 2);
    json_decref(state);
    // 0.3 s and more of each attempt before it, and less than all three in the end
    CHECK(told[1] > 0.3 && told[1] < seconds);
    CHECK(2 * told[2] > 0.6 && 2 * told[2] > told[1] && 2 * told[2] < seconds);
}
