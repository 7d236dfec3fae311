// The supervisor of a run: starts its ranks, hears of them, and starts them again from their newest
// state when something goes wrong. One thread with one loop; it never waits for one peer alone.
//
//            ranks run --failure--> collect (what others know, stacks) --> stop all that is left
//                ^                                                                |
//                +------ launch <-- wait (back-off) <-- check suspect host <-- decide
//
// What it keeps of a run stands in RUN/launch:
//
//   lock             held while a supervisor is at work, with its process id and host in it
//   config.yaml      the resolved configuration that all ranks run from (the caller's)
//   state.json       id of the run, launches so far, steps whose batch is passed over, failures
//   evicted          hosts that were found unfit, one a line, written at its end
//   supervisor.json  where it listens and its key, for the operator's commands (mode 600)
//
// and incidents in RUN/incidents.jsonl (operate/incident.h).
#pragma once
#include "base/json.h"
#include "base/text.h"
#include "operate/launch.h"
#include "operate/place.h"
#include "operate/policy.h"

struct supervise_attempt {
    int number; // launches of this run before
    int ranks;
    const struct hosts *hosts; // NULL: this machine, or what a scheduler gave
    int states_back;           // see policy.h
    bool resumed;              // an attempt of this supervisor has loaded its state before
    const char *skip_steps;    // "12,40" or ""
};

// What it asks of its caller, who knows configurations and command lines.
struct supervise_calls {
    void *context;
    int (*command)(void *context, const struct supervise_attempt *attempt,
                   struct launch_command *out, struct err *err);
    // Reads the user's file again, with further key=value words and perhaps another program, for
    // all later attempts. `changes` gets a line for each key that changed.
    int (*reload)(void *context, const char *program, char *const *words, int count,
                  struct text *changes, struct err *err);
    // What the user's file says now and the ranks do not run from; empty: nothing.
    void (*changed)(void *context, struct text *changes);
    // The samples of a step, "17, 4, 203".
    int (*samples)(void *context, int64_t step, struct text *out, struct err *err);
    // What ranks and mpirun say, for the user's eyes.
    void (*show)(void *context, const char *bytes, size_t size);
};

struct supervise_options {
    const char *run_folder, *snapshot_folder;
    const char *temporary_folder; // TMPDIR, where Open MPI keeps files
    // The path that ranks and agents are started from. What stands there may change, and is told;
    // calls->reload may write another path.
    const char *program;
    const char *address;       // to listen on
    int port;                  // 0: any
    const struct hosts *hosts; // NULL: this machine, or what a scheduler gave
    int spares;
    // How agents come to other hosts (operate/agents.h).
    const char *remote, *loader_path;
    bool slurm;
    struct place_shape shape;
    struct policy_options policy;
    int most_faults;      // damaged messages of a host that are borne; with one more it is checked
    const char *changes;  // of the configuration since the last launch, lines; "": none
    double grace_seconds; // for saving when the run is asked to leave
    bool verbose;
};

// Until the run is over; the caller holds the lock. Returns the exit status of the whole: 0; 130
// when the user interrupted it; 75 when it was asked to leave and is to be started again; else that
// of the rank that failed, 128 + N when signal N ended it. -1 with err when it could not begin.
int supervise(const struct supervise_options *options, const struct supervise_calls *calls,
              struct err *err);

// ---- RUN/launch
// Takes the lock; another supervisor at work is an error (ERR_USAGE) that names it. The descriptor
// of the lock, to be closed, or -1.
int supervise_lock(const char *run_folder, struct err *err);
// Is one at work there? Then `text` says which ("process 71 on node1").
bool supervise_is_locked(const char *run_folder, char text[300]);

// ---- the operator's commands. Sends {"command":NAME,...} to the supervisor of the run and waits
// for its answer, which the caller releases; {"error":TEXT} becomes an error.
json_t *supervise_call(const char *run_folder, const json_t *command, double seconds,
                       struct err *err);
