// What the files of weft launch share.
#pragma once
#include "base/error.h"
#include "operate/launch.h"
#include "operate/policy.h"
#include <limits.h>
#include <stdbool.h>

struct launch_options {
    int ranks;
    const char *hosts; // file, or NULL
    bool dry_run, verbose, help;
    char **words; // verb and arguments, ends with NULL
    int word_count;
    // of a supervised run
    int spares;
    char listen[256];
    int port;
    struct policy_options policy;
    double grace_seconds;
    bool accept_changes, fixed_ranks;
    // a batch script of Slurm in place of the run
    bool emit_sbatch;
    int ranks_per_node;     // 0: not said
    const char *time_limit; // or NULL
    // to the supervisor of a run that goes on
    const char *order; // "--status", "--reload", "--inject"; NULL: none
    const char *run;
    bool json;
};

// ---- launch_command.c: from options to mpirun's command line
// This program's own path.
int launch_program(char path[PATH_MAX], struct err *err);
// mpirun of this program's MPI, as the shell would find it.
int launch_find_starter(char path[PATH_MAX], struct err *err);
// How `words` are started as `ranks` processes. `own`: names of further variables that remote ranks
// need, ends with NULL.
int launch_words(int ranks, const struct hosts *hosts, const char *program, char *const *words,
                 const char *const *own, struct launch_command *out, struct err *err);
void launch_print(char *const *words);

// ---- launch_simple.c: any verb, once
int launch_simple(const struct launch_command *command, const struct launch_options *o,
                  struct err *err);

// ---- launch_train.c: a training run under a supervisor (operate/supervise.h)
// Whether these words are a run: "train" without --help and --dry-run.
bool launch_is_run(const struct launch_options *o);
int launch_train(const struct launch_options *o, struct err *err);

// ---- launch_slurm.c: what a Slurm allocation offers
// The hosts of --hosts, else those of the allocation in which this process runs (*slurm is then
// true, and o->spares those that the ranks do not need, unless --spares said another number).
// *given: there is a list at all.
int launch_hosts(struct launch_options *o, struct hosts *hosts, bool *given, bool *slurm,
                 struct err *err);

// ---- launch_sbatch.c: a batch script on standard output
int launch_sbatch(const struct launch_options *o, int argc, char **argv, struct err *err);

// ---- launch_order.c: what the operator says to a run that goes on
int launch_order(const struct launch_options *o, struct err *err);
