// A rank's end of the control plane: a thread that tells the supervisor of the run (operate/
// control.h) every second, and at every change of phase, how far the rank is, and that hears what
// the supervisor wants. The compute thread only stores numbers.
//
// {"type":"hello","role":"rank","rank":3,"host":"node2","pid":71,"attempt":0,"time":1.7e9}
// {"type":"beat","step":12,"phase":"step","phase_seconds":0.4,"step_seconds":0.31,
//  "compute_seconds":0.28,"resident_bytes":...,"time":...,
//  "waits":{"stream":"reduce","kind":"all_reduce","number":41,"seconds":0.02,"ranks":[0,2]},
//  "last":{"stream":"tp","kind":"all_gather","number":977,"seconds":0.1},"waiting":true,
//  "busy":"reads the shards","posted":{"reduce":41,"tp":978},"retries":{"2":3},
//  "cpu_seconds":71.2,"io_bytes":...,"stage":0}
// {"type":"journal","text":...}    the answer to the order "journal": comm_journal_text
// {"type":"report","kind":"loss_spike","step":12,"time":...,"evidence":...}    heartbeat_report
//
// "waits" is the longest operation in flight, with the members of its group; "last" the one posted
// last; "waiting": the compute thread stands in comm_wait; "busy": long work of its own
// (comm_busy); "posted" how many operations of each stream the rank has posted ("tp@2" where it is
// in two streams of that name, with their first members); "retries" short stalls by peer since the
// last beat (comm_stalls); "io_bytes" what the process has read and written so far, where the
// system counts it; "stage" its place in the pipeline, once known.
#pragma once
#include "base/wire.h"
#include "comm/comm.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum beat_phase {
    BEAT_START, // reading, planning, opening
    BEAT_LOAD,  // of state
    BEAT_STEP,
    BEAT_EVALUATE,
    BEAT_SAVE,
    BEAT_REPLAY, // of a suspect micro-batch
    BEAT_END,
    BEAT_PHASES
};
const char *beat_phase_name(enum beat_phase phase); // "start", "load", "step", ...

struct heartbeat_options {
    char address[256];
    int port;
    struct wire_key key;
    int rank;
    int attempt; // how often the run was started before
    const char *host;
    // Where the step in work is stored too, for whoever survives this process; NULL: nowhere.
    _Atomic int64_t *step;
};

struct heartbeat;
// Not reaching the supervisor is no error: the thread tries again every second (a rank outlives a
// short outage; its launcher ends it when the supervisor is gone for good).
int heartbeat_open(struct heartbeat **out, const struct heartbeat_options *options,
                   struct err *err);
void heartbeat_close(struct heartbeat *h); // NULL is allowed, here and below
// The messages of the run, asked with comm_status; NULL: they are closed. Set after opening.
void heartbeat_watch(struct heartbeat *h, struct comm *comm);

void heartbeat_phase(struct heartbeat *h, enum beat_phase phase, int64_t step);
// A step is done: its whole time, and that without waiting for other ranks. The first is told at
// once, later ones with the next beat.
void heartbeat_step(struct heartbeat *h, int64_t step, double seconds, double compute_seconds);
void heartbeat_stage(struct heartbeat *h, int stage); // of the pipeline
// An event for the incident log: kind ("loss_spike", "silent_corruption", "checkpoint_failed", ...)
// and what is known of it. Sent at once, in order. The caller's reference to `evidence` (which may
// be NULL) goes over to this room, also where `h` is NULL.
void heartbeat_report(struct heartbeat *h, const char *kind, json_t *evidence);

// What the supervisor wants. {"type":"order","order":"leave"}: save and leave with exit status 75;
// with "again":true for a planned restart, where the memory of the hosts outlives the process. Of
// several orders the one without counts. {"type":"order","order":"journal"}: the thread answers,
// whatever the compute thread does. {"type":"order","order":"fault","fault":{...}}: see
// guard/fault.h.
// {"type":"facts","mtbf_seconds":...}: measured time between failures, 0 until then.
enum beat_leave { BEAT_STAYS, BEAT_LEAVES_FOR_A_RESTART, BEAT_LEAVES };
enum beat_leave heartbeat_wants_leave(const struct heartbeat *h);
double heartbeat_mtbf_seconds(const struct heartbeat *h);
// The next fault to inject, as a JSON object that the caller releases; NULL: none.
json_t *heartbeat_fault(struct heartbeat *h);
