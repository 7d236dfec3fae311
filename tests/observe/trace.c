// Timelines: valid JSON, one row per lane, spans in microseconds from the earliest.
#include <string.h>

#include "base/json.h"
#include "observe/trace.h"
#include "test.h"

static void add_span(struct record_lane *lane, const char *name, double begin, double end,
                     int64_t argument) {
    CHECK(lane->span_count < lane->span_capacity);
    lane->spans[lane->span_count++] = (struct record_span){.name = name,
                                                           .argument = argument,
                                                           .begin_seconds = begin,
                                                           .end_seconds = end,
                                                           .kind = RECORD_FORWARD};
}

TEST(a_trace_is_json_with_rows_and_spans) {
    struct err err = {0};
    struct record_lane compute, reader;
    CHECK(record_lane_open(&compute, "compute", 8) == 0);
    CHECK(record_lane_open(&reader, "reader 0", 8) == 0);
    add_span(&compute, "forward", 10.0, 10.5, 3);
    add_span(&reader, "read", 9.75, 10.0, -1);
    char path[4096];
    snprintf(path, sizeof path, "%s/trace.json", test_temp_dir());
    const struct record_lane *lanes[] = {&compute, NULL, &reader};
    CHECK_OK(trace_write(path, lanes, 3, &err), err);

    json_t *root = json_parse_file(path, &err);
    CHECK(root != NULL);
    json_t *events = json_object_get(root, "traceEvents");
    CHECK_EQ_INT(json_array_size(events), 4); // two names, two spans
    json_t *span = json_array_get(events, 1);
    CHECK_STR(json_string_value(json_object_get(span, "name")), "forward");
    CHECK_CLOSE(json_number_value(json_object_get(span, "ts")), 250000.0, 1e-6);
    CHECK_CLOSE(json_number_value(json_object_get(span, "dur")), 500000.0, 1e-6);
    CHECK_EQ_INT(json_integer_value(json_object_get(json_object_get(span, "args"), "index")), 3);
    span = json_array_get(events, 3);
    CHECK_EQ_INT(json_integer_value(json_object_get(span, "tid")), 1);
    CHECK_CLOSE(json_number_value(json_object_get(span, "ts")), 0.0, 1e-6);
    CHECK(json_object_get(span, "args") == NULL);
    json_decref(root);
    record_lane_close(&compute);
    record_lane_close(&reader);
}

TEST(a_trace_without_spans_is_json_too) {
    struct err err = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/trace.json", test_temp_dir());
    CHECK_OK(trace_write(path, NULL, 0, &err), err);
    json_t *root = json_parse_file(path, &err);
    CHECK(root != NULL);
    CHECK_EQ_INT(json_array_size(json_object_get(root, "traceEvents")), 0);
    json_decref(root);
}
