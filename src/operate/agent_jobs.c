// Orders that take time, each in a process of its own; see agent_parts.h. What it finds comes back
// through a pipe as one JSON object.
#include "base/clock.h"
#include "operate/agent_parts.h"
#include "operate/health.h"
#include "operate/marks.h"
#include "operate/stacks.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PEERS_MOST = 16, PIDS_MOST = 4096, ANSWER_MOST_BYTES = WIRE_MOST_BYTES - 4096 };

pid_t agent_fork(int keep, struct err *err) {
    pid_t parent = getpid(), child = fork();
    if (child < 0) err_set_errno(err, "the agent cannot start a process");
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    signal(SIGTERM, SIG_DFL);
    // The agent's connections must end with the agent.
    if (keep > 3) close_range(3, (unsigned)keep - 1, 0);
    close_range(keep >= 3 ? (unsigned)keep + 1 : 3, ~0U, 0);
    return 0;
}

// ---- what is done -------------------------------------------------------------------------------

static double number(const json_t *message, const char *key, double fallback) {
    const json_t *value = json_object_get(message, key);
    return json_is_number(value) ? json_number_value(value) : fallback;
}

static json_t *failed(const struct err *err) {
    return json_pack("{s:s}", "error", err->text);
}

static json_t *do_health(const struct agent_options *o, const json_t *message) {
    const char *peers[PEERS_MOST];
    const json_t *list = json_object_get(message, "peers");
    const char *folder = json_string_value(json_object_get(message, "folder"));
    struct health_options options = {
        .gemm_seconds = number(message, "gemm_seconds", 0.3),
        .memory_bytes = (uint64_t)number(message, "memory_bytes", 0),
        .folder = json_is_false(json_object_get(message, "disk")) ? NULL
                  : folder                                        ? folder
                                                                  : o->disk_folder,
        .disk_bytes = (uint64_t)number(message, "disk_bytes", 0),
        .peers = peers,
        .key = &o->key,
        .link_bytes = (uint64_t)number(message, "link_bytes", 0),
        .against = json_object_get(message, "against"),
        .least_share = number(message, "least_share", 0),
        .break_check = json_string_value(json_object_get(message, "break")),
    };
    for (size_t i = 0; i < json_array_size(list) && options.peer_count < PEERS_MOST; i++) {
        const char *peer = json_string_value(json_array_get(list, i));
        if (peer) peers[options.peer_count++] = peer;
    }
    struct health health;
    struct err err = {0};
    if (health_run(&options, &health, &err) != 0) return failed(&err);
    json_t *found = health_json(&health);
    if (found && !health.passed && health_verdict(&health, o->host, &err) != 0)
        json_object_set_new(found, "verdict", json_string(err.text));
    return found;
}

static json_t *do_stacks(const json_t *message) {
    static int pids[PIDS_MOST];
    const json_t *list = json_object_get(message, "pids");
    int count = 0;
    struct text text = {0};
    struct err err = {0};
    for (size_t i = 0; i < json_array_size(list) && count < PIDS_MOST; i++)
        pids[count++] = (int)json_integer_value(json_array_get(list, i));
    if (stacks_text(pids, count, number(message, "seconds", 3), &text, &err) != 0)
        return failed(&err);
    if (text.size > ANSWER_MOST_BYTES / 2) text.data[ANSWER_MOST_BYTES / 2] = 0;
    size_t valid = text.data ? text_utf8_valid_prefix(text.data, strlen(text.data)) : 0;
    return json_pack("{s:o}", "text", json_stringn(text.data ? text.data : "", valid));
}

static json_t *do_kill(const struct agent_options *o, const json_t *message) {
    int left, killed = marks_kill(o->run, getppid(), true, number(message, "seconds", 5), &left);
    return json_pack("{s:i, s:i}", "killed", killed, "left", left);
}

