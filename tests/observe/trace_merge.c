// Traces of several ranks as one: clocks aligned by collectives, one process a rank, faulty inputs.
#include "base/file.h"
#include "base/json.h"
#include "observe/trace.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };
static char paths[MOST][4300];

static void add_span(struct record_lane *lane, enum record_kind kind, const char *name,
                     double begin, double end, int64_t argument) {
    CHECK(lane->span_count < lane->span_capacity);
    lane->spans[lane->span_count++] = (struct record_span){.name = name,
                                                           .argument = argument,
                                                           .begin_seconds = begin,
                                                           .end_seconds = end,
                                                           .kind = kind};
}

// What a rank does in a run, in true time from 0: a step every 10 ms, closed by an all-reduce of
// `group` that ends at 9 ms on all its ranks but for a few late ones; its own forward before.
struct synthetic {
    int rank, ranks;
    const char *host, *group;
    double clock_ahead; // of the wall clock
    double steady;      // what its monotonic clock shows at true time 0
    int steps;
    const char *second; // another group, whose collective ends at 9.5 ms
};

static const char *write_trace(const struct synthetic *s) {
    struct record_lane compute, messages;
    struct err err = {0};
    const double wall = 1.7e9;
    CHECK(record_lane_open(&compute, "compute", 1000) == 0);
    CHECK(record_lane_open(&messages, "communication", 1000) == 0);
    for (int i = 0; i < s->steps; i++) {
        double at = s->steady + 0.010 * i;
        // every eleventh end is seen late by this rank, which was not scheduled
        double late = i % 11 == s->rank % 11 ? 0.004 : 1e-6 * (i % 3);
        add_span(&compute, RECORD_FORWARD, "forward", at, at + 0.005, i);
        add_span(&compute, RECORD_COMM_WAIT, s->group, at + 0.005, at + 0.009 + late, i);
        add_span(&messages, RECORD_COMM, s->group, at + 0.001 * s->rank, at + 0.009 + late, i);
        if (s->second) add_span(&messages, RECORD_COMM, s->second, at + 0.0091, at + 0.0095, i);
        add_span(&messages, RECORD_COMM, "send", at, at + 0.001 + 0.002 * s->rank, i);
    }
    const struct record_lane *lanes[] = {&compute, &messages};
    struct trace_rank rank = {s->rank, s->ranks, s->host, wall + s->clock_ahead - s->steady};
    char base[4200];
    snprintf(base, sizeof base, "%s/trace", test_temp_dir());
    CHECK_OK(trace_rank_path(paths[s->rank], sizeof paths[0], base, s->rank, &err), err);
    CHECK_OK(trace_write_rank(paths[s->rank], lanes, 2, &rank, &err), err);
    record_lane_close(&compute);
    record_lane_close(&messages);
    return paths[s->rank];
}

static const char *merged(void) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/all.json", test_temp_dir());
    return path;
}

// Where the span of this name and number of a rank begins, in seconds from the earliest.
static double begin_of(json_t *events, int rank, const char *name, int64_t index) {
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e) {
        const char *found = json_string_value(json_object_get(e, "name"));
        json_t *number = json_object_get(json_object_get(e, "args"), "index");
        if (json_integer_value(json_object_get(e, "pid")) == rank && strcmp(found, name) == 0 &&
            number && json_integer_value(number) == index)
            return json_number_value(json_object_get(e, "ts")) / 1e6;
    }
    test_fail(__FILE__, __LINE__, "no span %s of rank %d", name, rank);
}

TEST(traces_are_aligned_by_collectives) {
    struct err err = {0};
    struct trace_alignment found[3];
    const struct synthetic ranks[] = {{0, 3, "a", "all_reduce data@0", 0, 100, 60, NULL},
                                      {1, 3, "b", "all_reduce data@0", 0.250, 7000.5, 60, NULL},
                                      {2, 3, "c", "all_reduce data@0", -3.5, 12, 60, NULL}};
    const char *in[3];
    for (int i = 0; i < 3; i++) in[2 - i] = write_trace(&ranks[i]); // any order
    CHECK_OK(trace_merge(merged(), in, 3, found, &err), err);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(found[i].rank, i);
        CHECK_STR(found[i].host, ranks[i].host);
        CHECK_EQ_INT(found[i].spans, 240);
        CHECK(fabs(found[i].ahead_seconds - ranks[i].clock_ahead) < 1e-5);
        CHECK((found[i].shared > 0) == (i > 0));
    }
    json_t *root = json_parse_file(merged(), &err);
    CHECK(root != NULL);
    json_t *events = json_object_get(root, "traceEvents");
    for (int i = 0; i < 3; i++) CHECK(fabs(begin_of(events, i, "forward", 7) - 0.070) < 1e-5);
    // a process for each rank, with its host, and a row for each lane
    json_t *name = json_array_get(events, 0);
    CHECK_STR(json_string_value(json_object_get(name, "name")), "process_name");
    CHECK_STR(json_string_value(json_object_get(json_object_get(name, "args"), "name")),
              "rank 0 (a)");
    CHECK_EQ_INT(json_array_size(events), 3 * (2 + 2 + 240));
    json_decref(root);
}

