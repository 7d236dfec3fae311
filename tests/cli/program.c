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
