// See launched.h.
#include "operate/launched.h"
#include "base/affinity.h"
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct reader {
    launched_lookup *lookup;
    void *context;
};

static const char *value_of(const struct reader *r, const char *name) {
    const char *text = r->lookup(name, r->context);
    return text && text[0] ? text : NULL;
}

// `least` .. INT_MAX; an absent variable leaves *out alone.
static int read_number(const struct reader *r, const char *name, int least, int *out,
                       struct err *err) {
    const char *text = value_of(r, name);
    char *end;
    if (!text) return 0;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (*end || errno || value < least || value > INT_MAX)
        return err_set(err, ERR_USAGE,
                       "%s is \"%.100s\" in the environment; expected a whole number from %d up. "
                       "A launcher sets it; unset it to train in one process",
                       name, text, least);
    *out = (int)value;
    return 0;
}

// Names of the variables of one launcher; NULL: it has none.
struct names {
    enum launcher launcher;
    const char *ranks, *rank, *local_ranks, *local_rank;
};
static const struct names open_mpi = {LAUNCHER_OPEN_MPI, "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK"};
static const struct names pmi = {LAUNCHER_PMI, "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS",
                                 "MPI_LOCALRANKID"};
static const struct names step = {LAUNCHER_SLURM, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", NULL,
                                  "SLURM_LOCALID"};
static const struct names tasks = {LAUNCHER_SLURM, "SLURM_NTASKS", "SLURM_PROCID", NULL,
                                   "SLURM_LOCALID"};

static int read_names(const struct reader *r, const struct names *n, struct launch_environment *out,
                      struct err *err) {
    out->launcher = n->launcher;
    out->variable = n->ranks;
    out->rank = -1;
    if (read_number(r, n->ranks, 1, &out->ranks, err) != 0 ||
        read_number(r, n->rank, 0, &out->rank, err) != 0 ||
        read_number(r, n->local_rank, 0, &out->local_rank, err) != 0 ||
        (n->local_ranks && read_number(r, n->local_ranks, 1, &out->local_ranks, err) != 0))
        return -1;
    if (out->rank >= out->ranks)
        return err_set(err, ERR_USAGE,
                       "%s is %d, but %s is %d: ranks count from 0. Both come from a launcher; "
                       "unset them to train in one process",
                       n->rank, out->rank, n->ranks, out->ranks);
    return 0;
}

// SLURM_TASKS_PER_NODE "4(x2),3": tasks of node number `node`, or 0.
static int tasks_of_node(const char *text, int node) {
    while (text && *text) {
        char *end;
        long count = strtol(text, &end, 10), times = 1;
        if (end == text || count < 1 || count > INT_MAX) return 0;
        if (end[0] == '(' && end[1] == 'x') {
            times = strtol(end + 2, &end, 10);
            if (*end++ != ')' || times < 1) return 0;
        }
        if (node < times) return (int)count;
        node -= (int)times;
        text = *end == ',' ? end + 1 : "";
    }
    return 0;
}

// The shell that salloc opens and the script of sbatch are steps too, with numbers at the end of
// 32 bits; no srun stands behind them. SLURM_NTASKS is then what was booked, not what runs. The
// same variable without any job around it comes from a broken launch.
static bool is_srun_step(const struct reader *r) {
    enum { FIRST_RESERVED = 16 }; // -1 .. -16 as unsigned
    const char *id = value_of(r, "SLURM_STEP_ID");
    if (!id) id = value_of(r, "SLURM_STEPID");
    return id && strtoull(id, NULL, 10) < (unsigned long long)UINT32_MAX - FIRST_RESERVED;
}

static int read_slurm(const struct reader *r, struct launch_environment *out, struct err *err) {
    bool is_step = is_srun_step(r), has_job = value_of(r, "SLURM_JOB_ID") != NULL;
    int node = 0;
    if (!is_step && has_job) return read_number(r, "SLURM_NTASKS", 1, &out->allocated_tasks, err);
    if (!is_step && !value_of(r, "SLURM_NTASKS")) return 0;
    if (read_names(r, value_of(r, step.ranks) ? &step : &tasks, out, err) != 0 ||
        read_number(r, "SLURM_NODEID", 0, &node, err) != 0)
        return -1;
    const char *per_node = value_of(r, "SLURM_STEP_TASKS_PER_NODE");
    out->local_ranks =
        tasks_of_node(per_node ? per_node : value_of(r, "SLURM_TASKS_PER_NODE"), node);
    if (value_of(r, "PMIX_NAMESPACE") || value_of(r, "PMIX_RANK"))
        out->launcher = LAUNCHER_PMIX;
    else if (value_of(r, "PMI_FD") || value_of(r, "PMI_PORT") || value_of(r, "PMI_RANK"))
        out->launcher = LAUNCHER_PMI;
    return 0;
}

int launched_read(struct launch_environment *out, launched_lookup *lookup, void *context,
                  struct err *err) {
    struct reader r = {lookup, context};
    struct launch_environment e = {.ranks = 1, .local_rank = -1, .variable = ""};
    if (gethostname(e.host, sizeof e.host - 1) != 0) snprintf(e.host, sizeof e.host, "localhost");
    e.cpus = affinity_cpus();
    e.host_cpus = affinity_host_cpus();
    int result;
    if (value_of(&r, open_mpi.ranks))
        result = read_names(&r, &open_mpi, &e, err);
    else if (value_of(&r, pmi.ranks) && !is_srun_step(&r))
        result = read_names(&r, &pmi, &e, err);
    else
        result = read_slurm(&r, &e, err);
    if (result == 0) *out = e;
    return result;
}

static bool is_open_mpi(const char *mpi) {
    return strncmp(mpi, "Open MPI", 8) == 0;
}

int launched_check(const struct launch_environment *l, const char *mpi, struct err *err) {
    bool none = strcmp(mpi, "none") == 0;
    const char *how = is_open_mpi(mpi) ? "srun --mpi=pmix" : "srun --mpi=pmi2";
    if (l->ranks <= 1) return 0;
    if (none)
        return err_set(err, ERR_USAGE,
                       "%s says %d ranks, but this program was built without MPI and sees 1 "
                       "process; build it with -DWEFT_MPI=openmpi or -DWEFT_MPI=mpich, or add "
                       "--single to train in this process alone",
                       l->variable, l->ranks);
    if (l->launcher == LAUNCHER_SLURM)
        return err_set(err, ERR_USAGE,
                       "%s says %d ranks, but MPI sees 1 process: srun offers it no PMI. Start "
                       "with \"%s\", with mpirun or with \"weft launch -n %d\", or add --single "
                       "to train in this process alone",
                       l->variable, l->ranks, how, l->ranks);
    bool fits = is_open_mpi(mpi) ? l->launcher == LAUNCHER_OPEN_MPI || l->launcher == LAUNCHER_PMIX
                                 : l->launcher == LAUNCHER_PMI || l->launcher == LAUNCHER_PMIX;
    if (fits) return 0;
    return err_set(err, ERR_USAGE,
                   "%s says %d ranks, but MPI sees 1 process: the launcher belongs to another MPI "
                   "than this program (%s). Start with %s, \"%s\" or \"weft launch -n %d\", or add "
                   "--single to train in this process alone",
                   l->variable, l->ranks, mpi, is_open_mpi(mpi) ? "mpirun.openmpi" : "mpirun.mpich",
                   how, l->ranks);
}
