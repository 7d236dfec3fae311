// Incidents: what went wrong in a run and what was done about it, one JSON object a line in
// RUN/incidents.jsonl.
//
// {"number":4,"time":"2026-03-01T04:05:06.789Z","kind":"hang","rank":3,"host":"node2","step":1207,
//  "attempt":1,"evidence":"...","action":"restart","phases":{"detect":5.2,"evict":0.1,
//  "launch":0.9,"load":0.4,"first_step":0.3}}
//
// `evidence` is one sentence for the operator; what does not fit into it (stacks, lists of beats)
// stands in a file named in "details" (RUN/incidents/4.txt). Phases follow in a second line of the
// same number, {"number":4,"restart":{...}}, when the run is back in a step.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

enum incident_kind {
    INCIDENT_EXIT,      // a rank left with a fault, or was killed
    INCIDENT_HOST_LOST, // silent, or its agent is gone
    INCIDENT_HANG,
    INCIDENT_STRAGGLER,
    INCIDENT_MEMORY_GROWTH,
    INCIDENT_DISK, // fills up, or a save failed
    INCIDENT_CLOCK,
    INCIDENT_LINK, // flaps
    INCIDENT_CORRUPTION,
    INCIDENT_SPIKE,
    INCIDENT_HARDWARE, // counters of the machine
    INCIDENT_HEALTH,   // a host failed its check
    INCIDENT_FORGED,   // messages that are none of this run
    INCIDENT_PREEMPTED,
    INCIDENT_RELOAD, // planned restart
    INCIDENT_SHRINK,
    INCIDENT_GROW,
    INCIDENT_CONFIG,   // changed between restarts
    INCIDENT_MISMATCH, // another instruction set, another binary
    INCIDENT_COPY,     // snapshots of a host do not reach another one, or do so again
    INCIDENT_GIVEN_UP,
    INCIDENT_KINDS
};
const char *incident_kind_name(enum incident_kind kind); // "host_lost"

enum restart_phase {
    PHASE_DETECT,
    PHASE_EVICT,
    PHASE_LAUNCH,
    PHASE_LOAD,
    PHASE_FIRST_STEP,
    PHASES
};
const char *restart_phase_name(enum restart_phase phase);

struct incident {
    enum incident_kind kind;
    double time; // Unix seconds; 0: now
    int rank;    // -1: none
    char host[256];
    int64_t step; // -1: not known
    int attempt;
    char evidence[1024];
    char action[256]; // "restart on the same hosts", "evict node2, node4 takes its place", "none"
    const char *details; // longer text for a file of its own, or NULL
};

struct incidents; // an open log
// Goes on behind what stands in the file.
int incidents_open(struct incidents **out, const char *run_folder, struct err *err);
void incidents_close(struct incidents *log);
// Writes the record, and says it through base/log.h. Returns its number. A file that cannot be
// written is said once; the run goes on.
int incidents_put(struct incidents *log, const struct incident *incident);
void incidents_restarted(struct incidents *log, int number, const double seconds[PHASES]);
