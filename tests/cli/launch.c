// weft launch, and weft train under other launchers: command lines, statuses, ranks that die.
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "comm/comm.h"
#include "test.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char out[16384];

// A launcher around these tests is not the one under test.
#define WITHOUT_LAUNCHER                                                                           \
    "env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u SLURM_NTASKS -u SLURM_JOB_ID -u SLURM_STEP_ID "    \
    "-u OMP_NUM_THREADS "

static void need_mpi(void) {
    if (!comm_built_with_mpi()) SKIP("built without MPI");
}

static void write_inputs(void) {
    struct err err = {0};
    char text[2048];
    uint16_t ids[6000];
    for (int i = 0; i < 6000; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_replace(test_path("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 32}\n"
             "data.train: %s\n"
             "train: {steps: 6, batch: 8, micro_batch: 2, gemm_seconds: 0, folder: %s}\n"
             "device.threads: 1\n",
             test_path("train.bin"), test_path("run"));
    CHECK_OK(file_replace(test_path("c.yaml"), text, strlen(text), &err), err);
}

TEST(launch_prints_its_command) {
    need_mpi();
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "%s launch -n 4 --dry-run train "
                                             "'a b.yaml' parallel.tp=2",
                            test_weft()),
                 0);
    CHECK_CONTAINS(out, "-n 4");
    CHECK_CONTAINS(out, "none");
    CHECK_CONTAINS(out, "OMP_NUM_THREADS");
    CHECK_CONTAINS(out, "train 'a b.yaml' parallel.tp=2\n");
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "%s launch -n 2 --dry-run train "
                                             "c.yaml device.threads=3",
                            test_weft()),
                 0);
    CHECK(strstr(out, "OMP_NUM_THREADS") == NULL);
}

TEST(launch_of_one_rank_has_no_mpi) {
    char expected[4200];
    snprintf(expected, sizeof expected, "%s train c.yaml\n", test_weft());
    CHECK_EQ_INT(test_shell(out, sizeof out, "PATH=/nowhere %s launch -n 1 --dry-run train c.yaml",
                            test_weft()),
                 0);
    CHECK_STR(out, expected);
    CHECK_EQ_INT(test_shell(out, sizeof out, "PATH=/nowhere %s launch -n 1 version", test_weft()),
                 0);
    CHECK_CONTAINS(out, "sources ");
}

TEST(launch_words_that_are_wrong) {
    struct err err = {0};
    need_mpi();
    CHECK_OK(file_replace(test_path("hosts"), "a slots=x\n", 10, &err), err);
    const struct {
        const char *words, *message;
    } bad[] = {{"train c.yaml", "-n RANKS is needed"},
               {"-n 0 train", "-n \"0\": expected a number of ranks"},
               {"-n 2x train", "\"2x\""},
               {"-n", "-n needs a value"},
               {"-n 2", "a verb is needed"},
               {"-n 2 --host f train", "did you mean --hosts?"},
               {"-n 2 launch -n 2 train", "does not start itself"},
               {"--keep-rank train", "--keep-rank is for mpirun"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ_INT(test_shell(out, sizeof out, WITHOUT_LAUNCHER "%s launch %s 2>&1", test_weft(),
                                bad[i].words),
                     2);
        CHECK_CONTAINS(out, bad[i].message);
    }
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s launch -n 2 --hosts %s train c.yaml 2>&1",
                            test_weft(), test_path("hosts")),
                 2);
    CHECK_CONTAINS(out, "line 1: \"slots=x\"");
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "PATH=/nowhere %s launch -n 2 train c.yaml 2>&1", test_weft()),
        2);
    CHECK_CONTAINS(out, "is in PATH");
}

// The rank's own status, its message once, and one line of the launcher.
TEST(launch_passes_status_and_message) {
    need_mpi();
    write_inputs();
    // found before any rank is started
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "%s launch -n 3 train %s train.stepz=3 2>&1",
                            test_weft(), test_path("c.yaml")),
                 2);
    const char *first = strstr(out, "train.stepz");
    CHECK(first != NULL);
    CHECK(strstr(strchr(first, '\n'), "train.stepz") == NULL);
    CHECK(!file_exists(test_path("run")));
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "%s launch -n 3 layout --nonsense 2>&1", test_weft()),
                 2);
    first = strstr(out, "--nonsense");
    CHECK(first != NULL);
    CHECK(strstr(strchr(first, '\n'), "--nonsense") == NULL);
    CHECK_CONTAINS(out, "ended with status 2");
    CHECK(strstr(out, "mpirun") == NULL && strstr(out, "MPI_ABORT") == NULL);
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "%s launch -n 2 train /nonexistent.yaml 2>&1",
                            test_weft()),
                 4);
}

// Steps of a run's journal as "STEP LOSS" with all digits.
static void read_losses(const char *folder, double *loss, int count) {
    char path[4300], line[4096];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", test_path(folder));
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    int found = 0;
    while (fgets(line, sizeof line, file)) {
        json_t *root = json_parse(line, strlen(line), path, &err);
        json_t *value = json_object_get(root, "loss");
        if (value && found < count) loss[found++] = json_number_value(value);
        json_decref(root);
    }
    fclose(file);
    CHECK_EQ_INT(found, count);
}

