// What the files of the supervisor share; see supervise.h.
#pragma once
#include "base/json.h"
#include "operate/control.h"
#include "operate/incident.h"
#include "operate/launch_report.h"
#include "operate/program.h"
#include "operate/supervise.h"
#include "operate/watch.h"
#include <signal.h>

enum { RUN_ID_BYTES = 17, SKIP_BYTES = 4096, DETAILS_MOST_BYTES = 8 << 20 };

// ---- supervise_files.c
struct supervise_state { // RUN/launch/state.json
    char run[RUN_ID_BYTES];
    int attempts; // launches so far
    char skip[SKIP_BYTES];
    int64_t failures;
    double seconds; // that ranks ran
    pid_t starter;  // mpirun of the latest attempt; 0: it has ended
    struct policy_history history;
};
int supervise_read_state(const char *run_folder, struct supervise_state *state, struct err *err);
int supervise_write_state(const char *run_folder, const struct supervise_state *state,
                          struct err *err);
int supervise_publish(const char *run_folder, const char *address, int port,
                      const struct wire_key *key, const char *run, struct err *err);
void supervise_withdraw(const char *run_folder);

// ---- the whole
enum supervise_phase {
    SUPERVISE_RUN,
    SUPERVISE_COLLECT, // a failure is known; what else is said about it?
    SUPERVISE_STOP,    // until nothing is left of the attempt
    SUPERVISE_WAIT,    // back-off
    SUPERVISE_OVER
};

enum supervise_leave { LEAVE_NOT, LEAVE_INTERRUPT, LEAVE_PREEMPT, LEAVE_RESTART };

struct supervisor {
    const struct supervise_options *options;
    const struct supervise_calls *calls;
    struct supervise_state state;
    int signals; // descriptor
    struct control *control;
    struct wire_key key;
    struct incidents *incidents;
    struct policy *policy;
    struct place place;
    struct supervise_hosts *hosts;
    struct watch watch;
    uint64_t dropped; // messages, as far as they were told
    int status;       // of the whole, at SUPERVISE_OVER

    enum supervise_phase phase;
    double deadline; // of the phase; monotonic
    int pending;     // orders that agents have not answered yet

    // the attempt
    pid_t starter; // mpirun; 0: none
    bool starter_left;
    int starter_status;
    int errors; // what it says; -1: closed
    struct report_reader reader;
    struct report_known known; // what rank 0 says at every start
    int *connection;           // [ranks]; -1: none
    int ranks, ended;
    int seen, seen_loaded;  // ranks 0 to there have said hello; have loaded
    int launched;           // attempts of this supervisor
    double begun;           // the latest one
    double arrived, loaded; // all ranks have said hello; have begun their first step. 0: not yet
    int64_t first_step;     // that they began
    bool stepped;           // and have done it
    bool resumed;           // this attempt or one before has loaded its state
    bool kept;              // the file of state knows of steps of this attempt
    char program_mark[PROGRAM_MARK_BYTES]; // of the program that the latest one started from

    // leaving
    enum supervise_leave leave;
    bool memory_moves; // the next attempt will not look where the snapshots of this one lie
    int interrupts;    // Ctrl-C
    double leave_by;

    // the failure that is dealt with
    bool failing;
    struct policy_failure failure;
    struct incident incident;
    double failed, detected; // monotonic: happened, became known
    struct text details;
    int number; // of its incident, until the run is back in a step; 0: none
    int states_back;
    struct text changed; // of the user's file, as told last
};

// Writes the file of state as things are. A full disk does not stop the ranks: that is only said.
void supervise_keep(struct supervisor *s);
// Into RUN/launch/evicted the names of the hosts that were taken out and stay out, one a line: who
// schedules the run again keeps them away. One that was lost may be there again by then.
int supervise_write_evicted(const struct supervisor *s, struct err *err);

// ---- supervise_attempt.c: one start of the ranks, until nothing is left of it
int attempt_start(struct supervisor *s, struct err *err);
void attempt_read(struct supervisor *s); // what ranks and mpirun say
void attempt_reap(struct supervisor *s);
// True: nothing is left. *left: processes of the run here, mpirun aside.
bool attempt_kill(struct supervisor *s, int *left);
void attempt_close(struct supervisor *s, struct text *show);
void attempt_interrupt(struct supervisor *s);

// ---- supervise_peers.c: ranks, agents and commands
void peers_event(void *context, const struct control_event *event);
void peers_facts(struct supervisor *s);    // tells the ranks what was measured
void peers_leave(struct supervisor *s);    // asks them to save and leave
void peers_journals(struct supervisor *s); // asks for their latest messages, into the details

// ---- supervise_hosts.c
int hosts_open(struct supervisor *s, struct err *err); // place and control are open
void hosts_close(struct supervisor *s);                // its agents leave
void hosts_tick(struct supervisor *s);
void hosts_event(struct supervisor *s, const struct control_event *event);
// Both order something of agents; s->pending counts the answers that are still to come.
void hosts_kill(struct supervisor *s);   // of the attempt, on other hosts
void hosts_stacks(struct supervisor *s); // of all ranks, into the details
// The run went back: what is newer goes on all hosts, those too that come later. The members of
// "discard" (operate/agent.h).
void hosts_discard(struct supervisor *s, const json_t *what);
// How copies of its snapshots fare: {"to":"node2","step":20,"error":"..."}; null: none are made.
json_t *hosts_copies(const struct supervisor *s, int host);
// May ranks start now? 1: yes; 0: not yet, ask again soon; -1: no place is left (err). Hosts whose
// agents do not come, or that fail their health check, are taken out here.
int hosts_ready(struct supervisor *s, struct err *err);
void hosts_suspect(struct supervisor *s, int host); // is checked before the next start
void hosts_bar(struct supervisor *s, int host);     // does not come back once it is out
// Bytes were damaged between two hosts (or within one). Where that happens to one of them again and
// again, both are checked before the next start; true: they will be.
bool hosts_damaged(struct supervisor *s, int from, int to);
// So many processes of the attempt did not end on this machine: ranks start when they are gone.
void hosts_left_here(struct supervisor *s, int left);
bool hosts_is_barred(const struct supervisor *s, int host);

// ---- supervise_failure.c
void failure_begin(struct supervisor *s, const struct policy_failure *failure, const char *evidence,
                   double happened);
void failure_settle(struct supervisor *s); // nothing more is to be waited for
void failure_look(struct supervisor *s);   // what the reports and beats say
void failure_over(struct supervisor *s);   // the run is back in a step
void failure_report(struct supervisor *s, int rank, const json_t *message);
void failure_reload(struct supervisor *s, const char *program, const char *changes);
void failure_grow(struct supervisor *s, const char *host); // it is back; planned, as a reload
// Takes a host out of the run and says so in `action`. -1: no place is left to run on.
int failure_evict(struct supervisor *s, int host, struct text *action);
void failure_say(struct supervisor *s, enum incident_kind kind, int rank, const char *host,
                 int64_t step, const char *evidence, const char *action);
// Lines, behind `begin`, as one: for the evidence of an incident.
void supervise_one_line(struct text *out, const char *begin, const char *lines);
// The run is asked to leave, for a restart or for good.
void supervise_ask_to_leave(struct supervisor *s, enum supervise_leave leave);
