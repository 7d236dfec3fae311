// Slurm: what an allocation consists of, and a batch script that keeps a run going through failed
// nodes, time limits and preemption.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include "operate/hosts.h"
#include "operate/launched.h"

struct slurm_job {
    bool inside; // of an allocation; the rest is empty where not
    char id[32];
    struct hosts hosts; // the nodes in the order of the allocation; slots: tasks of each
    int restarts;       // how often Slurm has requeued the job
    double end_time;    // Unix seconds at which the time limit ends it; 0: not said
};
// From SLURM_JOB_ID, SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE (else one task a node),
// SLURM_RESTART_COUNT, SLURM_JOB_END_TIME. Errors (ERR_USAGE) name the variable.
int slurm_read(struct slurm_job *out, launched_lookup *lookup, void *context, struct err *err);
void slurm_free(struct slurm_job *job);
// Hosts of an allocation that `ranks` do not need, at its end: they are spares.
int slurm_spares(const struct hosts *hosts, long ranks);

// The names in a node list: "n[01-03,7],gpu-2" is n01, n02, n03, n7, gpu-2. Adds hosts of one slot.
int slurm_expand(struct hosts *out, const char *list, struct err *err);
// "2(x3),1" is 2, 2, 2, 1: into the slots of the hosts, which it must fit.
int slurm_counts(struct hosts *hosts, const char *text, struct err *err);

struct slurm_script {
    const char *name; // of the job
    int ranks, ranks_per_node, spares;
    int cores_per_rank;     // 0: not said
    const char *time_limit; // as sbatch takes it; NULL: the partition's
    int grace_seconds;      // between the signal and the time limit
    const char *program;    // path of weft
    const char *run_folder; // RUN/launch/evicted is read there, and added to ExcNodeList
    char *const *words; // options of weft launch and the verb with its arguments; ends with NULL
};
int slurm_emit(const struct slurm_script *script, struct text *out, struct err *err);
