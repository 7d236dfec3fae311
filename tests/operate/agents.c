// Agents of hosts: started, told, obeyed, lost. They are real processes of this machine.
#include "operate/agents.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/version.h"
#include "checkpoint/manifest.h"
#include "operate/agent.h"
#include "operate/launch.h"
#include "operate/marks.h"
#include "test.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- a supervisor with nothing but agents -------------------------------------------------------

struct base {
    struct control *control;
    struct agents *agents;
    struct agents_options options;
    json_t *facts; // the last ones
    char run[32];
    // of the last order that was answered
    int answers;
    json_t *reply;
    char error[200];
};

static void on_event(void *context, const struct control_event *event) {
    struct base *b = context;
    agents_event(b->agents, event, clock_seconds());
    const char *type = json_string_value(json_object_get(event->message, "type"));
    if (event->what == CONTROL_SAID && type && strcmp(type, "facts") == 0) {
        json_decref(b->facts);
        b->facts = json_deep_copy(event->message);
    }
}

static void open_base(struct base *b, const char *remote) {
    struct err err = {0};
    *b = (struct base){.options = {.program = test_weft(),
                                   .remote = remote,
                                   .address = "127.0.0.1",
                                   .snapshot_folder = test_temp_dir(),
                                   .disk_folder = test_temp_dir(),
                                   .again_seconds = 0.3,
                                   .binary = version_digest()}};
    snprintf(b->run, sizeof b->run, "agents-%d", (int)getpid());
    b->options.run = b->run;
    CHECK_OK(wire_key_make(&b->options.key, &err), err);
    CHECK_OK(control_open(&b->control, "127.0.0.1", 0, &b->options.key, &err), err);
    b->options.control = b->control;
    b->options.port = control_port(b->control);
    CHECK_OK(agents_open(&b->agents, &b->options, &err), err);
}

static int add(struct base *b, const char *host) {
    struct err err = {0};
    int index = agents_add(b->agents, host, &err);
    if (index < 0) test_fail(__FILE__, __LINE__, "%s", err.text);
    return index;
}

static void turn(struct base *b) {
    struct err err = {0};
    CHECK_OK(control_wait(b->control, NULL, 0, 0.02, on_event, b, &err), err);
    agents_tick(b->agents, clock_seconds());
}

// The test's limit counts.
static const struct agent_view *reach(struct base *b, int host, enum agent_state state) {
    while (agents_view(b->agents, host)->state != state) turn(b);
    return agents_view(b->agents, host);
}

static void close_base(struct base *b) {
    agents_leave(b->agents);
    for (int i = 0; i < 3; i++) turn(b);
    agents_close(b->agents);
    control_close(b->control);
    json_decref(b->facts);
    json_decref(b->reply);
}

static void on_done(void *context, int host, const json_t *reply, const char *error) {
    struct base *b = context;
    (void)host;
    json_decref(b->reply);
    b->reply = json_deep_copy(reply);
    snprintf(b->error, sizeof b->error, "%s", error ? error : "");
    b->answers++;
}

// "": done; else what was wrong. The reply is kept.
static const char *order(struct base *b, int host, const char *name, json_t *arguments,
                         double seconds) {
    int before = b->answers;
    agents_order(b->agents, host, name, arguments, seconds, on_done, b);
    CHECK_EQ_INT(b->answers, before);
    while (b->answers == before) turn(b);
    CHECK_EQ_INT(b->answers, before + 1);
    return b->error;
}

// ---- how they are started -----------------------------------------------------------------------

