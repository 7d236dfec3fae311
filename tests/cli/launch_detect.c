// From a fault to its record: what ranks and hosts say in their beats, what weft launch makes of
// it, and what becomes of the run. Every fault is one that weft itself can play (docs/faults.md).
#include "base/clock.h"
#include "base/wire.h"
#include "supervised.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <inttypes.h>
#include <sys/socket.h>

static const char *own_host(void) {
    static char name[256];
    CHECK_EQ_INT(gethostname(name, sizeof name - 1), 0);
    return name;
}

static int64_t whole_of(const json_t *record, const char *key) {
    const json_t *value = json_object_get(record, key);
    if (!json_is_integer(value)) test_fail(__FILE__, __LINE__, "%s: no whole number", key);
    return json_integer_value(value);
}

// "rank 1 (node1)"
static const char *rank_here(int rank) {
    static char text[2][300];
    snprintf(text[rank], sizeof text[0], "rank %d (%s)", rank, own_host());
    return text[rank];
}

// ---- ranks that stand still

// The part of a text of stacks that is about one process.
static char *stack_of(const char *text, int pid) {
    char head[32];
    snprintf(head, sizeof head, "\nprocess %d (weft), ", pid);
    const char *begin = strstr(text, head);
    if (!begin) test_fail(__FILE__, __LINE__, "no stack of process %d:\n%.1500s", pid, text);
    const char *end = strstr(begin + 1, "\nprocess ");
    return strndup(begin, end ? (size_t)(end - begin) : strlen(begin));
}

struct hang {
    int rank, step, culprit; // -1: either; nobody stands in the fault itself
    bool stopped;            // the culprit's whole process
    const char *says;
};

// Stacks of both ranks with the program's own functions and their lines, and the latest messages of
// those who can still say them.
static void check_details(const json_t *record, const struct hang *h) {
    char path[4300], *text;
    size_t size;
    struct err err = {0};
    const char *details = json_string_value(json_object_get(record, "details"));
    CHECK(details != NULL);
    snprintf(path, sizeof path, "%s/%s", test_path("run"), details);
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    for (int rank = 0; rank < 2; rank++) {
        char words[64];
        int pid = 0;
        bool is_culprit = rank == h->culprit, is_stopped = is_culprit && h->stopped;
        snprintf(words, sizeof words, "---- messages of rank %d\n", rank);
        CHECK((strstr(text, words) != NULL) == !is_stopped);
        snprintf(words, sizeof words, "rank %d is process %%d on ", rank);
        for (const char *line = text; line && pid == 0; line = strchr(line, '\n')) {
            line += *line == '\n';
            sscanf(line, words, &pid);
        }
        CHECK(pid > 0);
        char *stack = stack_of(text, pid);
        CHECK_CONTAINS(stack, "  #0 ");
        CHECK_CONTAINS(stack, " run_one_step+");
        CHECK_CONTAINS(stack, " at src/train/run_step.c:");
        CHECK((strstr(stack, " fault_strike+") != NULL) == (is_culprit && !is_stopped));
        CHECK((strstr(stack, "(weft), T (stopped), ") != NULL) == is_stopped);
        free(stack);
    }
    free(text);
}

// Found in five seconds, or three times the slowest step; the machine may be ten times as slow.
static void check_detection(const json_t *restart) {
    const json_t *phases = json_object_get(json_object_get(restart, "restart"), "phases");
    double seconds = json_number_value(json_object_get(phases, "detect"));
    if (seconds < 3.5 || seconds > 70)
        test_fail(__FILE__, __LINE__, "found after %g s, expected 5 to 7", seconds);
}

// Three ways to stand still, each in its own launch of one run: the incident names both ends and
// the one at fault, what all ranks did is kept, and the run ends as if nothing had been.
TEST_LIMIT(detect_ranks_that_stand_still, 300) {
    static const struct hang hangs[] = {{1, 7, 1, false, "has not arrived"},
                                        {0, 12, 0, true, "its process stands still"},
                                        {-1, 17, -1, false, " do not arrive"}};
    write_inputs(20);
    launch_whole("");
    CHECK_STATUS(launch("", "fault.kind=[hang,stop,link_drop] fault.rank=[1,0,0] "
                            "fault.peer=[-1,-1,1] fault.step=[7,12,17] fault.attempt=[0,1,2]"),
                 0);
    CHECK_EQ_INT(launches(), 4);
    json_t *list = incident_list("hang"), *restarts = incident_list("restart");
    CHECK_EQ_INT(json_array_size(list), 3);
    CHECK_EQ_INT(json_array_size(restarts), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *one = json_array_get(list, i);
        int64_t rank = whole_of(one, "rank");
        if (hangs[i].rank >= 0) CHECK_EQ_INT(rank, hangs[i].rank);
        CHECK_EQ_INT(whole_of(one, "step"), hangs[i].step);
        CHECK_EQ_INT(whole_of(one, "attempt"), i);
        CHECK_STR(json_string_value(json_object_get(one, "host")), own_host());
        CHECK_CONTAINS(evidence_of(one), rank_here((int)rank));
        CHECK_CONTAINS(evidence_of(one), rank == 0 ? " rank 1 in " : " rank 0 in ");
        CHECK_CONTAINS(evidence_of(one), hangs[i].says);
        check_details(one, &hangs[i]);
        check_detection(json_array_get(restarts, i));
    }
    json_decref(list);
    json_decref(restarts);
    check_same_run("run", "whole", 20);
}

