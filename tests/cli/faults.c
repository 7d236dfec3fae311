// weft bench faults and weft bench soak: small trials, and figures of a soak that can be counted by
// hand.
#include "base/file.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char output[1 << 16];

static void put(const char *path, const char *text) {
    struct err err = {0};
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
}

// All of a few flips are found, and the runs end as the undisturbed one; nothing is said of clean
// steps.
TEST_LIMIT(bench_faults_finds_flipped_bits, 300) {
    CHECK_EQ_INT(test_shell(output, sizeof output,
                            "TMPDIR=%s %s bench faults --flips 2 --clean-steps 20 --json",
                            test_temp_dir(), test_weft()),
                 0);
    static const char *const kinds[] = {"flip_weight", "flip_optimizer", "flip_gradient",
                                        "flip_message"};
    for (int k = 0; k < 4; k++) {
        char wanted[120];
        snprintf(wanted, sizeof wanted,
                 "\"kind\":\"%s\",\"flips\":2,\"found\":2,\"end_as_undisturbed\":2,", kinds[k]);
        CHECK_CONTAINS(output, wanted);
    }
    CHECK_CONTAINS(output, "\"clean_steps\":20,\"false_alarms\":0}");
}

TEST(bench_faults_refuses_what_it_does_not_know) {
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench faults --kind kill", test_weft()), 2);
    CHECK_CONTAINS(output, "--kind kill: expected flip_weight");
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench faults word", test_weft()), 2);
    CHECK_CONTAINS(output, "expected key=value, found \"word\"");
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench faults --ranks 9", test_weft()), 2);
    CHECK_CONTAINS(output, "at most 8 ranks");
}

// Launched at 1000; steps of 1 s from 1010 on; a kill at 1045 goes back from step 35 to 30 and is
// in a step again after 5 s; the end at 1100. 80 steps of 100 s count, and no checkpoint blocks.
TEST(bench_soak_counts_what_was_useful) {
    struct text {
        char data[20000];
        int used;
    };
    static struct text m;
    char run[600];
    struct err err = {0};
    snprintf(run, sizeof run, "%s/run", test_temp_dir());
    CHECK_OK(file_make_folders(run, &err), err);
    for (int step = 1; step <= 80; step++) {
        double time = step <= 30 ? 1010 + step : 1050 + step - 30;
        m.used += snprintf(m.data + m.used, sizeof m.data - (size_t)m.used,
                           "{\"step\":%d,\"time\":%.1f,\"seconds\":1}\n", step, time);
        if (step % 10 == 0)
            m.used += snprintf(m.data + m.used, sizeof m.data - (size_t)m.used,
                               "{\"event\":\"checkpoint_requested\",\"step\":%d,\"time\":%.1f}\n"
                               "{\"event\":\"checkpoint_persisted\",\"step\":%d,\"time\":%.1f,"
                               "\"stall_seconds\":0}\n",
                               step, time, step, time);
    }
    put(test_path("run/metrics.jsonl"), m.data);
    put(test_path("run/incidents.jsonl"),
        "{\"number\":1,\"time\":\"1970-01-01T00:17:25.100Z\",\"kind\":\"exit\"}\n"
        "{\"number\":1,\"time\":\"1970-01-01T00:17:30.000Z\",\"restart\":{\"seconds\":5,"
        "\"phases\":{\"detect\":0.5}}}\n");
    put(test_path("soak.tsv"), "1000.0\tbegin\t-1\n1045.0\tkill_rank\t0\n1100.0\tend\t-1\n");
    CHECK_EQ_INT(
        test_shell(output, sizeof output, "%s bench soak %s --json", test_weft(), test_temp_dir()),
        0);
    CHECK_CONTAINS(output, "\"wall_seconds\":100.000,\"useful_seconds\":80.000,\"steps\":80,"
                           "\"faults\":1,\"effective\":0.80000,\"by_times\":0.80000");
    put(test_path("soak.tsv"), "nothing\n");
    CHECK_EQ_INT(
        test_shell(output, sizeof output, "%s bench soak %s", test_weft(), test_temp_dir()), 3);
    CHECK_CONTAINS(output, "soak.tsv: expected lines \"TIME begin\" and \"TIME end\"");
}
