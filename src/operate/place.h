// Which rank runs where, and how many there are: hosts in use, spares, evicted ones, as plain data.
#pragma once
#include "operate/hosts.h"
#include <stdbool.h>

enum place_state { PLACE_IN_USE, PLACE_SPARE, PLACE_EVICTED };
struct place_host {
    char name[256];
    int slots;
    enum place_state state;
    int failures;
};
// What the layout demands of the number of ranks. `unit` ranks make one replica (tp x pp x cp);
// data ranks must divide batch / micro_batch.
struct place_shape {
    int unit;
    int replicas; // wanted
    int batch, micro_batch;
    bool elastic; // may run with fewer replicas
};
struct place {
    struct place_host *hosts;
    int count;
    struct place_shape shape;
    int replicas; // now
};
int place_open(struct place *p, const struct hosts *hosts, int spares,
               const struct place_shape *shape, struct err *err);
void place_close(struct place *p);
// Takes a host out; a spare with enough slots takes its place, else fewer replicas. -1 with err:
// nothing that fits is left. *spare: index of the host that came in, -1: none.
int place_evict(struct place *p, int host, int *spare, struct err *err);
// A host is back and healthy: it becomes a spare, or the run may grow. True: more replicas fit now.
bool place_return(struct place *p, int host);
int place_grow(struct place *p); // to the most replicas that fit; returns them
int place_ranks(const struct place *p);
int place_host_of(const struct place *p, int rank); // ranks fill one host before the next
// The hosts in use, in order, as mpirun wants them; free with hosts_free.
int place_hosts(const struct place *p, struct hosts *out, struct err *err);
// Largest number of replicas, at most `most`, that divides batch / micro_batch; 0: none.
int place_fitting(const struct place_shape *shape, int most);
