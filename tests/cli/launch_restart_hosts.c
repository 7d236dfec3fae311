// weft launch as the supervisor of a run: agents and hosts. What becomes of agents when the run
// goes on as another program, of a host that its own rank accuses, of the time between failures.
#include "base/clock.h"
#include "supervised.h"
#include <dirent.h>
#include <sys/stat.h>

static void wait_for_restarts(pid_t launcher, int count) {
    while (incidents("restart", NULL) < count) { // the test's limit counts
        if (waitpid(launcher, NULL, WNOHANG) != 0) {
            const char *log = read_log();
            size_t size = strlen(log), shown = size < 1500 ? size : 1500;
            test_fail(__FILE__, __LINE__, "it ended before restart %d: ...%s", count,
                      log + size - shown);
        }
        usleep(20000);
    }
}

// ---- another program

static void read_sources(const char *program, char digest[17]) {
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s --version", program), 0);
    const char *line = strstr(out, "\nsources ");
    CHECK(line != NULL && sscanf(line, "\nsources %16s", digest) == 1);
    CHECK_EQ_INT(strlen(digest), 16);
}

// The same program but for the digest of its sources.
static void make_other_build(const char *path) {
    char *bytes, digest[17], other[17];
    size_t size;
    struct err err = {0};
    int found = 0;
    read_sources(test_weft(), digest);
    CHECK_OK(file_read(test_weft(), 0, &bytes, &size, &err), err);
    for (char *at = bytes; (at = memmem(at, size - (size_t)(at - bytes), digest, 16)); found++)
        memcpy(at, "0123456789abcdef", 16);
    CHECK(found > 0);
    CHECK_OK(file_replace(path, bytes, size, &err), err);
    CHECK_EQ_INT(chmod(path, 0700), 0);
    free(bytes);
    read_sources(path, other);
    CHECK_STR(other, "0123456789abcdef");
}

static bool is_agent_of(const char *process, pid_t supervisor) {
    char path[300], *text, words[4096] = "";
    size_t size;
    int parent = -1;
    snprintf(path, sizeof path, "/proc/%s/stat", process);
    if (file_read(path, 0, &text, &size, NULL) != 0) return false;
    const char *end = strrchr(text, ')'); // names may hold anything
    if (end) sscanf(end + 1, " %*c %d", &parent);
    free(text);
    snprintf(path, sizeof path, "/proc/%s/cmdline", process);
    if (parent != supervisor || file_read(path, 0, &text, &size, NULL) != 0) return false;
    for (size_t i = 0; i + 1 < size; i++)
        if (text[i] == 0) text[i] = ' ';
    snprintf(words, sizeof words, "%s", size > 0 ? text : "");
    free(text);
    return strstr(words, " launch --agent ") != NULL;
}

static pid_t agent_of(pid_t supervisor) {
    pid_t found = 0;
    DIR *processes = opendir("/proc");
    CHECK(processes != NULL);
    for (struct dirent *one; !found && (one = readdir(processes));)
        if (one->d_name[0] >= '1' && one->d_name[0] <= '9' && is_agent_of(one->d_name, supervisor))
            found = (pid_t)atoi(one->d_name);
    closedir(processes);
    return found;
}

// Kills it, and waits until another one has been heard.
static void replace_agent(pid_t supervisor) {
    pid_t before = agent_of(supervisor), now;
    CHECK(before > 0);
    CHECK_EQ_INT(kill(before, SIGKILL), 0);
    while ((now = agent_of(supervisor)) == before || now == 0) usleep(20000);
    for (double seen = clock_seconds(), heard = -1; heard < seen; usleep(20000)) {
        json_t *status = status_of_run();
        const json_t *host = json_array_get(json_object_get(status, "hosts"), 0);
        heard = clock_seconds() - json_number_value(json_object_get(host, "heard_seconds_ago"));
        json_decref(status);
    }
}

static void check_ranks_run(const char *program) {
    json_t *status = status_of_run();
    const json_t *ranks = json_object_get(status, "ranks");
    CHECK_EQ_INT(json_array_size(ranks), 2);
    for (size_t i = 0; i < 2; i++) {
        char path[64], target[4300];
        const json_t *pid = json_object_get(json_array_get(ranks, i), "pid");
        snprintf(path, sizeof path, "/proc/%d/exe", (int)json_integer_value(pid));
        ssize_t size = readlink(path, target, sizeof target - 1);
        CHECK(size > 0);
        target[size] = 0;
        CHECK_STR(target, program);
    }
    json_decref(status);
}

