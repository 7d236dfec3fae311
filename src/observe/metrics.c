// The run's journal, see metrics.h.
#include "observe/metrics.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Does a line belong to what a run resumed behind `last_step` has behind it?
static bool is_kept(const char *line, size_t length, int64_t last_step, const char *path) {
    int64_t step = -1;
    json_t *value = json_parse(line, length, path, NULL);
    struct json_at at = {value, path};
    bool kept = value && json_is_object(value) &&
                json_get_int(at, "step", true, -1, &step, NULL) == 0 && step <= last_step;
    if (value) json_decref(value);
    return kept;
}

static int kept_bytes(const char *path, int64_t last_step, uint64_t *bytes, struct err *err) {
    char *text;
    size_t size, at = 0;
    *bytes = 0;
    if (!file_exists(path)) return 0;
    if (file_read(path, 0, &text, &size, err) != 0) return -1;
    while (at < size) {
        char *end = memchr(text + at, '\n', size - at);
        if (!end || !is_kept(text + at, (size_t)(end - text) - at, last_step, path)) break;
        at = (size_t)(end - text) + 1;
    }
    *bytes = at;
    free(text);
    return 0;
}

int metrics_open(struct metrics *m, const char *path, int64_t last_step, struct err *err) {
    memset(m, 0, sizeof *m);
    snprintf(m->path, sizeof m->path, "%s", path);
    if (kept_bytes(path, last_step, &m->good_bytes, err) != 0) return -1;
    if (file_writer_append(&m->file, path, m->good_bytes, err) != 0) return -1;
    m->is_open = true;
    return 0;
}

static int write_pending(struct metrics *m, struct err *err) {
    if (!m->is_open) {
        if (file_writer_append(&m->file, m->path, m->good_bytes, err) != 0) return -1;
        m->is_open = true;
    }
    if (file_writer_put(&m->file, m->pending.data, m->pending.size, err) == 0 &&
        file_writer_flush(&m->file, err) == 0)
        return 0;
    file_writer_abandon(&m->file);
    m->is_open = false;
    return -1;
}

static void push(struct metrics *m) {
    struct err err = {0};
    enum { MOST_PENDING_BYTES = 16 << 20 };
    if (m->pending.size == 0) return;
    if (write_pending(m, &err) == 0) {
        m->good_bytes += m->pending.size;
        m->pending.size = 0;
        m->complained = false;
        return;
    }
    if (!m->complained) log_line(LOG_WARN, "metrics are kept back: %s", err.text);
    m->complained = true;
    if (m->pending.size > MOST_PENDING_BYTES) m->pending.size = 0;
}

void metrics_close(struct metrics *m) {
    push(m);
    if (m->is_open) file_writer_close(&m->file, false, NULL);
    text_free(&m->pending);
    m->is_open = false;
}

// JSON has no infinities and no NaN.
static void put_number(struct text *t, const char *name, double value) {
    if (isfinite(value))
        text_printf(t, ",\"%s\":%.9g", name, value);
    else
        text_printf(t, ",\"%s\":null", name);
}

void metrics_put_step(struct metrics *m, const struct metrics_step *s) {
    if (!m->path[0]) return; // this rank keeps no journal
    struct text *t = &m->pending;
    text_printf(t, "{\"step\":%lld,\"time\":%.3f", (long long)s->step, clock_wall_seconds());
    put_number(t, "loss", s->loss);
    text_printf(t, ",\"loss_hex\":\"%a\"", s->loss);
    put_number(t, "grad_norm", s->gradient_norm);
    text_printf(t, ",\"grad_norm_hex\":\"%a\"", s->gradient_norm);
    put_number(t, "learning_rate", s->learning_rate);
    put_number(t, "clip_factor", s->clip_factor);
    text_printf(
        t,
        ",\"skipped\":%s,\"samples\":%lld,\"processed_tokens\":%lld,\"non_pad_tokens\":%lld,"
        "\"supervised_tokens\":%lld,\"total_tokens\":%lld",
        s->skipped ? "true" : "false", (long long)s->samples, (long long)s->processed,
        (long long)s->non_pad, (long long)s->supervised, (long long)s->total_tokens);
    put_number(t, "seconds", s->seconds);
    put_number(t, "data_wait_seconds", s->data_wait_seconds);
    for (int kind = 0; kind < RECORD_KIND_COUNT; kind++) {
        char name[64];
        if (kind == RECORD_DATA_WAIT || kind == RECORD_SHARD_OPEN || kind == RECORD_SHARD_READ ||
            kind == RECORD_COMM)
            continue; // counted by the loader and the messages, which have threads of their own
        snprintf(name, sizeof name, "%s_seconds", record_kind_name(kind));
        put_number(t, name, s->phase[kind]);
    }
    text_printf(t, ",\"shard_opens\":%llu,\"shard_reads\":%llu", (unsigned long long)s->shard_opens,
                (unsigned long long)s->shard_reads);
    put_number(t, "shard_open_seconds", s->open_seconds);
    put_number(t, "shard_read_seconds", s->read_seconds);
    put_number(t, "cores_busy", s->cores_busy);
    put_number(t, "tokens_per_second", s->mfu.tokens_per_second);
    put_number(t, "model_flops_per_second_full", s->mfu.flops_full);
    put_number(t, "model_flops_per_second_causal", s->mfu.flops_causal);
    put_number(t, "mfu", s->mfu.full);
    put_number(t, "mfu_causal", s->mfu.causal);
    put_number(t, "hfu", s->mfu.hfu);
    if (s->has_experts) {
        put_number(t, "expert_balance", s->expert_balance);
        put_number(t, "expert_max_load", s->expert_max_load);
        text_printf(t, ",\"dropped_choices\":%lld", (long long)s->dropped);
    }
    text_printf(t, ",\"resident_bytes\":%llu}\n", (unsigned long long)s->resident_bytes);
    push(m);
}

void metrics_put_event(struct metrics *m, const char *event, int64_t step, const char *format,
                       ...) {
    char fields[2048];
    if (!m->path[0]) return; // this rank keeps no journal
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fields, sizeof fields, format, arguments);
    va_end(arguments);
    text_printf(&m->pending, "{\"event\":\"%s\",\"step\":%lld,\"time\":%.3f%s%s}\n", event,
                (long long)step, clock_wall_seconds(), fields[0] ? "," : "", fields);
    push(m);
}

void metrics_put_line(struct metrics *m, const char *line) {
    if (!m->path[0]) return;
    text_printf(&m->pending, "%s\n", line);
    push(m);
}

void metrics_put_object(struct metrics *m, const char *event, int64_t step, json_t *members) {
    if (!m->path[0]) return;
    char *text = json_dumps(members, JSON_COMPACT);
    text_printf(&m->pending, "{\"event\":\"%s\",\"step\":%lld,\"time\":%.3f", event,
                (long long)step, clock_wall_seconds());
    // "{...}" behind what is there: its brace becomes a comma
    if (text && text[0] && text[1] != '}')
        text_printf(&m->pending, ",%s\n", text + 1);
    else
        text_puts(&m->pending, "}\n");
    free(text);
    push(m);
}
