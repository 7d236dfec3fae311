// The supervisor's side of the agents of all hosts (operate/agent.h): starts them, starts them
// again, knows what they said of themselves, and gives them orders. Nothing here waits: agents_tick
// is called several times a second, events of the control plane are handed in, and answers come by
// callback.
//
// This machine's agent is started by fork; others through srun inside of a Slurm allocation, or
// through a remote shell: ssh, or the program that the MPI was told to use in its place. The run's
// key goes to their standard input. One that leaves, or cannot be started, is tried again.
#pragma once
#include "operate/control.h"
#include "operate/hosts.h"
#include <stdint.h>

enum agent_state {
    AGENT_OFF,      // not started yet
    AGENT_STARTING, // no word of it yet
    AGENT_READY,
    AGENT_LOST,    // left, or could not be started: see why. It is tried again
    AGENT_REFUSED, // another program, or another name of a host that is there: see why
};
const char *agent_state_name(enum agent_state state);

struct agent_view {
    char host[256];
    bool here; // this machine
    enum agent_state state;
    double since;     // of the state; monotonic
    double heard;     // its last message; monotonic
    int connection;   // for control_send; -1: none
    int failures;     // to start it, or to keep it, in a row
    char address[64]; // where other agents reach it
    int port;
    char isa[32], binary[24]; // instruction set, version_digest
    char machine[160];
    int pid;                     // there
    double clock_offset_seconds; // not a number: not known
    // Copies of its snapshots: the newest step that its buddy keeps of all that it sent; -1: none.
    int64_t copied_step;
    char copied_to[256], copy_error[400]; // "": none; what fails now
    int copy_rank;                        // whose copy it is; -1: of all
    char why[512];                        // one line
};

struct agents_options {
    struct control *control;
    const char *program;     // path of weft, the same on all hosts; what stands there may change
    const char *remote;      // in place of ssh: "rsh", "/x/agent -q"; NULL: ssh
    bool slurm;              // through srun
    const char *loader_path; // LD_LIBRARY_PATH for other hosts; NULL: none
    const char *run;         // its id
    const char *address;     // of the supervisor, as the agents reach it
    int port;
    struct wire_key key;
    const char *snapshot_folder, *disk_folder; // absolute
    double again_seconds;                      // between tries of a host that does not come; 0: 10
    // version_digest that agents must have, or else that of the program as it is now ("": not
    // known; NULL: only the first one will do): of a run that was told to go on as another program
    // the agents that are there already have the former, those that are started later the latter.
    const char *binary;
    const char *(*binary_now)(void *context);
    void *context;
};
struct agents;
int agents_open(struct agents **out, const struct agents_options *options, struct err *err);
// Ends what still runs of the agents that were started from here. agents_leave first, and a moment
// later this, lets them go by themselves.
void agents_close(struct agents *a);
void agents_leave(struct agents *a);

// Hosts are numbered as they are added; started by the next agents_tick.
int agents_add(struct agents *a, const char *host, struct err *err);
int agents_count(const struct agents *a);
const struct agent_view *agents_view(const struct agents *a, int host);
// Starts what is due, and looks after what was started. True: the state of a host changed.
bool agents_tick(struct agents *a, double now);
// An event of an agent. Returns the number of its host; -1: it is of none of these (and dropped).
int agents_event(struct agents *a, const struct control_event *event, double now);

// `reply` is the agent's, valid until the call returns; `error` not NULL: it failed, was not
// answered in time, or the agent is lost (reply NULL).
typedef void agents_done(void *context, int host, const json_t *reply, const char *error);
// Sends an order with the members of `arguments` (may be NULL; the reference is taken). The
// callback comes in any case, once, and never from within this call.
void agents_order(struct agents *a, int host, const char *order, json_t *arguments, double seconds,
                  agents_done *done, void *context);
int agents_pending(const struct agents *a); // orders without an answer yet

// The words that start the agent of a host; free with launch_command_free. For tests, and messages.
struct launch_command;
int agents_command(struct launch_command *out, const struct agents_options *options,
                   const char *host, bool here, struct err *err);
