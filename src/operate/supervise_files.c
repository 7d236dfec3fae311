// RUN/launch: the lock, what is kept of a run over launches, and where its supervisor listens. See
// supervise.h.
#include "base/file.h"
#include "base/lock.h"
#include "base/log.h"
#include "checkpoint/snapshot.h"
#include "operate/supervise_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const double LOCK_SECONDS = 120; // longer than the lease of a lock on NFS
static const double LOCK_HERE_SECONDS = 2;

static int path_of(const char *run_folder, const char *name, char path[4096], struct err *err) {
    char part[64];
    snprintf(part, sizeof part, "launch/%s", name);
    return file_join(path, 4096, run_folder, part, err);
}

// ---- the lock

// Who holds it says so in the file; it may be gone, or just beginning to write.
static void read_holder(int file, char text[300]) {
    char bytes[280];
    ssize_t n = pread(file, bytes, sizeof bytes - 1, 0);
    bytes[n > 0 ? n : 0] = 0;
    bytes[strcspn(bytes, "\n")] = 0;
    snprintf(text, 300, "%s", bytes[0] ? bytes : "a process that does not say more");
}

// "process 71 on node1": is it a process of this machine that lives?
static bool lives_here(const char *holder) {
    char host[200] = "", name[200];
    int process;
    if (gethostname(host, sizeof host - 1) != 0 ||
        sscanf(holder, "process %d on %199s", &process, name) != 2 || process <= 0)
        return false;
    return strcmp(name, host) == 0 && (kill(process, 0) == 0 || errno == EPERM);
}

// One that was killed a moment ago, or whose host was lost, may seem to hold it for a while.
static int wait_for_lock(int file, const char *run_folder, struct err *err) {
    char holder[300];
    read_holder(file, holder);
    bool here = lives_here(holder);
    if (!here)
        log_line(LOG_WARN, "%s: locked by %s, which may be gone; waiting for it, %.0f s at most",
                 run_folder, holder, LOCK_SECONDS);
    int taken = lock_take(file, here ? LOCK_HERE_SECONDS : LOCK_SECONDS, NULL, NULL);
    if (taken > 0) return 0;
    if (taken < 0) return err_set_errno(err, "%s/launch/lock: cannot be locked", run_folder);
    read_holder(file, holder);
    return err_set(err, ERR_USAGE,
                   "%s: another weft launch runs in this folder already: %s; \"weft launch "
                   "--status %s\" shows it, or choose another train.folder",
                   run_folder, holder, run_folder);
}

int supervise_lock(const char *run_folder, struct err *err) {
    char path[4096], folder[4096], host[200] = "", text[300];
    if (file_join(folder, sizeof folder, run_folder, "launch", err) != 0 ||
        path_of(run_folder, "lock", path, err) != 0)
        return -1;
    if (file_make_folders(folder, err) != 0) return err_context(err, "train.folder cannot be made");
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return err_set_errno(err, "%s: the run folder cannot be written", path);
    if (lock_take(file, 0, NULL, NULL) != 1 && wait_for_lock(file, run_folder, err) != 0) {
        close(file);
        return -1;
    }
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "unknown");
    int size = snprintf(text, sizeof text, "process %d on %s\n", (int)getpid(), host);
    if (ftruncate(file, 0) != 0 || pwrite(file, text, (size_t)size, 0) != size) {
        err_set_errno(err, "%s: cannot be written", path);
        close(file);
        return -1;
    }
    return file;
}

bool supervise_is_locked(const char *run_folder, char text[300]) {
    char path[4096];
    if (path_of(run_folder, "lock", path, NULL) != 0) return false;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return false;
    bool locked = flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (locked) read_holder(file, text);
    close(file);
    return locked;
}

// ---- state.json

static bool is_id(const char *text) {
    return strlen(text) == RUN_ID_BYTES - 1 && strspn(text, "0123456789abcdef") == RUN_ID_BYTES - 1;
}

