// weft health as a program.
#include "base/file.h"
#include "base/json.h"
#include "test.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char out[65536];

#define QUICK "--seconds 0.001 --memory 4 --disk 2 --link 2 --threads 2"

TEST(health_verb_says_fit) {
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s health " QUICK " --folder %s", test_weft(),
                            test_temp_dir()),
                 0);
    CHECK_CONTAINS(out, "gemm bf16");
    CHECK_CONTAINS(out, "disk /");
    CHECK_CONTAINS(out, " is fit (");
}

TEST(health_verb_leaves_with_76) {
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s health " QUICK " --break memory 2>&1 >/dev/null",
                            test_weft()),
                 76);
    CHECK_CONTAINS(out, "is not fit: memory: ");
    CHECK(strchr(out, '\n') == strrchr(out, '\n')); // one line
    struct err err = {0};
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s health " QUICK " --break gemm --json 2>/dev/null",
                            test_weft()),
                 76);
    json_t *json = json_parse(out, strlen(out), "out", &err);
    CHECK(json && json_is_false(json_object_get(json, "passed")));
    CHECK(json_array_size(json_object_get(json, "checks")) >= 4);
    json_decref(json);
}

TEST(health_verb_measures_a_link) {
    struct stat status;
    char key[4200];
    snprintf(key, sizeof key, "%s", test_path("key"));
    CHECK_EQ_INT(
        test_shell(out, sizeof out,
                   "cd %s && { %s health --serve 127.0.0.1:0 --key key >said & } && pid=$! && "
                   "tries=0 && until grep -q listening said; do sleep 0.05; "
                   "tries=$((tries + 1)); [ $tries -lt 400 ] || exit 9; done && "
                   "%s health " QUICK " --key key --peers $(sed 's/.* on //' said); "
                   "status=$?; kill $pid; wait $pid && exit $status",
                   test_temp_dir(), test_weft(), test_weft()),
        0);
    CHECK_CONTAINS(out, "ok     link 127.0.0.1:");
    CHECK_EQ_INT(stat(key, &status), 0);
    CHECK_EQ_INT(status.st_mode & 0777, 0600);
}

TEST(health_verb_compares_with_a_better_time) {
    CHECK_EQ_INT(
        test_shell(out, sizeof out,
                   "cd %s && echo '{\"checks\":[{\"name\":\"memory\",\"rate\":1e15}]}' >then && "
                   "%s health " QUICK " --against then --share 0.9 2>&1",
                   test_temp_dir(), test_weft()),
        76);
    CHECK_CONTAINS(out, "0 % of what it was (wanted: 90 %)");
}

TEST(health_verb_refuses) {
    static const struct {
        const char *words, *says;
        int status;
    } bad[] = {
        {"--peers node3:1", "--key FILE", 2},
        {"--serve x --key k", "[ADDRESS:]PORT", 2},
        {"--foldr /tmp", "did you mean --folder", 2},
        {"--memory 0", "from 1 up", 2},
        {"--against /nowhere", "/nowhere", 4},
        {"--peers a:1 --key /dev/null", "64 hexadecimal digits", 3},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ_INT(test_shell(out, sizeof out, "%s health %s 2>&1", test_weft(), bad[i].words),
                     bad[i].status);
        CHECK_CONTAINS(out, bad[i].says);
    }
}
