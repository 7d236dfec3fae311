// Runs under a real Slurm, see tests/cluster/slurm: a node that dies, a job that is asked to leave,
// a job that has to make room for another. They end with the bits of a run that nobody disturbed.
#include "base/file.h"
#include "base/random.h"
#include "comm/comm.h"
#include "namespaces.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 600 };

static char out[1 << 18];

// The hosts see the folders of the program and of the test; the cluster ends with this process.
static const char *environment(void) {
    static char text[2 * 4096];
    snprintf(text, sizeof text, "CLUSTER=s%d CLUSTER_SHARE='%s' CLUSTER_OWNER=%d", (int)getpid(),
             test_temp_dir(), (int)getpid());
    return text;
}

static int tool(const char *name, const char *words) {
    return test_shell(out, sizeof out, "%s %s/tests/cluster/%s %s 2>&1", environment(),
                      WEFT_SOURCE_DIR, name, words);
}

static void must(const char *name, const char *words) {
    if (tool(name, words) != 0) test_fail(__FILE__, __LINE__, "%s %s: %s", name, words, out);
}

static void log_fault(int line, const char *what) {
    static char logs[1 << 16];
    must("slurm", "log");
    snprintf(logs, sizeof logs, "%.60000s", out);
    test_shell(out, sizeof out, "cat %s/*.log", test_temp_dir());
    test_fail(__FILE__, line, "%s:\n%s\n%s", what, logs, out);
}

static bool says(const char *words, const char *part) {
    return tool("slurm", words) == 0 && strstr(out, part);
}

// Waits for what a command says; the test's limit counts.
static void wait_until(int line, const char *words, const char *part) {
    for (int tries = 0; tries < 2000; tries++) {
        if (says(words, part)) return;
        usleep(100000);
    }
    log_fault(line, words);
}
#define WAIT_UNTIL(words, part) wait_until(__LINE__, words, part)

// A requeued job, which would wait for two minutes. A node that still has the end of its last start
// to do refuses it ("already killed").
static void start_soon(void) {
    must("slurm", "exec scontrol update JobId=1 StartTime=now+4seconds");
}

// How many steps the journal of the run holds.
static long steps_done(const char *folder) {
    char command[4300];
    snprintf(command, sizeof command, "cat %s/%s/metrics.jsonl 2>/dev/null | grep -c loss_hex",
             test_temp_dir(), folder);
    test_shell(out, sizeof out, "%s", command);
    return strtol(out, NULL, 10);
}

static void wait_for_steps(int line, long steps) {
    for (int tries = 0; tries < 2000; tries++) {
        if (steps_done("run") >= steps) return;
        usleep(50000);
    }
    log_fault(line, "the run does not get on");
}