static const char *words_of(const struct agents_options *o, const char *host, bool here) {
    static char line[4096];
    struct launch_command c;
    struct err err = {0};
    line[0] = 0;
    CHECK_OK(agents_command(&c, o, host, here, &err), err);
    for (int i = 0; i < c.count; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", i ? "|" : "", c.words[i]);
    launch_command_free(&c);
    return line;
}

TEST(agents_command_lines) {
    struct agents_options o = {.program = "/x/we'ft",
                               .run = "r1",
                               .address = "10.0.0.1",
                               .port = 71,
                               .snapshot_folder = "/dev/shm",
                               .disk_folder = "/data/my run"};
    CHECK_STR(words_of(&o, "n1", true),
              "/x/we'ft|launch|--agent|--address|10.0.0.1|--port|71|--run|r1|--host|n1|"
              "--snapshot-folder|/dev/shm|--disk-folder|/data/my run");
    CHECK_STR(words_of(&o, "n1", false),
              "ssh|-x|-o|BatchMode=yes|-o|ConnectTimeout=10|n1|exec '/x/we'\\''ft' 'launch' "
              "'--agent' '--address' '10.0.0.1' '--port' '71' '--run' 'r1' '--host' 'n1' "
              "'--snapshot-folder' '/dev/shm' '--disk-folder' '/data/my run'");
    o.remote = "rsh -q : ssh";
    o.loader_path = "/y:/z";
    CHECK(strncmp(words_of(&o, "n1", false),
                  "rsh|-q|n1|exec env 'LD_LIBRARY_PATH=/y:/z' '/x/we'\\''ft'", 50) == 0);
    o.slurm = true;
    CHECK(strncmp(words_of(&o, "n1", false),
                  "srun|--overlap|--nodes=1|--ntasks=1|--nodelist=n1|--mem=0|", 58) == 0);
    CHECK_CONTAINS(words_of(&o, "n1", false), "|/data/my run");
}

TEST(agents_start_and_tell) {
    struct base b;
    open_base(&b, NULL);
    int host = add(&b, "127.0.0.1");
    CHECK(agents_view(b.agents, host)->here);
    const struct agent_view *v = reach(&b, host, AGENT_READY);
    CHECK_STR(v->address, "127.0.0.1");
    CHECK_STR(v->binary, version_digest());
    CHECK(v->port > 0 && v->isa[0] && strcmp(v->isa, "unknown") != 0);
    while (!b.facts || !json_object_get(b.facts, "disk_free_bytes")) turn(&b);
    static const char *const facts[] = {"memory_free_bytes", "memory_total_bytes",
                                        "disk_total_bytes", "snapshot_free_bytes"};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        CHECK(json_integer_value(json_object_get(b.facts, facts[i])) > 0);
    CHECK_CLOSE(json_real_value(json_object_get(b.facts, "time")), clock_wall_seconds(), 1e-7);
    close_base(&b);
}

// The way to another host is a program in place of ssh that runs what it is told right here.
TEST(agents_start_through_another_shell) {
    struct base b;
    struct err err = {0};
    const char *script = "#!/bin/sh\n[ \"$1\" = -q ] || exit 9\nshift 2\nexec sh -c \"$*\"\n";
    char remote[4200];
    CHECK_OK(file_replace(test_path("shell"), script, strlen(script), &err), err);
    CHECK(chmod(test_path("shell"), 0700) == 0);
    snprintf(remote, sizeof remote, "%s -q", test_path("shell"));
    open_base(&b, remote);
    int host = add(&b, "192.0.2.1");
    CHECK(!agents_view(b.agents, host)->here);
    reach(&b, host, AGENT_READY);
    close_base(&b);
}

TEST(agents_that_cannot_start_say_why) {
    struct base b;
    struct err err = {0};
    const char *script = "#!/bin/sh\necho >&2\necho >&2 \"shell: no route to $1\"\nexit 255\n";
    CHECK_OK(file_replace(test_path("shell"), script, strlen(script), &err), err);
    CHECK(chmod(test_path("shell"), 0700) == 0);
    open_base(&b, test_path("shell"));
    int far = add(&b, "192.0.2.1"), near = add(&b, "127.0.0.1");
    CHECK_STR(reach(&b, far, AGENT_LOST)->why,
              "its agent could not be started: left with status 255: shell: no route to 192.0.2.1");
    reach(&b, near, AGENT_READY);
    CHECK_STR(order(&b, far, "echo", NULL, 5), "the agent of 192.0.2.1 is lost");
    close_base(&b);
    open_base(&b, "/nonexistent/shell");
    far = add(&b, "192.0.2.1");
    CHECK_CONTAINS(reach(&b, far, AGENT_LOST)->why, "/nonexistent/shell: No such file");
    close_base(&b);
}

TEST(agents_are_started_again) {
    struct base b;
    open_base(&b, NULL);
    int host = add(&b, "127.0.0.1");
    reach(&b, host, AGENT_READY);
    CHECK_STR(order(&b, host, "echo", NULL, 5), "");
    CHECK_EQ_INT(kill(agents_view(b.agents, host)->pid, SIGKILL), 0);
    reach(&b, host, AGENT_LOST);
    CHECK_CONTAINS(order(&b, host, "echo", NULL, 5), "127.0.0.1 is ");
    reach(&b, host, AGENT_READY);
    CHECK_STR(order(&b, host, "echo", NULL, 5), "");
    close_base(&b);
}

TEST(agents_of_another_program_are_refused) {
    struct base b;
    open_base(&b, NULL);
    agents_close(b.agents);
    struct err err = {0};
    b.options.binary = "0123456789abcdef";
    CHECK_OK(agents_open(&b.agents, &b.options, &err), err);
    int host = add(&b, "127.0.0.1");
    CHECK_CONTAINS(reach(&b, host, AGENT_REFUSED)->why, "here they are 0123456789abcdef");
    CHECK_CONTAINS(agents_view(b.agents, host)->why, "host 127.0.0.1 has another program");
    close_base(&b);
}

static const char *now_built_of(void *context) {
    return context;
}

// The run goes on as another program: agents that are started later are that one.
TEST(agents_of_the_program_as_it_is_now_will_do) {
    struct base b;
    struct err err = {0};
    open_base(&b, NULL);
    agents_close(b.agents);
    b.options.binary = "0123456789abcdef";
    b.options.binary_now = now_built_of;
    b.options.context = (void *)version_digest();
    CHECK_OK(agents_open(&b.agents, &b.options, &err), err);
    reach(&b, add(&b, "127.0.0.1"), AGENT_READY);
    close_base(&b);
    open_base(&b, NULL);
    agents_close(b.agents);
    b.options.binary = "0123456789abcdef";
    b.options.binary_now = now_built_of;
    b.options.context = (void *)"fedcba9876543210";
    CHECK_OK(agents_open(&b.agents, &b.options, &err), err);
    CHECK_CONTAINS(reach(&b, add(&b, "127.0.0.1"), AGENT_REFUSED)->why,
                   "here they are fedcba9876543210");
    close_base(&b);
}

TEST(agents_of_one_machine_are_refused) {
    struct base b;
    open_base(&b, NULL);
    int one = add(&b, "127.0.0.1"), two = add(&b, "localhost");
    while (agents_view(b.agents, one)->state != AGENT_REFUSED &&
           agents_view(b.agents, two)->state != AGENT_REFUSED)
        turn(&b);
    int refused = agents_view(b.agents, one)->state == AGENT_REFUSED ? one : two;
    CHECK_CONTAINS(agents_view(b.agents, refused)->why, "are the same machine");
    CHECK_EQ_INT(agents_view(b.agents, one + two - refused)->state, AGENT_READY);
    close_base(&b);
}

// ---- orders -------------------------------------------------------------------------------------

static pid_t marked(const char *run, const char *control) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    setenv("WEFT_RUN", run, 1);
    setenv("WEFT_CONTROL", control, 1);
    execlp("sleep", "sleep", "1000", (char *)NULL);
    _exit(127);
}