// An agent that is started again is the new program; that must not cost its host.
TEST_LIMIT(restart_as_another_program_and_lose_the_agent, 120) {
    char words[9000], other[4300], stop_at[64], folder[4300];
    int steps;
    write_inputs(100000000);
    snprintf(other, sizeof other, "%s", test_path("other"));
    make_other_build(other);
    pid_t launcher = start("checkpoint.every=0", NULL);
    wait_for("step 3/");
    snprintf(words, sizeof words, "--reload %s /bin/true", test_path("run"));
    CHECK_STATUS(order(words), 2);
    CHECK_CONTAINS(out, "/bin/true is no weft that runs here");
    CHECK_EQ_INT(launches(), 1);
    snprintf(words, sizeof words, "--reload %s %s", test_path("run"), other);
    CHECK_STATUS(order(words), 0);
    wait_for_restarts(launcher, 1);
    check_ranks_run(other);
    replace_agent(launcher);
    snprintf(words, sizeof words, "--inject %s kind=kill rank=1", test_path("run"));
    CHECK_STATUS(order(words), 0);
    wait_for_restarts(launcher, 2);
    check_ranks_run(other);
    kill(launcher, SIGINT);
    if (finish(launcher) != 130) test_fail(__FILE__, __LINE__, "%s", read_log());
    CHECK_EQ_INT(launches(), 3);
    CHECK_EQ_INT(incidents("mismatch", NULL), 0);
    free(read_journal("run", &steps));
    // and nothing of it is to be seen in the bits
    snprintf(stop_at, sizeof stop_at, "train.stop_at=%d", steps);
    snprintf(folder, sizeof folder, "train.folder=%s", test_path("whole"));
    CHECK_EQ_INT(finish(start_words(NULL, WORDS("checkpoint.every=0", stop_at, folder))), 0);
    check_same_run("run", "whole", steps);
}

// ---- a host that is not to be trusted

// There is no other one: the run stops, says why, and a scheduler finds the name of the host.
TEST_LIMIT(restart_where_the_only_host_is_accused, 120) {
    static const char settings[] = "fault.kind=flip_gradient fault.rank=1 fault.step=8 "
                                   "guard.most_faults=0";
    char host[256] = "", part[600], *text;
    size_t size;
    struct err err = {0};
    json_t *record = NULL;
    CHECK_EQ_INT(gethostname(host, sizeof host - 1), 0);
    write_inputs(20);
    CHECK_STATUS(launch("", settings), 76);
    snprintf(part, sizeof part, "rank 1 (%s) cannot be trusted: step 8: ", host);
    CHECK_CONTAINS(out, part);
    CHECK_EQ_INT(launches(), 1);
    CHECK_EQ_INT(incidents("exit", &record), 1);
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "rank")), 1);
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "step")), 8);
    CHECK_STR(json_string_value(json_object_get(record, "host")), host);
    CHECK_CONTAINS(evidence_of(record), part);
    snprintf(part, sizeof part, "stop: no place is left for even one replica: without host %s ",
             host);
    CHECK_CONTAINS(json_string_value(json_object_get(record, "action")), part);
    json_decref(record);
    CHECK_OK(file_read(test_path("run/launch/evicted"), 0, &text, &size, &err), err);
    snprintf(part, sizeof part, "%s\n", host);
    CHECK_STR(text, part);
    free(text);
    // "start it on other hosts": from the state before, to the end of an undisturbed run
    CHECK_STATUS(launch("", settings), 0);
    snprintf(part, sizeof part, "guard.most_faults=0 train.folder=%s", test_path("whole"));
    CHECK_STATUS(launch("", part), 0);
    check_same_run("run", "whole", 20);
}

// ---- the time between failures

static int saves_requested(void) {
    char path[4300], *text;
    size_t size;
    struct err err = {0};
    int count = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", test_path("run"));
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    for (const char *at = text; (at = strstr(at, "\"event\":\"checkpoint_requested\"")); at++)
        count++;
    free(text);
    return count;
}

// Failures every second or two make saves come many times a second. Taken for a day, which is what
// ranks do that are not told, the time between failures would make them wait for many seconds.
TEST_LIMIT(restart_tells_the_ranks_how_often_it_fails, 60) {
    write_inputs(100000000);
    pid_t launcher =
        start_words(NULL, WORDS("checkpoint.interval=auto", "fault.kind=[kill,kill]",
                                "fault.rank=[0,1]", "fault.step=[6,13]", "fault.attempt=[0,1]"));
    wait_for_restarts(launcher, 2);
    json_t *status = status_of_run(), *state = state_of("run");
    double seconds = json_number_value(json_object_get(state, "seconds"));
    double running = json_number_value(json_object_get(status, "attempt_seconds"));
    CHECK_EQ_INT(json_integer_value(json_object_get(state, "failures")), 2);
    CHECK(seconds > 0);
    CHECK_CLOSE(json_number_value(json_object_get(status, "mtbf_seconds")), (seconds + running) / 2,
                1e-3);
    json_decref(state);
    json_decref(status);
    for (int before = saves_requested(); saves_requested() < before + 12;) usleep(20000);
    kill(launcher, SIGINT);
    CHECK_EQ_INT(finish(launcher), 130);
}