// ---- what spoils a run without stopping it

static bool has(const char *kind) {
    return incidents(kind, NULL) > 0;
}

// The one record of a kind, of an attempt that goes on.
static json_t *only(const char *kind, int rank) {
    json_t *record = NULL;
    CHECK_EQ_INT(incidents(kind, &record), 1);
    CHECK_EQ_INT(whole_of(record, "rank"), rank);
    CHECK_STR(json_string_value(json_object_get(record, "host")), own_host());
    return record;
}

// A slow rank, a link that stands still for a while again and again, and a spike that does not come
// again, all in one run: each has its record, and the run goes on with the values of one that was
// left alone.
TEST_LIMIT(detect_slow_rank_and_flapping_link, 200) {
    char settings[64];
    int steps;
    write_inputs(100000000);
    // A step of some milliseconds becomes longer than the 20 that are nobody's fault. What a busy
    // machine adds to it is multiplied, too.
    pid_t launcher = start_words(NULL, WORDS("fault.kind=[slow,link_flap,spike]",
                                             "fault.rank=[1,0,0]", "fault.peer=[-1,1,-1]",
                                             "fault.step=[3,3,40]", "fault.factor=[25,0,0]"));
    while (!has("straggler") || !has("link") || !has("corruption")) usleep(50000);
    kill(launcher, SIGINT);
    CHECK_EQ_INT(finish(launcher), 130);
    CHECK_EQ_INT(launches(), 1);

    json_t *slow = only("straggler", 1), *link = only("link", 0), *spike = only("corruption", 0);
    CHECK_CONTAINS(evidence_of(slow), rank_here(1));
    CHECK_CONTAINS(evidence_of(slow), " is slow: its own work takes ");
    CHECK_CONTAINS(evidence_of(link), rank_here(0));
    CHECK_CONTAINS(evidence_of(link), rank_here(1));
    CHECK_CONTAINS(evidence_of(link), " flaps: ");
    CHECK_CONTAINS(evidence_of(spike), "gradient norm");
    CHECK_CONTAINS(evidence_of(spike), "passing fault");
    CHECK_EQ_INT(whole_of(spike, "step"), 40);
    json_decref(slow);
    json_decref(link);
    json_decref(spike);
    CHECK_EQ_INT(incidents(NULL, NULL), 3);

    free(read_journal("run", &steps));
    snprintf(settings, sizeof settings, "train.stop_at=%d", steps);
    launch_whole(settings);
    check_same_run("run", "whole", steps);
}

// ---- no time to save

static int pid_of_rank(int rank) {
    json_t *status = status_of_run();
    int pid = (int)whole_of(json_array_get(json_object_get(status, "ranks"), (size_t)rank), "pid");
    json_decref(status);
    return pid;
}

static void wait_until_stopped(int pid) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    while (state != 'T') {
        FILE *file = fopen(path, "r");
        CHECK(file != NULL);
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 0;
        fclose(file);
        usleep(5000);
    }
}

// The scheduler wants the machine while one rank stands still, so that no rank can save: the run
// leaves all the same, says what it could not do, and goes on from the state before.
TEST_LIMIT(detect_that_not_all_ranks_can_save, 200) {
    json_t *record = NULL;
    write_inputs(20);
    launch_whole("");
    pid_t launcher = start_words(WORDS("--grace", "2"),
                                 WORDS("fault.kind=stop", "fault.rank=1", "fault.step=8"));
    wait_for("step 7/");
    wait_until_stopped(pid_of_rank(1));
    double begin = clock_seconds();
    kill(launcher, SIGTERM);
    CHECK_EQ_INT(finish(launcher), 75);
    double seconds = clock_seconds() - begin;
    if (seconds < 1.9 || seconds > 40)
        test_fail(__FILE__, __LINE__, "left after %g s, expected 2 to 4", seconds);
    CHECK_EQ_INT(incidents("preempted", &record), 1);
    CHECK_CONTAINS(evidence_of(record), "not all ranks have saved within the grace time");
    json_decref(record);
    CHECK_EQ_INT(incidents(NULL, NULL), 1);
    check_nothing_runs();

    CHECK_STATUS(launch("", "train.log_every=1"), 0);
    CHECK_CONTAINS(out, "resumed from ");
    CHECK_CONTAINS(out, "of step 5 ");
    CHECK_EQ_INT(launches(), 2);
    check_same_run("run", "whole", 20);
}