static void write_inputs(void) {
    struct err err = {0};
    char text[2048], command[9000];
    uint16_t ids[6000];
    for (int i = 0; i < 6000; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_replace(test_path("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 32}\n"
             "data.train: %s\n"
             "train: {steps: %d, batch: 8, micro_batch: 2, gemm_seconds: 0, tensorboard: false}\n"
             "checkpoint: {every: 100, keep_last: 2}\n"
             "device.threads: 1\n",
             test_path("train.bin"), STEPS);
    CHECK_OK(file_replace(test_path("c.yaml"), text, strlen(text), &err), err);
    // where the hosts' own /tmp does not hide it
    snprintf(command, sizeof command, "cp %s %s", test_weft(), test_path("weft"));
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s", command), 0);
}

#define ALONE                                                                                      \
    "env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u SLURM_NTASKS -u SLURM_JOB_ID OMP_NUM_THREADS=1 "   \
    "OMP_WAIT_POLICY=passive "

// Slurm on a head and `nodes` nodes of two tasks, and a script for a run of four ranks with a spare
// node.
static void begin(int nodes) {
    char words[64];
    if (tool("slurm", "check") != 0) {
        out[strcspn(out, "\n")] = 0;
        SKIP("no Slurm on namespaces: %s", out);
    }
    if (!comm_built_with_mpi() || !strstr(comm_library(), "Open MPI"))
        SKIP("the trial is made for Open MPI, whose mpirun starts ranks through srun");
    write_inputs();
    snprintf(words, sizeof words, "up %d", nodes + 1);
    must("cluster", words);
    must("slurm", "up 2");
    int status =
        test_shell(out, sizeof out,
                   "cd %s && " ALONE "./weft launch -n 4 --emit-sbatch --ranks-per-node 2 "
                   "--spares 1 --time 10:00 --grace 30 train %s train.folder=%s/run >job.sh",
                   test_temp_dir(), test_path("c.yaml"), test_temp_dir());
    if (status != 0) test_fail(__FILE__, __LINE__, "status %d: %s", status, out);
}

// The same run, undisturbed and without Slurm.
static void run_clean(void) {
    int status =
        test_shell(out, sizeof out,
                   "cd %s && " ALONE "./weft launch -n 4 train c.yaml train.folder=clean 2>&1",
                   test_temp_dir());
    if (status != 0) test_fail(__FILE__, __LINE__, "status %d: %s", status, out);
}

static void submit(void) {
    char words[4300];
    snprintf(words, sizeof words, "exec sbatch -D %s %s/job.sh", test_temp_dir(), test_temp_dir());
    must("slurm", words);
    CHECK_CONTAINS(out, "Submitted batch job 1\n");
}

// Losses and norms with all their digits, and every byte of the last checkpoint's parts.
static void same_bits(int line) {
    run_clean();
    int status = test_shell(
        out, sizeof out,
        "cd %s && for run in clean run; do sed -n "
        "'s/.*\"step\":\\([0-9]*\\).*\"loss_hex\":\"\\([^\"]*\\)\".*\"grad_norm_hex\":\"\\([^\"]*"
        "\\)\".*/\\1 \\2 \\3/p' $run/metrics.jsonl | sort -n | uniq >$run.hex; done; "
        "[ $(wc -l <clean.hex) = %d ] && cmp clean.hex run.hex && cd clean/checkpoints && "
        "for part in step_*%d/*.safetensors; do cmp $part ../../run/checkpoints/$part || exit 1; "
        "done; [ -e $part ]",
        test_temp_dir(), STEPS, STEPS);
    if (status != 0) log_fault(line, out);
}

// A node of the run loses power; the spare takes its place within the job.
TEST_LIMIT(slurm_node_dies, 300) {
    cluster_long_trial();
    begin(3);
    submit();
    wait_for_steps(__LINE__, 150);
    must("cluster", "kill node3");
    WAIT_UNTIL("exec scontrol show job 1", "JobState=COMPLETED");
    CHECK_CONTAINS(out, "Restarts=0");
    same_bits(__LINE__);
    test_shell(out, sizeof out, "cd %s && cat run/incidents.jsonl", test_temp_dir());
    CHECK_CONTAINS(out, "evict node3, node4 takes its place");
    test_shell(out, sizeof out, "cat %s/run/launch/evicted", test_temp_dir());
    CHECK_STR(out, ""); // lost, not found bad: Slurm knows itself when it is back
    must("cluster", "down");
}

// Asked to leave, as before a time limit: saves, leaves with 75, is requeued, goes on at that step.
TEST_LIMIT(slurm_requeues_a_job_that_was_asked_to_leave, 300) {
    cluster_long_trial();
    char step[64];
    begin(3);
    submit();
    wait_for_steps(__LINE__, 150);
    must("slurm", "exec scancel -b -s USR1 1");
    WAIT_UNTIL("exec scontrol show job 1", "JobState=PENDING");
    CHECK_CONTAINS(out, "Restarts=1");
    test_shell(out, sizeof out, "cat %s/run-1.log", test_temp_dir());
    const char *left = strstr(out, "asked to leave after step ");
    CHECK(left != NULL);
    snprintf(step, sizeof step, ": step %.*s,", (int)strspn(left + 26, "0123456789"), left + 26);
    start_soon();
    WAIT_UNTIL("exec scontrol show job 1", "JobState=COMPLETED");
    test_shell(out, sizeof out, "cat %s/run-1.log", test_temp_dir());
    const char *resumed = strstr(out, "resumed from ");
    CHECK(resumed != NULL);
    CHECK_CONTAINS(resumed, step);
    same_bits(__LINE__);
    must("cluster", "down");
}

// A job of higher priority takes the nodes: this one saves and makes room at once, and comes back.
TEST_LIMIT(slurm_preempts_a_job, 300) {
    cluster_long_trial();
    begin(3);
    submit();
    wait_for_steps(__LINE__, 150);
    must("slurm", "exec sbatch -p high -N3 --exclusive -o /dev/null --wrap 'sleep 1'");
    WAIT_UNTIL("exec scontrol show job 2", "JobState=COMPLETED");
    must("slurm", "exec scontrol show job 1");
    CHECK_CONTAINS(out, "Restarts=1");
    start_soon();
    WAIT_UNTIL("exec scontrol show job 1", "JobState=COMPLETED");
    same_bits(__LINE__);
    must("cluster", "down");
}

// Nodes that the run found bad are kept away from it, those of an earlier requeue too.
TEST_LIMIT(slurm_keeps_bad_nodes_away, 300) {
    static const char script[] = "#!/bin/sh\n"
                                 "mkdir -p run/launch\n"
                                 "case ${SLURM_RESTART_COUNT:-0} in\n"
                                 "0) echo node3 >run/launch/evicted; exit 76 ;;\n"
                                 "1) echo node2 >run/launch/evicted; exit 75 ;;\n"
                                 "esac\n";
    struct err err = {0};
    begin(3);
    CHECK_OK(file_replace(test_path("weft"), script, sizeof script - 1, &err), err);
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "cd %s && chmod +x weft && sed -i 's|^[^ ]*/weft launch|%s/weft|; "
                            "s/--nodes=3/--nodes=1/' job.sh",
                            test_temp_dir(), test_temp_dir()),
                 0);
    submit();
    WAIT_UNTIL("exec scontrol show job 1", "JobState=PENDING Reason=BeginTime");
    CHECK_CONTAINS(out, "ExcNodeList=node3\n");
    start_soon();
    WAIT_UNTIL("exec scontrol show job 1", "Restarts=2");
    WAIT_UNTIL("exec scontrol show job 1", "JobState=PENDING Reason=BeginTime");
    CHECK_CONTAINS(out, "ExcNodeList=node3,node2\n"); // as it was told
    start_soon();
    WAIT_UNTIL("exec scontrol show job 1", "JobState=COMPLETED");
    CHECK_CONTAINS(out, " NodeList=node4\n");
    must("cluster", "down");
}
