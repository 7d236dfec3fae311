// Error counters from made-up machines: folders of EDAC, a library with NVML's names, kernel logs.
#include "guard/counters.h"
#include "base/file.h"
#include "base/log.h"
#include "test.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct err err;
static char why[300];

// In one go: a thread may be reading.
static void put(const char *name, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s", test_path(name));
    *strrchr(path, '/') = 0;
    CHECK_OK(file_make_folders(path, &err), err);
    CHECK_OK(file_replace(test_path(name), text, strlen(text), &err), err);
}

static struct counters_places nowhere(void) {
    static char edac[4096], nvml[4096], log[4096];
    snprintf(edac, sizeof edac, "%s", test_path("edac"));
    snprintf(nvml, sizeof nvml, "%s", test_path("libnvml.so"));
    snprintf(log, sizeof log, "%s", test_path("kernel.log"));
    return (struct counters_places){edac, nvml, log};
}

static struct counters look(void) {
    struct counters_places places = nowhere();
    struct counters c;
    CHECK_OK(counters_read(&places, &c, &err), err);
    return c;
}

TEST(a_machine_without_any) {
    struct counters c = look();
    CHECK(!c.has_edac && !c.has_gpu && !c.has_log);
    CHECK_EQ_INT(c.corrected + c.uncorrected + c.xid_count, 0);
    CHECK_EQ_INT(counters_compare(&c, &c, why), 0);
}

TEST(this_machine_can_be_asked) {
    struct counters c;
    CHECK_OK(counters_read(NULL, &c, &err), err);
    CHECK_EQ_INT(counters_compare(&c, &c, why), 0);
}

static void memory_errors(const char *corrected, const char *uncorrected) {
    put("edac/mc0/ce_count", "3\n");
    put("edac/mc0/ue_count", "0\n");
    put("edac/mc11/ce_count", corrected);
    put("edac/mc11/ue_count", uncorrected);
    put("edac/power/ce_count", "no controller");
}

TEST(edac_adds_up_the_controllers) {
    memory_errors("4\n", "0\n");
    struct counters before = look();
    CHECK(before.has_edac);
    CHECK_EQ_INT(before.corrected, 7);
    memory_errors("5\n", "0\n");
    struct counters now = look();
    CHECK_EQ_INT(counters_compare(&before, &now, why), 1);
    CHECK_CONTAINS(why, "8 corrected errors, 7 before");
    memory_errors("5\n", "1\n");
    now = look();
    CHECK_EQ_INT(counters_compare(&before, &now, why), 2);
    CHECK_CONTAINS(why, "1 uncorrected errors, 0 before");
    CHECK_EQ_INT(counters_compare(&now, &now, why), 0);
}

TEST(a_count_that_is_none_is_named) {
    static const char *const bad[] = {"", "many\n", "-4\n", "7 8\n", "99999999999999999999999\n"};
    struct counters_places places = nowhere();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct counters c;
        memory_errors("0\n", bad[i]);
        err = (struct err){0};
        CHECK(counters_read(&places, &c, &err) != 0);
        CHECK_CONTAINS(err.text, "mc11/ue_count: expected a count of memory errors");
    }
}

// A library with the names and signatures of NVML; its counts stand in a file.
static const char fake_nvml[] =
    "#include <stdio.h>\n"
    "static unsigned long long counts[4];\n"
    "int nvmlInit_v2(void) {\n"
    "    FILE *f = fopen(COUNTS, \"r\");\n"
    "    if (!f) return 9;\n" // driver not loaded
    "    for (int i = 0; i < 4; i++) if (fscanf(f, \"%llu\", &counts[i]) != 1) return 9;\n"
    "    fclose(f);\n"
    "    return 0;\n"
    "}\n"
    "int nvmlShutdown(void) { return 0; }\n"
    "int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }\n"
    "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {\n"
    "    *h = (char *)0 + i + 1;\n"
    "    return 0;\n"
    "}\n"
    "int nvmlDeviceGetTotalEccErrors(void *h, int type, int counter, unsigned long long *n) {\n"
    "    long device = (char *)h - (char *)0 - 1;\n"
    "    if (device == 2) return 3;\n" // no ECC: not supported
    "    if (counter != 0) return 2;\n"
    "    *n = counts[2 * device + type];\n"
    "    return 0;\n"
    "}\n";

static void build_nvml(const char *name, const char *source) {
    char output[4096];
    put(name, source);
    if (test_shell(output, sizeof output, "command -v cc") != 0) SKIP("no C compiler in the path");
    int status = test_shell(output, sizeof output, "cc -shared -fPIC -DCOUNTS='\"%s\"' -o %s %s",
                            test_path("counts"), test_path("libnvml.so"), test_path(name));
    if (status != 0) test_fail(__FILE__, __LINE__, "%s", output);
}