// ---- who knocks

static bool has_socket(pid_t pid, unsigned long inode) {
    char folder[64], path[400], target[64], wanted[64];
    bool found = false;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *list = opendir(folder);
    CHECK(list != NULL);
    for (struct dirent *e; !found && (e = readdir(list)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        found = strcmp(target, wanted) == 0;
    }
    closedir(list);
    return found;
}

// The supervisor waits for connections at this port of the loopback, and nowhere else.
static void check_listens_on_loopback(pid_t supervisor, int port) {
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    enum { LISTENS = 0x0A };
    int found = 0;
    for (int i = 0; i < 2; i++) {
        char line[512], address[40];
        unsigned at, state;
        unsigned long inode;
        FILE *file = fopen(tables[i], "r");
        while (file && fgets(line, sizeof line, file)) {
            if (sscanf(line, "%*d: %39[0-9A-F]:%X %*s %X %*s %*s %*s %*d %*d %lu", address, &at,
                       &state, &inode) != 4 ||
                state != LISTENS || !has_socket(supervisor, inode))
                continue;
            found++;
            CHECK_STR(address, "0100007F"); // 127.0.0.1, lowest byte first
            CHECK_EQ_INT(at, port);
        }
        if (file) fclose(file);
    }
    if (found == 0 && !file_exists(tables[0])) SKIP("%s is not there", tables[0]);
    CHECK_EQ_INT(found, 1);
}

static void send_garbage(const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    CHECK_EQ_INT(inet_pton(AF_INET, address, &to.sin_addr), 1);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(s >= 0);
    CHECK_EQ_INT(connect(s, (struct sockaddr *)&to, sizeof to), 0);
    CHECK_EQ_INT(send(s, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    close(s);
}

// A well made order with a key of its own.
static void send_forged(const char *address, int port) {
    struct wire_key key;
    struct err err = {0};
    CHECK_OK(wire_key_make(&key, &err), err);
    struct wire *w = wire_connect(address, port, &key, 20, &err);
    if (!w) test_fail(__FILE__, __LINE__, "%s", err.text);
    json_t *hello = json_pack("{s:s,s:s}", "type", "hello", "role", "command");
    CHECK_OK(wire_put(w, hello, &err), err);
    while (wire_pending(w) && wire_work(w, &err) == 0) usleep(1000);
    json_decref(hello);
    wire_close(w);
}

static const char *wait_for_dropped(int count) {
    static json_t *record;
    json_decref(record);
    record = NULL;
    while (incidents("forged", NULL) < count) usleep(20000);
    CHECK_EQ_INT(incidents("forged", &record), count);
    CHECK_STR(json_string_value(json_object_get(record, "action")), "dropped");
    return evidence_of(record);
}

static int64_t newest_step(void) {
    int64_t step = 0;
    for (const char *at = strstr(read_log(), "\nstep "); at; at = strstr(at + 1, "\nstep "))
        sscanf(at, "\nstep %" SCNd64 "/", &step);
    return step;
}

TEST_LIMIT(detect_forged_messages, 100) {
    char path[4300], address[64];
    write_inputs(100000000);
    pid_t launcher = start("checkpoint.every=0", NULL);
    wait_for("step 3/");
    snprintf(path, sizeof path, "%s/launch/supervisor.json", test_path("run"));
    json_t *place = read_json(path);
    snprintf(address, sizeof address, "%s", json_string_value(json_object_get(place, "address")));
    int port = (int)whole_of(place, "port");
    json_decref(place);
    CHECK_STR(address, "127.0.0.1");
    check_listens_on_loopback(launcher, port);

    send_garbage(address, port);
    const char *said = wait_for_dropped(1);
    CHECK_CONTAINS(said, "1 message dropped so far");
    CHECK_CONTAINS(said, "does not speak this protocol");
    send_forged(address, port);
    said = wait_for_dropped(2);
    CHECK_CONTAINS(said, "2 messages dropped so far");
    CHECK_CONTAINS(said, "is forged or damaged");

    // who has the key is heard, and the ranks go on
    json_t *status = status_of_run();
    CHECK_EQ_INT(whole_of(status, "dropped_messages"), 2);
    json_decref(status);
    int64_t step = newest_step();
    while (newest_step() < step + 3) usleep(20000);
    kill(launcher, SIGINT);
    CHECK_EQ_INT(finish(launcher), 130);
    CHECK_EQ_INT(launches(), 1);
    CHECK_EQ_INT(incidents(NULL, NULL), 2);
}
