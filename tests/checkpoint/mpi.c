// Checkpoints of ranks that are processes, each with a disk of its own to fail: this test program
// starts itself under mpirun. The test that runs as a rank of such a world is registered only
// there.
#include "base/file.h"
#include "spread.h"
#include "test.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, SEED = 21, FULL_DISK = 2 }; // the rank whose disk is full at the second save

static const char *folder_given(void) {
    return getenv("WEFT_TEST_CHECKPOINT_FOLDER");
}

static void check_loaded(const char *folder, struct spread *spread, int rank,
                         struct comm_stream *world) {
    struct checkpoint *c;
    struct err err = {0};
    CHECK_OK(checkpoint_open_newest_world(folder, world, &c, &err), err);
    CHECK(c != NULL);
    CHECK_EQ_INT(checkpoint_state(c)->step, 10);
    CHECK_OK(checkpoint_load_slices(c, spread->slices[rank], spread->counts[rank], world, &err),
             err);
    spread_check(spread, rank, 10);
    CHECK_EQ_INT(checkpoint_read_bytes(c) - checkpoint_verified_bytes(c), spread->bytes[rank]);
    checkpoint_close(c);
}

static void run_rank(void) {
    struct comm *comm;
    struct err err = {0}, full = {0};
    struct spread spread;
    unsigned state = SEED;
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
    CHECK_OK(comm_open_mpi(&comm, &(struct comm_options){0}, &err), err);
    CHECK_EQ_INT(comm_size(comm), RANKS);
    int rank = comm_rank(comm), members[RANKS] = {0, 1, 2, 3};
    struct comm_stream *world = comm_stream_open(comm, "world", members, RANKS, &err);
    CHECK(world != NULL);
    spread_random(&spread, RANKS, &state);
    spread_fill(&spread, 10);
    CHECK_OK(spread_save(folder_given(), &spread, rank, 10, 3000, world, NULL, &err), err);
    if (rank == FULL_DISK) file_fail_after(300, ENOSPC);
    CHECK_EQ_INT(spread_save(folder_given(), &spread, rank, 20, 3000, world, NULL, &full), -1);
    file_fail_after(0, 0);
    CHECK_EQ_INT(full.kind, ERR_IO);
    CHECK_CONTAINS(full.text, "the checkpoint of step 20 was not saved: rank 2: ");
    CHECK_CONTAINS(full.text, "No space left");
    spread_clear(&spread);
    check_loaded(folder_given(), &spread, rank, world);
    spread_free(&spread);
    comm_stream_close(world);
    comm_close(comm);
}

__attribute__((constructor)) static void register_rank(void) {
    static struct test_case one = {"rank_of_mpi_checkpoint", run_rank, 60, NULL};
    if (folder_given()) test_register(&one);
}

static void load_in_threads(void *context, struct comm_stream *world, int rank) {
    check_loaded(test_temp_dir(), context, rank, world);
}

TEST(processes_save_and_threads_load) {
    char self[500] = "", output[20000];
    if (!comm_built_with_mpi()) SKIP("built without MPI");
    bool mpich = strstr(comm_library(), "MPICH") != NULL;
    const char *run = mpich ? "mpirun.mpich" : "mpirun.openmpi";
    if (test_shell(output, sizeof output, "command -v %s", run) != 0) run = "mpirun";
    if (test_shell(output, sizeof output, "command -v %s", run) != 0) SKIP("mpirun is not there");
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    int status = test_shell(
        output, sizeof output,
        "WEFT_TEST_SHOW=1 WEFT_TEST_CHECKPOINT_FOLDER='%s' %s -n %d %s '%s' rank_of_mpi_checkpoint",
        test_temp_dir(), run, RANKS,
        mpich ? "" : "--allow-run-as-root --oversubscribe --bind-to none", self);
    printf("%s\n", output);
    CHECK_EQ_INT(status, 0);
    unsigned state = SEED + 1;
    struct spread other;
    spread_random(&other, 3, &state);
    spread_clear(&other);
    run_ranks(3, 0, load_in_threads, &other);
    spread_free(&other);
}