TEST(gpus_are_asked_through_nvml) {
    build_nvml("nvml.c", fake_nvml);
    CHECK(!look().has_gpu); // the driver is not loaded
    put("counts", "1 0 5 0\n");
    struct counters before = look();
    CHECK(before.has_gpu);
    CHECK_EQ_INT(before.gpu_corrected, 6);
    CHECK_EQ_INT(before.gpu_uncorrected, 0);
    put("counts", "1 0 6 0\n");
    struct counters now = look();
    CHECK_EQ_INT(counters_compare(&before, &now, why), 1);
    CHECK_CONTAINS(why, "GPU memory: 7 corrected errors, 6 before");
    put("counts", "1 2 6 0\n");
    now = look();
    CHECK_EQ_INT(counters_compare(&before, &now, why), 2);
    CHECK_CONTAINS(why, "GPU memory: 2 uncorrected errors, 0 before");
}

TEST(another_library_is_refused_by_name) {
    build_nvml("other.c", "int something_else(void) { return 0; }\n");
    struct counters_places places = nowhere();
    struct counters c;
    CHECK(counters_read(&places, &c, &err) != 0);
    CHECK_CONTAINS(err.text, "libnvml.so: lacks functions of NVML");
}

#define XID(number, text) "[ 12.5] NVRM: Xid (PCI:0000:3b:00): " #number ", pid=71, " text "\n"

TEST(xids_of_the_kernel_log) {
    put("kernel.log", "[ 1.0] Linux version\n" XID(13, "Graphics Exception"));
    struct counters before = look(), now;
    CHECK(before.has_log);
    CHECK_EQ_INT(before.xid_count, 1);
    CHECK_EQ_INT(before.last_xid, 13);
    CHECK_EQ_INT(before.serious_xid, 0);
    put("kernel.log", "[ 1.0] Linux version\n" XID(13, "Graphics Exception") XID(31, "MMU fault"));
    now = look();
    CHECK_EQ_INT(counters_compare(&before, &now, why), 1);
    CHECK_CONTAINS(why, "XID 31");
    static const int serious[] = {48, 63, 64, 74, 79, 94, 95};
    for (size_t i = 0; i < sizeof serious / sizeof serious[0]; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "[ 1.0] Linux version\n" XID(13, "x") "NVRM: Xid (PCI:0000:3b:00): %d, GPU\n" XID(
                     31, "a harmless one behind it"),
                 serious[i]);
        put("kernel.log", text);
        now = look();
        CHECK_EQ_INT(now.serious_xid, serious[i]);
        CHECK_EQ_INT(counters_compare(&before, &now, why), 2);
        CHECK_CONTAINS(why, "NVRM: Xid (PCI:0000:3b:00)");
        CHECK_EQ_INT(counters_compare(&now, &now, why), 0);
    }
}

TEST(lines_that_only_look_like_xids) {
    put("kernel.log", "NVRM: Xid (PCI\nNVRM: Xid (PCI): \nXid (PCI:0): 79\nNVRM: Xid (a): x79\n"
                      "NVRM: Xid (PCI:0): 79"); // the last one is one, its line has no end yet
    CHECK_EQ_INT(look().xid_count, 1);
}

static void silent(enum log_level level, const char *line, void *context) {
    (void)level, (void)line;
    atomic_fetch_add((atomic_int *)context, 1);
}

TEST(a_thread_keeps_the_worst_change) {
    atomic_int lines = 0;
    struct counters_watch *w;
    struct counters_places places = nowhere();
    memory_errors("4\n", "0\n");
    CHECK_OK(counters_watch_open(&w, &places, 0.01, &err), err);
    CHECK_EQ_INT(counters_watch_take(w, why), 0);
    memory_errors("5\n", "0\n");
    int worst = 0;
    for (int i = 0; i < 2000 && worst == 0; i++) {
        usleep(5000);
        worst = counters_watch_take(w, why);
    }
    CHECK_EQ_INT(worst, 1);
    CHECK_CONTAINS(why, "8 corrected errors, 7 before");
    CHECK_EQ_INT(counters_watch_take(w, why), 0);
    log_to(silent, &lines, LOG_INFO);
    memory_errors("what\n", "0\n"); // told once, and the thread goes on
    for (int i = 0; i < 2000 && atomic_load(&lines) == 0; i++) usleep(5000);
    memory_errors("5\n", "1\n");
    for (int i = 0; i < 2000 && worst != 2; i++) {
        usleep(5000);
        worst = counters_watch_take(w, why);
    }
    CHECK_EQ_INT(worst, 2);
    counters_watch_close(w);
    log_to(NULL, NULL, LOG_INFO);
    CHECK_EQ_INT(lines, 1);
    counters_watch_close(NULL);
}
