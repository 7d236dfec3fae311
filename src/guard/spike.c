// Spikes of loss and gradient norm, see spike.h. Means are added in the order of the ring, which a
// restored state has too: a resumed run decides as an unbroken one.
#include "guard/spike.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define NEWEST_WEIGHT 0.1
#define LEAST_DEVIATION 0.1 // of the mean

static int window_count(const struct spike *s) {
    return s->accepted < SPIKE_WINDOW ? (int)s->accepted : SPIKE_WINDOW;
}

static void window_of(const double *values, int count, double *mean, double *deviation) {
    double sum = 0, squares = 0;
    for (int i = 0; i < count; i++) sum += values[i];
    *mean = count > 0 ? sum / count : 0;
    for (int i = 0; i < count; i++) squares += (values[i] - *mean) * (values[i] - *mean);
    double least = LEAST_DEVIATION * fabs(*mean);
    *deviation = count > 0 ? sqrt(squares / count) : 0;
    if (*deviation < least) *deviation = least;
}

void spike_norm_window(const struct spike *s, double *mean, double *deviation) {
    window_of(s->norm, window_count(s), mean, deviation);
}

static bool deviates(const char *what, const double *values, int count, double value, double most,
                     char why[200]) {
    double mean, deviation;
    if (most <= 0) return false;
    window_of(values, count, &mean, &deviation);
    if (value <= mean + most * deviation) return false;
    snprintf(why, 200, "%s %.4g is more than %g deviations of %.3g above the mean %.4g of %d steps",
             what, value, most, deviation, mean, count);
    return true;
}

bool spike_is(const struct spike *s, double loss, double norm, char why[200]) {
    const struct spike_rule *rule = &s->rule;
    int count = window_count(s);
    if (!isfinite(loss) || !isfinite(norm)) {
        snprintf(why, 200, "loss %g, gradient norm %g: not finite", loss, norm);
        return true;
    }
    if (s->accepted < rule->warm_up || count == 0) return false;
    if (rule->loss_factor > 0 && loss > rule->loss_factor * s->average && loss > SPIKE_LEAST_LOSS) {
        snprintf(why, 200, "loss %.4g is above %g times the moving average %.4g", loss,
                 rule->loss_factor, s->average);
        return true;
    }
    return deviates("loss", s->loss, count, loss, rule->loss_deviations, why) ||
           deviates("gradient norm", s->norm, count, norm, rule->norm_deviations, why);
}

void spike_accept(struct spike *s, double loss, double norm) {
    int64_t n = s->accepted++;
    double weight = (double)(n + 1) * NEWEST_WEIGHT < 1 ? 1 / (double)(n + 1) : NEWEST_WEIGHT;
    s->average += weight * (loss - s->average);
    s->loss[n % SPIKE_WINDOW] = loss;
    s->norm[n % SPIKE_WINDOW] = norm;
}

// Steps of the ring that lie among the last 100; *first: the earliest of them.
static int recent(const struct spike *s, int64_t step, int64_t *first) {
    int count = 0;
    int held = s->skipped_count < SPIKE_RECENT ? (int)s->skipped_count : SPIKE_RECENT;
    *first = -1;
    for (int i = 0; i < held; i++) {
        if (s->skipped[i] <= step - SPIKE_RECENT || s->skipped[i] > step) continue;
        if (*first < 0 || s->skipped[i] < *first) *first = s->skipped[i];
        count++;
    }
    return count;
}

int64_t spike_first_recent(const struct spike *s, int64_t step) {
    int64_t first;
    recent(s, step, &first);
    return first;
}

enum spike_verdict spike_skip(struct spike *s, int64_t step) {
    int64_t first;
    s->skipped[s->skipped_count++ % SPIKE_RECENT] = step;
    return recent(s, step, &first) > s->rule.most_in_recent ? SPIKE_ROLL_BACK : SPIKE_SKIP;
}

// ---- with checkpoints --------------------------------------------------------------------------

static json_t *reals(const double *values, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(list, json_real(values[i]));
    return list;
}

json_t *spike_write(const struct spike *s) {
    int held = s->skipped_count < SPIKE_RECENT ? (int)s->skipped_count : SPIKE_RECENT;
    json_t *skipped = json_array();
    for (int i = 0; i < held; i++) json_array_append_new(skipped, json_integer(s->skipped[i]));
    return json_pack("{s:f,s:I,s:o,s:o,s:I,s:o}", "average", s->average, "accepted",
                     (json_int_t)s->accepted, "loss", reals(s->loss, window_count(s)), "norm",
                     reals(s->norm, window_count(s)), "skipped_count", (json_int_t)s->skipped_count,
                     "skipped", skipped);
}

static int read_reals(json_t *object, const char *key, double *out, int count, const char *where,
                      struct err *err) {
    json_t *list = json_object_get(object, key);
    if (!json_is_array(list) || json_array_size(list) != (size_t)count)
        return err_set(err, ERR_DATA, "%s: %s: expected a list of %d numbers", where, key, count);
    for (int i = 0; i < count; i++) {
        json_t *value = json_array_get(list, (size_t)i);
        if (!json_is_number(value))
            return err_set(err, ERR_DATA, "%s: %s[%d]: expected a number", where, key, i);
        out[i] = json_number_value(value);
    }
    return 0;
}

int spike_read(struct spike *s, json_t *object, const char *where, struct err *err) {
    struct spike in = {.rule = s->rule};
    struct json_at at = {object, where};
    if (json_get_double(at, "average", true, 0, &in.average, err) != 0 ||
        json_get_int(at, "accepted", true, 0, &in.accepted, err) != 0 ||
        json_get_int(at, "skipped_count", true, 0, &in.skipped_count, err) != 0)
        return -1;
    if (in.accepted < 0 || in.skipped_count < 0)
        return err_set(err, ERR_DATA, "%s: counts of guarded steps are negative", where);
    if (read_reals(object, "loss", in.loss, window_count(&in), where, err) != 0 ||
        read_reals(object, "norm", in.norm, window_count(&in), where, err) != 0)
        return -1;
    json_t *skipped = json_object_get(object, "skipped");
    int held = in.skipped_count < SPIKE_RECENT ? (int)in.skipped_count : SPIKE_RECENT;
    if (!json_is_array(skipped) || json_array_size(skipped) != (size_t)held)
        return err_set(err, ERR_DATA, "%s: skipped: expected a list of %d steps", where, held);
    for (int i = 0; i < held; i++)
        in.skipped[i] = json_integer_value(json_array_get(skipped, (size_t)i));
    *s = in;
    return 0;
}