static json_t *perform(const struct agent_options *o, const char *order, const json_t *message) {
    if (strcmp(order, "health") == 0) return do_health(o, message);
    if (strcmp(order, "stacks") == 0) return do_stacks(message);
    if (strcmp(order, "kill") == 0) return do_kill(o, message);
    char text[160];
    snprintf(text, sizeof text, "unknown order \"%.100s\"", order);
    return json_pack("{s:s}", "error", text);
}

static void answer(int output, json_t *found) {
    char *text = json_dumps(found, JSON_COMPACT);
    size_t size = text ? strlen(text) : 0, sent = 0;
    while (sent < size) {
        ssize_t n = write(output, text + sent, size - sent);
        if (n < 0 && errno != EINTR) break;
        if (n > 0) sent += (size_t)n;
    }
}

// ---- keeping track ------------------------------------------------------------------------------

int agent_job_start(struct agent_jobs *jobs, const struct agent_options *options, const char *order,
                    int64_t id, const json_t *message, struct err *err) {
    struct agent_job *job = NULL;
    int ends[2];
    for (int i = 0; i < AGENT_JOBS_MOST && !job; i++)
        if (jobs->list[i].pid == 0) job = &jobs->list[i];
    if (!job)
        return err_set(err, ERR_RETRY, "host %.200s has %d orders to do already", options->host,
                       AGENT_JOBS_MOST);
    if (pipe2(ends, O_CLOEXEC) != 0) return err_set_errno(err, "the agent has no pipe");
    pid_t child = agent_fork(ends[1], err);
    if (child == 0) {
        answer(ends[1], perform(options, order, message));
        _exit(0);
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return -1;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *job = (struct agent_job){
        .id = id,
        .pid = child,
        .output = ends[0],
        .deadline = clock_seconds() + number(message, "deadline_seconds", 60),
    };
    return 0;
}

// True at the end of its output.
static bool read_output(struct agent_job *job) {
    char bytes[4096];
    for (;;) {
        ssize_t n = read(job->output, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
        if (n <= 0) return true;
        if (job->text.size + (size_t)n > ANSWER_MOST_BYTES) return true;
        text_put(&job->text, bytes, (size_t)n);
    }
}

static json_t *finish(struct agent_job *job, bool late) {
    int status = 0;
    char why[160] = "";
    if (late) kill(job->pid, SIGKILL);
    while (waitpid(job->pid, &status, 0) < 0 && errno == EINTR) continue;
    json_t *found =
        job->text.data ? json_parse(job->text.data, job->text.size, "order", NULL) : NULL;
    if (late)
        snprintf(why, sizeof why, "it did not end in time");
    else if (WIFSIGNALED(status))
        snprintf(why, sizeof why, "the process that did it was ended by signal %d (%s)",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (!json_is_object(found))
        snprintf(why, sizeof why, "the process that did it left without an answer (status %d)",
                 WEXITSTATUS(status));
    if (why[0]) {
        json_decref(found);
        found = json_pack("{s:s}", "error", why);
        // SIGKILL comes from outside, or for want of memory
        if (!late && WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
            json_object_set_new(found, "crashed", json_true());
    }
    json_object_set_new(found, "type", json_string("done"));
    json_object_set_new(found, "id", json_integer(job->id));
    close(job->output);
    text_free(&job->text);
    *job = (struct agent_job){0};
    return found;
}

json_t *agent_job_take(struct agent_jobs *jobs, double now) {
    for (int i = 0; i < AGENT_JOBS_MOST; i++) {
        struct agent_job *job = &jobs->list[i];
        if (job->pid == 0) continue;
        if (read_output(job)) return finish(job, false);
        if (now > job->deadline) return finish(job, true);
    }
    return NULL;
}

void agent_jobs_end(struct agent_jobs *jobs) {
    for (int i = 0; i < AGENT_JOBS_MOST; i++)
        if (jobs->list[i].pid) json_decref(finish(&jobs->list[i], true));
}
