// Counters, spans, clocks, and the operator's lines.
#include "base/record.h"
#include "base/clock.h"
#include "base/log.h"
#include "test.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void wait_a_little(void) {
    nanosleep(&(struct timespec){0, 2000000}, NULL);
}

TEST(record_counts_and_spans) {
    struct record_lane lane;
    CHECK_EQ_INT(record_lane_open(&lane, "compute", 2), 0);
    for (int i = 0; i < 3; i++) {
        double begin = record_begin(&lane);
        wait_a_little();
        record_end(&lane, RECORD_GEMM, "qkv", i, begin);
    }
    CHECK_EQ_INT(lane.events[RECORD_GEMM], 3);
    CHECK(lane.seconds[RECORD_GEMM] >= 0.006);
    CHECK_EQ_INT(lane.events[RECORD_KERNEL], 0);
    CHECK_EQ_INT(lane.span_count, 2);
    CHECK_EQ_INT(lane.spans_dropped, 1);
    CHECK_STR(lane.spans[1].name, "qkv");
    CHECK_EQ_INT(lane.spans[1].argument, 1);
    CHECK(lane.spans[1].begin_seconds >= lane.spans[0].end_seconds);
    CHECK(lane.spans[0].end_seconds - lane.spans[0].begin_seconds >= 0.002);
    record_lane_close(&lane);
}

TEST(record_without_trace_or_lane) {
    struct record_lane lane;
    CHECK_EQ_INT(record_lane_open(&lane, "x", 0), 0);
    record_end(&lane, RECORD_PACK, "p", -1, record_begin(&lane));
    CHECK_EQ_INT(lane.events[RECORD_PACK], 1);
    CHECK_EQ_INT(lane.spans_dropped, 0);
    record_lane_close(&lane);
    record_end(NULL, RECORD_PACK, "p", -1, record_begin(NULL));
    CHECK_EQ_INT(record_lane_open(&lane, "x", UINT64_MAX / 2), -1);
}

TEST(record_kind_names) {
    for (int i = 0; i < RECORD_KIND_COUNT; i++)
        for (int j = 0; j < i; j++)
            CHECK(strcmp(record_kind_name((enum record_kind)i),
                         record_kind_name((enum record_kind)j)) != 0);
    CHECK_STR(record_kind_name(RECORD_DATA_WAIT), "data_wait");
    CHECK_STR(record_kind_name(RECORD_KIND_COUNT), "unknown");
}

TEST(clock_readings) {
    double a = clock_seconds();
    double cpu = clock_process_cpu_seconds();
    wait_a_little();
    double passed = clock_seconds() - a;
    CHECK(passed >= 0.002 && passed < 60);
    CHECK(clock_process_cpu_seconds() - cpu <= passed + 0.01);
    CHECK_CLOSE(clock_wall_seconds(), (double)time(NULL), 1e-8); // a few seconds
    // The start is known in hundredths of a second, and the test runner is younger than a day.
    double before = clock_since_exec_seconds();
    wait_a_little();
    CHECK(before >= 0 && before < 86400);
    CHECK(clock_since_exec_seconds() >= before);
}

static void keep(enum log_level level, const char *line, void *context) {
    char *out = context;
    sprintf(out + strlen(out), "%d:%s;", (int)level, line);
}

TEST(log_sinks) {
    char lines[200] = "";
    log_to(keep, lines, LOG_INFO);
    log_line(LOG_DEBUG, "dropped");
    log_line(LOG_INFO, "a %d", 1);
    log_line(LOG_WARN, "b");
    CHECK_STR(lines, "1:a 1;2:b;");
    log_to(NULL, NULL, LOG_WARN);
    log_line(LOG_INFO, "nowhere");
    CHECK_STR(lines, "1:a 1;2:b;");
}
