// Detection: what is known of every rank and host from their messages, and what follows from it.
// Plain data and pure functions of it and the time, so that every rule is tested without processes
// or waiting. Times are seconds of one monotonic clock (the supervisor's).
//
// The rules:
// - host lost: neither its agent nor one of its ranks was heard for `silence_seconds`.
// - hang: a rank has not moved (step, phase, or an operation posted) for longer than its patience,
//   is not busy with announced long work, and others wait for it, directly or along a chain; or it
//   is silent while its host is not, and no other rank goes on. Long phases have their own
//   patience. Announced work is borne for `busy_seconds` since it was announced, or since its
//   process has read or written much: behind that the rank hangs, whatever it exchanges meanwhile.
// - straggler: a rank's own compute time is `straggler_factor` times that of the ranks of its
//   stage, `straggler_steps` samples in a row; where it has no peers, against its own beginning.
// - memory growth: a rank's resident memory rises, without a pause, by a share of its host's.
// - disk, clock: a share of free space, a difference of clocks.
// - link: short stalls between two ranks, again and again, more than between others.
#pragma once
#include "comm/comm.h"
#include "guard/heartbeat.h"
#include "operate/incident.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    WATCH_WINDOW = 32, // samples (of a step each), for own compute times and memory
    WATCH_VISITS = 16, // latest durations of each phase, and of steps
    WATCH_PEERS = 16,  // of a rank, whose stalls are counted
    WATCH_BUSY_BYTES = 64
};

struct watch_place {                    // an operation of messages, as a beat says it
    char stream[COMM_GROUP_NAME_BYTES]; // "": between two ranks
    char kind[16];                      // "": none
    uint64_t number;
    double seconds;
    int members[COMM_STATUS_MEMBERS], member_count;
};

struct watch_rank {
    int host;  // index
    int stage; // of the pipeline: ranks of one stage do the same work; -1: not known
    int pid;
    bool connected, ended;
    double heard; // when its last message came; 0: never
    enum beat_phase phase;
    int64_t step;
    double progressed;                     // when step or phase changed last
    double moved;                          // when something changed last: an operation posted, too
    double cpu_seconds, moved_cpu_seconds; // of its process: now, and when it moved; < 0: not known
    bool waiting;                          // its compute thread waits in `waits`
    char busy[WATCH_BUSY_BYTES];           // announced long work; "": none
    double busy_since;                     // it was announced, or got on
    double io_bytes;                       // that the process has read and written; < 0: not known
    struct watch_place waits, last;
    struct {
        char stream[COMM_GROUP_NAME_BYTES];
        uint64_t posted;
    } posted[COMM_STATUS_STREAMS];
    int posted_count;
    double visits[BEAT_PHASES][WATCH_VISITS]; // seconds, ring; of BEAT_STEP: of steps
    int64_t visit_count[BEAT_PHASES];
    double compute_seconds[WATCH_WINDOW]; // samples, ring
    double resident_bytes[WATCH_WINDOW];
    int64_t samples, judged;
    int64_t slow_in_row, fast_in_row; // samples
    double usual_share;               // own compute time over that of all, at the beginning
    double usual_bytes;               // resident memory, at the beginning
    struct {
        int peer;
        int64_t stalls, stalls_before; // in this part of the window and the one before
    } links[WATCH_PEERS];
    int link_count;
    uint32_t said; // bits of enum incident_kind
};

struct watch_host {
    char name[256];
    bool connected, in_use;
    double heard;
    double clock_offset_seconds; // its wall clock minus the supervisor's, delay taken out
    uint64_t disk_free_bytes, disk_total_bytes; // of the run folder
    uint64_t memory_free_bytes, memory_total_bytes;
    uint64_t snapshot_free_bytes; // of the folder of snapshots (/dev/shm)
    char isa[32], binary[24];     // instruction set, version_digest
    uint32_t said;
};

struct watch_limits {
    double silence_seconds;                 // of a host or a rank: 5
    double hang_least_seconds, hang_factor; // max(5 s, 3 x the slowest recent step or phase)
    double start_seconds;      // of a phase that nobody has been through yet, start and load: 600
    double idle_seconds;       // the same in a first step that takes no processor time: 30
    double busy_seconds;       // of announced long work that neither reads nor writes: 600
    double straggler_factor;   // own compute time over the median of its peers: 1.3
    int straggler_steps;       // in a row: 8
    double growth_share;       // of the host's memory that is too much: 0.05
    double disk_least_share;   // free: 0.05
    double clock_most_seconds; // 2
    int flap_stalls;           // of one pair within the window: 5
    double flap_seconds;       // the window: 60
};
void watch_limits_default(struct watch_limits *limits);

struct watch {
    struct watch_limits limits;
    struct watch_rank *ranks;
    int rank_count;
    struct watch_host *hosts;
    int host_count;
    double begun;  // of this attempt
    double looked; // last
    double window_begun;
    int64_t step; // newest that all ranks have begun; -1: not known
    int slowest;  // a rank that keeps it from being newer
    bool hang_said;
};
int watch_open(struct watch *w, int ranks, int hosts, struct err *err);
void watch_close(struct watch *w);
// A new attempt: ranks are forgotten, hosts stay.
int watch_restart(struct watch *w, int ranks, double now, struct err *err);
// More or other hosts than before; all are forgotten.
int watch_set_hosts(struct watch *w, int hosts, struct err *err);

// Takes a message ("hello", "beat") of a rank or ("hello", "facts") of a host's agent, see
// guard/heartbeat.h and operate/agent.h. Members that are missing or of another type are errors;
// nothing of the message is then taken.
int watch_beat(struct watch *w, int rank, const json_t *message, double now, struct err *err);
int watch_facts(struct watch *w, int host, const json_t *message, double now, struct err *err);

// What is wrong now: fills found[0..most), most urgent first. Each is said once until it is over or
// watch_restart. To be called at least every second: one that comes more than 3 s after the last
// finds nothing, because the supervisor itself stood still and has old messages to read first.
// `rank` of a hang is the one that has not arrived: it stands outside of all operations while
// others wait for it, or is silent; if all wait, the one whose stream is behind. The evidence says
// who waits for whom, in which operation, since when. Time, attempt, action and details are the
// caller's.
int watch_look(struct watch *w, double now, struct incident *found, int most);
// Longest time without progress that is allowed now to this rank.
double watch_patience(const struct watch *w, int rank, double now);
