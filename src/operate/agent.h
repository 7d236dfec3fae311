// A host's agent: one process of this program on every host of a run, spares too ("weft launch
// --agent", started by the supervisor through the remote shell, srun, or fork; operate/agents.h).
// It tells what the host is like, and does what has to be done there:
//
// {"type":"hello","role":"agent","host":"node2","pid":9,"time":...,"isa":"avx2","binary":"...",
//  "address":"10.0.0.2","port":4711,"machine":"..."}
//     where other agents reach it; "machine" is the same for two names of one host
// {"type":"facts","time":...,"disk_free_bytes":...,...}     every second; see struct watch_host.
//     "buddy":{"host":...,"step":...,"bytes":...,"seconds":...,"error":...}: copies so far
//
// orders ({"type":"order","order":...,"id":N}), each answered by {"type":"done","id":N,...}, with
// "error" where it failed:
//   "echo"    for clock offsets and delay: {"time":...}
//   "health"  operate/health.h, its options as members ("break": break_check; "peers":
//             "address:port" of agents to measure the links to): health_json's members, and
//             "verdict" where a check failed
//   "stacks"  of the given "pids": {"text":...}
//   "kill"    every process of the run on this host, by its mark in the environment
//             (WEFT_RUN=<id>); the agent itself excepted: {"killed":N,"left":N}
//   "buddy"   from now on copy complete snapshots of this host to the agent "host" at "address",
//             "port" (none: no longer), and keep those that another agent sends (operate/buddy.h)
//   "discard" the run went back to "step": no newer state counts that was saved up to "session" and
//             "number" (checkpoint/snapshot.h, snapshot_discard_newer)
//   "forget"  remove the snapshots of this run
//   "leave"
//
// What takes time (health, stacks, kill) and copying run in processes of their own, so that facts
// keep coming, and so that a check that a broken machine kills is a check that failed.
//
// An agent that has lost its supervisor tries to find it again; after `patience_seconds` it ends
// the ranks of the run on this host, which would only stand in the way of a new attempt elsewhere,
// and leaves.
#pragma once
#include "base/wire.h"
#include "operate/hosts.h"

struct agent_options {
    char address[256]; // of the supervisor
    int port;
    struct wire_key key;
    const char *run;             // id of the run, for marks and snapshots
    const char *host;            // as the hosts file calls it
    const char *snapshot_folder; // /dev/shm
    const char *disk_folder;     // the run folder
    double patience_seconds;     // 30
};
// Until the supervisor says "leave" or is gone for too long (ERR_RETRY). Below cli/ nothing exits.
int agent_run(const struct agent_options *options, struct err *err);
