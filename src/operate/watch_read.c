// Messages of ranks and agents as the numbers of watch.h. A message is read into a copy, so that
// one with a fault in the middle leaves nothing behind.
#include "base/json.h"
#include "operate/watch.h"
#include "operate/watch_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_type(struct json_at at, const char *first, const char *second, bool *is_first,
                     struct err *err) {
    const char *type = NULL;
    if (json_get_string(at, "type", true, NULL, &type, err) != 0) return -1;
    *is_first = strcmp(type, first) == 0;
    if (*is_first || strcmp(type, second) == 0) return 0;
    return err_set(err, ERR_DATA, "%s: expected \"type\" %s or %s, found \"%.40s\"", at.where,
                   first, second, type);
}

static int read_text(struct json_at at, const char *key, char *out, size_t bytes, struct err *err) {
    const char *text = NULL;
    if (json_get_string(at, key, false, "", &text, err) != 0) return -1;
    snprintf(out, bytes, "%s", text);
    return 0;
}

static int read_amount(struct json_at at, const char *key, double fallback, double *out,
                       struct err *err) {
    double value = fallback;
    if (json_get_double(at, key, false, fallback, &value, err) != 0) return -1;
    if (!isfinite(value) || (value < 0 && value != fallback))
        return err_set(err, ERR_DATA, "%s: \"%s\" is %g, expected a number from 0", at.where, key,
                       value);
    *out = value;
    return 0;
}

static int read_count(struct json_at at, const char *key, uint64_t fallback, uint64_t *out,
                      struct err *err) {
    int64_t value = 0;
    if (!json_object_get(at.value, key)) {
        *out = fallback;
        return 0;
    }
    if (json_get_int(at, key, true, 0, &value, err) != 0) return -1;
    if (value < 0)
        return err_set(err, ERR_DATA, "%s: \"%s\" is %lld, expected a count", at.where, key,
                       (long long)value);
    *out = (uint64_t)value;
    return 0;
}

static int get_object(struct json_at at, const char *key, struct json_at *out, struct err *err) {
    *out = (struct json_at){json_object_get(at.value, key), key};
    if (!out->value || json_is_null(out->value)) {
        out->value = NULL;
        return 0;
    }
    if (json_is_object(out->value)) return 0;
    return err_set(err, ERR_DATA, "%s: \"%s\" is no object", at.where, key);
}

// ---- beats

static int read_place(struct json_at beat, const char *key, int ranks, struct watch_place *out,
                      struct err *err) {
    struct json_at at;
    *out = (struct watch_place){0};
    if (get_object(beat, key, &at, err) != 0) return -1;
    if (!at.value) return 0;
    if (read_text(at, "stream", out->stream, sizeof out->stream, err) != 0 ||
        read_text(at, "kind", out->kind, sizeof out->kind, err) != 0 ||
        read_count(at, "number", 0, &out->number, err) != 0 ||
        read_amount(at, "seconds", 0, &out->seconds, err) != 0)
        return -1;
    const json_t *members = json_object_get(at.value, "ranks"), *member;
    size_t i;
    json_array_foreach(members, i, member) {
        json_int_t rank = json_integer_value(member);
        if (!json_is_integer(member) || rank < 0 || rank >= ranks)
            return err_set(err, ERR_DATA, "%s: \"ranks\" holds what is no rank below %d", key,
                           ranks);
        if (out->member_count < COMM_STATUS_MEMBERS) out->members[out->member_count++] = (int)rank;
    }
    return 0;
}

static int read_posted(struct json_at beat, struct watch_rank *r, bool *moved, struct err *err) {
    struct json_at at;
    const char *name;
    json_t *value;
    if (get_object(beat, "posted", &at, err) != 0) return -1;
    if (!at.value) return 0;
    int count = 0;
    json_object_foreach(at.value, name, value) {
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return err_set(err, ERR_DATA, "posted: \"%.40s\" is no count", name);
        if (count == COMM_STATUS_STREAMS) break;
        uint64_t posted = (uint64_t)json_integer_value(value);
        if (count >= r->posted_count || posted != r->posted[count].posted) *moved = true;
        snprintf(r->posted[count].stream, sizeof r->posted[count].stream, "%s", name);
        r->posted[count++].posted = posted;
    }
    r->posted_count = count;
    return 0;
}

static void add_stalls(struct watch_rank *r, int peer, int64_t stalls) {
    int least = 0;
    for (int i = 0; i < r->link_count; i++) {
        if (r->links[i].peer == peer) {
            r->links[i].stalls += stalls;
            return;
        }
        if (r->links[i].stalls + r->links[i].stalls_before <
            r->links[least].stalls + r->links[least].stalls_before)
            least = i;
    }
    if (r->link_count < WATCH_PEERS) least = r->link_count++;
    r->links[least].peer = peer;
    r->links[least].stalls = stalls;
    r->links[least].stalls_before = 0;
}

