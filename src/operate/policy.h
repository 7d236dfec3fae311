// What to do about an incident: a pure function of the run's history. Tested without processes.
//
// - A restart is due when a rank ended with a fault that another try may mend, a host was lost, or
//   a hang was found. Exit statuses 2, 3, 70 (a fault of configuration, data or program) before any
//   step was done are not tried again; nor is 130. 75 is tried at once, 76 evicts the host first.
// - `budget` restarts without progress in between; progress (a step beyond the newest one before)
//   gives them back. Waits between restarts without progress double from 1 s to 60 s.
// - A crash loop: failures at the same step, which was not done in between. The second goes back
//   one state further than the newest; the third stops with a diagnosis (step, samples) or, where
//   the user allowed it, skips that step's batch. CRASH_LOOP_RETRY: there are none, the budget
//   alone counts.
// - The host of the failing rank is checked where the machine may be the cause (a hang, corruption,
//   SIGSEGV and its like). One that fails its check, accuses itself (76) or is lost is evicted; one
//   that failed its ranks twice within a day while others did not is, too, where a spare is there.
//   A spare takes its place; without one the run shrinks to the largest layout that fits, and grows
//   when a host is back.
// - What it knows of the run outlives it (policy_history). A run that it gave up is in a person's
//   hands: the next launch has the whole budget again.
#pragma once
#include "operate/incident.h"
#include "operate/place.h"
#include <stdbool.h>
#include <stdint.h>

enum crash_loop { CRASH_LOOP_BACK, CRASH_LOOP_SKIP, CRASH_LOOP_STOP, CRASH_LOOP_RETRY };

struct policy_options {
    int budget; // 10
    double back_off_seconds, back_off_most_seconds;
    enum crash_loop crash_loop;
};
struct policy_failure {
    enum incident_kind kind;
    int rank, host;     // -1: not known
    int status, signal; // of an exit
    int64_t step;       // that was being done
    double time;        // monotonic
    bool hearsay;       // of an exit: the rank only repeats, or follows, what befell another one
};
enum policy_action { POLICY_STOP, POLICY_RESTART };
struct policy_decision {
    enum policy_action action;
    double wait_seconds;
    int check_host, evict_host; // -1: none
    bool suspicion;             // evict_host only failed often: evict it where a spare is there
    int states_back;            // 0: newest state; 1: the one before it, ...
    int64_t skip_step;          // -1: none
    char why[512];              // one sentence
};
struct policy; // with its history
int policy_open(struct policy **out, const struct policy_options *options, struct err *err);
void policy_close(struct policy *p);
// A step that is done.
void policy_progress(struct policy *p, int64_t step);
void policy_decide(struct policy *p, const struct policy_failure *failure,
                   struct policy_decision *out);

// What of it belongs to the run rather than to this process.
struct policy_history {
    int64_t newest;    // step that was done; 0: none
    int vain;          // restarts since `newest` moved
    int64_t loop_step; // that failed last; -1: none
    int loop_failures; // in a row, at that step
    bool loop_skipped; // its batch was passed over already
};
struct policy_history policy_history_none(void);
void policy_keep(const struct policy *p, struct policy_history *out);
void policy_recall(struct policy *p, const struct policy_history *history);