static bool has_become(pid_t pid, const char *name) {
    char path[64], *text;
    size_t size;
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    if (file_read(path, 0, &text, &size, NULL) != 0) return false;
    bool same = strncmp(text, name, strlen(name)) == 0;
    free(text);
    return same;
}

static void end(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

TEST(agents_kill_what_is_marked) {
    struct base b;
    open_base(&b, NULL);
    int host = add(&b, "127.0.0.1");
    pid_t ours = marked(b.run, "x"), stopped = marked(b.run, "x"), other = marked("another", "x");
    while (!has_become(ours, "sleep") || !has_become(stopped, "sleep") ||
           !has_become(other, "sleep"))
        usleep(1000);
    kill(stopped, SIGSTOP);
    reach(&b, host, AGENT_READY);
    CHECK_STR(order(&b, host, "kill", NULL, 10), "");
    CHECK_EQ_INT(json_integer_value(json_object_get(b.reply, "killed")), 2);
    CHECK_EQ_INT(json_integer_value(json_object_get(b.reply, "left")), 0);
    int status;
    CHECK_EQ_INT(waitpid(ours, &status, 0), ours);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK_EQ_INT(waitpid(stopped, &status, 0), stopped);
    CHECK_EQ_INT(waitpid(other, &status, WNOHANG), 0);
    end(other);
    CHECK_STR(order(&b, host, "echo", NULL, 5), ""); // the agent itself is spared
    close_base(&b);
}

TEST(agents_forget_and_refuse_nonsense) {
    struct base b;
    struct err err = {0};
    char folder[4400], file[4500];
    open_base(&b, NULL);
    int host = add(&b, "127.0.0.1");
    snprintf(folder, sizeof folder, "%s/weft-%u/%.16s/gen-0", test_temp_dir(), (unsigned)geteuid(),
             b.run);
    snprintf(file, sizeof file, "%s/rank-00000.part", folder);
    CHECK_OK(file_make_folders(folder, &err), err);
    CHECK_OK(file_replace(file, "x", 1, &err), err);
    reach(&b, host, AGENT_READY);
    CHECK_STR(order(&b, host, "forget", NULL, 5), "");
    CHECK(!file_exists(folder));
    CHECK_STR(order(&b, host, "forget", NULL, 5), ""); // nothing there is no fault
    CHECK_STR(order(&b, host, "dance", NULL, 5), "unknown order \"dance\"");
    CHECK_STR(order(&b, host, "buddy", json_pack("{s:s}", "address", "127.0.0.1"), 5), "");
    CHECK_STR(order(&b, host, "buddy", NULL, 5), "");
    close_base(&b);
}

static json_t *small_checks(const struct agent_view *v, const char *broken) {
    char peer[100];
    snprintf(peer, sizeof peer, "%s:%d", v->address, v->port);
    json_t *o = json_pack("{s:f, s:i, s:i, s:i, s:[s]}", "gemm_seconds", 0.01, "memory_bytes",
                          1 << 20, "disk_bytes", 1 << 16, "link_bytes", 1 << 20, "peers", peer);
    if (broken) json_object_set_new(o, "break", json_string(broken));
    return o;
}

TEST(agents_check_the_health_of_a_host) {
    struct base b;
    open_base(&b, NULL);
    int host = add(&b, "127.0.0.1");
    const struct agent_view *v = reach(&b, host, AGENT_READY);
    CHECK_STR(order(&b, host, "health", small_checks(v, NULL), 60), "");
    CHECK(json_is_true(json_object_get(b.reply, "passed")));
    CHECK(!json_object_get(b.reply, "verdict"));
    bool linked = false;
    for (size_t i = 0; i < json_array_size(json_object_get(b.reply, "checks")); i++)
        linked =
            linked || strncmp(json_string_value(json_object_get(
                                  json_array_get(json_object_get(b.reply, "checks"), i), "name")),
                              "link", 4) == 0;
    CHECK(linked);
    CHECK_STR(order(&b, host, "health", small_checks(v, "memory"), 60), "");
    CHECK(json_is_false(json_object_get(b.reply, "passed")));
    CHECK_CONTAINS(json_string_value(json_object_get(b.reply, "verdict")), "memory");
    CHECK_CONTAINS(json_string_value(json_object_get(b.reply, "verdict")), "127.0.0.1");
    close_base(&b);
}

TEST(agents_show_stacks) {
    struct base b;
    open_base(&b, NULL);
    int host = add(&b, "127.0.0.1");
    pid_t sleeper = marked("another", "x");
    while (!has_become(sleeper, "sleep")) usleep(1000);
    reach(&b, host, AGENT_READY);
    CHECK_STR(order(&b, host, "stacks", json_pack("{s:[i]}", "pids", (int)sleeper), 20), "");
    const char *text = json_string_value(json_object_get(b.reply, "text"));
    char process[64];
    snprintf(process, sizeof process, "process %d", (int)sleeper);
    CHECK(text != NULL);
    CHECK_CONTAINS(text, process);
    end(sleeper);
    close_base(&b);
}

TEST(agents_that_do_not_answer_in_time) {
    struct base b;
    open_base(&b, NULL);
    int host = add(&b, "127.0.0.1");
    reach(&b, host, AGENT_READY);
    CHECK_EQ_INT(kill(agents_view(b.agents, host)->pid, SIGSTOP), 0);
    CHECK_CONTAINS(order(&b, host, "echo", NULL, 0.2), "127.0.0.1 did not answer in time");
    CHECK_EQ_INT(agents_pending(b.agents), 0);
    close_base(&b);
}

// A host that is cut off ends its ranks and leaves; those of another supervisor are none of its.
TEST(agent_without_a_supervisor_ends_its_ranks) {
    struct wire_key key;
    struct err err = {0};
    struct control *control;
    char run[64], here[64];
    int status;
    snprintf(run, sizeof run, "fence-%d", (int)getpid());
    CHECK_OK(wire_key_make(&key, &err), err);
    CHECK_OK(control_open(&control, "127.0.0.1", 0, &key, &err), err);
    snprintf(here, sizeof here, "127.0.0.1:%d", control_port(control));
    pid_t ours = marked(run, here), other = marked(run, "127.0.0.1:1");
    pid_t agent = fork();
    CHECK(agent >= 0);
    if (agent == 0) {
        struct agent_options o = {.address = "127.0.0.1",
                                  .port = control_port(control),
                                  .key = key,
                                  .run = run,
                                  .host = "a",
                                  .snapshot_folder = test_temp_dir(),
                                  .disk_folder = test_temp_dir(),
                                  .patience_seconds = 0.3};
        control_close(control);
        _exit(agent_run(&o, &err) != 0 ? err_exit_status(&err) : 0);
    }
    control_close(control);
    CHECK_EQ_INT(waitpid(agent, &status, 0), agent);
    CHECK(WIFEXITED(status));
    CHECK_EQ_INT(WEXITSTATUS(status), 75);
    CHECK_EQ_INT(waitpid(ours, &status, 0), ours);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ_INT(waitpid(other, &status, WNOHANG), 0);
    end(other);
}

TEST(agent_wants_a_key) {
    char out[1024];
    CHECK_EQ_INT(
        test_shell(
            out, sizeof out,
            "%s launch --agent --address 127.0.0.1 --port 9 --run r --host h </dev/null 2>&1",
            test_weft()),
        2);
    CHECK_CONTAINS(out, "no key came on standard input");
    CHECK_EQ_INT(
        test_shell(
            out, sizeof out,
            "echo abc | %s launch --agent --address 127.0.0.1 --port 9 --run r --host h 2>&1",
            test_weft()),
        2);
    CHECK_CONTAINS(out, "is no key");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s launch --agent --port 9 2>&1", test_weft()), 2);
    CHECK_CONTAINS(out, "are needed");
}

// ---- copies -------------------------------------------------------------------------------------

// An image of rank 3, as checkpoint/snapshot.h leaves it.
static void put_image(const struct base *b, int generation, int step) {
    char path[4500], hash[17];
    struct err err = {0};
    hash_text(hash_bytes("abc", 3), hash);
    json_t *tree = json_pack("{s:i, s:i, s:i, s:i, s:i, s:{s:i}, s:[{s:i, s:i, s:s}]}", "session",
                             7, "number", step, "image", 3, "rank", 3, "ranks", 4, "state", "step",
                             step, "parts", "offset", 0, "bytes", 3, "xxh3", hash);
    char *text = manifest_seal(tree, true);
    CHECK(text != NULL);
    snprintf(path, sizeof path, "%s/weft-%u/%.16s/gen-%d", test_temp_dir(), (unsigned)geteuid(),
             b->run, generation);
    CHECK_OK(file_make_folders(path, &err), err);
    size_t used = strlen(path);
    snprintf(path + used, sizeof path - used, "/rank-00003.part");
    CHECK_OK(file_replace(path, "abc", 3, &err), err);
    snprintf(path + used, sizeof path - used, "/rank-00003.json");
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    json_decref(tree);
    free(text);
}

static bool has_copy(const struct base *b, int generation) {
    char path[4500];
    snprintf(path, sizeof path, "%s/weft-%u/%.16s/gen-%d/buddy-00003.json", test_temp_dir(),
             (unsigned)geteuid(), b->run, generation);
    return file_exists(path);
}

static json_t *copy_to(const struct agent_view *v) {
    return json_pack("{s:s, s:s, s:i}", "host", "next", "address", v->address, "port", v->port);
}

TEST(agents_tell_how_copies_fare) {
    struct base b;
    char home[4200];
    open_base(&b, NULL);
    put_image(&b, 0, 10);
    int host = add(&b, "127.0.0.1");
    const struct agent_view *v = reach(&b, host, AGENT_READY);
    CHECK_STR(v->copied_to, "");
    CHECK_STR(order(&b, host, "buddy", copy_to(v), 5), ""); // to itself
    while (v->copied_step != 10) turn(&b);
    CHECK_STR(v->copied_to, "next");
    CHECK_STR(v->copy_error, "");
    CHECK(has_copy(&b, 0));
    snprintf(home, sizeof home, "%s/weft-%u/%.16s/gen-1/buddy-00003.part", test_temp_dir(),
             (unsigned)geteuid(), b.run);
    CHECK_OK(file_make_folders(home, NULL), (struct err){0}); // a folder in the way
    put_image(&b, 1, 20);
    while (!v->copy_error[0]) turn(&b);
    CHECK_CONTAINS(v->copy_error, "buddy-00003.part");
    CHECK_EQ_INT(v->copy_rank, 3);
    CHECK_EQ_INT(v->copied_step, 10);
    CHECK(rmdir(home) == 0);
    while (v->copied_step != 20 || v->copy_error[0]) turn(&b); // it is tried again
    CHECK_STR(order(&b, host, "discard",
                    json_pack("{s:i, s:i, s:i}", "step", 10, "session", 7, "number", 20), 5),
              "");
    CHECK(has_copy(&b, 0) && !has_copy(&b, 1));
    CHECK_CONTAINS(order(&b, host, "discard", json_pack("{s:i}", "step", 10), 5), "session");
    CHECK_STR(order(&b, host, "buddy", NULL, 5), ""); // no longer
    while (v->copied_to[0]) turn(&b);
    CHECK_EQ_INT(v->copied_step, -1);
    close_base(&b);
}

TEST(agents_do_not_copy_from_a_folder_that_others_can_write) {
    struct base b;
    char home[4200];
    open_base(&b, NULL);
    put_image(&b, 0, 10);
    snprintf(home, sizeof home, "%s/weft-%u", test_temp_dir(), (unsigned)geteuid());
    CHECK(chmod(home, 0777) == 0);
    int host = add(&b, "127.0.0.1");
    const struct agent_view *v = reach(&b, host, AGENT_READY);
    CHECK_STR(order(&b, host, "buddy", copy_to(v), 5), "");
    while (!v->copy_error[0]) turn(&b);
    CHECK_CONTAINS(v->copy_error, "can be written by others");
    CHECK(chmod(home, 0700) == 0);
    while (v->copied_step != 10 || v->copy_error[0]) turn(&b);
    close_base(&b);
}