TEST(launch_trains_as_one_process_does) {
    double one[6] = {0}, two[6] = {0};
    need_mpi();
    write_inputs();
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "%s train %s train.precision=fp32 train.folder=%s "
                                             "2>&1",
                            test_weft(), test_path("c.yaml"), test_path("one")),
                 0);
    int status = test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "%s launch -n 2 train %s train.precision=fp32 "
                                             "train.folder=%s 2>&1",
                            test_weft(), test_path("c.yaml"), test_path("two"));
    if (status != 0) test_fail(__FILE__, __LINE__, "%s", out);
    CHECK_CONTAINS(out, "ranks: 2 as ");
    read_losses("one", one, 6);
    read_losses("two", two, 6);
    for (int i = 0; i < 6; i++) CHECK_CLOSE(two[i], one[i], 1e-5);
}

// ---- launchers whose ranks do not find each other

TEST(train_refuses_a_launch_without_peers) {
    write_inputs();
    CHECK_EQ_INT(test_shell(out, sizeof out, WITHOUT_LAUNCHER "SLURM_NTASKS=4 %s train %s 2>&1",
                            test_weft(), test_path("c.yaml")),
                 2);
    CHECK_CONTAINS(out, "SLURM_NTASKS says 4 ranks");
    CHECK_CONTAINS(out, "sees 1 process");
    CHECK(strchr(out, '\n') == out + strlen(out) - 1);
    CHECK(!file_exists(test_path("run")));
    // the fourth of four says nothing and leaves with the same status
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_NTASKS=4 "
                                             "SLURM_PROCID=3 %s train %s 2>&1",
                            test_weft(), test_path("c.yaml")),
                 2);
    CHECK_STR(out, "");
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "SLURM_NTASKS=4 %s train %s --single 2>&1",
                            test_weft(), test_path("c.yaml")),
                 0);
    CHECK_CONTAINS(out, "step 6");
}

TEST(train_inside_an_allocation_is_one_process) {
    write_inputs();
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            WITHOUT_LAUNCHER "SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_PROCID=0 %s "
                                             "train %s 2>&1",
                            test_weft(), test_path("c.yaml")),
                 0);
}

TEST(bench_refuses_threads_without_cores) {
    const char *launched = WITHOUT_LAUNCHER "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 "
                                            "OMPI_COMM_WORLD_LOCAL_SIZE=2 ";
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s %s bench gemm --threads 4000 2>&1", launched, test_weft()),
        2);
    CHECK_CONTAINS(out, "4000 threads");
    CHECK_CONTAINS(out, "--bind-to none");
}

// With more threads than cores waiting threads sleep: the program was started once more for that,
// once only, and not where the user has said how to wait.
TEST(train_waits_asleep_when_cores_are_short) {
    char command[8600];
    write_inputs();
    snprintf(command, sizeof command,
             "OMP_DISPLAY_ENV=verbose %s train %s device.threads=%d 2>&1 | grep -o "
             "\"GOMP_SPINCOUNT = '[0-9]*'\"",
             test_weft(), test_path("c.yaml"), 2 * (int)sysconf(_SC_NPROCESSORS_ONLN));
    test_shell(out, sizeof out, "unset OMP_WAIT_POLICY GOMP_SPINCOUNT; " WITHOUT_LAUNCHER "%s",
               command);
    const char *second = strchr(out, '\n');
    CHECK(strncmp(out, "GOMP_SPINCOUNT = ", 17) == 0 && second != NULL);
    CHECK_STR(second + 1, "GOMP_SPINCOUNT = '0'\n");
    test_shell(out, sizeof out, WITHOUT_LAUNCHER "GOMP_SPINCOUNT=77 %s", command);
    CHECK_STR(out, "GOMP_SPINCOUNT = '77'\n");
}

// ---- ranks that die

static bool has(const char *path, const char *part) {
    char text[65536];
    FILE *file = fopen(path, "r");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[size] = 0;
    for (size_t i = 0; i < size; i++)
        if (text[i] == 0) text[i] = '\n';
    return strstr(text, part) != NULL;
}

// The process of this test's rank: its words name this test's run folder, where its configuration
// is kept.
static pid_t find_rank(int rank) {
    char path[300], words[4300], open_mpi[64], mpich[64];
    pid_t found = 0;
    snprintf(words, sizeof words, "weft\ntrain\n%s/launch/config.yaml\n", test_path("run"));
    snprintf(open_mpi, sizeof open_mpi, "OMPI_COMM_WORLD_RANK=%d\n", rank);
    snprintf(mpich, sizeof mpich, "PMI_RANK=%d\n", rank);
    DIR *folder = opendir("/proc");
    CHECK(folder != NULL);
    for (struct dirent *entry; !found && (entry = readdir(folder));) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid <= 0) continue;
        snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
        if (!has(path, words) || has(path, "--keep-rank")) continue;
        snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
        if (has(path, open_mpi) || has(path, mpich)) found = pid;
    }
    closedir(folder);
    return found;
}

