// Error counters from made-up machines: folders of EDAC, a library with NVML's names, kernel logs.
#include "guard/counters.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
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
// Behind the counts may stand what the calls answer with: init, count, handle and errors of the
// second GPU.
static const char fake_nvml[] =
    "#include <stdio.h>\n"
    "static unsigned long long counts[4];\n"
    "static int result[4];\n"
    "int nvmlInit_v2(void) {\n"
    "    FILE *f = fopen(COUNTS, \"r\");\n"
    "    if (!f) return 9;\n" // driver not loaded
    "    for (int i = 0; i < 4; i++) if (fscanf(f, \"%llu\", &counts[i]) != 1) return 9;\n"
    "    for (int i = 0; i < 4; i++) if (fscanf(f, \"%d\", &result[i]) != 1) result[i] = 0;\n"
    "    fclose(f);\n"
    "    return result[0];\n"
    "}\n"
    "int nvmlShutdown(void) { return 0; }\n"
    "int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return result[1]; }\n"
    "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {\n"
    "    *h = (char *)0 + i + 1;\n"
    "    return i == 1 ? result[2] : 0;\n"
    "}\n"
    "int nvmlDeviceGetTotalEccErrors(void *h, int type, int counter, unsigned long long *n) {\n"
    "    long device = (char *)h - (char *)0 - 1;\n"
    "    if (device == 2) return 3;\n" // no ECC: not supported
    "    if (counter != 0) return 2;\n"
    "    if (device == 1 && result[3]) return result[3];\n"
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

// A sum without the GPU that does not answer would make an alarm of the next one.
TEST(a_read_that_failed_is_compared_with_nothing) {
    static const char *const failing[] = {"0 0 5 7 4", "0 0 5 7 0 999", "0 0 5 7 0 0 15",
                                          "0 0 5 7 0 0 0 15"};
    build_nvml("nvml.c", fake_nvml);
    put("counts", "0 0 5 7\n");
    struct counters known = look(), now;
    CHECK_STR(known.gpu_unread, "");
    for (size_t i = 0; i < sizeof failing / sizeof failing[0]; i++) {
        put("counts", failing[i]);
        now = look();
        CHECK(!now.has_gpu);
        CHECK_CONTAINS(now.gpu_unread, "answered with ");
        CHECK_EQ_INT(counters_compare(&known, &now, why), 0);
        counters_learn(&known, &now);
        put("counts", "0 0 5 7\n");
        now = look();
        CHECK_EQ_INT(counters_compare(&known, &now, why), 0);
        counters_learn(&known, &now);
    }
    put("counts", "0 0 5 8 4\n"); // an error meanwhile is found afterwards
    now = look();
    counters_learn(&known, &now);
    put("counts", "0 0 5 8\n");
    now = look();
    CHECK_EQ_INT(counters_compare(&known, &now, why), 2);
    struct counters first = {.gpu_unread = "nvmlInit_v2 answered with 4"};
    CHECK_EQ_INT(counters_compare(&first, &now, why), 0); // known since now
    counters_learn(&first, &now);
    CHECK_EQ_INT(counters_compare(&first, &now, why), 0);
}

TEST(controllers_that_are_away_for_a_while_have_counted_nothing) {
    memory_errors("4\n", "2\n");
    struct counters known = look(), now;
    CHECK_EQ_INT(test_shell(why, sizeof why, "mv %s/mc11 %s", test_path("edac"), test_temp_dir()),
                 0);
    now = look();
    CHECK_EQ_INT(now.uncorrected, 0);
    CHECK_EQ_INT(counters_compare(&known, &now, why), 0);
    counters_learn(&known, &now);
    CHECK_EQ_INT(test_shell(why, sizeof why, "mv %s/mc11 %s", test_temp_dir(), test_path("edac")),
                 0);
    now = look();
    CHECK_EQ_INT(counters_compare(&known, &now, why), 0);
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

static void gather(enum log_level level, const char *line, void *context) {
    (void)level;
    text_printf(context, "%s\n", line);
}

// As for a user who may not read the kernel log: a loop of links can be read by nobody.
TEST(what_cannot_be_read_is_told_once) {
    struct counters_places places = nowhere();
    struct counters_watch *w;
    struct text lines = {0};
    char loop[4096], wanted[4600];
    build_nvml("nvml.c", fake_nvml);
    put("counts", "0 0 5 7 4\n");
    snprintf(loop, sizeof loop, "%s", test_path("loop"));
    CHECK_EQ_INT(symlink(loop, loop), 0);
    places.kernel_log = loop;
    memory_errors("4\n", "0\n");
    log_to(gather, &lines, LOG_INFO);
    CHECK_OK(counters_watch_open(&w, &places, 0.001, &err), err);
    for (int i = 1; i < 4; i++) { // it has looked again
        char count[8];
        snprintf(count, sizeof count, "%d\n", 4 + i);
        memory_errors(count, "0\n");
        for (int k = 0; k < 2000 && counters_watch_take(w, why) == 0; k++) usleep(5000);
    }
    counters_watch_close(w);
    log_to(NULL, NULL, LOG_INFO);
    snprintf(wanted, sizeof wanted,
             "memory errors of GPUs are not watched on this host: nvmlInit_v2 answered with 4\n"
             "errors of accelerators in the kernel log (XID) are not watched on this host: %.100s: "
             "Too many levels of symbolic links\n",
             loop);
    CHECK_STR(lines.data, wanted);
    text_free(&lines);
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
