// Whole runs under failures: from a step's time to the time, the cost and the waste of weeks. A run
// is plain data; what becomes of it is told twice, in closed form and event by event by chance.
//
// The clock of a run. Work is cut into intervals of useful seconds. After each the ranks stand
// still for `blocking_seconds` (a snapshot), then go on while the snapshot is written; it counts as
// a checkpoint `persist_seconds` later. A failure loses everything since the last checkpoint that
// counts: so a run that fails while a snapshot is being written goes back by more than an interval.
// After a failure nobody notices for `detection_seconds`; then, once there are enough nodes,
// processes start again and read the checkpoint (`restart_seconds` + `load_seconds`), during which
// the next failure may strike, so that they begin anew. The run ends when its last step is done and
// its last checkpoint counts.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

// 419 unexpected interruptions in 54 days on 2,048 nodes of 8 (Llama 3, arXiv 2407.21783, table 5),
// rounded.
#define RUNS_FAILURES_PER_NODE_DAY 3.8e-3
// 1 % of the accelerators in a week, three times that: the pessimistic figure of textbooks.
#define RUNS_FAILURES_PER_ACCELERATOR_WEEK 0.01

enum runs_without_spare {
    RUNS_WAIT,  // the run stands until a node is repaired
    RUNS_SHRINK // it goes on with fewer replicas, and takes up repaired nodes as they come
};

struct runs {
    int nodes, per_node; // that compute; accelerators of a node
    double step_seconds; // without failures, saving and stragglers
    int64_t steps;
    double tokens_per_step; // 0: not said
    double price_per_hour;  // of one accelerator; 0: not said

    double failures_per_node_day;
    double shape; // of a Weibull distribution of the time between two failures of the cluster,
                  // whose mean stays 1 / rate; 1: exponential. Measured on supercomputers: 0.7 to
                  // 0.8 (Schroeder and Gibson 2006): failures come in clusters
    double replaced_share; // of failures that take their node out; the others start again in place
    double detection_seconds, restart_seconds, load_seconds;
    double start_seconds; // of the first launch

    double blocking_seconds, persist_seconds;
    double interval_seconds; // useful seconds between two snapshots; 0: the best one

    int spares;            // hot nodes beside `nodes`
    double repair_seconds; // until a node that was taken out is a spare again, on average
    enum runs_without_spare without_spare;
    int replica_nodes; // what shrinking gives up at once: the nodes of a data-parallel replica
    int least_nodes;   // below which it does not shrink but waits

    double stragglers_per_node_day;
    double straggler_factor;  // a step takes so many times as long while there is one, 1 up
    double straggler_seconds; // of slow running until it is found; then the run saves, swaps the
                              // node for a spare and starts again, and nothing is lost
};
void runs_defaults(struct runs *runs);
// Refuses what cannot be: names the field (as the command line spells it), the value and what would
// do.
int runs_check(const struct runs *runs, struct err *err);

// Where the wall time of a run goes.
enum runs_cause {
    RUNS_USEFUL,     // steps that count in the final model
    RUNS_CHECKPOINT, // blocking, and waiting for the last checkpoint
    RUNS_LOST,       // steps done again
    RUNS_DETECTION,
    RUNS_RESTART, // and loading
    RUNS_WAITING, // for a repaired node
    RUNS_SHRUNK,  // steps that took longer on fewer nodes, and taking up nodes again
    RUNS_STRAGGLER,
    RUNS_START,
    RUNS_CAUSES
};
const char *runs_cause_name(enum runs_cause cause);

double runs_work_seconds(const struct runs *runs); // steps x step_seconds
double runs_mtbf_seconds(const struct runs *runs); // INFINITY without failures

// The interval that is taken: of whole steps, not below the persist time (the next snapshot would
// begin before the last one is written), at most the run.
struct runs_interval {
    double seconds;
    int64_t steps;
    bool raised; // asked for less than the persist time
    bool best;   // chosen here
};
struct runs_interval runs_interval(const struct runs *runs);

// Optimal intervals between snapshots, from blocking time C and mean time between failures M.
double runs_young(double blocking, double mtbf); // sqrt(2 C M)
double runs_daly(double blocking, double mtbf);  // higher-order estimate, Daly 2006
double runs_best(double blocking, double mtbf);  // exact for exponential failures
// The chapters' sqrt(2 C R). R, the time to recover, stands where the time between failures
// belongs: how long a recovery takes does not change how much work a failure finds unsaved, and
// with R << M the run saves far too often.
double runs_chapter_interval(double blocking, double recovery);
// Longest recovery with which a share `uptime` of the time is spent running, and the share that a
// recovery allows at best: M / (M + R), whatever the number of spares.
double runs_recovery_for(double uptime, double mtbf);
double runs_uptime(double recovery, double mtbf);

// In closed form, spares always at hand, exponential failures, without stragglers.
struct runs_closed {
    double mtbf_seconds, failures; // expected over the run's wall time
    double young_seconds, daly_seconds, best_seconds;
    struct runs_interval interval;
    // First order, as shares of the time: blocking / interval, interval / 2 / MTBF, and so on
    double checkpoint, lost, persist, detection, restart;
    double waste;           // their sum
    double least_waste;     // of checkpoint and lost at the best interval: sqrt(2 C / M)
    double effective;       // exact: useful over expected wall time
    double wall_seconds;    // exact expectation
    double uptime_at_best;  // runs_uptime with detection, restart and load
    double chapter_seconds; // runs_chapter_interval
};
void runs_closed(const struct runs *runs, struct runs_closed *out);
// Expected wall seconds of a run of `work` useful seconds; see runs.c for the derivation.
double runs_expected_seconds(const struct runs *runs, double work, double interval);

// By chance: `count` runs, each a function of (seed, its number) alone.
struct runs_spread {
    double mean, p5, p50, p95;
};
struct runs_result {
    int count, unfinished; // runs that were cut because they hardly went on
    struct runs_interval interval;
    struct runs_spread effective, wall_seconds, failures, lost_seconds;
    struct runs_spread peak_repair; // most nodes under repair at once in a run
    double seconds[RUNS_CAUSES];    // mean wall seconds by cause
    double stragglers, waits;       // mean counts
    double found_spare;             // share of the nodes taken out for which a spare was there
};
enum { RUNS_MOST = 1000000 };
int runs_simulate(const struct runs *runs, int count, uint64_t seed, struct runs_result *out,
                  struct err *err);

// Spares. Nodes under repair are a queue with Poisson arrivals and as many servers as needed, so
// their number is Poisson with mean rate x repair time, whatever the distribution of repairs.
double runs_repair_load(const struct runs *runs);  // that mean; stragglers included
double runs_poisson_up_to(double mean, int count); // P(number <= count)
// Least number with which a failure finds a spare with probability `percentile`: all of them but
// one may be away. -1: more than the nodes.
int runs_spares_per_failure(const struct runs *runs, double percentile);
// Least number with which a share `percentile` of whole runs never wait, by simulation.
int runs_spares_per_run(const struct runs *runs, double percentile, int count, uint64_t seed,
                        int *spares, struct err *err);