static int read_history(struct json_at at, struct policy_history *out, struct err *err) {
    int64_t newest, vain, step, failures;
    bool skipped;
    if (json_get_int(at, "newest_step", false, 0, &newest, err) != 0 ||
        json_get_int(at, "restarts_in_vain", false, 0, &vain, err) != 0 ||
        json_get_int(at, "failing_step", false, -1, &step, err) != 0 ||
        json_get_int(at, "failures_at_step", false, 0, &failures, err) != 0 ||
        json_get_bool(at, "step_passed_over", false, false, &skipped, err) != 0)
        return -1;
    if (newest < 0 || vain < 0 || vain > 1 << 30 || step < -1 || failures < 0 || failures > 1 << 30)
        return err_set(err, ERR_DATA, "%s: counts below 0; remove it, and they begin anew",
                       at.where);
    *out = (struct policy_history){.newest = newest,
                                   .vain = (int)vain,
                                   .loop_step = step,
                                   .loop_failures = (int)failures,
                                   .loop_skipped = skipped};
    return 0;
}

static int read_members(json_t *root, const char *path, struct supervise_state *state,
                        struct err *err) {
    struct json_at at = {root, path};
    const char *run, *skip;
    int64_t attempts, starter;
    struct supervise_state s = {.history = policy_history_none()};
    if (json_get_string(at, "run", true, NULL, &run, err) != 0 ||
        json_get_string(at, "skip_steps", false, "", &skip, err) != 0 ||
        json_get_int(at, "attempts", true, 0, &attempts, err) != 0 ||
        json_get_int(at, "failures", false, 0, &s.failures, err) != 0 ||
        json_get_int(at, "starter", false, 0, &starter, err) != 0 ||
        json_get_double(at, "seconds", false, 0, &s.seconds, err) != 0 ||
        read_history(at, &s.history, err) != 0)
        return -1;
    if (!is_id(run) || strlen(skip) >= SKIP_BYTES || strspn(skip, "0123456789,") != strlen(skip) ||
        attempts < 0 || attempts > 1 << 30 || s.failures < 0 || !(s.seconds >= 0))
        return err_set(err, ERR_DATA,
                       "%s: not what weft launch wrote; remove it, and launches count from 0 again",
                       path);
    snprintf(s.run, sizeof s.run, "%s", run);
    snprintf(s.skip, sizeof s.skip, "%s", skip);
    s.attempts = (int)attempts;
    s.starter = starter > 0 && starter < INT32_MAX ? (pid_t)starter : 0;
    *state = s;
    return 0;
}

int supervise_read_state(const char *run_folder, struct supervise_state *state, struct err *err) {
    char path[4096];
    if (path_of(run_folder, "state.json", path, err) != 0) return -1;
    *state = (struct supervise_state){.history = policy_history_none()};
    if (file_exists(path)) {
        json_t *root = json_parse_file(path, err);
        int result = root ? read_members(root, path, state, err) : -1;
        json_decref(root);
        if (result != 0) return -1;
    }
    // The name under which snapshots lie, so that agents find them.
    return snapshot_run_id(run_folder, state->run, err);
}

static int write_json(const char *path, json_t *root, struct err *err) {
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text) return err_set(err, ERR_MEMORY, "%s: no memory", path);
    int result = file_replace(path, text, strlen(text), err);
    free(text);
    return result;
}

int supervise_write_state(const char *run_folder, const struct supervise_state *state,
                          struct err *err) {
    char path[4096];
    const struct policy_history *h = &state->history;
    if (path_of(run_folder, "state.json", path, err) != 0) return -1;
    json_t *root =
        json_pack("{s:s,s:i,s:s,s:I,s:f,s:i}", "run", state->run, "attempts", state->attempts,
                  "skip_steps", state->skip, "failures", (json_int_t)state->failures, "seconds",
                  state->seconds, "starter", (int)state->starter);
    json_t *history =
        json_pack("{s:I,s:i,s:I,s:i,s:b}", "newest_step", (json_int_t)h->newest, "restarts_in_vain",
                  h->vain, "failing_step", (json_int_t)h->loop_step, "failures_at_step",
                  h->loop_failures, "step_passed_over", h->loop_skipped);
    if (root && history) json_object_update(root, history);
    json_decref(history);
    return write_json(path, root, err);
}

