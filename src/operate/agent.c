// The agent's loop: its connection to the supervisor, orders, and other agents that call. See
// agent.h.
#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/snapshot.h"
#include "operate/agent_parts.h"
#include "operate/buddy_parts.h"
#include "operate/health.h"
#include "operate/marks.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const double FACTS_SECONDS = 1, AGAIN_SECONDS = 1, CONNECT_SECONDS = 5,
                    COPIER_AGAIN_SECONDS = 5;
enum { CALLERS_MOST = 16 };

struct agent {
    const struct agent_options *options;
    char snapshots[CHECKPOINT_PATH_BYTES]; // of this run
    struct wire *w;                        // to the supervisor; NULL: lost
    double lost, tried;                    // since when; when it was last tried
    double told;                           // when facts were last sent
    int listener, port;
    char own_address[64];
    struct agent_disk disk;
    struct agent_jobs jobs;
    pid_t callers[CALLERS_MOST]; // processes that serve other agents
    pid_t copier;
    int copier_output;
    struct text copier_said;
    json_t *copied;       // its last line
    json_t *copier_order; // NULL: nothing is to be copied
    char copier_host[256];
    double copier_again; // when it is started again, if it was ended
    bool leave;
};

// ---- copies to the buddy ------------------------------------------------------------------------

static void end_copier(struct agent *a) {
    if (a->copier > 0) {
        kill(a->copier, SIGKILL);
        while (waitpid(a->copier, NULL, 0) < 0 && errno == EINTR) continue;
    }
    if (a->copier_output >= 0) close(a->copier_output);
    a->copier = 0;
    a->copier_output = -1;
    a->copier_said.size = 0;
}

// Facts tell it until it works.
static void say_copier(struct agent *a, const char *error) {
    json_decref(a->copied);
    a->copied = json_pack("{s:s, s:s}", "host", a->copier_host, "error", error);
}

static int spawn_copier(struct agent *a, struct err *err) {
    const char *address = json_string_value(json_object_get(a->copier_order, "address"));
    int ends[2];
    if (snapshot_home(a->options->snapshot_folder, err) != 0) return -1;
    struct buddy_target target = {
        .folder = a->snapshots,
        .own = a->options->host,
        .host = a->copier_host,
        .address = address,
        .port = (int)json_integer_value(json_object_get(a->copier_order, "port")),
        .key = a->options->key,
    };
    if (pipe2(ends, O_CLOEXEC) != 0) return err_set_errno(err, "the agent has no pipe");
    a->copier = agent_fork(ends[1], err);
    if (a->copier == 0) buddy_send_all(&target, ends[1]);
    close(ends[1]);
    a->copier_output = ends[0];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    if (a->copier > 0) return 0;
    end_copier(a);
    return -1;
}

static void try_copier(struct agent *a) {
    struct err err = {0};
    a->copier_again = clock_seconds() + COPIER_AGAIN_SECONDS;
    if (spawn_copier(a, &err) != 0) say_copier(a, err.text);
}

static void start_copier(struct agent *a, const json_t *order) {
    const char *host = json_string_value(json_object_get(order, "host"));
    const char *address = json_string_value(json_object_get(order, "address"));
    end_copier(a);
    json_decref(a->copied);
    json_decref(a->copier_order);
    a->copied = a->copier_order = NULL;
    if (!address) return;
    a->copier_order = json_deep_copy(order);
    snprintf(a->copier_host, sizeof a->copier_host, "%s", host ? host : address);
    try_copier(a);
}

// One that was ended (by a machine that has no memory left) is started again.
static void look_after_copier(struct agent *a) {
    if (a->copier_order && a->copier == 0 && clock_seconds() >= a->copier_again) try_copier(a);
}

static void hear_copier(struct agent *a) {
    char bytes[4096], *newline;
    if (a->copier_output < 0) return;
    ssize_t n = read(a->copier_output, bytes, sizeof bytes);
    if (n == 0) {
        end_copier(a);
        a->copier_again = clock_seconds() + COPIER_AGAIN_SECONDS;
        say_copier(a, "the process that copies them was ended");
    }
    if (n <= 0 || text_put(&a->copier_said, bytes, (size_t)n) != 0) return;
    while ((newline = memchr(a->copier_said.data, '\n', a->copier_said.size))) {
        size_t line = (size_t)(newline - a->copier_said.data);
        json_t *said = json_parse(a->copier_said.data, line, "copier", NULL);
        if (said) {
            json_decref(a->copied);
            a->copied = said;
        }
        a->copier_said.size -= line + 1;
        memmove(a->copier_said.data, newline + 1, a->copier_said.size);
    }
}

// ---- other agents that call ---------------------------------------------------------------------

