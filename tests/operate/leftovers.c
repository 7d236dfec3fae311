// What a killed mpirun left behind goes, and nothing else.
#include "operate/leftovers.h"
#include "base/file.h"
#include "test.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void put(const char *path, const char *text) {
    struct err err = {0};
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
}

// Numbers beyond those of any process.
TEST(leftovers_of_a_killed_mpirun) {
    struct err err = {0};
    char host[200] = "", folder[4300], other[4300], own[4300], foreign[4300], path[4400];
    CHECK_EQ_INT(gethostname(host, sizeof host - 1), 0);
    host[strcspn(host, ".")] = 0;
    unsigned user = (unsigned)geteuid();
    snprintf(folder, sizeof folder, "%s/ompi.%s.%u/pid.50009897", test_temp_dir(), host, user);
    snprintf(other, sizeof other, "%s/ompi.%s.%u/pid.50009898", test_temp_dir(), host, user);
    snprintf(own, sizeof own, "%s/vader_segment.%s.%u.4a570001.3", test_temp_dir(), host, user);
    snprintf(foreign, sizeof foreign, "%s/vader_segment.%s.%u.4a580001.3", test_temp_dir(), host,
             user);
    CHECK_OK(file_make_folders(folder, &err), err);
    CHECK_OK(file_make_folders(other, &err), err);
    snprintf(path, sizeof path, "%s/contact.txt", folder);
    put(path, "1247215616.0;tcp://10.0.0.1:59537\n9897\n");
    put(own, "");
    put(foreign, "");
    leftovers_remove(test_temp_dir(), test_temp_dir(), 50009899); // never was
    CHECK(file_exists(folder) && file_exists(own));
    leftovers_remove(test_temp_dir(), test_temp_dir(), 50009897);
    CHECK(!file_exists(folder) && !file_exists(own));
    CHECK(file_exists(other) && file_exists(foreign));
    // a file that is none: the folder goes, segments stay
    snprintf(path, sizeof path, "%s/contact.txt", other);
    put(path, "nonsense");
    leftovers_remove(test_temp_dir(), test_temp_dir(), 50009898);
    CHECK(!file_exists(other) && file_exists(foreign));
}