// Two groups that never meet. Point-to-point messages end at different times on both sides and must
// not tie them together.
TEST(traces_of_groups_that_do_not_meet) {
    struct err err = {0};
    struct trace_alignment found[4];
    const struct synthetic ranks[] = {{0, 5, "a", "all_gather tp@0", 0, 1, 40, NULL},
                                      {1, 5, "a", "all_gather tp@0", 1.5, 2, 40, NULL},
                                      {2, 5, "b", "all_gather tp@2", -0.75, 3, 40, NULL},
                                      {3, 5, "b", "all_gather tp@2", 0.125, 4, 40, NULL}};
    const char *in[4];
    for (int i = 0; i < 4; i++) in[i] = write_trace(&ranks[i]);
    CHECK_OK(trace_merge(merged(), in, 4, found, &err), err);
    CHECK(fabs(found[1].ahead_seconds - 1.5) < 1e-5);
    CHECK_EQ_INT(found[2].shared, 0); // nothing ties it to the others: its wall clock stands
    CHECK_CLOSE(found[2].ahead_seconds, 0, 0);
    CHECK_EQ_INT(found[3].shared, 0);
}

// Rank 2 shares nothing with rank 0, but with rank 1, which does; ranks come in any order.
TEST(traces_are_aligned_over_other_ranks) {
    struct err err = {0};
    struct trace_alignment found[3];
    const struct synthetic ranks[] = {
        {0, 3, "a", "all_gather tp@0", 0, 1, 40, NULL},
        {1, 3, "b", "all_reduce pp@1", -2, 2, 40, NULL},
        {2, 3, "c", "all_gather tp@0", 0.75, 3, 40, "all_reduce pp@1"}};
    const char *in[3];
    for (int i = 0; i < 3; i++) in[i] = write_trace(&ranks[i]);
    CHECK_OK(trace_merge(merged(), in, 3, found, &err), err);
    CHECK(fabs(found[2].ahead_seconds - 0.75) < 1e-5);
    CHECK(found[1].shared == 40);
    // the synthetic ends of the two groups are half a millisecond apart
    CHECK(fabs(found[1].ahead_seconds - (-2 - 0.0005)) < 1e-5);
}

TEST(traces_that_cannot_be_merged) {
    struct trace_alignment found[2];
    const struct synthetic one = {0, 2, "a", "barrier world@0", 0, 1, 3, NULL};
    const struct synthetic two = {1, 4, "a", "barrier world@0", 0, 1, 3, NULL};
    const char *good = write_trace(&one), *other_run = write_trace(&two);
    char bad[4200];
    snprintf(bad, sizeof bad, "%s/bad", test_temp_dir());
    struct err err = {0};
    const char *in[2] = {good, good};
    CHECK(trace_merge(merged(), in, 2, found, &err) != 0);
    CHECK_CONTAINS(err.text, "are both of rank 0");
    CHECK(trace_merge(good, in, 1, found, (err = (struct err){0}, &err)) != 0);
    CHECK_CONTAINS(err.text, "is an input");
    in[1] = other_run;
    CHECK(trace_merge(merged(), in, 2, found, (err = (struct err){0}, &err)) != 0);
    CHECK_CONTAINS(err.text, "2 ranks");
    CHECK_CONTAINS(err.text, "other runs");
    in[1] = "/nonexistent";
    CHECK(trace_merge(merged(), in, 2, found, (err = (struct err){0}, &err)) != 0);
    CHECK_CONTAINS(err.text, "/nonexistent");
    CHECK(trace_merge(merged(), in, 0, found, (err = (struct err){0}, &err)) != 0);

    char *text;
    size_t size;
    CHECK_OK(file_read(good, 0, &text, &size, &err), err);
    // cut anywhere, or with a byte changed: an error or a trace, never a crash
    for (size_t keep = 0; keep < size; keep += 41) {
        err = (struct err){0};
        CHECK_OK(file_replace(bad, text, keep, &err), err);
        in[0] = bad;
        CHECK(trace_merge(merged(), in, 1, found, &err) != 0);
        CHECK_CONTAINS(err.text, "/bad: ");
    }
    for (size_t at = 0; at < size; at += 53) {
        char kept = text[at];
        text[at] = '"';
        err = (struct err){0};
        CHECK_OK(file_replace(bad, text, size, &err), err);
        trace_merge(merged(), in, 1, found, &err);
        text[at] = kept;
    }
    err = (struct err){0};
    const char *lone = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n],\"otherData\":{"
                       "\"spans_dropped\":0}}\n";
    CHECK_OK(file_replace(bad, lone, strlen(lone), &err), err);
    CHECK(trace_merge(merged(), in, 1, found, &err) != 0);
    CHECK_CONTAINS(err.text, "does not say which rank wrote it");
    free(text);
}