static void serve_buddy(const struct agent *a, struct wire *w, const json_t *hello) {
    struct err err = {0};
    if (snapshot_home(a->options->snapshot_folder, &err) == 0)
        buddy_receive(w, hello, a->snapshots, &a->options->key, &err);
    else
        buddy_say(w, json_pack("{s:s, s:s}", "type", "no", "why", err.text), NULL);
}

static void serve(const struct agent *a, struct wire *w) {
    struct err err = {0};
    json_t *hello = NULL;
    double until = clock_seconds() + 10;
    while (!hello) {
        struct pollfd watch = {wire_descriptor(w), wire_events(w), 0};
        poll(&watch, 1, 1000);
        if (wire_work(w, &err) != 0 || wire_take(w, &hello, &err) < 0 || clock_seconds() > until)
            return;
    }
    const char *role = json_string_value(json_object_get(hello, "role"));
    if (role && strcmp(role, "buddy") == 0)
        serve_buddy(a, w, hello);
    else if (role && strcmp(role, "link") == 0)
        health_serve(w, &err);
}

static void reap_callers(struct agent *a) {
    for (int i = 0; i < CALLERS_MOST; i++)
        if (a->callers[i] > 0 && waitpid(a->callers[i], NULL, WNOHANG) != 0) a->callers[i] = 0;
}

static void take_caller(struct agent *a) {
    struct wire *w = wire_accept(a->listener, &a->options->key, NULL);
    int free_place = -1;
    reap_callers(a);
    for (int i = 0; i < CALLERS_MOST && free_place < 0; i++)
        if (a->callers[i] == 0) free_place = i;
    if (w && free_place >= 0) {
        pid_t child = agent_fork(wire_descriptor(w), NULL);
        if (child == 0) {
            serve(a, w);
            _exit(0);
        }
        if (child > 0) a->callers[free_place] = child;
    }
    wire_close(w);
}

static void end_callers(struct agent *a) {
    for (int i = 0; i < CALLERS_MOST; i++)
        if (a->callers[i] > 0) {
            kill(a->callers[i], SIGKILL);
            waitpid(a->callers[i], NULL, 0);
        }
}

// ---- the supervisor -----------------------------------------------------------------------------

static void lose(struct agent *a) {
    wire_close(a->w);
    a->w = NULL;
    a->lost = clock_seconds();
}

// The message's reference is taken.
static void tell(struct agent *a, json_t *message) {
    struct err err = {0};
    if (a->w && message && wire_put(a->w, message, &err) != 0) lose(a);
    json_decref(message);
}

static void done(struct agent *a, int64_t id, int failed, const struct err *err) {
    json_t *message = json_pack("{s:s, s:I, s:f}", "type", "done", "id", (json_int_t)id, "time",
                                clock_wall_seconds());
    if (failed) json_object_set_new(message, "error", json_string(err->text));
    tell(a, message);
}

static int discard(const struct agent *a, const json_t *order, struct err *err) {
    struct json_at at = {(json_t *)order, "order"};
    int64_t step, session, number;
    if (json_get_int(at, "step", true, 0, &step, err) != 0 ||
        json_get_int(at, "session", true, 0, &session, err) != 0 ||
        json_get_int(at, "number", true, 0, &number, err) != 0)
        return -1;
    return snapshot_discard_newer(a->snapshots, step, (uint64_t)session, (uint64_t)number, err);
}

static void obey(struct agent *a, const json_t *message) {
    const char *type = json_string_value(json_object_get(message, "type"));
    const char *order = json_string_value(json_object_get(message, "order"));
    int64_t id = json_integer_value(json_object_get(message, "id"));
    struct err err = {0};
    int failed = 0;
    if (!type || strcmp(type, "order") != 0 || !order) return; // facts for ranks, and what is new
    if (strcmp(order, "buddy") == 0) {
        start_copier(a, message);
    } else if (strcmp(order, "discard") == 0) {
        failed = discard(a, message, &err);
    } else if (strcmp(order, "forget") == 0) {
        failed = snapshot_forget(a->options->snapshot_folder, a->options->run, &err);
    } else if (strcmp(order, "leave") == 0) {
        a->leave = true;
    } else if (strcmp(order, "echo") != 0) {
        failed = agent_job_start(&a->jobs, a->options, order, id, message, &err);
        if (!failed) return; // answered when it is done
    }
    done(a, id, failed, &err);
}

static void hear(struct agent *a) {
    struct err err = {0};
    json_t *message;
    int broken = wire_work(a->w, &err), taken;
    while (a->w && (taken = wire_take(a->w, &message, &err)) != 0) {
        if (taken < 0) {
            log_line(LOG_WARN, "agent of %s: %s", a->options->host, err.text);
            lose(a);
            return;
        }
        obey(a, message);
        json_decref(message);
    }
    if (broken && a->w) lose(a);
}

