// Whether there is memory for snapshots. The ranks of a host take theirs at the same time, so what
// they need counts together, against what there is before the first of them has taken any. See
// run_save.h.
#include "train/run_parts.h"
#include <stdlib.h>
#include <string.h>

static void add_neighbours(const struct run *run, const struct snapshot_room *all,
                           struct snapshot_room *sum) {
    const char *here = comm_host(run->comm, run->rank);
    for (int i = 0; i < run->ranks; i++)
        if (i != run->rank && strcmp(comm_host(run->comm, i), here) == 0)
            snapshot_room_add(sum, &all[i]);
}

int run_snapshot_room(struct run *run, struct snapshot_options *own, struct err *err) {
    struct snapshot_room mine, *all = calloc((size_t)run->ranks, sizeof *all);
    int status = all ? 0 : err_set(err, ERR_MEMORY, "no memory for a list of %d ranks", run->ranks);
    snapshot_room(own, &mine);
    own->room = mine;
    status = run_agree(run, status, err);
    if (status == 0 && run->world) {
        comm_wait(comm_all_gather(run->world, &mine, all, sizeof mine), NULL);
        status = comm_check(run->comm, err);
        if (status == 0) add_neighbours(run, all, &own->room);
    }
    free(all);
    return status;
}
