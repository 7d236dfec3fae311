// Runs on a machine whose memory counts errors (a made-up folder of EDAC): what is told, saved,
// left.
#include "base/file.h"
#include "ranks.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

static void count_errors(const char *name, int count) {
    char path[4096], text[16];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/edac/mc0/%s", test_temp_dir(), name);
    snprintf(text, sizeof text, "%d\n", count);
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
}

// The memory of the machine has a corrected error in step 5, and when that is told, others.
static void break_memory(enum log_level level, const char *line) {
    (void)level;
    if (strstr(line, "step 5/")) count_errors("ce_count", 1);
    if (strstr(line, ": noted: memory: 1 corrected errors")) count_errors("ue_count", 2);
    if (strstr(line, ": noted: memory: 2 uncorrected errors")) ranks_ways.stop_is_raised = 1;
}

// Words of a run that goes on until it is ended.
static const char *const *counting(const char *const *more) {
    static const char *words[16];
    static char folder[4096];
    struct err err = {0};
    int count = 0;
    CHECK_OK(file_make_folders(test_path("edac/mc0"), &err), err);
    count_errors("ce_count", 0);
    count_errors("ue_count", 0);
    snprintf(folder, sizeof folder, "guard.counters_folder=%s/edac", test_temp_dir());
    const char *const usual[] = {folder, "guard.counters_seconds=0.01", "train.steps=1000000",
                                 "train.log_every=1"};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) words[count++] = usual[i];
    for (; *more; more++) words[count++] = *more;
    words[count] = NULL;
    return words;
}

static void check_counters(const char *name, const char *snapshot, const char *every) {
    char end[48], clean[32];
    const char *const *words = WORDS("parallel.dp=2", snapshot, every);
    ranks_ways.listener = break_memory;
    ranks_ways.supervised = true;
    ranks_run(name, 2, counting(words));
    ranks_ways.listener = NULL;
    ranks_ways.supervised = false;
    RANKS_STATUSES(76, 75);
    CHECK_CONTAINS(ranked[0].err.text, "rank 0 (");
    CHECK_CONTAINS(ranked[0].err.text, "memory: 2 uncorrected errors, 0 before (EDAC)");
    CHECK_CONTAINS(ranked[0].err.text, "Start again elsewhere");
    CHECK(ranked[1].result.silent);
    CHECK_EQ_INT(ranks_events("hardware_counter"), 2);
    CHECK_EQ_INT(ranks_events("silent_corruption"), 0);
    int64_t left = ranked[0].result.step;
    snprintf(end, sizeof end, "train.stop_at=%lld", (long long)left + 4);
    words = WORDS("parallel.dp=2", snapshot, every, end);
    ranks_run_to_end(name, 2, counting(words));
    CHECK_EQ_INT(ranked[0].result.resumed_from, left);
    CHECK_STR(ranks_lines.data, "");
    struct ranks_outcome whole = ranks_outcome(left + 4);
    snprintf(clean, sizeof clean, "clean %s", name);
    ranks_run_to_end(clean, 2, counting(words));
    CHECK_SAME(ranks_outcome(left + 4), whole);
}

TEST(a_machine_that_counts_errors_is_left_when_all_is_saved) {
    check_counters("between", "checkpoint.snapshot=false", "checkpoint.every=0");
    check_counters("at once", "checkpoint.snapshot=false", "checkpoint.every=1");
    check_counters("behind", "checkpoint.snapshot=true", "checkpoint.every=1");
}

TEST(without_a_supervisor_counted_errors_are_told) {
    ranks_ways.listener = break_memory;
    ranks_run("alone", 1, counting(WORDS("checkpoint.every=0")));
    ranks_ways.listener = NULL;
    RANKS_STATUSES(130); // the test stops it
    CHECK_CONTAINS(ranks_lines.data, "noted: memory: 1 corrected errors, 0 before (EDAC)");
    CHECK_CONTAINS(ranks_lines.data, "noted: memory: 2 uncorrected errors, 0 before (EDAC)");
    ranks_run_to_end("nowhere", 1, WORDS("guard.counters_folder=/nowhere"));
    CHECK_CONTAINS(ranks_lines.data, "guard.counters_folder: /nowhere is no folder");
}
