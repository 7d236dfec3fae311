// weft launch over hosts that are not what they should be: names nobody knows, agents of another
// program or instruction set. The other host is this test program itself, in an agent's place.
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "base/version.h"
#include "base/wire.h"
#include "comm/comm.h"
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAKE_WORDS "WEFT_TEST_AGENT"   // what the agent was to be started with
#define FAKE_KIND "WEFT_TEST_AGENT_IS" // "isa", "binary"

// ---- in an agent's place ------------------------------------------------------------------------

static int read_word(const char *words, const char *name, char *out, size_t bytes) {
    char begin[64];
    snprintf(begin, sizeof begin, "'%s' '", name);
    const char *at = strstr(words, begin);
    if (!at) return -1;
    at += strlen(begin);
    snprintf(out, bytes, "%.*s", (int)strcspn(at, "'"), at);
    return 0;
}

// Of the program that this one stands for ("exec 'PROGRAM' 'launch' ..."), which may be newer.
static void read_binary(const char *words, char out[24]) {
    char command[4200];
    const char *program = strchr(words, '\'');
    snprintf(out, 24, "%s", version_digest());
    if (!program) return;
    snprintf(command, sizeof command, "%.*s' --version", (int)strcspn(program + 1, "'") + 1,
             program);
    FILE *said = popen(command, "r");
    for (char line[4096]; said && fgets(line, sizeof line, said);)
        if (sscanf(line, "sources %23s", out) == 1) break;
    if (said) pclose(said);
}

static bool answer(struct wire *w, const json_t *message) {
    const char *order = json_string_value(json_object_get(message, "order"));
    json_t *done = json_pack("{s:s, s:I, s:f, s:b}", "type", "done", "id",
                             json_integer_value(json_object_get(message, "id")), "time",
                             clock_wall_seconds(), "passed", 1);
    wire_put(w, done, NULL);
    json_decref(done);
    return order && strcmp(order, "leave") == 0;
}

