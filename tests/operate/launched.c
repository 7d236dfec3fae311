// What launchers leave in the environment, and which of it cannot work.
#include "operate/launched.h"
#include "base/affinity.h"
#include "test.h"
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// "NAME=VALUE" words, ended by NULL.
static const char *lookup(const char *name, void *context) {
    size_t length = strlen(name);
    for (const char *const *at = context; *at; at++)
        if (strncmp(*at, name, length) == 0 && (*at)[length] == '=') return *at + length + 1;
    return NULL;
}

#define READ(out, ...)                                                                             \
    do {                                                                                           \
        struct err err_ = {0};                                                                     \
        const char *words_[] = {__VA_ARGS__ __VA_OPT__(, ) NULL};                                  \
        CHECK_OK(launched_read(out, lookup, words_, &err_), err_);                                 \
    } while (0)

TEST(launched_by_hand) {
    char host[256] = "";
    struct launch_environment l;
    struct err err = {0};
    READ(&l);
    CHECK_EQ_INT(l.launcher, LAUNCHER_NONE);
    CHECK_EQ_INT(l.ranks, 1);
    CHECK_EQ_INT(l.rank, 0);
    CHECK_STR(l.variable, "");
    gethostname(host, sizeof host - 1);
    CHECK_STR(l.host, host);
    CHECK_EQ_INT(l.cpus, affinity_cpus());
    CHECK_OK(launched_check(&l, "none", &err), err);
}

TEST(launched_by_each_launcher) {
    struct err err = {0};
    struct launch_environment l;
    READ(&l, "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
         "OMPI_COMM_WORLD_LOCAL_RANK=1", "SLURM_NTASKS=16", "SLURM_JOB_ID=7");
    CHECK_EQ_INT(l.launcher, LAUNCHER_OPEN_MPI);
    CHECK_EQ_INT(l.ranks, 4);
    CHECK_EQ_INT(l.rank, 3);
    CHECK_EQ_INT(l.local_ranks, 2);
    CHECK_EQ_INT(l.local_rank, 1);
    CHECK_OK(launched_check(&l, "Open MPI 4.1.4", &err), err);
    CHECK(!launched_speaks(&l));

    READ(&l, "PMI_SIZE=3", "PMI_RANK=0", "PMI_FD=9", "MPI_LOCALNRANKS=3", "MPI_LOCALRANKID=0");
    CHECK_EQ_INT(l.launcher, LAUNCHER_PMI);
    CHECK_EQ_INT(l.ranks, 3);
    CHECK_EQ_INT(l.local_ranks, 3);
    CHECK_OK(launched_check(&l, "MPICH 4.0.2", &err), err);
    CHECK(launched_speaks(&l));

    READ(&l, "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=6", "SLURM_NTASKS=9",
         "SLURM_PROCID=5", "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_STEP_TASKS_PER_NODE=4,2",
         "PMIX_RANK=5", "PMIX_NAMESPACE=slurm.7.0");
    CHECK_EQ_INT(l.launcher, LAUNCHER_PMIX);
    CHECK_EQ_INT(l.ranks, 6);
    CHECK_EQ_INT(l.rank, 5);
    CHECK_EQ_INT(l.local_ranks, 2);
    CHECK_OK(launched_check(&l, "Open MPI 4.1.4", &err), err);

    READ(&l, "SLURM_JOB_ID=7", "SLURM_STEPID=2", "SLURM_NTASKS=6", "SLURM_PROCID=5",
         "SLURM_NODEID=2", "SLURM_TASKS_PER_NODE=1(x2),4", "PMI_RANK=5", "PMI_SIZE=6");
    CHECK_EQ_INT(l.launcher, LAUNCHER_PMI);
    CHECK_EQ_INT(l.local_ranks, 4);
}

// A step of srun without a PMI: N processes that each would train everything.
TEST(launched_without_peers_is_refused) {
    struct launch_environment l;
    struct err err = {0};
    READ(&l, "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_NTASKS=4", "SLURM_PROCID=2");
    CHECK_EQ_INT(l.launcher, LAUNCHER_SLURM);
    CHECK(launched_check(&l, "Open MPI 4.1.4", &err) != 0);
    CHECK_EQ_INT(err_exit_status(&err), 2);
    CHECK_CONTAINS(err.text, "SLURM_NTASKS says 4 ranks, but MPI sees 1 process");
    CHECK_CONTAINS(err.text, "--mpi=pmix");
    CHECK_CONTAINS(err.text, "--single");
    CHECK(!launched_speaks(&l)); // of four only rank 0 says it

    // the variable alone, without any job: what is left of a broken launch
    READ(&l, "SLURM_NTASKS=4");
    CHECK_EQ_INT(l.ranks, 4);
    err = (struct err){0};
    CHECK(launched_check(&l, "MPICH 4.0.2", &err) != 0);
    CHECK_CONTAINS(err.text, "--mpi=pmi2");
    CHECK(launched_speaks(&l));
}

// Inside salloc or a script of sbatch the number says what was booked; nobody started ranks.
TEST(launched_inside_an_allocation_is_alone) {
    struct launch_environment l;
    struct err err = {0};
    READ(&l, "SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_PROCID=0");
    CHECK_EQ_INT(l.launcher, LAUNCHER_NONE);
    CHECK_EQ_INT(l.ranks, 1);
    CHECK_EQ_INT(l.allocated_tasks, 4);
    CHECK_OK(launched_check(&l, "none", &err), err);
    READ(&l, "SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_PROCID=0", "SLURM_STEP_ID=4294967290");
    CHECK_EQ_INT(l.ranks, 1);
}