static int read_retries(struct json_at beat, struct watch_rank *r, int ranks, struct err *err) {
    struct json_at at;
    const char *name;
    json_t *value;
    if (get_object(beat, "retries", &at, err) != 0) return -1;
    if (!at.value) return 0;
    json_object_foreach(at.value, name, value) {
        char *end;
        long peer = strtol(name, &end, 10);
        if (end == name || *end || peer < 0 || peer >= ranks || !json_is_integer(value) ||
            json_integer_value(value) < 0)
            return err_set(err, ERR_DATA, "retries: \"%.40s\" is no rank below %d with a count",
                           name, ranks);
        if (json_integer_value(value) > 0) add_stalls(r, (int)peer, json_integer_value(value));
    }
    return 0;
}

static int read_phase(struct json_at at, enum beat_phase *out, struct err *err) {
    const char *name = NULL;
    if (json_get_string(at, "phase", true, NULL, &name, err) != 0) return -1;
    for (int i = 0; i < BEAT_PHASES; i++)
        if (strcmp(beat_phase_name((enum beat_phase)i), name) == 0) {
            *out = (enum beat_phase)i;
            return 0;
        }
    return err_set(err, ERR_DATA, "%s: \"phase\" is \"%.40s\", which is none", at.where, name);
}

static void add_visit(struct watch_rank *r, enum beat_phase phase, double seconds) {
    r->visits[phase][r->visit_count[phase]++ % WATCH_VISITS] = seconds;
}

// A beat tells the time of the latest step only; one of those since the beat before may have taken
// all the time that this one does not explain.
static double slowest_step(const struct watch_rank *r, const struct watch_rank *before,
                           double step_seconds) {
    double others = (double)(r->step - before->step - 1) * step_seconds;
    if (before->phase != BEAT_STEP || before->progressed <= 0) return step_seconds;
    return fmax(step_seconds, r->progressed - before->progressed - others);
}

// What a new step or phase says about the one before.
static void take_progress(struct watch_rank *r, const struct watch_rank *before, double phase_age,
                          double step_seconds, double compute_seconds, double resident_bytes,
                          double now) {
    double since = before->heard > 0 ? fmin(phase_age, now - before->heard) : phase_age;
    r->progressed = now - since;
    bool stepped = r->step > before->step && before->step >= 0;
    if (r->phase != before->phase && before->phase != BEAT_STEP && before->heard > 0)
        add_visit(r, before->phase, r->progressed - before->progressed);
    if (step_seconds > 0 && (stepped || (before->phase == BEAT_STEP && r->phase != BEAT_STEP)))
        add_visit(r, BEAT_STEP, slowest_step(r, before, step_seconds));
    if (!stepped || !(compute_seconds > 0)) return;
    int at = (int)(r->samples++ % WATCH_WINDOW);
    r->compute_seconds[at] = compute_seconds;
    r->resident_bytes[at] = resident_bytes;
}

static int read_stage(struct json_at at, struct watch_rank *r, struct err *err) {
    int64_t stage = -1;
    if (json_get_int(at, "stage", false, r->stage, &stage, err) != 0) return -1;
    if (stage < -1 || stage > INT32_MAX)
        return err_set(err, ERR_DATA, "%s: \"stage\" is %lld", at.where, (long long)stage);
    r->stage = (int)stage;
    return 0;
}

// Announced work gets on as long as its process moves much from one beat to the next: more than
// messages that it exchanges meanwhile, less than the slowest disk.
static void take_work(struct watch_rank *r, const struct watch_rank *before, double now) {
    enum { MUCH_BYTES = 1 << 20 };
    bool moves =
        r->io_bytes >= 0 && before->io_bytes >= 0 && r->io_bytes - before->io_bytes >= MUCH_BYTES;
    if (moves || !r->busy[0] || strcmp(r->busy, before->busy) != 0) r->busy_since = now;
}

static int read_beat(struct watch *w, struct watch_rank *r, struct json_at at, double now,
                     struct err *err) {
    const struct watch_rank before = *r;
    double phase_age = 0, step_seconds = 0, compute_seconds = 0, resident = 0, cpu = -1;
    bool moved = before.heard <= 0;
    if (read_phase(at, &r->phase, err) != 0 || read_stage(at, r, err) != 0 ||
        json_get_int(at, "step", true, 0, &r->step, err) != 0 ||
        read_amount(at, "phase_seconds", 0, &phase_age, err) != 0 ||
        read_amount(at, "step_seconds", 0, &step_seconds, err) != 0 ||
        read_amount(at, "compute_seconds", 0, &compute_seconds, err) != 0 ||
        read_amount(at, "resident_bytes", 0, &resident, err) != 0 ||
        read_amount(at, "cpu_seconds", -1, &cpu, err) != 0 ||
        read_amount(at, "io_bytes", -1, &r->io_bytes, err) != 0 ||
        read_place(at, "waits", w->rank_count, &r->waits, err) != 0 ||
        read_place(at, "last", w->rank_count, &r->last, err) != 0 ||
        json_get_bool(at, "waiting", false, r->waits.kind[0] != 0, &r->waiting, err) != 0 ||
        read_text(at, "busy", r->busy, sizeof r->busy, err) != 0 ||
        read_posted(at, r, &moved, err) != 0 || read_retries(at, r, w->rank_count, err) != 0)
        return -1;
    if (r->phase != before.phase || r->step != before.step) {
        take_progress(r, &before, phase_age, step_seconds, compute_seconds, resident, now);
        r->moved = r->progressed;
    }
    if (r->last.number != before.last.number || strcmp(r->last.stream, before.last.stream) != 0 ||
        strcmp(r->busy, before.busy) != 0)
        moved = true;
    if (moved) r->moved = now;
    take_work(r, &before, now);
    r->cpu_seconds = cpu;
    if (r->moved != before.moved) r->moved_cpu_seconds = cpu;
    return 0;
}

