// The log of incidents: what stands in the file, and that it goes on behind what was there.
#include "operate/incident.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "test.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char said[4096];
static void take(enum log_level level, const char *line, void *context) {
    (void)level, (void)context;
    snprintf(said, sizeof said, "%s", line);
}

static struct incidents *open_log(void) {
    struct incidents *log;
    struct err err = {0};
    log_to(take, NULL, LOG_INFO);
    CHECK_OK(incidents_open(&log, test_path("run"), &err), err);
    return log;
}

static json_t *line_of(int wanted) {
    char path[4300], line[8192];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/incidents.jsonl", test_path("run"));
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    for (int i = 0; i <= wanted; i++) CHECK(fgets(line, sizeof line, file) != NULL);
    fclose(file);
    json_t *record = json_parse(line, strlen(line), path, &err);
    CHECK(record != NULL);
    return record;
}

static const char *text_of(const json_t *record, const char *key) {
    return json_string_value(json_object_get(record, key));
}

TEST(incident_records) {
    struct incidents *log = open_log();
    struct incident one = {.kind = INCIDENT_HANG,
                           .time = 1772337906.789,
                           .rank = 3,
                           .host = "node2",
                           .step = 1207,
                           .attempt = 1,
                           .evidence = "rank 3 has not arrived, \"quoted\" \xff",
                           .action = "restart on the same hosts",
                           .details = "stack\n"};
    CHECK_EQ_INT(incidents_put(log, &one), 1);
    CHECK_CONTAINS(said, "incident 1, hang: rank 3 has not arrived");
    CHECK_CONTAINS(said, "action: restart on the same hosts; see incidents/1.txt");
    one = (struct incident){.kind = INCIDENT_FORGED, .rank = -1, .step = -1, .evidence = "x"};
    CHECK_EQ_INT(incidents_put(log, &one), 2);
    const double phases[PHASES] = {0.01, 0.2, 0.9, NAN, 0.3};
    incidents_restarted(log, 1, phases);
    CHECK_CONTAINS(said, "incident 1: back in a step after 1.11 s (detect 0.01 s");
    incidents_close(log);

    json_t *record = line_of(0);
    CHECK_STR(text_of(record, "kind"), "hang");
    CHECK_STR(text_of(record, "time"), "2026-03-01T04:05:06.789Z");
    CHECK_STR(text_of(record, "host"), "node2");
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "step")), 1207);
    CHECK_STR(text_of(record, "details"), "incidents/1.txt");
    CHECK_CONTAINS(text_of(record, "evidence"), "\"quoted\" ?");
    json_decref(record);
    record = line_of(1);
    CHECK(json_is_null(json_object_get(record, "rank")));
    CHECK(json_is_null(json_object_get(record, "step")));
    json_decref(record);
    record = line_of(2);
    const json_t *restart = json_object_get(record, "restart");
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "number")), 1);
    const json_t *seconds = json_object_get(restart, "phases");
    CHECK_CLOSE(json_real_value(json_object_get(seconds, "launch")), 0.9, 1e-9);
    CHECK(json_is_null(json_object_get(seconds, "load")));
    json_decref(record);

    char path[4300], *text;
    size_t size;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/incidents/1.txt", test_path("run"));
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    CHECK_STR(text, "stack\n");
    free(text);
}

// A supervisor that died in a line: the line goes, numbers go on.
TEST(incident_log_goes_on) {
    char path[4300];
    struct err err = {0};
    struct incidents *log = open_log();
    struct incident one = {.kind = INCIDENT_EXIT, .rank = 0, .evidence = "a"};
    incidents_put(log, &one);
    incidents_put(log, &one);
    incidents_close(log);
    snprintf(path, sizeof path, "%s/incidents.jsonl", test_path("run"));
    FILE *file = fopen(path, "a");
    fputs("{\"number\":9,\"ti", file);
    fclose(file);
    log = open_log();
    CHECK_EQ_INT(incidents_put(log, &one), 3);
    incidents_close(log);
    json_t *record = line_of(2);
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "number")), 3);
    json_decref(record);
    CHECK_OK(incidents_open(&log, test_path("run"), &err), err);
    CHECK_EQ_INT(incidents_put(log, &one), 4);
    incidents_close(log);
}

// The disk is full: said once, and what comes later is whole again.
TEST(incident_log_on_a_full_disk) {
    struct incidents *log = open_log();
    struct incident one = {.kind = INCIDENT_DISK, .rank = -1, .evidence = "full"};
    incidents_put(log, &one);
    file_fail_after(10, ENOSPC);
    incidents_put(log, &one);
    CHECK_CONTAINS(said, "incident 2, disk: full");
    file_fail_after(0, 0);
    incidents_put(log, &one);
    incidents_close(log);
    json_t *record = line_of(1);
    CHECK_EQ_INT(json_integer_value(json_object_get(record, "number")), 3);
    json_decref(record);
}

TEST(incident_names) {
    for (int i = 0; i < INCIDENT_KINDS; i++)
        for (int k = 0; k < i; k++)
            CHECK(strcmp(incident_kind_name(i), incident_kind_name(k)) != 0);
    CHECK_STR(incident_kind_name(INCIDENT_HOST_LOST), "host_lost");
    CHECK_STR(incident_kind_name(INCIDENT_GIVEN_UP), "given_up");
    CHECK_STR(restart_phase_name(PHASE_FIRST_STEP), "first_step");
}
