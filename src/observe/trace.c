// Chrome trace events ("ph":"X", complete events) from the spans of record lanes.
#include "observe/trace.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/file.h"
#include "base/text.h"

static double earliest(const struct record_lane *const *lanes, int count) {
    bool found = false;
    double first = 0;
    for (int i = 0; i < count; i++) {
        for (uint64_t s = 0; lanes[i] && s < lanes[i]->span_count; s++) {
            double begin = lanes[i]->spans[s].begin_seconds;
            if (!found || begin < first) first = begin;
            found = true;
        }
    }
    return first;
}

// Names come from string literals of the program, so they need no escaping.
static int put_span(struct text *out, const struct record_span *span, int process, int row,
                    double origin) {
    int failed = text_printf(
        out,
        ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,"
        "\"ts\":%.3f,\"dur\":%.3f",
        span->name, record_kind_name(span->kind), process, row,
        (span->begin_seconds - origin) * 1e6, (span->end_seconds - span->begin_seconds) * 1e6);
    if (span->argument >= 0)
        failed |= text_printf(out, ",\"args\":{\"index\":%" PRId64 "}", span->argument);
    return failed | text_puts(out, "}");
}

static int flush(struct file_writer *file, struct text *out, struct err *err) {
    int result = file_writer_put(file, out->data, out->size, err);
    out->size = 0;
    return result;
}

static int put_lane(struct file_writer *file, struct text *out, const struct record_lane *lane,
                    int process, int row, double origin, struct err *err) {
    int failed = text_printf(out,
                             "%s\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                             "\"args\":{\"name\":\"%s\"}}",
                             row ? "," : "", process, row, lane->name);
    for (uint64_t s = 0; s < lane->span_count && !failed; s++) {
        failed = put_span(out, &lane->spans[s], process, row, origin);
        if (out->size > 1 << 16 && flush(file, out, err) != 0) return -1;
    }
    return failed ? err_set(err, ERR_MEMORY, "%s: no memory to write the trace", file->path) : 0;
}

// What trace_merge needs stands last, when the spans that found no room are counted. The times of
// the spans count from `origin`.
static int put_end(struct text *out, const struct trace_rank *rank, uint64_t dropped,
                   double origin) {
    int failed = text_puts(out, "\n],\"otherData\":{");
    if (rank)
        failed |=
            text_printf(out,
                        "\"rank\":%d,\"ranks\":%d,\"host\":\"%s\","
                        "\"wall_seconds_at_0\":%.9f,",
                        rank->rank, rank->ranks, rank->host, origin + rank->wall_offset_seconds);
    return failed | text_printf(out, "\"spans_dropped\":%" PRIu64 "}}\n", dropped);
}

int trace_write_rank(const char *path, const struct record_lane *const *lanes, int count,
                     const struct trace_rank *rank, struct err *err) {
    struct file_writer file;
    struct text out = {0};
    uint64_t dropped = 0;
    if (file_writer_open(&file, path, err) != 0) return -1;
    double origin = earliest(lanes, count);
    int row = 0, result = 0;
    if (text_puts(&out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[") != 0)
        result = err_set(err, ERR_MEMORY, "%s: no memory to write the trace", path);
    for (int i = 0; i < count && result == 0; i++) {
        if (!lanes[i]) continue;
        dropped += lanes[i]->spans_dropped;
        result = put_lane(&file, &out, lanes[i], rank ? rank->rank : 0, row++, origin, err);
    }
    if (result == 0 && put_end(&out, rank, dropped, origin) != 0)
        result = err_set(err, ERR_MEMORY, "%s: no memory to write the trace", path);
    if (result == 0) result = flush(&file, &out, err);
    text_free(&out);
    if (result == 0) return file_writer_close(&file, false, err);
    file_writer_abandon(&file);
    return -1;
}

int trace_write(const char *path, const struct record_lane *const *lanes, int count,
                struct err *err) {
    return trace_write_rank(path, lanes, count, NULL, err);
}

int trace_rank_path(char *out, size_t out_bytes, const char *path, int rank, struct err *err) {
    int length = snprintf(out, out_bytes, "%s.rank%d", path, rank);
    if (length >= 0 && (size_t)length < out_bytes) return 0;
    return err_set(err, ERR_USAGE, "%.200s...: the path of rank %d's trace is too long", path,
                   rank);
}
