// See rank.h.
#include "rank.h"
#include "base/clock.h"
#include "comm/comm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct comm_stream *open_world(struct comm *comm, struct err *err) {
    int members[64], count = comm_size(comm);
    if (count > 64) return NULL;
    for (int i = 0; i < count; i++) members[i] = i;
    return comm_stream_open(comm, "world", members, count, err);
}

static void exchange(struct comm *comm, struct comm_stream *world) {
    int64_t sum = comm_rank(comm) + 1;
    comm_sum_integers(world, &sum, 1);
    if (comm_rank(comm) != 0) return;
    printf("sum %lld of %d ranks on", (long long)sum, comm_size(comm));
    for (int i = 0; i < comm_size(comm); i++) printf(" %s", comm_host(comm, i));
    printf("\n");
}

static void transfer(struct comm *comm, struct comm_stream *world, uint64_t bytes) {
    enum { TIMES = 3 };
    int last = comm_size(comm) - 1, rank = comm_rank(comm);
    char *data = calloc(1, bytes), answer = 0;
    double best = 1e9;
    for (int i = 0; data && i < TIMES; i++) {
        comm_wait(comm_barrier(world), NULL);
        double begin = clock_seconds();
        if (rank == 0) {
            comm_wait(comm_send(comm, last, 1, data, bytes), NULL);
            comm_wait(comm_receive(comm, last, 2, &answer, 1), NULL);
        } else if (rank == last) {
            comm_wait(comm_receive(comm, 0, 1, data, bytes), NULL);
            comm_wait(comm_send(comm, 0, 2, &answer, 1), NULL);
        }
        double seconds = clock_seconds() - begin;
        if (seconds < best) best = seconds;
    }
    free(data);
    if (rank == 0) printf("seconds %.6f\n", best);
}

static void barriers(struct comm *comm, struct comm_stream *world) {
    struct err err = {0};
    printf("rank %d is process %d\n", comm_rank(comm), (int)getpid());
    fflush(stdout);
    while (comm_check(comm, &err) == 0) {
        comm_wait(comm_barrier(world), NULL);
        usleep(20000);
    }
}

static int be_a_rank(const char *what) {
    struct comm *comm;
    struct err err = {0};
    struct comm_options options = {.watchdog_seconds = strcmp(what, "barriers") == 0 ? 2 : 60};
    if (comm_open_mpi(&comm, &options, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    struct comm_stream *world = open_world(comm, &err);
    if (world && strcmp(what, "exchange") == 0) exchange(comm, world);
    if (world && strncmp(what, "transfer ", 9) == 0)
        transfer(comm, world, strtoull(what + 9, NULL, 10));
    if (world && strcmp(what, "barriers") == 0) barriers(comm, world);
    int status = world && comm_check(comm, &err) == 0 ? 0 : 1;
    if (status) fprintf(stderr, "%s\n", err.text);
    fflush(NULL);
    if (world) comm_stream_close(world);
    comm_close(comm);
    return status;
}

__attribute__((constructor)) static void look(void) {
    const char *what = getenv(RANK_VARIABLE);
    if (what) exit(be_a_rank(what));
}
