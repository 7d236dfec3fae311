// A host's agent: one process of this program on every host of a run, spares too ("weft launch
// --agent", started by the supervisor through the remote shell, srun, or fork). It tells what the
// host is like, and does what has to be done there:
//
// {"type":"hello","role":"agent","host":"node2","pid":9,"time":...,"isa":"avx2","binary":"..."}
// {"type":"facts","time":...,"disk_free_bytes":...,...}     every second; see struct watch_host
//
// orders ({"type":"order","order":...,"id":N}), each answered by {"type":"done","id":N,...}:
//   "echo"    for clock offsets and delay
//   "health"  operate/health.h; "peers": addresses to measure the links to
//   "stacks"  of the given pids: {"text":...}
//   "kill"    every process of the run on this host, by its mark in the environment
//             (WEFT_RUN=<id>); the agent itself excepted
//   "buddy"   from now on copy complete snapshots of this host to the agent at address:port, and
//             keep those that another agent sends (checkpoint/snapshot.h says where they lie)
//   "forget"  remove the snapshots of this run
//   "leave"
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
};
// Until the supervisor says "leave" or is gone for longer than 30 s. Below cli/ nothing exits.
int agent_run(const struct agent_options *options, struct err *err);
