// One run by chance, event by event. See runs.h for its clock.
//
// Failures are drawn in exposure, not in time: the next one comes when the nodes at work have
// together been up for so many mean times between failures. That keeps the draw valid when the
// number of nodes changes. Nothing is exposed while a failure is being noticed, and while waiting.
#include "simulate/runs_world.h"
#include "base/numbers.h"
#include "base/random.h"
#include <math.h>
#include <stdlib.h>

static double draw_uniform(struct runs_world *w) { // (0, 1)
    double u = random_uniform(w->key, w->counter++);
    return u > 0 ? u : 0x1p-54;
}

static double draw_exponential(struct runs_world *w) {
    return -log(draw_uniform(w));
}

static double draw_failure(struct runs_world *w) { // Weibull of mean 1
    double e = draw_exponential(w);
    return w->shape == 1 ? e : pow(e, 1 / w->shape) / w->weibull_mean;
}

uint64_t runs_key(uint64_t seed, int number) {
    uint32_t words[4];
    random_words(random_key(seed, "run"), (uint64_t)number, words);
    return (uint64_t)words[0] << 32 | words[1];
}

void runs_world_start(struct runs_world *w, const struct runs *runs, uint64_t key) {
    double *repairs = w->repairs;
    int capacity = w->repair_capacity;
    *w = (struct runs_world){.runs = runs,
                             .key = key,
                             .repairs = repairs,
                             .repair_capacity = capacity,
                             .interval = runs_interval(runs).seconds,
                             .total = runs_work_seconds(runs),
                             .shape = runs->shape,
                             .weibull_mean = tgamma(1 + 1 / runs->shape),
                             .running = runs->nodes,
                             .spare = runs->spares,
                             .first_back = INFINITY};
    w->until_failure = draw_failure(w);
    w->until_straggler = draw_exponential(w);
    w->now = w->seconds[RUNS_START] = runs->start_seconds;
}

// ---- nodes --------------------------------------------------------------------------------------

static int repair_begins(struct runs_world *w) {
    if (w->repairing == w->repair_capacity) {
        int capacity = w->repair_capacity ? 2 * w->repair_capacity : 64;
        double *grown = realloc(w->repairs, (size_t)capacity * sizeof *grown);
        if (!grown) return -1;
        w->repairs = grown;
        w->repair_capacity = capacity;
    }
    double back = w->now + w->runs->repair_seconds * draw_exponential(w);
    w->repairs[w->repairing++] = back;
    w->first_back = fmin(w->first_back, back);
    if (w->peak_repair < w->repairing) w->peak_repair = w->repairing;
    return 0;
}

static void repairs_end(struct runs_world *w) {
    if (w->now < w->first_back) return;
    w->first_back = INFINITY;
    for (int i = 0; i < w->repairing;)
        if (w->repairs[i] <= w->now) {
            w->repairs[i] = w->repairs[--w->repairing];
            w->spare++;
        } else
            w->first_back = fmin(w->first_back, w->repairs[i++]);
}

// Seconds until `count` more nodes are repaired.
static double until_repaired(struct runs_world *w, int count) {
    if (count <= 0) return 0;
    if (count > w->repairing) return INFINITY;
    if (count == 1) return fmax(0, w->first_back - w->now);
    numbers_sort(w->repairs, (size_t)w->repairing);
    return fmax(0, w->repairs[count - 1] - w->now);
}

static double failures_per_second(const struct runs_world *w) {
    return w->running * w->runs->failures_per_node_day / DAY_SECONDS;
}

// ---- training -----------------------------------------------------------------------------------

// Useful seconds per wall second.
static double rate_of(const struct runs_world *w, double *shrunk) {
    *shrunk = (double)w->running / w->runs->nodes;
    return w->slow ? *shrunk / w->runs->straggler_factor : *shrunk;
}

static void settle(struct runs_world *w) {
    if (w->pending && w->written_at <= w->now) {
        w->durable = w->snapshot;
        w->pending = false;
    }
}

