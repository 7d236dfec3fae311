// Which rank runs where, and how many there are: hosts in use, spares, evicted ones, as plain data.
//
// Ranks fill one host before the next, in the order of `position`. A spare takes the position of
// the host that it replaces, so that all other ranks stay where their snapshots lie. Where a run
// was started with more ranks than slots, every host takes `crowding` times its slots, always.
#pragma once
#include "operate/hosts.h"
#include <stdbool.h>

enum place_state { PLACE_IN_USE, PLACE_SPARE, PLACE_EVICTED };
struct place_host {
    char name[256];
    int slots;
    enum place_state state;
    int position; // among the hosts in use
    int failures; // evictions
};
// What the layout demands of the number of ranks. `unit` ranks make one replica (tp x pp x cp);
// data ranks must divide batch / micro_batch.
struct place_shape {
    int unit;
    int replicas; // wanted
    int batch, micro_batch;
    bool elastic; // may run with fewer replicas
    // What else the layout demands (experts over data ranks, micro-batches of a schedule); NULL:
    // nothing.
    bool (*fits)(void *context, int replicas);
    void *context;
};
struct place {
    struct place_host *hosts; // in the order of the file
    int count;
    struct place_shape shape;
    int replicas; // now
    int crowding;
};
// The last `spares` hosts are spares, and those that no rank falls to.
int place_open(struct place *p, const struct hosts *hosts, int spares,
               const struct place_shape *shape, struct err *err);
void place_close(struct place *p);
// Takes a host out; a spare with enough slots takes its place (several small ones if none has),
// else fewer replicas. -1 with err (ERR_RETRY): nothing that fits is left, and nothing is changed
// but the host's state. *spare: index of the first host that came in, -1: none.
int place_evict(struct place *p, int host, int *spare, struct err *err);
// A host is back and healthy: it becomes a spare, or the run may grow. True: more replicas fit now.
bool place_return(struct place *p, int host);
int place_grow(struct place *p); // to the most replicas that fit; returns them
int place_ranks(const struct place *p);
int place_host_of(const struct place *p, int rank); // index; -1: no such rank
// The hosts in use, in order, as mpirun wants them; free with hosts_free.
int place_hosts(const struct place *p, struct hosts *out, struct err *err);
int place_find(const struct place *p, const char *name); // -1: none
int place_count(const struct place *p, enum place_state state);
// Index of the host to which this one's snapshots are copied: the next in the ring of hosts in use;
// a spare where it is the only one; -1: none.
int place_buddy(const struct place *p, int host);
// Largest number of replicas, at most `most`, that divides batch / micro_batch; 0: none.
int place_fitting(const struct place_shape *shape, int most);