static pid_t start_long_run(int ranks) {
    char count[16];
    struct err err = {0};
    write_inputs();
    CHECK_OK(file_replace(test_path("log"), "", 0, &err), err);
    snprintf(count, sizeof count, "%d", ranks);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    int file = open(test_path("log"), O_WRONLY | O_TRUNC);
    dup2(file, 1);
    dup2(file, 2);
    execl(test_weft(), "weft", "launch", "-n", count, "--restarts", "0", "train",
          test_path("c.yaml"), "train.steps=100000000", "train.log_every=1", "comm.watchdog=5",
          (char *)NULL);
    _exit(127);
}

static int finish(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void wait_for_steps(void) {
    while (!has(test_path("log"), "step 3/")) usleep(20000); // the test's limit counts
}

static const char *read_log(void) {
    char *text;
    size_t size;
    struct err err = {0};
    CHECK_OK(file_read(test_path("log"), 0, &text, &size, &err), err);
    return text;
}

TEST_LIMIT(launch_names_a_killed_rank, 60) {
    need_mpi();
    pid_t launcher = start_long_run(4);
    wait_for_steps();
    pid_t victim = find_rank(2);
    CHECK(victim > 0);
    kill(victim, SIGKILL);
    CHECK_EQ_INT(finish(launcher), 128 + SIGKILL);
    CHECK_CONTAINS(read_log(), "weft: rank 2 on ");
    CHECK_CONTAINS(read_log(), " ended by signal 9 (killed); the others were stopped\n");
    for (int rank = 0; rank < 4; rank++) CHECK_EQ_INT(find_rank(rank), 0);
}

// Whichever rank the user or the scheduler tells, all save.
TEST_LIMIT(launch_saves_when_one_rank_is_told_to_end, 60) {
    need_mpi();
    pid_t launcher = start_long_run(2);
    wait_for_steps();
    kill(find_rank(1), SIGTERM);
    CHECK_EQ_INT(finish(launcher), 75);
    const char *log = read_log();
    CHECK_CONTAINS(log, "weft: asked to leave after step ");
    CHECK(strstr(strstr(log, "weft: ") + 1, "weft: ") == NULL); // once
    CHECK_EQ_INT(test_shell(out, sizeof out, "ls -d %s/checkpoints/step_*", test_path("run")), 0);
}

TEST_LIMIT(launch_names_a_rank_that_stands_still, 60) {
    need_mpi();
    pid_t launcher = start_long_run(4);
    wait_for_steps();
    pid_t victim = find_rank(1);
    kill(victim, SIGSTOP);
    CHECK_EQ_INT(finish(launcher), 4);
    // by its peers' watchdog, or by the supervisor: both look after 5 s
    const char *log = read_log();
    CHECK_CONTAINS(log, "rank 1 (");
    CHECK(strstr(log, "does not answer") || strstr(log, "hang: rank 1 ("));
    CHECK(strstr(log, "before a rank said why") == NULL);
    for (int rank = 0; rank < 4; rank++) CHECK_EQ_INT(find_rank(rank), 0);
}

TEST_LIMIT(launch_tells_of_data_that_was_cut_short, 60) {
    need_mpi();
    pid_t launcher = start_long_run(2);
    wait_for_steps();
    CHECK_EQ_INT(truncate(test_path("train.bin"), 100), 0);
    CHECK_EQ_INT(finish(launcher), 4);
    CHECK_CONTAINS(read_log(), "mapped into memory was cut short");
    for (int rank = 0; rank < 2; rank++) CHECK_EQ_INT(find_rank(rank), 0);
}

TEST_LIMIT(launch_lets_ranks_save_when_interrupted, 60) {
    need_mpi();
    pid_t launcher = start_long_run(2);
    wait_for_steps();
    kill(launcher, SIGINT);
    CHECK_EQ_INT(finish(launcher), 130);
    const char *log = read_log();
    CHECK_CONTAINS(log, "weft: interrupted after step ");
    CHECK_CONTAINS(log, "which is saved");
    CHECK(strstr(log, "ended") == NULL);
    CHECK_EQ_INT(test_shell(out, sizeof out, "ls -d %s/checkpoints/step_*", test_path("run")), 0);
    for (int rank = 0; rank < 2; rank++) CHECK_EQ_INT(find_rank(rank), 0);
}

// Whoever kills the launcher ends the run.
TEST_LIMIT(launch_that_is_killed_leaves_nothing, 60) {
    need_mpi();
    pid_t launcher = start_long_run(2);
    wait_for_steps();
    kill(launcher, SIGKILL);
    CHECK_EQ_INT(finish(launcher), 128 + SIGKILL);
    while (find_rank(0) || find_rank(1)) usleep(50000);
}
