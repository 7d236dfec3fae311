// A rank that stands still or dies: the others end with its name, nothing hangs.
#include "base/file.h"
#include "comm/comm.h"
#include "operate/launch.h"
#include "rank.h"
#include "test.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, VICTIM = 2 };

static char *read_output(const char *path) {
    char *text;
    size_t size;
    struct err err = {0};
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    return text;
}

// The process of a rank, once it stands in a barrier.
static pid_t wait_for(const char *path, int rank) {
    char mark[64];
    snprintf(mark, sizeof mark, "rank %d is process ", rank);
    for (;;) { // the test's limit counts
        char *text = read_output(path), *at = strstr(text, mark);
        bool whole = at && strchr(at, '\n');
        pid_t pid = whole ? (pid_t)strtol(at + strlen(mark), NULL, 10) : 0;
        free(text);
        if (pid > 0) return pid;
        usleep(20000);
    }
}

// Ranks in barriers; one gets `number`. Returns mpirun's status, and what all said in *text.
static int strike(int number, char **text) {
    char path[4200], self[4096];
    enum launch_mpi mpi;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/out", test_temp_dir());
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(size > 0);
    self[size] = 0;
    CHECK_OK(launch_mpi_of(comm_library(), &mpi, &err), err);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    pid_t starter = fork();
    CHECK(file >= 0 && starter >= 0);
    if (starter == 0) {
        setenv(RANK_VARIABLE, "barriers", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        dup2(file, 1);
        dup2(file, 2);
        if (mpi == LAUNCH_OPEN_MPI)
            execlp("mpirun.openmpi", "mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n",
                   "4", self, (char *)NULL);
        else
            execlp("mpiexec.hydra", "mpiexec.hydra", "-n", "4", self, (char *)NULL);
        _exit(127);
    }
    for (int rank = 0; rank < RANKS; rank++) wait_for(path, rank);
    CHECK_EQ_INT(kill(wait_for(path, VICTIM), number), 0);
    int status;
    CHECK_EQ_INT(waitpid(starter, &status, 0), starter);
    *text = read_output(path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_LIMIT(dead_rank_that_stands_still_is_named, 60) {
    char *text;
    if (!comm_built_with_mpi()) SKIP("built without MPI");
    CHECK(strike(SIGSTOP, &text) != 0);
    CHECK_CONTAINS(text, "rank 2 (");
    CHECK_CONTAINS(text, "does not answer");
    free(text);
}

TEST_LIMIT(dead_rank_that_was_killed_ends_the_others, 60) {
    char *text;
    if (!comm_built_with_mpi()) SKIP("built without MPI");
    CHECK(strike(SIGKILL, &text) != 0);
    free(text);
}
