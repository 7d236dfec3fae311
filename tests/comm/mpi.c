// The same over MPI: this test program starts itself under mpirun. The tests below that run as a
// rank of such a world are registered only there.
#include "ranks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *mode(void) {
    const char *text = getenv("WEFT_TEST_COMM_RANK");
    return text ? text : "";
}

static struct comm *open_world(const struct comm_options *options) {
    struct comm *comm = NULL;
    struct err err = {0};
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
    CHECK_OK(comm_open_mpi(&comm, options, &err), err);
    return comm;
}

static struct rank_case rank_of(struct comm *comm) {
    return (struct rank_case){comm, comm_rank(comm), comm_size(comm), NULL};
}

// ---- as a rank ----------------------------------------------------------------------------------

static void run_collectives(void) {
    struct comm *comm = open_world(&(struct comm_options){.chunk_bytes = 1000});
    struct rank_case rank = rank_of(comm);
    CHECK_EQ_INT(rank.size, 4);
    CHECK(strlen(comm_host(comm, 3)) > 0);
    collectives_on(&rank);
    points_on(&rank);
    comm_close(comm);
}

static void run_hosts(void) { // rings, and a link in memory that the processes share
    struct comm *comm = open_world(&(struct comm_options){.ranks_per_host = 2,
                                                          .link_latency_seconds = 2e-4,
                                                          .link_bytes_per_second = 1e9,
                                                          .check_order = true,
                                                          .checksums = true});
    struct rank_case rank = rank_of(comm);
    CHECK_STR(comm_host(comm, 3), "host-1");
    collectives_on(&rank);
    points_on(&rank);
    comm_close(comm);
}

static void run_checksums(void) {
    struct comm *comm = open_world(&(struct comm_options){.chunk_bytes = 1000, .checksums = true});
    struct rank_case rank = rank_of(comm);
    collectives_on(&rank);
    points_on(&rank);
    comm_close(comm);
}

static void end_failed(struct comm *comm, const char *part) {
    struct err err = {0};
    char path[40];
    CHECK_EQ_INT(comm_check(comm, &err), -1);
    CHECK_CONTAINS(err.text, part);
    snprintf(path, sizeof path, "said-by-%d", comm_rank(comm)); // output may end with the world
    FILE *file = fopen(path, "w");
    CHECK(file && fprintf(file, "%s\n", err.text) > 0 && fclose(file) == 0);
    if (comm_rank(comm) != 0) sleep(50); // rank 0 ends the world
    for (int r = 1; r < comm_size(comm); r++) {
        snprintf(path, sizeof path, "said-by-%d", r);
        while (access(path, F_OK) != 0) usleep(1000);
    }
    comm_abort(comm, 3);
}

static void run_late(void) { // rank 2 does not come
    struct comm *comm = open_world(&(struct comm_options){.watchdog_seconds = 1});
    struct rank_case rank = rank_of(comm);
    struct comm_stream *s = ranks_stream(&rank, "dp");
    comm_wait(comm_barrier(s), NULL);
    while (rank.rank == 2 && comm_check(comm, NULL) == 0) usleep(1000);
    if (rank.rank != 2) comm_wait(comm_barrier(s), NULL);
    end_failed(comm, "rank 2");
}

static void run_failing(void) {
    struct comm *comm = open_world(&(struct comm_options){0});
    struct rank_case rank = rank_of(comm);
    struct comm_stream *s = ranks_stream(&rank, "dp");
    struct err why = {.kind = ERR_DATA, .text = "shard 7 is torn"};
    if (rank.rank == 1) comm_fail(comm, &why);
    comm_wait(comm_barrier(s), NULL);
    end_failed(comm, "shard 7 is torn");
}

static void run_damaged(void) { // a long message that rank 3 gets loses a bit
    struct comm *comm = open_world(&(struct comm_options){.checksums = true});
    struct rank_case rank = rank_of(comm);
    struct comm_stream *s = ranks_stream(&rank, "dp");
    enum { BYTES = 2000000 };
    unsigned char *own = calloc(1, BYTES), *all = calloc(4, BYTES);
    CHECK(own && all);
    comm_wait(comm_all_gather(s, own, all, BYTES), NULL);
    if (rank.rank == 3) // the others may hear of the damage before they ask about the first gather
        comm_inject(comm, &(struct comm_fault){
                              .peer = -1, .flip_in = 1, .flip_bit = 30, .flip_word = 98765});
    comm_wait(comm_all_gather(s, own, all, BYTES), NULL);
    while (comm_check(comm, NULL) == 0) usleep(1000);
    end_failed(comm, "to rank 3 (");
}

static void run_rank(void) {
    if (strcmp(mode(), "collectives") == 0) run_collectives();
    if (strcmp(mode(), "hosts") == 0) run_hosts();
    if (strcmp(mode(), "checksums") == 0) run_checksums();
    if (strcmp(mode(), "damaged") == 0) run_damaged();
    if (strcmp(mode(), "late") == 0) run_late();
    if (strcmp(mode(), "failing") == 0) run_failing();
}

