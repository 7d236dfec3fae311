// The program's front: help, version, unknown verbs, lost output.
#include "base/version.h"
#include "test.h"
#include <string.h>

TEST(program_help_and_version) {
    char out[8000];
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s --help", test_weft()), 0);
    CHECK_CONTAINS(out, "usage: weft VERB");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s", test_weft()), 2);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s --version", test_weft()), 0);
    CHECK_CONTAINS(out, version_number());
    CHECK_CONTAINS(out, version_digest());
    CHECK_EQ_INT(strlen(version_digest()), 16);
}

TEST(program_unknown_verb) {
    char out[2000];
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s vresion", test_weft()), 2);
    CHECK_CONTAINS(out, "unknown verb \"vresion\"; did you mean \"version\"?");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s qqqqqqqq", test_weft()), 2);
    CHECK(strstr(out, "did you mean") == NULL);
}

TEST(program_lost_output_is_a_failure) {
    char out[2000];
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s --help >/dev/full", test_weft()), 4);
    CHECK_CONTAINS(out, "standard output could not be written");
}

TEST(program_refuses_a_flood_of_threads) {
    static const char *const verbs[] = {"tokenizer encode --tokenizer t",
                                        "sample m",
                                        "bench gemm",
                                        "bench attention",
                                        "eval m --text t",
                                        "data prepare --tokenizer t --out o t"};
    char out[2000];
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        CHECK_EQ_INT(
            test_shell(out, sizeof out, "%s %s --threads 1000000 2>&1", test_weft(), verbs[i]), 2);
        CHECK_CONTAINS(out, "--threads");
        CHECK_CONTAINS(out, "4096");
    }
}
