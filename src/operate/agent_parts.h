// What the files of the agent share; see agent.h.
#pragma once
#include "base/text.h"
#include "operate/agent.h"
#include <pthread.h>
#include <sys/types.h>

// ---- agent_facts.c: what this host is like
struct agent_disk { // looked at by a thread: a file system of another host may not answer
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    char folder[4096];
    uint64_t free_bytes, total_bytes;
    double seen; // when, monotonic; 0: never
};
int agent_disk_open(struct agent_disk *disk, const char *folder, struct err *err);
void agent_disk_close(struct agent_disk *disk);
json_t *agent_hello(const struct agent_options *options, const char *address, int port);
json_t *agent_facts(const struct agent_options *options, struct agent_disk *disk);

// ---- agent_jobs.c: processes that do what takes time
enum { AGENT_JOBS_MOST = 16 };
struct agent_job {
    int64_t id; // of the order
    pid_t pid;  // 0: free
    int output; // what it answers, one JSON object
    struct text text;
    double deadline; // monotonic
};
struct agent_jobs {
    struct agent_job list[AGENT_JOBS_MOST];
};
// Does an order in a process of its own. -1: it cannot be started.
int agent_job_start(struct agent_jobs *jobs, const struct agent_options *options, const char *order,
                    int64_t id, const json_t *message, struct err *err);
// An answer that is complete, for the supervisor; NULL: none now.
json_t *agent_job_take(struct agent_jobs *jobs, double now);
void agent_jobs_end(struct agent_jobs *jobs);
// Forks; the child dies with its parent and has no descriptors of it but 0 to 2 and `keep`.
pid_t agent_fork(int keep, struct err *err);