static void work(struct runs_world *w, double useful, double shrunk, double rate) {
    w->done += useful;
    w->since += useful;
    w->seconds[RUNS_SHRUNK] += useful / shrunk - useful;
    w->seconds[RUNS_STRAGGLER] += useful / rate - useful / shrunk;
    w->now += useful / rate;
}

static void take_snapshot(struct runs_world *w) {
    settle(w);
    w->snapshot = w->done;
    w->written_at = w->now + w->runs->persist_seconds;
    w->pending = true;
    w->saving = false;
    w->since = 0;
}

// Whole intervals at once, as many as fit into `left`: a run has thousands between two failures.
static double work_whole(struct runs_world *w, double left, double shrunk, double rate) {
    double cycle = w->interval / rate + w->runs->blocking_seconds;
    double count = floor(fmin(left / cycle, (w->total - w->done) / w->interval - 1));
    if (w->since > 0 || count < 1) return 0;
    double begin = w->now;
    work(w, count * w->interval, shrunk, rate);
    w->seconds[RUNS_CHECKPOINT] += count * w->runs->blocking_seconds;
    w->now = begin + count * cycle;
    // every snapshot but the last one is written, for the next cannot begin before
    w->durable = w->done - w->interval;
    w->pending = false;
    take_snapshot(w);
    return count * cycle;
}

// Trains for at most `most` seconds; less when the run ends.
static double train(struct runs_world *w, double most) {
    double left = most, shrunk, rate = rate_of(w, &shrunk);
    while (left > 0 && !w->finished) {
        double used;
        if (w->closing || w->held) { // the last snapshot, or the one that the next waits for
            used = fmin(left, fmax(0, w->written_at - w->now));
            w->seconds[RUNS_CHECKPOINT] += used;
            w->now += used;
            if (used < left) {
                w->now = fmax(w->now, w->written_at);
                settle(w);
                w->finished = w->closing;
                w->held = false;
            }
        } else if (w->saving) {
            used = fmin(left, w->saving_left);
            w->seconds[RUNS_CHECKPOINT] += used;
            w->now += used;
            w->saving_left -= used;
            if (used < left) {
                take_snapshot(w);
                w->closing = w->done >= w->total;
            }
        } else if ((used = work_whole(w, left, shrunk, rate)) == 0) {
            double need = fmin(w->interval - w->since, w->total - w->done);
            used = fmin(left, need / rate);
            work(w, fmin(need, used * rate), shrunk, rate);
            if (used < left) {
                if (w->total - w->done < 1e-9 * w->total) w->done = w->total;
                settle(w);
                w->saving = true;
                w->held = w->pending;
                w->saving_left = w->runs->blocking_seconds;
            }
        }
        left -= used;
    }
    return most - left;
}

// ---- failures -----------------------------------------------------------------------------------

static void pass(struct runs_world *w, double seconds, enum runs_cause cause) {
    w->seconds[cause] += seconds;
    w->now += seconds;
}

// A stretch in which failures may strike. false: one did, after part of it.
static bool pass_exposed(struct runs_world *w, double seconds, enum runs_cause cause) {
    double rate = failures_per_second(w);
    if (rate * seconds < w->until_failure) {
        w->until_failure -= rate * seconds;
        pass(w, seconds, cause);
        return true;
    }
    pass(w, w->until_failure / rate, cause);
    w->until_failure = 0;
    return false;
}

static void roll_back(struct runs_world *w) {
    settle(w);
    w->seconds[RUNS_LOST] += w->done - w->durable;
    w->done = w->durable;
    w->since = 0;
    w->pending = w->saving = w->closing = w->held = false;
}

