// Copies of a host's snapshots on another one: that they fail is told, and that they are whole
// again; what a run goes back behind goes there too.
#include "base/file.h"
#include "base/random.h"
#include "namespaces.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[2048]; // that all hosts see
static pid_t run;

static void prepare(void) {
    enum { TOKENS = 60000 };
    static uint16_t ids[TOKENS];
    struct err err = {0};
    char path[2100], text[4096];
    cluster_need();
    cluster_need_mpi();
    cluster_up(2, "");
    snprintf(folder, sizeof folder, "%s", cluster_folder());
    for (int i = 0; i < TOKENS; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    snprintf(path, sizeof path, "%s/train.bin", folder);
    CHECK_OK(file_replace(path, ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 64, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 32}\n"
             "data.train: %s\n"
             "train: {steps: 1000000, batch: 4, gemm_seconds: 0, log_every: 1000}\n"
             "checkpoint: {every: 50, snapshot_folder: /tmp/snapshots}\n"
             "device.threads: 1\n",
             path);
    snprintf(path, sizeof path, "%s/c.yaml", folder);
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    RUN("%s hosts >%s/hosts", cluster(), folder);
}

// One rank on node1, node2 is a spare; until it is stopped.
static void begin_run(void) {
    static char command[16384];
    snprintf(command, sizeof command,
             "exec env %s exec node1 env OMP_WAIT_POLICY=passive OMPI_MCA_plm_rsh_agent=%s/agent "
             "HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=%s/agent %s launch -n 1 --hosts %s/hosts "
             "--spares 1 train %s/c.yaml train.folder=%s/run >%s/log 2>&1",
             cluster(), folder, folder, test_weft(), folder, folder, folder, folder);
    run = fork();
    CHECK(run >= 0);
    if (run > 0) return;
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static const char *content(const char *name) {
    static char *text;
    char path[2100];
    size_t size;
    free(text);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_read(path, 0, &text, &size, NULL) != 0) text = strdup("");
    return text;
}

static void wait_for(const char *file, const char *part) {
    while (!strstr(content(file), part)) { // the test's limit counts
        if (waitpid(run, NULL, WNOHANG) != 0)
            test_fail(__FILE__, __LINE__, "the run ended before \"%s\": %s", part, content("log"));
        usleep(50000);
    }
}

TEST_LIMIT(copies_that_fail_are_told_and_go_when_the_run_goes_back, 240) {
    int status;
    cluster_long_trial();
    prepare();
    RUN("%s exec node2 sh -c 'mkdir /tmp/snapshots && mount -t tmpfs -o size=512k none "
        "/tmp/snapshots'",
        cluster());
    begin_run();
    wait_for("run/incidents.jsonl", "\"kind\":\"copy\"");
    const char *incidents = content("run/incidents.jsonl");
    CHECK_CONTAINS(incidents, "\"rank\":0,\"host\":\"node1\"");
    CHECK_CONTAINS(incidents, "snapshots of node1 are not copied to node2: ");
    CHECK_CONTAINS(incidents, "no room for ");
    CHECK_CONTAINS(incidents, "make room on node2");
    RUN("%s exec node1 %s launch --status %s/run", cluster(), test_weft(), folder);
    CHECK_CONTAINS(cluster_out, "none on node2 yet, now failing: ");
    RUN("%s exec node2 mount -o remount,size=64m /tmp/snapshots", cluster());
    wait_for("run/incidents.jsonl", "lie on node2 again");
    RUN("%s exec node1 %s launch --status %s/run", cluster(), test_weft(), folder);
    CHECK_CONTAINS(cluster_out, " on node2\n");
    RUN("%s exec node1 %s launch --inject %s/run kind=flip_weight", cluster(), test_weft(), folder);
    wait_for("run/incidents.jsonl", "the run went back to step ");
    while (test_shell(cluster_out, sizeof cluster_out,
                      "%s exec node2 sh -c 'cat /tmp/snapshots/*/*/discarded'", cluster()) != 0)
        usleep(50000);
    CHECK_CONTAINS(cluster_out, "\"session\":");
    kill(run, SIGINT);
    CHECK_EQ_INT(waitpid(run, &status, 0), run);
    CHECK_EQ_INT(WEXITSTATUS(status), 130);
    RUN("%s down", cluster());
}
