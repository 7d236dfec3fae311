// weft hardware: lists, pages, checks of users' files.
#include "base/file.h"
#include "test.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static int run(char *out, size_t bytes, const char *arguments) {
    return test_shell(out, bytes, "%s hardware %s 2>&1", test_weft(), arguments);
}

TEST(hardware_lists) {
    static char out[32768];
    CHECK_EQ_INT(run(out, sizeof out, ""), 0);
    CHECK_CONTAINS(out,
                   "  h100-sxm               80 GiB     989.4 TFLOP/s  NVIDIA H100 SXM5 80 GB\n");
    CHECK_CONTAINS(out, "  nvlink4                450 GB/s     NVLink 4");
    CHECK_CONTAINS(out, "  dgx-h100                 64 x 8   h100-sxm");
    CHECK_CONTAINS(out, "\nstacks\n");
    CHECK_EQ_INT(run(out, sizeof out, "list --json"), 0);
    json_t *all = json_loads(out, 0, NULL);
    CHECK(json_array_size(json_object_get(all, "accelerators")) >= 19);
    json_decref(all);
}

// A figure's page: value with its unit, origin, source; a cluster's parts follow it.
TEST(hardware_shows) {
    static char out[32768];
    CHECK_EQ_INT(run(out, sizeof out, "show dgx-h100"), 0);
    CHECK_CONTAINS(out, "cluster dgx-h100\n");
    CHECK_CONTAINS(out, "\naccelerator h100-sxm\n");
    CHECK_CONTAINS(out, "\nlink nvlink4\n");
    CHECK_CONTAINS(out, "\nlink ib-ndr\n");
    CHECK_CONTAINS(out, "3.35 TB/s      stated    NVIDIA H100 datasheet\n");
    CHECK_CONTAINS(out, "24 h           assumed   a day until a node returns\n");
    CHECK_EQ_INT(run(out, sizeof out, "show nvlink4 --json"), 0);
    json_t *all = json_loads(out, 0, NULL), *link = json_array_get(all, 0);
    json_t *bandwidth = json_object_get(link, "bandwidth");
    CHECK_CLOSE(json_real_value(json_object_get(bandwidth, "value")) / 450e9, 1, 1e-9);
    CHECK_STR(json_string_value(json_object_get(bandwidth, "unit")), "B/s");
    CHECK_STR(json_string_value(json_object_get(link, "directions")), "both");
    json_decref(all);
    CHECK_EQ_INT(run(out, sizeof out, "show H100"), 0);
    CHECK_CONTAINS(out, "accelerator h100-sxm\n");
    CHECK_EQ_INT(run(out, sizeof out, "show ib-ndrr"), 2);
    CHECK_CONTAINS(out, "did you mean \"ib-ndr\"?");
}

TEST(hardware_checks_files) {
    static char out[8192], arguments[1200];
    const char *path = test_path("mine.yaml");
    struct err err = {0};
    const char *text = "links:\n  mine: {bandwidth: 10 GB/s, latency_seconds: 5 us}\n";
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    snprintf(arguments, sizeof arguments, "check %s", path);
    CHECK_EQ_INT(run(out, sizeof out, arguments), 0);
    CHECK_CONTAINS(out, "link         mine                     6 figures, 4 of them assumed\n");
    snprintf(arguments, sizeof arguments, "show mine --add %s", path);
    CHECK_EQ_INT(run(out, sizeof out, arguments), 0);
    CHECK_CONTAINS(out, "10 GB/s        stated");
    text = "links:\n  mine: {bandwidth: 10 GB, latency_seconds: 5 us}\n";
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    snprintf(arguments, sizeof arguments, "check %s", path);
    CHECK_EQ_INT(run(out, sizeof out, arguments), 2);
    CHECK_CONTAINS(out, "line 2: links.mine.bandwidth: expected bytes per second");
    CHECK_EQ_INT(run(out, sizeof out, "shw x"), 2);
    CHECK_CONTAINS(out, "did you mean \"show\"?");
    CHECK_EQ_INT(run(out, sizeof out, "show"), 2);
    CHECK_CONTAINS(out, "show needs a name");
}

// The files that stand in configs/ read without a complaint.
TEST(hardware_examples) {
    static char out[8192];
    CHECK_EQ_INT(
        test_shell(out, sizeof out,
                   "for f in %s/configs/clusters/*.yaml; do %s hardware check $f || exit 1; "
                   "done",
                   WEFT_SOURCE_DIR, test_weft()),
        0);
    CHECK_CONTAINS(out, "512xh100");
}