static int read_hello(struct watch_rank *r, struct json_at at, double now, struct err *err) {
    int64_t pid = 0;
    if (json_get_int(at, "pid", false, r->pid, &pid, err) != 0 || read_stage(at, r, err) != 0)
        return -1;
    if (pid < 0 || pid > INT32_MAX)
        return err_set(err, ERR_DATA, "%s: \"pid\" is %lld", at.where, (long long)pid);
    r->pid = (int)pid;
    if (r->heard <= 0) r->progressed = r->moved = now;
    return 0;
}

// With tens of thousands of ranks, looking at all of them at each beat would take longer than the
// beats: only what is new of the rank that was behind can change the answer. Of those that are
// behind the one that was heard last is kept, whose next beat is the furthest away.
static void newest_step(struct watch *w, int heard) {
    const struct watch_rank *before = &w->ranks[w->slowest];
    int64_t step = -1;
    if (heard != w->slowest && !before->ended && w->ranks[heard].step >= w->step) return;
    for (int k = 0, first = w->slowest; k < w->rank_count; k++) {
        int i = (first + k) % w->rank_count;
        const struct watch_rank *r = &w->ranks[i];
        if (r->ended) continue;
        if (r->heard <= 0) { // not all have begun
            w->slowest = i;
            return;
        }
        if (step >= 0 && r->step > step) continue;
        if (step < 0 || r->step < step || r->heard > w->ranks[w->slowest].heard) w->slowest = i;
        step = r->step;
    }
    w->step = step;
}

// What a rank says to others than this.
static bool says_other(const json_t *message) {
    const char *type = json_string_value(json_object_get(message, "type"));
    return type && (strcmp(type, "report") == 0 || strcmp(type, "journal") == 0);
}

int watch_beat(struct watch *w, int rank, const json_t *message, double now, struct err *err) {
    char where[64];
    bool hello;
    if (rank < 0 || rank >= w->rank_count)
        return err_set(err, ERR_DATA, "a message of rank %d, of %d", rank, w->rank_count);
    snprintf(where, sizeof where, "message of rank %d", rank);
    struct json_at at = {(json_t *)message, where};
    struct watch_rank r = w->ranks[rank];
    if (says_other(message)) {
        w->ranks[rank].heard = now; // it is there
        return 0;
    }
    if (read_type(at, "hello", "beat", &hello, err) != 0) return -1;
    if ((hello ? read_hello(&r, at, now, err) : read_beat(w, &r, at, now, err)) != 0) return -1;
    r.heard = now;
    r.connected = true;
    w->ranks[rank] = r;
    newest_step(w, rank);
    return 0;
}

// ---- facts

int watch_facts(struct watch *w, int host, const json_t *message, double now, struct err *err) {
    char where[300];
    bool hello;
    if (host < 0 || host >= w->host_count)
        return err_set(err, ERR_DATA, "a message of host number %d, of %d", host, w->host_count);
    struct watch_host h = w->hosts[host];
    snprintf(where, sizeof where, "message of host %s", h.name);
    struct json_at at = {(json_t *)message, where};
    if (read_type(at, "hello", "facts", &hello, err) != 0) return -1;
    if (hello) {
        if (read_text(at, "isa", h.isa, sizeof h.isa, err) != 0 ||
            read_text(at, "binary", h.binary, sizeof h.binary, err) != 0)
            return -1;
    } else if (read_count(at, "disk_free_bytes", h.disk_free_bytes, &h.disk_free_bytes, err) ||
               read_count(at, "disk_total_bytes", h.disk_total_bytes, &h.disk_total_bytes, err) ||
               read_count(at, "memory_free_bytes", h.memory_free_bytes, &h.memory_free_bytes,
                          err) ||
               read_count(at, "memory_total_bytes", h.memory_total_bytes, &h.memory_total_bytes,
                          err) ||
               read_count(at, "snapshot_free_bytes", h.snapshot_free_bytes, &h.snapshot_free_bytes,
                          err) ||
               json_get_double(at, "clock_offset_seconds", false, h.clock_offset_seconds,
                               &h.clock_offset_seconds, err)) {
        return -1;
    }
    h.heard = now;
    h.connected = true;
    w->hosts[host] = h;
    return 0;
}