__attribute__((constructor)) static void register_rank(void) {
    static struct test_case one = {"rank_of_mpi_world", run_rank, 60, NULL};
    if (mode()[0]) test_register(&one);
}

// ---- starting them ------------------------------------------------------------------------------

static int start_world(const char *what, char *output, size_t bytes) {
    char self[500] = "", found[200];
    if (!comm_built_with_mpi()) SKIP("built without MPI");
    bool mpich = strstr(comm_library(), "MPICH") != NULL;
    const char *run = mpich ? "mpirun.mpich" : "mpirun.openmpi";
    if (test_shell(found, sizeof found, "command -v %s", run) != 0) run = "mpirun";
    if (test_shell(found, sizeof found, "command -v %s", run) != 0) SKIP("mpirun is not there");
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    int status = test_shell(
        output, bytes,
        "cd '%s' && WEFT_TEST_SHOW=1 WEFT_TEST_COMM_RANK=%s %s -n 4 %s '%s' rank_of_mpi_world",
        test_temp_dir(), what, run,
        mpich ? "" : "--allow-run-as-root --oversubscribe --bind-to none", self);
    printf("%s\n", output);
    return status;
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    while ((text = strstr(text, part))) text += strlen(part), count++;
    return count;
}

TEST(comm_mpi_collectives) {
    char output[20000];
    CHECK_EQ_INT(start_world("collectives", output, sizeof output), 0);
    CHECK_EQ_INT(count_of(output, "ok rank_of_mpi_world"), 4);
}

TEST(comm_mpi_hosts) {
    char output[20000];
    CHECK_EQ_INT(start_world("hosts", output, sizeof output), 0);
    CHECK_EQ_INT(count_of(output, "ok rank_of_mpi_world"), 4);
}

// What the ranks of a failed world said, one line each.
static void read_last_words(char *text, size_t bytes) {
    CHECK_EQ_INT(test_shell(text, bytes, "cd '%s' && cat said-by-*", test_temp_dir()), 0);
    printf("%s", text);
    CHECK_EQ_INT(count_of(text, "\n"), 4);
}

TEST(comm_mpi_late_rank_is_named) {
    char output[20000];
    CHECK(start_world("late", output, sizeof output) != 0);
    read_last_words(output, sizeof output);
    CHECK_EQ_INT(count_of(output, "barrier number 2 of stream dp"), 4);
    CHECK_EQ_INT(count_of(output, "has not posted it (it has posted 1; the last of all: barrier "
                                  "number 1 of stream dp at mpi.c:"),
                 4);
    CHECK_CONTAINS(output, "rank 2 (");
}

TEST(comm_mpi_failure_ends_all) {
    char output[20000];
    CHECK(start_world("failing", output, sizeof output) != 0);
    read_last_words(output, sizeof output);
    CHECK_EQ_INT(count_of(output, "shard 7 is torn"), 4);
    CHECK_EQ_INT(count_of(output, "rank 1 ("), 3); // the others heard it from rank 1
}

// Without a launcher MPI makes a world of one: fine when one was wanted, an error when the
// environment spoke of four.
TEST(comm_mpi_alone) {
    struct comm *comm = NULL;
    struct err err = {0};
    if (!comm_built_with_mpi()) SKIP("built without MPI");
    CHECK_EQ_INT(comm_open_mpi(&comm, &(struct comm_options){.expected_ranks = 4}, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, "4 ranks");
    CHECK_CONTAINS(err.text, "world of 1");
    CHECK_CONTAINS(err.text, "--mpi=pmix");
}

TEST(comm_mpi_library) {
    if (comm_built_with_mpi()) {
        CHECK(strncmp(comm_library(), "Open MPI ", 9) == 0 ||
              strncmp(comm_library(), "MPICH ", 6) == 0);
        CHECK(strchr(comm_library(), '.') != NULL);
        return;
    }
    CHECK_STR(comm_library(), "none");
    struct comm *comm = NULL;
    struct err err = {0};
    CHECK_EQ_INT(comm_open_mpi(&comm, &(struct comm_options){.expected_ranks = 4}, &err), -1);
    CHECK_CONTAINS(err.text, "built without MPI");
    CHECK_CONTAINS(err.text, "4 ranks");
    CHECK_EQ_INT(err_exit_status(&err), 2);
}

TEST(comm_mpi_checksums) {
    char output[20000];
    CHECK_EQ_INT(start_world("checksums", output, sizeof output), 0);
    CHECK_EQ_INT(count_of(output, "ok rank_of_mpi_world"), 4);
}

TEST(comm_mpi_damaged_message_is_named) {
    char output[20000];
    CHECK(start_world("damaged", output, sizeof output) != 0);
    read_last_words(output, sizeof output);
    CHECK_EQ_INT(count_of(output, "all_gather number 2 of stream dp"), 4);
    CHECK_EQ_INT(count_of(output, "2000000 bytes from rank "), 4);
    CHECK_EQ_INT(count_of(output, "were damaged on their way"), 4);
    CHECK_EQ_INT(count_of(output, "rank 3 ("), 7); // the others heard it from rank 3
}