TEST(launched_by_the_launcher_of_another_mpi) {
    struct launch_environment l;
    struct err err = {0};
    READ(&l, "PMI_SIZE=2", "PMI_RANK=0");
    CHECK(launched_check(&l, "Open MPI 4.1.4", &err) != 0);
    CHECK_CONTAINS(err.text, "PMI_SIZE says 2 ranks");
    CHECK_CONTAINS(err.text, "mpirun.openmpi");
    READ(&l, "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0");
    err = (struct err){0};
    CHECK(launched_check(&l, "MPICH 4.0.2", &err) != 0);
    CHECK_CONTAINS(err.text, "mpirun.mpich");
    err = (struct err){0};
    CHECK(launched_check(&l, "none", &err) != 0);
    CHECK_CONTAINS(err.text, "-DWEFT_MPI=openmpi");
    // one rank needs no peers
    READ(&l, "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0");
    err = (struct err){0};
    CHECK_OK(launched_check(&l, "none", &err), err);
}

TEST(launched_bad_numbers_name_their_variable) {
    struct launch_environment l;
    const char *bad[][3] = {{"OMPI_COMM_WORLD_SIZE=four", NULL, NULL},
                            {"PMI_SIZE=0", NULL, NULL},
                            {"PMI_SIZE=99999999999", NULL, NULL},
                            {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=2", NULL},
                            {"SLURM_NTASKS=2x", NULL, NULL}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        char name[64];
        CHECK(launched_read(&l, lookup, bad[i], &err) != 0);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(bad[i][0], "="), bad[i][0]);
        CHECK_CONTAINS(err.text, name);
        CHECK_EQ_INT(err_exit_status(&err), 2);
    }
}

// ---- affinity

static struct launch_environment rank_of(int local_ranks, int cpus, int host_cpus) {
    return (struct launch_environment){.launcher = LAUNCHER_OPEN_MPI,
                                       .ranks = 2 * local_ranks,
                                       .rank = 1,
                                       .local_ranks = local_ranks,
                                       .cpus = cpus,
                                       .host_cpus = host_cpus,
                                       .host = "node07"};
}

TEST(affinity_against_threads) {
    struct launch_environment bound = rank_of(2, 1, 4), all = rank_of(2, 4, 4);
    CHECK_EQ_INT(affinity_compare(&bound, 2), AFFINITY_CROWDED);
    CHECK_EQ_INT(affinity_compare(&bound, 1), AFFINITY_FITS);
    bound.cpus = 2;
    CHECK_EQ_INT(affinity_compare(&bound, 1), AFFINITY_IDLE);
    CHECK_EQ_INT(affinity_compare(&all, 2), AFFINITY_FITS);
    CHECK_EQ_INT(affinity_compare(&all, 1), AFFINITY_FITS);
    CHECK_EQ_INT(affinity_compare(&all, 3), AFFINITY_SHARED);
    CHECK(affinity_wants_sleep(&all, 3));
    CHECK(!affinity_wants_sleep(&all, 2));
    all.local_ranks = 8;
    CHECK_EQ_INT(affinity_compare(&all, 1), AFFINITY_SHARED);
    CHECK(!affinity_wants_sleep(&all, 1)); // a single thread never waits for its like
    // a launcher that does not tell how many ranks stand here: all of them, at worst
    all = rank_of(2, 4, 4);
    all.local_ranks = 0;
    CHECK_EQ_INT(affinity_compare(&all, 2), AFFINITY_SHARED);
}

TEST(affinity_share_of_a_rank) {
    struct launch_environment l = rank_of(4, 16, 16);
    CHECK_EQ_INT(affinity_threads(&l), 4);
    l.local_ranks = 32;
    CHECK_EQ_INT(affinity_threads(&l), 1);
    l.cpus = 3; // bound to three cores: they are its own
    CHECK_EQ_INT(affinity_threads(&l), 3);
}

TEST(affinity_refuses_a_measurement) {
    struct err err = {0};
    struct launch_environment l = rank_of(2, 1, 2);
    CHECK_OK(affinity_check(&l, 1, &err), err);
    CHECK(affinity_check(&l, 2, &err) != 0);
    CHECK_EQ_INT(err_exit_status(&err), 2);
    CHECK_CONTAINS(err.text, "rank 1 on node07: 2 threads, bound to 1 of 2 cores");
    CHECK_CONTAINS(err.text, "--bind-to none");
    err = (struct err){0};
    l = rank_of(2, 2, 2);
    CHECK(affinity_check(&l, 2, &err) != 0);
    CHECK_CONTAINS(err.text, "2 ranks x 2 threads on 2 cores");
    l.launcher = LAUNCHER_NONE; // by hand everything is as the user wants it
    err = (struct err){0};
    CHECK_OK(affinity_check(&l, 2, &err), err);
}

TEST(affinity_sees_a_binding) {
    cpu_set_t set;
    CHECK_EQ_INT(sched_getaffinity(0, sizeof set, &set), 0);
    int all = CPU_COUNT(&set), first = 0;
    CHECK_EQ_INT(affinity_cpus(), all);
    CHECK(affinity_host_cpus() >= all);
    while (!CPU_ISSET(first, &set)) first++;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    CHECK_EQ_INT(sched_setaffinity(0, sizeof set, &set), 0);
    CHECK_EQ_INT(affinity_cpus(), 1);
    CHECK(affinity_host_cpus() >= all); // the process that started this one is not bound
}
