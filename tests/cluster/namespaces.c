// See namespaces.h.
#include "namespaces.h"
#include "comm/comm.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char cluster_out[1 << 20];

// The cluster's name, and the folder of the programs where /tmp would hide it; the process that
// owns the cluster is to be put behind.
const char *cluster_environment(void) {
    static char text[2 * 4096];
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", test_weft());
    *strrchr(folder, '/') = 0;
    snprintf(text, sizeof text, "CLUSTER=t%d CLUSTER_SHARE='%s' CLUSTER_OWNER=", (int)getpid(),
             folder);
    return text;
}

const char *cluster(void) {
    static char text[3 * 4096];
    snprintf(text, sizeof text, "%s%d %s/tests/cluster/cluster", cluster_environment(),
             (int)getpid(), WEFT_SOURCE_DIR);
    return text;
}

void cluster_need(void) {
    if (test_shell(cluster_out, sizeof cluster_out, "%s check", cluster()) != 0) {
        cluster_out[strcspn(cluster_out, "\n")] = 0;
        SKIP("no cluster of namespaces: %s", cluster_out);
    }
}

void cluster_long_trial(void) {
    if (!getenv("WEFT_TEST_ALL")) SKIP("a long trial; make test-cluster plays it");
}

void cluster_need_mpi(void) {
    if (!comm_built_with_mpi()) SKIP("built without MPI");
}

void cluster_run(const char *file, int line, const char *format, ...) {
    static char command[32768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    if (test_shell(cluster_out, sizeof cluster_out, "%s 2>&1", command) != 0)
        test_fail(file, line, "%s: %s", command, cluster_out);
}

void cluster_up(int hosts, const char *rate) {
    RUN("%s up %d %s", cluster(), hosts, rate);
}

const char *cluster_folder(void) {
    static char path[4096];
    RUN("%s folder", cluster());
    snprintf(path, sizeof path, "%.*s", (int)strcspn(cluster_out, "\n"), cluster_out);
    return path;
}
