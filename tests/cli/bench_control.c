// weft bench control: the heartbeats of a few ranks are heard, none is dropped.
#include "base/json.h"
#include "test.h"
#include <string.h>

TEST(bench_control_hears_all_ranks) {
    char output[4000];
    struct err err = {0};
    CHECK_EQ_INT(test_shell(output, sizeof output,
                            "%s bench control --ranks 402 --seconds 1.2 --json", test_weft()),
                 0);
    json_t *root = json_parse(output, strlen(output), "output", &err);
    CHECK(root);
    CHECK_EQ_INT(json_integer_value(json_object_get(root, "ranks")), 400); // whole groups of four
    CHECK_EQ_INT(json_integer_value(json_object_get(root, "dropped")), 0);
    CHECK(json_number_value(json_object_get(root, "beats_per_second")) > 0);
    CHECK(json_number_value(json_object_get(root, "core_share")) > 0);
    json_decref(root);
}

TEST(bench_control_words_that_are_wrong) {
    char output[4000];
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench control --seconds -1", test_weft()),
                 2);
    CHECK_CONTAINS(output, "--seconds -1");
    CHECK_EQ_INT(
        test_shell(output, sizeof output, "%s bench control --ranks 999999999", test_weft()), 2);
    CHECK_CONTAINS(output, "open files");
}