// This host's address as the supervisor sees it; the listener stands there.
static int listen_here(struct agent *a, struct err *err) {
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    char address[64];
    if (getsockname(wire_descriptor(a->w), (struct sockaddr *)&own, &size) != 0 ||
        getnameinfo((struct sockaddr *)&own, size, address, sizeof address, NULL, 0,
                    NI_NUMERICHOST) != 0)
        return err_set_errno(err, "the own address cannot be read");
    if (a->listener >= 0 && strcmp(address, a->own_address) == 0) return 0;
    if (a->listener >= 0) close(a->listener);
    a->listener = -1;
    snprintf(a->own_address, sizeof a->own_address, "%s", address);
    return wire_listen(address, 0, &a->listener, &a->port, err);
}

static void connect_to_supervisor(struct agent *a, struct err *err) {
    const struct agent_options *o = a->options;
    a->tried = clock_seconds();
    a->w = wire_connect(o->address, o->port, &o->key, CONNECT_SECONDS, err);
    if (!a->w) return;
    if (listen_here(a, err) != 0) {
        lose(a);
        return;
    }
    a->told = 0;
    tell(a, agent_hello(o, a->own_address, a->port));
}

// ---- the loop -----------------------------------------------------------------------------------

static void tell_facts(struct agent *a) {
    json_t *facts = agent_facts(a->options, &a->disk);
    if (facts && a->copied) json_object_set(facts, "buddy", a->copied);
    a->told = clock_seconds();
    tell(a, facts);
}

static void look(struct agent *a) {
    struct pollfd watch[2] = {{a->listener, POLLIN, 0},
                              {a->w ? wire_descriptor(a->w) : -1, a->w ? wire_events(a->w) : 0, 0}};
    // Jobs are looked for often while there are some: their pipes wake nobody.
    bool busy = false;
    for (int i = 0; i < AGENT_JOBS_MOST; i++) busy = busy || a->jobs.list[i].pid > 0;
    poll(watch, 2, busy ? 5 : 100);
    if (watch[0].revents) take_caller(a);
    if (a->w && watch[1].revents) hear(a);
    json_t *found;
    while ((found = agent_job_take(&a->jobs, clock_seconds()))) tell(a, found);
    hear_copier(a);
    look_after_copier(a);
    reap_callers(a);
    if (a->w && clock_seconds() >= a->told + FACTS_SECONDS) tell_facts(a);
}

// The ranks here belong to an attempt that goes on without this host, if at all.
static int give_up(struct agent *a, struct err *err) {
    char control[300], ended[64] = "";
    snprintf(control, sizeof control, "%s:%d", a->options->address, a->options->port);
    int left, killed = marks_kill_of(a->options->run, control, getpid(), true, 5, &left);
    if (killed > 0) snprintf(ended, sizeof ended, "; %d of its processes were ended", killed);
    return err_set(
        err, ERR_RETRY,
        "agent of host %.200s: the supervisor at %.200s, port %d was not found for %.0f s%s",
        a->options->host, a->options->address, a->options->port, a->options->patience_seconds,
        ended);
}

static int run_loop(struct agent *a, struct err *err) {
    struct err why = {0};
    while (!a->leave) {
        if (!a->w && clock_seconds() >= a->tried + AGAIN_SECONDS) {
            why = (struct err){0};
            connect_to_supervisor(a, &why);
        }
        if (!a->w && clock_seconds() > a->lost + a->options->patience_seconds)
            return give_up(a, err);
        look(a);
    }
    // what was answered last goes out
    for (int i = 0; i < 100 && a->w && wire_pending(a->w) && wire_work(a->w, NULL) == 0; i++)
        usleep(1000);
    return 0;
}

int agent_run(const struct agent_options *options, struct err *err) {
    struct agent a = {.options = options, .listener = -1, .copier_output = -1};
    a.lost = clock_seconds();
    signal(SIGPIPE, SIG_IGN);
    if (snapshot_run_folder(options->snapshot_folder, options->run, a.snapshots, err) != 0 ||
        agent_disk_open(&a.disk, options->disk_folder, err) != 0)
        return -1;
    int result = run_loop(&a, err);
    end_copier(&a);
    json_decref(a.copied);
    json_decref(a.copier_order);
    text_free(&a.copier_said);
    end_callers(&a);
    agent_jobs_end(&a.jobs);
    agent_disk_close(&a.disk);
    wire_close(a.w);
    if (a.listener >= 0) close(a.listener);
    return result;
}
