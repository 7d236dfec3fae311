// scripts/test-cluster: what was skipped there is no success.
#include "test.h"
#include <string.h>

static char out[4096];

// Of a test program that says these lines and leaves with that status.
static int play(const char *says, int status, const char *words) {
    return test_shell(out, sizeof out,
                      "cd %s && printf '#!/bin/sh\\nprintf \"%s\"\\nexit %d\\n' >test_cluster && "
                      "chmod +x test_cluster && %s/scripts/test-cluster . %s",
                      test_temp_dir(), says, status, WEFT_SOURCE_DIR, words);
}

#define ALONE "ok dead_rank (1.00 s)\\\\n"
#define SKIPPED                                                                                    \
    "skipped lost_a: no cluster: needs root\\\\nskipped lost_b: no cluster: needs root\\\\n"

TEST(skipped_trials_are_no_success) {
    CHECK_EQ_INT(play(ALONE, 0, ""), 0);
    CHECK_EQ_INT(play(ALONE "FAILED lost_a: why (1.00 s)\\\\n", 1, ""), 1);
    CHECK_EQ_INT(play(ALONE SKIPPED, 0, ""), 1);
    CHECK_CONTAINS(out, "\ntest-cluster: 2 of 3 trials were not played: no cluster: needs root\n");
    CHECK_EQ_INT(play("test_cluster: 0 passed, 0 failed, 0 skipped\\\\n", 0, "lots lats"), 1);
    CHECK_CONTAINS(out, "test-cluster: no trial has a name that contains: lots lats\n");
}