static int be_an_agent(const char *words, const char *kind) {
    char key_text[WIRE_KEY_TEXT + 2], address[64], port[16], host[64], binary[24];
    struct wire_key key;
    struct err err = {0};
    bool leave = false;
    double told = 0;
    if (!fgets(key_text, sizeof key_text, stdin)) return 1;
    key_text[strcspn(key_text, "\n")] = 0;
    if (wire_key_parse(key_text, &key) != 0 ||
        read_word(words, "--address", address, sizeof address) != 0 ||
        read_word(words, "--port", port, sizeof port) != 0 ||
        read_word(words, "--host", host, sizeof host) != 0)
        return 2;
    unsetenv(FAKE_WORDS);
    read_binary(words, binary);
    struct wire *w = wire_connect(address, atoi(port), &key, 10, &err);
    if (!w) return 3;
    json_t *hello =
        json_pack("{s:s, s:s, s:s, s:i, s:f, s:s, s:s, s:s, s:i, s:s}", "type", "hello", "role",
                  "agent", "host", host, "pid", (int)getpid(), "time", clock_wall_seconds(), "isa",
                  strcmp(kind, "isa") == 0 ? "abacus" : "portable", "binary",
                  strcmp(kind, "binary") == 0 ? "0123456789abcdef" : binary, "address", "192.0.2.1",
                  "port", 1, "machine", "another");
    wire_put(w, hello, NULL);
    json_decref(hello);
    while (!leave && wire_work(w, &err) == 0) {
        json_t *message;
        while (wire_take(w, &message, &err) == 1) {
            leave = answer(w, message) || leave;
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
    wire_close(w);
    return 0;
}

__attribute__((constructor)) static void look(void) {
    const char *words = getenv(FAKE_WORDS), *kind = getenv(FAKE_KIND);
    if (words && kind) exit(be_an_agent(words, kind));
}

// ---- runs ---------------------------------------------------------------------------------------

static char out[16384];

static void write_file(const char *name, const char *text) {
    struct err err = {0};
    CHECK_OK(file_replace(test_path(name), text, strlen(text), &err), err);
}

static void write_inputs(void) {
    struct err err = {0};
    char text[6000];
    uint16_t ids[6000];
    for (int i = 0; i < 6000; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_replace(test_path("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 2, vocab: 100, "
             "context: 32}\n"
             "data.train: %s\n"
             "train: {steps: 1000000, batch: 8, micro_batch: 2, gemm_seconds: 0, folder: %s}\n"
             "device.threads: 1\n",
             test_path("train.bin"), test_path("run"));
    write_file("c.yaml", text);
    char self[4096];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(size > 0);
    self[size] = 0;
    snprintf(text, sizeof text, "#!/bin/sh\n" FAKE_WORDS "=\"$*\" exec %s\n", self);
    write_file("shell", text);
    CHECK(chmod(test_path("shell"), 0700) == 0);
}

static pid_t begin(const char *kind) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    int file = open(test_path("log"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, 1);
    dup2(file, 2);
    setenv("OMPI_MCA_plm_rsh_agent", test_path("shell"), 1);
    setenv("HYDRA_LAUNCHER_EXEC", test_path("shell"), 1);
    setenv(FAKE_KIND, kind, 1);
    execl(test_weft(), "weft", "launch", "-n", "2", "--hosts", test_path("hosts"), "--spares", "1",
          "--listen", "127.0.0.1", "train", test_path("c.yaml"), (char *)NULL);
    _exit(127);
}

static char *read_text(const char *path) {
    char *text;
    size_t size;
    return file_read(path, 0, &text, &size, NULL) == 0 ? text : strdup("");
}

// Until the run has made a step and has the incident in its record; then it is ended. Returns the
// record.
static char *see_incident(const char *kind, const char *part) {
    char *record = NULL, *log = NULL, path[4300];
    int status;
    bool seen = false;
    write_inputs();
    write_file("hosts", "127.0.0.1 slots=2\n192.0.2.1 slots=2\n");
    snprintf(path, sizeof path, "%s/incidents.jsonl", test_path("run"));
    pid_t run = begin(kind);
    while (!seen) { // the test's limit counts
        usleep(50000);
        free(record);
        free(log);
        record = read_text(path);
        log = read_text(test_path("log"));
        seen = strstr(record, part) && strstr(log, "step 1/");
        if (!seen && waitpid(run, &status, WNOHANG) != 0)
            test_fail(__FILE__, __LINE__, "it ended: %s", log);
    }
    free(log);
    kill(run, SIGINT);
    while (waitpid(run, &status, 0) < 0) CHECK(errno == EINTR);
    CHECK(WIFEXITED(status));
    CHECK_EQ_INT(WEXITSTATUS(status), 130);
    return record;
}

static void need_mpi(void) {
    if (!comm_built_with_mpi()) SKIP("built without MPI");
}

TEST_LIMIT(launch_hosts_of_another_instruction_set_are_announced, 120) {
    need_mpi();
    char *text = see_incident("isa", "192.0.2.1 computes with abacus");
    CHECK_CONTAINS(text, "\"kind\":\"mismatch\"");
    CHECK_CONTAINS(text, "bits may differ");
    free(text);
}

TEST_LIMIT(launch_hosts_of_another_program_are_no_spares, 120) {
    need_mpi();
    char *text = see_incident("binary", "its sources are 0123456789abcdef");
    CHECK_CONTAINS(text, "\"kind\":\"mismatch\"");
    CHECK_CONTAINS(text, "no spare until this is mended");
    free(text);
}

TEST(launch_hosts_that_are_wrong) {
    static const char *const bad[][2] = {
        {"127.0.0.1\nno-such-host.invalid slots=2\n",
         "line 2: host no-such-host.invalid is not known"},
        {"127.0.0.1\n\n127.0.1 slots=2\n",
         "line 3: host 127.0.1 is the same machine as 127.0.0.1 of line 1"},
        {"127.0.0.1\n127.0.0.1\n", "line 2: host 127.0.0.1 stands in the file already"},
        {"127.0.0.1 slots=-1\n", "line 1: \"slots=-1\""}};
    write_inputs();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file("hosts", bad[i][0]);
        CHECK_EQ_INT(test_shell(out, sizeof out, "%s launch -n 2 --hosts %s train %s 2>&1",
                                test_weft(), test_path("hosts"), test_path("c.yaml")),
                     2);
        CHECK_CONTAINS(out, bad[i][1]);
        CHECK(strchr(out, '\n') == strrchr(out, '\n')); // one line
    }
    write_file("hosts", "127.0.0.1 slots=2\n");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s launch -n 2 --hosts %s --spares 1 train %s 2>&1",
                            test_weft(), test_path("hosts"), test_path("c.yaml")),
                 2);
    CHECK_CONTAINS(out, "1 spare host of 1");
}

TEST(launch_on_a_port_that_is_taken) {
    struct err err = {0};
    int listener, port;
    char who[64];
    write_inputs();
    CHECK_OK(wire_listen("127.0.0.1", 0, &listener, &port, &err), err);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s launch -n 2 --listen 127.0.0.1:%d train %s 2>&1",
                            test_weft(), port, test_path("c.yaml")),
                 2);
    snprintf(who, sizeof who, "port %d: process %d does", port, (int)getpid());
    CHECK_CONTAINS(out, who);
    close(listener);
}
