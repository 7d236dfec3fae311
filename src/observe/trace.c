// The trace file, see trace.h. Events: "X" a span with start and duration in microseconds, "M" the
// name of a row.
#include "observe/trace.h"
#include "base/clock.h"
#include <stdio.h>
#include <string.h>

static int put(struct trace *t, const char *line, int length, struct err *err) {
    return file_writer_put(&t->file, line, (size_t)length, err);
}

int trace_open(struct trace *t, const char *path, struct err *err) {
    *t = (struct trace){.zero_seconds = clock_seconds()};
    if (file_writer_open(&t->file, path, err) != 0) return -1;
    static const char head[] = "[\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\","
                               "\"args\":{\"name\":\"weft\"}}";
    if (put(t, head, sizeof head - 1, err) == 0) return 0;
    file_writer_abandon(&t->file);
    return -1;
}

int trace_row(struct trace *t, int row, const char *name, struct err *err) {
    char line[256];
    int length =
        snprintf(line, sizeof line,
                 ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{"
                 "\"name\":\"%.100s\"}}",
                 row, name);
    return put(t, line, length, err);
}

int trace_drain(struct trace *t, int row, struct record_lane *lane, struct err *err) {
    for (uint64_t i = 0; i < lane->span_count; i++) {
        const struct record_span *s = &lane->spans[i];
        char line[320], argument[40] = "";
        if (s->argument >= 0)
            snprintf(argument, sizeof argument, ",\"args\":{\"n\":%lld}", (long long)s->argument);
        int length = snprintf(
            line, sizeof line,
            ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%.100s\",\"cat\":\"%s\",\"ts\":%.3f,"
            "\"dur\":%.3f%s}",
            row, s->name, record_kind_name(s->kind), 1e6 * (s->begin_seconds - t->zero_seconds),
            1e6 * (s->end_seconds - s->begin_seconds), argument);
        if (put(t, line, length, err) != 0) return -1;
    }
    t->spans += lane->span_count;
    t->dropped += lane->spans_dropped;
    lane->span_count = lane->spans_dropped = 0;
    return 0;
}

int trace_close(struct trace *t, struct err *err) {
    if (put(t, "\n]\n", 3, err) != 0) {
        file_writer_abandon(&t->file);
        return -1;
    }
    return file_writer_close(&t->file, false, err);
}
