// A rank that does not come to an operation of a run of several processes: it is named with where
// it stands, every rank leaves its journal, and all are gone.
#include "base/file.h"
#include "comm/comm.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need_mpi(void) {
    char text[400];
    if (!comm_built_with_mpi()) SKIP("built without MPI");
    if (test_shell(text, sizeof text, "command -v mpirun") != 0) SKIP("mpirun is not there");
}

static void write_inputs(void) {
    static const uint16_t ids[6000];
    struct err err = {0};
    char text[2048];
    CHECK_OK(file_replace(test_path("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 100, "
             "context: 32}\n"
             "data.train: %s/train.bin\n"
             "train: {steps: 60, batch: 8, micro_batch: 2, gemm_seconds: 0, folder: %s/run}\n"
             "device.threads: 1\n",
             test_temp_dir(), test_temp_dir());
    CHECK_OK(file_replace(test_path("c.yaml"), text, strlen(text), &err), err);
}

static char *journal_of(int rank) {
    struct err err = {0};
    char name[64], *text;
    size_t bytes;
    snprintf(name, sizeof name, "run/journals/rank-%05d.txt", rank);
    CHECK_OK(file_read(test_path(name), 0, &text, &bytes, &err), err);
    return text;
}

TEST_LIMIT(journals_of_a_rank_that_hangs, 60) {
    char out[20000];
    need_mpi();
    write_inputs();
    int status =
        test_shell(out, sizeof out,
                   "cd %s && OMP_WAIT_POLICY=passive %s launch -n 3 --restarts 0 train c.yaml "
                   "parallel.dp=3 train.batch=6 "
                   "comm.watchdog=2 fault.kind=hang fault.rank=1 fault.step=7 2>&1",
                   test_temp_dir(), test_weft());
    printf("%s\n", out);
    CHECK_EQ_INT(status, 4);
    CHECK_CONTAINS(out, ", step 7: ");
    CHECK_CONTAINS(out, "rank 1 (");
    CHECK_CONTAINS(out, "has not posted it (it has posted ");
    CHECK_CONTAINS(out, "the last of all: ");
    CHECK_CONTAINS(out, "in step 6)");
    for (int r = 0; r < 3; r++) {
        char *text = journal_of(r), head[32];
        snprintf(head, sizeof head, "rank %d (", r);
        CHECK(strncmp(text, head, strlen(head)) == 0);
        CHECK_CONTAINS(text, " in step 7: ");
        CHECK((strstr(text, "NOT DONE") != NULL) == (r != 1));
        CHECK((strstr(text, "waits for messages") != NULL) == (r != 1));
        free(text);
    }
    CHECK(test_shell(out, sizeof out, "pgrep -f '%s/run/launch/confi[g].yaml'", test_temp_dir()) !=
          0);
}
