// Detection: what is known of every rank and host from their messages, and what follows from it.
// Plain data and pure functions of it and the time, so that every rule is tested without processes
// or waiting. Times are seconds of one monotonic clock (the supervisor's).
#pragma once
#include "comm/comm.h"
#include "guard/heartbeat.h"
#include "operate/incident.h"
#include <stdbool.h>
#include <stdint.h>

enum { WATCH_WINDOW = 32 }; // steps, for own compute times and memory

struct watch_place { // an operation of messages, as a beat says it
    char stream[COMM_GROUP_NAME_BYTES];
    char kind[16];
    uint64_t number;
    double seconds;
    int members[COMM_STATUS_MEMBERS], member_count;
};

struct watch_rank {
    int host; // index
    int pid;
    bool connected, ended;
    double heard; // when its last message came; 0: never
    enum beat_phase phase;
    int64_t step;
    double progressed; // when step or phase changed last
    struct watch_place waits, last;
    struct {
        char stream[COMM_GROUP_NAME_BYTES];
        uint64_t posted;
    } posted[COMM_STATUS_STREAMS];
    int posted_count;
    double compute_seconds[WATCH_WINDOW]; // of its latest steps, ring
    double resident_bytes[WATCH_WINDOW];
    int64_t steps_seen;
    int64_t *retries;                    // [ranks] stalls by peer, within the window
    double slowest_seconds[BEAT_PHASES]; // of the latest completed visits to a phase
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
};

struct watch_limits {
    double silence_seconds;                 // of a host: 5
    double hang_least_seconds, hang_factor; // max(5 s, 3 x the slowest recent step or phase)
    double start_seconds;                   // longest start and load: 600
    double straggler_factor;                // own compute time over the median of its peers: 1.3
    int straggler_steps;                    // in a row: 8
    double growth_share;       // of the host's memory within the window that is too much: 0.05
    double disk_least_share;   // free: 0.05
    double clock_most_seconds; // 2
    int flap_retries;          // of one pair within the window: 5
};
void watch_limits_default(struct watch_limits *limits);

struct watch {
    struct watch_limits limits;
    struct watch_rank *ranks;
    int rank_count;
    struct watch_host *hosts;
    int host_count;
    double begun; // of this attempt
    int64_t step; // newest that all ranks have begun
};
int watch_open(struct watch *w, int ranks, int hosts, struct err *err);
void watch_close(struct watch *w);
void watch_restart(struct watch *w, int ranks, double now); // a new attempt: ranks are forgotten

// Takes a message of a rank or of a host's agent (guard/heartbeat.h, operate/agent.h). Members that
// are missing or of another type are errors; the message is then dropped.
int watch_beat(struct watch *w, int rank, const json_t *message, double now, struct err *err);
int watch_facts(struct watch *w, int host, const json_t *message, double now, struct err *err);

// What is wrong now: fills found[0..most), most urgent first. Each is said once until it is over or
// watch_restart. `rank` of a hang is the one that has not arrived: it stands outside of all
// operations while others wait for it, or is silent; if all wait, the one whose stream is behind.
// The evidence says who waits for whom, in which operation, since when.
int watch_look(struct watch *w, double now, struct incident *found, int most);
// Longest time without progress that is allowed now to this rank.
double watch_patience(const struct watch *w, int rank);