int supervise_write_evicted(const struct supervisor *s, struct err *err) {
    char path[4096];
    struct text names = {0};
    const struct place *place = &s->place;
    int failed = path_of(s->options->run_folder, "evicted", path, err);
    for (int i = 0; i < place->count && !failed; i++)
        if (place->hosts[i].state == PLACE_EVICTED && hosts_is_barred(s, i) &&
            text_printf(&names, "%s\n", place->hosts[i].name) != 0)
            failed = err_set(err, ERR_MEMORY, "%s: no memory", path);
    if (!failed) failed = file_replace(path, names.data ? names.data : "", names.size, err);
    text_free(&names);
    return failed;
}

// ---- supervisor.json

int supervise_publish(const char *run_folder, const char *address, int port,
                      const struct wire_key *key, const char *run, struct err *err) {
    char path[4096], host[256] = "", text[WIRE_KEY_TEXT];
    if (path_of(run_folder, "supervisor.json", path, err) != 0) return -1;
    wire_key_text(key, text);
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "unknown");
    mode_t before = umask(077); // it holds the key
    int result = write_json(path,
                            json_pack("{s:s,s:i,s:s,s:s,s:i,s:s}", "address", address, "port", port,
                                      "key", text, "host", host, "pid", (int)getpid(), "run", run),
                            err);
    umask(before);
    return result;
}

void supervise_withdraw(const char *run_folder) {
    char path[4096];
    if (path_of(run_folder, "supervisor.json", path, NULL) == 0) unlink(path);
}

// ---- commands

static json_t *call(json_t *file, const char *path, const json_t *command, double seconds,
                    struct err *err) {
    struct json_at at = {file, path};
    struct wire_key key;
    const char *address, *text;
    int64_t port;
    if (json_get_string(at, "address", true, NULL, &address, err) != 0 ||
        json_get_string(at, "key", true, NULL, &text, err) != 0 ||
        json_get_int(at, "port", true, 0, &port, err) != 0)
        return NULL;
    if (wire_key_parse(text, &key) != 0 || port < 1 || port > 65535) {
        err_set(err, ERR_DATA, "%s: not what weft launch wrote", path);
        return NULL;
    }
    struct wire *wire = wire_connect(address, (int)port, &key, seconds, err);
    json_t *hello = json_pack("{s:s,s:s}", "type", "hello", "role", "command"), *answer = NULL;
    if (wire && hello && wire_put(wire, hello, err) == 0)
        answer = wire_call(wire, command, seconds, err);
    json_decref(hello);
    wire_close(wire);
    return answer;
}

json_t *supervise_call(const char *run_folder, const json_t *command, double seconds,
                       struct err *err) {
    char path[4096], who[300];
    if (path_of(run_folder, "supervisor.json", path, err) != 0) return NULL;
    if (!file_exists(path)) {
        err_set(err, ERR_USAGE, "%s: no weft launch is at work in this folder", run_folder);
        return NULL;
    }
    json_t *file = json_parse_file(path, err);
    json_t *answer = file ? call(file, path, command, seconds, err) : NULL;
    json_decref(file);
    if (!answer) {
        if (!supervise_is_locked(run_folder, who))
            err_context(err, "%s: the supervisor seems to be gone", run_folder);
        return NULL;
    }
    const char *error = json_string_value(json_object_get(answer, "error"));
    if (!error) return answer;
    err_set(err, ERR_USAGE, "%s", error);
    json_decref(answer);
    return NULL;
}
