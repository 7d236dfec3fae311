// weft schedule: figures, lists, files.
#include "base/file.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run(char *out, size_t bytes, const char *arguments) {
    return test_shell(out, bytes, "%s schedule %s 2>&1", test_weft(), arguments);
}

TEST(schedule_draws_and_counts) {
    char out[8192];
    CHECK_EQ_INT(run(out, sizeof out, "--pp 4 --micro-batches 8 --columns 106"), 0);
    CHECK_CONTAINS(out, "1f1b, 4 ranks, 8 micro-batches: bubble 27.3 %\n");
    CHECK_CONTAINS(out, "\nrank 0 F0-F1-F2-F3-                  B0----F4-B1----F5-B2----");
    CHECK_CONTAINS(out, "\nbubble                       27.27%");
    CHECK_CONTAINS(out, "\nbubble over ideal            37.50%");
    CHECK_CONTAINS(out, "\n(p-1)/(p-1+m)                27.27%");
    CHECK_CONTAINS(out, "\n   0          4      4  0\n");
    CHECK_CONTAINS(out, "\n   3          1      1  3\n");
    CHECK_EQ_INT(run(out, sizeof out, "--kind zb-v --costs 1,1,1,0.5,3 --json"), 0);
    CHECK_CONTAINS(out, "\"kind\": \"zb-v\"");
    CHECK_CONTAINS(out, "\"equal_costs\": {\"bubble\": 0.0588235294,");
    CHECK_CONTAINS(out, "\"given_costs\": {\"bubble\": ");
    CHECK_CONTAINS(out, "{\"rank\": 3, \"in_flight\": 8, \"units\": 4, \"stages\": [3, 4]}");
    CHECK_EQ_INT(run(out, sizeof out, "--pp 2 --micro-batches 2 --stage-factor 1,2"), 0);
    CHECK_CONTAINS(out, "given costs");
    CHECK_CONTAINS(out, "time of the step                  9           15");
    CHECK_EQ_INT(run(out, sizeof out, "--pp 2 --micro-batches 1 --actions"), 0);
    CHECK_STR(out, "0G 0F0 0>0 0{0 0B0 0R 0S\n1G 1<0 1F0 1B0 1}0 1R 1S\n");
}

TEST(schedule_reads_what_it_writes) {
    char out[8192], again[8192], arguments[512];
    const char *folder = test_temp_dir();
    CHECK_EQ_INT(run(out, sizeof out, "--kind zb-h1 --pp 3 --micro-batches 5 --actions"), 0);
    snprintf(arguments, sizeof arguments,
             "--kind zb-h1 --pp 3 --micro-batches 5 --csv > %s/own.csv", folder);
    CHECK_EQ_INT(run(again, sizeof again, arguments), 0);
    snprintf(arguments, sizeof arguments, "--read %s/own.csv --actions", folder);
    CHECK_EQ_INT(run(again, sizeof again, arguments), 0);
    CHECK_STR(again, out);
    snprintf(arguments, sizeof arguments, "--read %s/own.csv --svg %s/own.svg", folder, folder);
    CHECK_EQ_INT(run(again, sizeof again, arguments), 0);
    CHECK_CONTAINS(again, "file, 3 ranks, 5 micro-batches: bubble");
    snprintf(arguments, sizeof arguments, "%s/own.svg", folder);
    char *svg;
    size_t bytes;
    struct err err = {0};
    CHECK_OK(file_read(arguments, 0, &svg, &bytes, &err), err);
    CHECK_CONTAINS(svg, "<svg ");
    free(svg);
}

TEST(schedule_refuses_in_one_line) {
    char path[512], arguments[1024], out[4096];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/bad.csv", test_temp_dir());
    const char *text = "0F0,0B0\n1B0,1F0\n";
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    snprintf(arguments, sizeof arguments, "--read %s", path);
    CHECK_EQ_INT(run(out, sizeof out, arguments), 3);
    CHECK_CONTAINS(out, "bad.csv: schedule: rank 1, action 0, 1B0: its forward must come before\n");
    const struct {
        const char *arguments, *part;
        int status;
    } cases[] = {
        {"--kind zb", "weft: schedule: --kind: unknown schedule \"zb\", expected gpipe", 2},
        {"--kind gpipe --chunks 3", "gpipe has 1 stage per rank, not 3", 2},
        {"--pp 0", "--pp \"0\": expected a whole number from 1 up", 2},
        {"--costs 1,2", "--costs \"1,2\": expected forward, input half and weight half", 2},
        {"--costs 1,-2,1", "expected at most 5 numbers from 0 up", 2},
        {"--costs 0,0,0", "not all 0", 2},
        {"--costs 1,1,1,1,1,1", "expected at most 5 numbers", 2},
        {"--stage-factor 1,1", "--stage-factor has 2 numbers, expected one for each of the 4", 2},
        {"--csv --json", "exclude each other", 2},
        {"--read x.csv --kind 1f1b", "--read and --kind exclude each other", 2},
        {"--read no-such-file.csv", "no-such-file.csv", 4},
        {"--svg /no/such/folder/x.svg", "/no/such/folder", 4},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        int status = run(out, sizeof out, cases[k].arguments);
        CHECK_CONTAINS(out, cases[k].part);
        CHECK_EQ_INT(status, cases[k].status);
        CHECK(strchr(out, '\n') == out + strlen(out) - 1);
    }
}

TEST(bench_schedule_runs_every_kind) {
    static const char *const kinds[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
    char out[4096], part[64];
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "%s bench schedule --layer-ms 1 --send-ms 1 --step-ms 1 --steps 1 "
                            "--micro-batches 3 --json 2>&1",
                            test_weft()),
                 0);
    for (int k = 0; k < 5; k++) {
        snprintf(part, sizeof part, "{\"schedule\": \"%s\", \"measured_seconds\": ", kinds[k]);
        CHECK_CONTAINS(out, part);
    }
    // Sleeping takes at least its time: 3 micro-batches x 8 layers x 3 over 4 ranks is 18 ms.
    double measured = strtod(strstr(out, "measured_seconds\": ") + 19, NULL);
    CHECK(measured > 0.018);
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s bench schedule --micro-batches 65 2>&1", test_weft()), 2);
    CHECK_CONTAINS(out, "65 micro-batches, 3 steps: expected at most 64 and 100");
}
