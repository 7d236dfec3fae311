// Runs over hosts that are lost, cut off, slow or unfit while they train: how they end is compared
// with an undisturbed run on one machine.
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "namespaces.h"
#include "state_hash.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 400, STEPS_MOST = 6000, TOKENS = 60000 };

static char folder[2048]; // that all hosts see: inputs, logs, runs

static void prepare(int hosts) {
    struct err err = {0};
    static uint16_t ids[TOKENS];
    char path[2100], text[4096];
    cluster_need();
    cluster_need_mpi();
    cluster_up(hosts, "");
    snprintf(folder, sizeof folder, "%s", cluster_folder());
    for (int i = 0; i < TOKENS; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    snprintf(path, sizeof path, "%s/train.bin", folder);
    CHECK_OK(file_replace(path, ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 64, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 32}\n"
             "data.train: %s\n"
             "train: {steps: %d, batch: 12, micro_batch: 1, gemm_seconds: 0, log_every: 25}\n"
             "checkpoint: {every: 25}\n"
             "device.threads: 1\n",
             path, STEPS);
    snprintf(path, sizeof path, "%s/c.yaml", folder);
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
}

// ---- runs ---------------------------------------------------------------------------------------

static const char *in_folder(const char *name) {
    static char paths[4][2400];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void run_undisturbed(int ranks, const char *keys) {
    RUN("env OMP_WAIT_POLICY=passive %s launch -n %d train %s train.folder=%s %s", test_weft(),
        ranks, in_folder("c.yaml"), in_folder("calm"), keys);
}

// The supervisor is on node1; hosts of one slot each.
static pid_t begin_run(int ranks, const char *options, const char *keys) {
    static char command[32768];
    RUN("%s hosts >%s", cluster(), in_folder("hosts"));
    snprintf(command, sizeof command,
             "exec env %s exec node1 env OMP_WAIT_POLICY=passive OMPI_MCA_plm_rsh_agent=%s/agent "
             "HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=%s/agent %s launch -n %d --hosts %s %s train "
             "%s train.folder=%s %s >%s 2>&1",
             cluster(), folder, folder, test_weft(), ranks, in_folder("hosts"), options,
             in_folder("c.yaml"), in_folder("run"), keys, in_folder("log"));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static const char *content(const char *name) {
    static char *texts[2];
    static int turn;
    size_t size;
    char **text = &texts[turn++ % 2];
    free(*text);
    if (file_read(in_folder(name), 0, text, &size, NULL) != 0) *text = strdup("");
    return *text;
}

// Between two looks; the test's limit counts.
static void wait_more(pid_t run, const char *what) {
    if (waitpid(run, NULL, WNOHANG) != 0)
        test_fail(__FILE__, __LINE__, "the run ended before %s: %s", what, content("log"));
    usleep(20000);
}

static void wait_for(pid_t run, const char *file, const char *part) {
    while (!strstr(content(file), part)) wait_more(run, part);
}

// Until the log says one thing and, somewhere behind it, the other.
static void wait_for_both(pid_t run, const char *first, const char *then) {
    for (;; wait_more(run, then)) {
        const char *at = strstr(content("log"), first);
        if (at && strstr(at, then)) return;
    }
}

// Until a host holds a copy of another host's rank's state of that step, in memory.
static void wait_for_copy(pid_t run, const char *host, int rank, int step) {
    while (test_shell(cluster_out, sizeof cluster_out,
                      "%s exec %s sh -c \"grep -l '\\\"step\\\": *%d[,}]' "
                      "/dev/shm/weft-*/*/gen-*/buddy-%05d.json\"",
                      cluster(), host, step, rank) != 0)
        wait_more(run, "a copy was made");
}

static int finish(pid_t run) {
    int status;
    while (waitpid(run, &status, 0) < 0) CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void finish_well(pid_t run) {
    int status = finish(run);
    if (status != 0) test_fail(__FILE__, __LINE__, "status %d: %s", status, content("log"));
}

// ---- what is compared ---------------------------------------------------------------------------

struct figures {
    int count;
    char hex[STEPS_MOST][80]; // loss and norm
    double loss[STEPS_MOST], norm[STEPS_MOST];
};

static void read_figures(const char *run, struct figures *out) {
    char path[300], *text;
    size_t size;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    CHECK_OK(file_read(in_folder(path), 0, &text, &size, &err), err);
    out->count = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        const char *loss = strstr(line, "\"loss_hex\":\""),
                   *norm = strstr(line, "\"grad_norm_hex\":\""), *step = strstr(line, "\"step\":");
        if (!loss || !norm || !step || strstr(line, "\"event\":")) continue;
        int at = out->count++;
        CHECK(at < STEPS_MOST);
        CHECK_EQ_INT(strtol(step + 7, NULL, 10), at + 1);
        snprintf(out->hex[at], sizeof out->hex[at], "%.*s %.*s", (int)strcspn(loss + 12, "\""),
                 loss + 12, (int)strcspn(norm + 17, "\""), norm + 17);
        out->loss[at] = strtod(loss + 12, NULL);
        out->norm[at] = strtod(norm + 17, NULL);
    }
    free(text);
}

static uint64_t hash_state(const char *run) {
    char checkpoints[300];
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", run);
    return state_hash(in_folder(checkpoints), STEPS);
}

static struct figures calm, got;

static void check_same_bits(void) {
    read_figures("calm", &calm);
    read_figures("run", &got);
    CHECK_EQ_INT(calm.count, STEPS);
    CHECK_EQ_INT(got.count, STEPS);
    for (int i = 0; i < STEPS; i++) CHECK_STR(got.hex[i], calm.hex[i]);
    CHECK(hash_state("run") == hash_state("calm"));
}

// Loss within 1e-5, norm within 1e-4, relative, up to that step. Sums in another order differ in
// the last bit, and training makes more of it with every step; so this is about the steps soon
// after.
static void check_close(int steps) {
    double most_loss = 0, most_norm = 0;
    read_figures("calm", &calm);
    read_figures("run", &got);
    CHECK(calm.count >= steps);
    CHECK_EQ_INT(got.count, calm.count);
    for (int i = 0; i < calm.count; i++) {
        double loss = fabs(got.loss[i] - calm.loss[i]) / fabs(calm.loss[i]),
               norm = fabs(got.norm[i] - calm.norm[i]) / fabs(calm.norm[i]);
        bool close = loss <= 1e-5 && norm <= 1e-4;
        if (!isfinite(loss) || !isfinite(norm) || (i < steps && !close))
            test_fail(__FILE__, __LINE__, "step %d: loss %.9g, norm %.9g, calm: %.9g, %.9g", i + 1,
                      got.loss[i], got.norm[i], calm.loss[i], calm.norm[i]);
        if (i < steps) most_loss = fmax(most_loss, loss), most_norm = fmax(most_norm, norm);
    }
    printf("largest difference in %d steps: loss %.1e, norm %.1e\n", steps, most_loss, most_norm);
}

// ---- trials -------------------------------------------------------------------------------------

static const char one_spare[] = "--spares 1";

// Nothing reaches the disk while the host lives, so its state is in its own memory, which goes with
// it, and on its buddy. Steps are slow from the save on, so that there is time for that copy.
TEST_LIMIT(lost_host_is_replaced_by_a_spare, 180) {
    prepare(4);
    run_undisturbed(3, "");
    pid_t run = begin_run(3, one_spare,
                          "fault.kind=[disk_fail,slow] fault.rank=-1 fault.step=[1,76] "
                          "fault.factor=[1,30]");
    wait_for(run, "log", "step 75/");
    wait_for_copy(run, "node1", 2, 75);
    CHECK(!file_exists(in_folder("run/checkpoints/step_25")));
    double lost = clock_seconds();
    RUN("%s kill node3", cluster());
    wait_for(run, "log", "back in a step after");
    // The figure "host lost, hot spare: detection + restart"; shown with WEFT_TEST_SHOW=1.
    printf("host lost: back in a step after %.1f s; phases:\n%s\n", clock_seconds() - lost,
           strstr(content("run/incidents.jsonl"), "\"restart\":{"));
    finish_well(run);
    const char *log = content("log");
    CHECK_CONTAINS(log, "in memory (buddy): step");
    CHECK(!strstr(log, "resumed from /"));
    const char *incidents = content("run/incidents.jsonl");
    CHECK_CONTAINS(incidents, "\"kind\":\"host_lost\"");
    CHECK_CONTAINS(incidents, "evict node3, node4 takes its place");
    CHECK_CONTAINS(incidents, "\"first_step\":");
    CHECK_CONTAINS(content("log"), "host node4 has passed its health check");
    check_same_bits();
    RUN("%s down", cluster());
}

// Its old ranks, and its agent, are of no attempt that counts when it can be reached again.
TEST_LIMIT(lost_link_is_a_lost_host, 180) {
    cluster_long_trial();
    prepare(4);
    run_undisturbed(3, "");
    pid_t run = begin_run(3, one_spare, "");
    wait_for(run, "log", "step 75/");
    RUN("%s cut node2", cluster());
    wait_for(run, "run/incidents.jsonl", "evict node2, node4 takes its place");
    RUN("%s mend node2", cluster());
    finish_well(run);
    check_same_bits();
    RUN("%s down", cluster());
}

TEST_LIMIT(lost_host_without_a_spare_shrinks_the_run, 180) {
    prepare(3);
    run_undisturbed(3, "train.precision=fp32");
    pid_t run = begin_run(3, "", "train.precision=fp32");
    wait_for(run, "log", "step 75/");
    RUN("%s kill node3", cluster());
    finish_well(run);
    CHECK_CONTAINS(content("run/incidents.jsonl"),
                   "evict node3, 2 of 3 data-parallel replicas go on, on 2 ranks");
    check_close(175);
    CHECK_EQ_INT(got.count, STEPS);
    RUN("%s down", cluster());
}

TEST_LIMIT(lost_host_ends_a_run_that_must_not_shrink, 180) {
    prepare(2);
    pid_t run = begin_run(2, "--fixed-ranks", "");
    wait_for(run, "log", "step 50/");
    RUN("%s kill node2", cluster());
    CHECK_EQ_INT(finish(run), 75); // start it again, elsewhere
    CHECK_CONTAINS(content("log"), "must not shrink");
    RUN("%s down", cluster());
}

// The step that the newest attempt went on from.
static int resumed_step(void) {
    const char *at = content("log"), *last = NULL;
    while ((at = strstr(at, "resumed from "))) last = at++;
    CHECK(last != NULL);
    const char *step = strstr(last, ": step ");
    CHECK(step != NULL);
    return (int)strtol(step + strlen(": step "), NULL, 10);
}

// A run without an end. Weights move little, so that a last bit stays one for a thousand steps;
// other samples differ in the third digit, an older state in the fourth.
#define ENDLESS                                                                                    \
    "train.precision=fp32 train.steps=1000000 schedule.kind=constant "                             \
    "optimizer.learning_rate=1e-4 "

// A host that is back, and healthy, is used again: the same samples in the same order as if it had
// never been away. The run is slow without it, so that few steps go by.
TEST_LIMIT(lost_host_comes_back, 300) {
    char keys[200];
    cluster_long_trial();
    prepare(3);
    pid_t run =
        begin_run(3, "", ENDLESS "fault.kind=slow fault.rank=-1 fault.attempt=1 fault.factor=30");
    wait_for(run, "log", "step 75/");
    RUN("%s kill node3", cluster());
    wait_for(run, "run/incidents.jsonl", "\"first_step\":");
    RUN("%s start node3", cluster());
    wait_for(run, "run/incidents.jsonl", "host node3 is back and healthy");
    wait_for_both(run, "restart with 3 data-parallel replicas", ": back in a step");
    int grown = resumed_step(), until = grown / 25 * 25 + 100;
    snprintf(keys, sizeof keys, "step %d/", until);
    wait_for(run, "log", keys);
    kill(run, SIGINT);
    CHECK_EQ_INT(finish(run), 130);
    read_figures("run", &got);
    snprintf(keys, sizeof keys, ENDLESS "train.stop_at=%d", got.count);
    run_undisturbed(3, keys);
    printf("grown behind step %d, ended behind step %d\n", grown, got.count);
    check_close(until);
    RUN("%s down", cluster());
}

// A spare whose disk does not take a byte is passed over.
TEST_LIMIT(lost_host_is_not_replaced_by_an_unfit_spare, 180) {
    cluster_long_trial();
    prepare(5);
    run_undisturbed(3, "");
    pid_t run = begin_run(3, "--spares 2", "");
    wait_for(run, "log", "step 50/");
    RUN("%s exec node4 mount -t tmpfs -o ro,size=1g none %s", cluster(), in_folder("run"));
    wait_for(run, "log", "step 75/");
    RUN("%s kill node3", cluster());
    finish_well(run);
    const char *incidents = content("run/incidents.jsonl");
    CHECK_CONTAINS(incidents, "the health check of node4 ");
    CHECK_CONTAINS(incidents, "Read-only file system");
    // the end of mpirun may be known before the silence of node3, and then node4 is never asked to
    // come
    CHECK_CONTAINS(incidents, "node5 takes its place");
    check_same_bits();
    RUN("%s down", cluster());
}

// A host whose rank hangs is checked before it takes ranks again; its disk does not take a byte.
TEST_LIMIT(lost_trust_in_a_host_that_fails_its_check, 180) {
    cluster_long_trial();
    prepare(4);
    run_undisturbed(3, "");
    pid_t run = begin_run(3, one_spare, "");
    wait_for(run, "log", "step 75/");
    RUN("%s exec node2 mount -t tmpfs -o ro,size=1g none %s", cluster(), in_folder("run"));
    RUN("%s exec node1 %s launch --inject %s kind=hang rank=1", cluster(), test_weft(),
        in_folder("run"));
    finish_well(run);
    const char *incidents = content("run/incidents.jsonl");
    CHECK_CONTAINS(incidents, "\"kind\":\"hang\"");
    CHECK_CONTAINS(incidents, "the health check of node2 ");
    CHECK_CONTAINS(incidents, "Read-only file system");
    CHECK_CONTAINS(incidents, "evict node2, node4 takes its place");
    check_same_bits();
    RUN("%s down", cluster());
}

// A rank that finds its own results wrong, once more than is borne, leaves with 76.
TEST_LIMIT(lost_trust_in_a_host_that_accuses_itself, 180) {
    cluster_long_trial();
    prepare(4);
    run_undisturbed(3, "");
    pid_t run = begin_run(3, one_spare,
                          "guard.most_faults=0 fault.kind=flip_gradient fault.rank=1 "
                          "fault.step=110 fault.bit=30");
    finish_well(run);
    const char *incidents = content("run/incidents.jsonl");
    CHECK_CONTAINS(incidents, "rank 1 on node2 ended with status 76");
    CHECK_CONTAINS(incidents, "evict node2, node4 takes its place");
    CHECK(!strstr(incidents, "\"detect\":null"));
    CHECK_CONTAINS(content("run/launch/evicted"), "node2");
    check_same_bits();
    RUN("%s down", cluster());
}

// Slow is not lost: nothing is evicted, no bit changes.
TEST_LIMIT(lost_speed_of_a_link_changes_no_bit, 180) {
    cluster_long_trial();
    prepare(2);
    run_undisturbed(2, "");
    pid_t run = begin_run(2, "", "");
    wait_for(run, "log", "step 75/");
    RUN("%s rate 100mbit node2", cluster());
    wait_for(run, "log", "step 125/");
    RUN("%s rate none node2", cluster());
    finish_well(run);
    CHECK(!strstr(content("run/incidents.jsonl"), "evict"));
    check_same_bits();
    RUN("%s down", cluster());
}