// A node leaves. Its replica goes on with a spare, without, or waits.
static int replace_node(struct runs_world *w) {
    const struct runs *r = w->runs;
    if (repair_begins(w) != 0) return -1;
    repairs_end(w);
    w->taken_out++;
    if (w->spare > 0) {
        w->spare--;
        w->found_spare++;
    } else if (r->without_spare == RUNS_SHRINK && w->running - r->replica_nodes >= r->least_nodes) {
        w->running -= r->replica_nodes;
        w->spare += r->replica_nodes - 1; // the replica's other nodes are sound
    } else {
        w->waits++;
        pass(w, until_repaired(w, 1), RUNS_WAITING);
        repairs_end(w);
        w->spare--;
    }
    return 0;
}

// Sound nodes that make whole replicas come back where a start is due anyway.
static void take_up(struct runs_world *w) {
    const struct runs *r = w->runs;
    repairs_end(w);
    while (r->without_spare == RUNS_SHRINK && w->running < r->nodes &&
           w->spare >= r->replica_nodes) {
        w->running += r->replica_nodes;
        w->spare -= r->replica_nodes;
    }
}

// From the moment of a failure until the ranks run again.
static int recover(struct runs_world *w) {
    const struct runs *r = w->runs;
    do {
        w->failures++;
        w->until_failure = draw_failure(w);
        roll_back(w);
        pass(w, r->detection_seconds, RUNS_DETECTION);
        bool stays = r->replaced_share < 1 && draw_uniform(w) >= r->replaced_share;
        if (!stays && replace_node(w) != 0) return -1;
        take_up(w);
    } while (!pass_exposed(w, r->restart_seconds + r->load_seconds, RUNS_RESTART) &&
             w->failures < RUNS_MOST_FAILURES);
    return 0;
}

// A planned stop: save, wait until it is written, start again. Nothing is lost but the time.
static int restart_planned(struct runs_world *w, enum runs_cause cause, bool swaps) {
    const struct runs *r = w->runs;
    if (!pass_exposed(w, r->blocking_seconds + r->persist_seconds, cause)) return recover(w);
    w->durable = w->done;
    w->since = 0;
    w->pending = w->saving = w->held = false;
    w->closing = false;
    if (swaps && replace_node(w) != 0) return -1;
    take_up(w);
    if (!pass_exposed(w, r->restart_seconds + r->load_seconds, cause)) return recover(w);
    return 0;
}

// ---- events -------------------------------------------------------------------------------------

static int next_event(struct runs_world *w) {
    const struct runs *r = w->runs;
    double rate = failures_per_second(w);
    double slow_rate = w->slow ? 0 : w->running * r->stragglers_per_node_day / DAY_SECONDS;
    double failure = rate > 0 ? w->until_failure / rate : INFINITY;
    double straggler = slow_rate > 0 ? w->until_straggler / slow_rate : INFINITY;
    double found = w->slow ? w->slow_left : INFINITY;
    double grown = INFINITY;
    if (w->running < r->nodes) grown = until_repaired(w, r->replica_nodes - w->spare);
    double least = fmin(fmin(failure, straggler), fmin(found, grown));
    double used = train(w, least);
    if (w->finished) return 0;
    w->until_failure = fmax(0, w->until_failure - used * rate);
    w->until_straggler = fmax(0, w->until_straggler - used * slow_rate);
    if (w->slow) w->slow_left -= used;
    if (least == failure) return recover(w);
    if (least == straggler) {
        w->slow = true;
        w->slow_left = r->straggler_seconds;
        w->until_straggler = draw_exponential(w);
        w->stragglers++;
        return 0;
    }
    if (least == found) {
        w->slow = false;
        return restart_planned(w, RUNS_STRAGGLER, true);
    }
    return restart_planned(w, RUNS_SHRUNK, false);
}

int runs_world_go(struct runs_world *w, double most_seconds) {
    while (!w->finished && w->now < most_seconds && w->failures < RUNS_MOST_FAILURES)
        if (next_event(w) != 0) return -1;
    settle(w);
    w->seconds[RUNS_USEFUL] = w->finished ? w->total : w->durable;
    if (!w->finished) w->seconds[RUNS_LOST] += w->done - w->durable;
    return 0;
}
