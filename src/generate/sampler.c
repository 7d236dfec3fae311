// Greedy, temperature, top-k and top-p, see sampler.h. The most probable tokens are taken from a
// heap, so that a narrow choice from a wide vocabulary needs no full sort.
#include "generate/sampler.h"
#include "base/random.h"
#include <math.h>
#include <stdlib.h>

struct sampler {
    struct sampler_options options;
    int vocab;
    uint64_t key;
    int32_t *heap;   // [vocab] ids
    double *weight;  // [vocab] exp((logit - largest) / temperature)
    int32_t *chosen; // [vocab] ids in falling order
};

static int check(const struct sampler_options *o, struct err *err) {
    if (!(o->temperature >= 0) || isinf(o->temperature))
        return err_set(err, ERR_USAGE, "temperature %g: expected a number >= 0", o->temperature);
    if (o->top_k < 0)
        return err_set(err, ERR_USAGE, "top-k %d: expected a count >= 1, or 0 for all", o->top_k);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return err_set(err, ERR_USAGE, "top-p %g: expected a share above 0 and at most 1",
                       o->top_p);
    return 0;
}

struct sampler *sampler_open(const struct sampler_options *options, int vocab, struct err *err) {
    if (check(options, err) != 0) return NULL;
    struct sampler *s = calloc(1, sizeof *s);
    if (s) {
        s->options = *options;
        s->vocab = vocab;
        s->key = random_key(options->seed, "sample");
        s->heap = malloc((size_t)vocab * sizeof *s->heap);
        s->weight = malloc((size_t)vocab * sizeof *s->weight);
        s->chosen = malloc((size_t)vocab * sizeof *s->chosen);
    }
    if (!s || !s->heap || !s->weight || !s->chosen) {
        sampler_close(s);
        (void)err_set(err, ERR_MEMORY, "sampler: no memory for a vocabulary of %d", vocab);
        return NULL;
    }
    return s;
}

void sampler_close(struct sampler *s) {
    if (!s) return;
    free(s->heap);
    free(s->weight);
    free(s->chosen);
    free(s);
}

// Largest logit, lowest id among equals; -1 when there is none.
static int32_t largest(const float *logits, int vocab, struct err *err) {
    int32_t best = -1;
    for (int32_t i = 0; i < vocab; i++) {
        if (isnan(logits[i])) {
            (void)err_set(err, ERR_DATA,
                          "the logit of id %d is NaN: the model's weights are damaged", i);
            return -1;
        }
        if (!isinf(logits[i]) || logits[i] > 0)
            if (best < 0 || logits[i] > logits[best]) best = i;
    }
    if (best < 0) (void)err_set(err, ERR_DATA, "every logit is minus infinity: nothing to choose");
    return best;
}

// `a` stands before `b` in falling order of probability.
static bool before(const struct sampler *s, int32_t a, int32_t b) {
    return s->weight[a] > s->weight[b] || (s->weight[a] == s->weight[b] && a < b);
}

static void sift_down(struct sampler *s, int at, int count) {
    int32_t id = s->heap[at];
    for (int child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(s, s->heap[child + 1], s->heap[child])) child++;
        if (!before(s, s->heap[child], id)) break;
        s->heap[at] = s->heap[child];
    }
    s->heap[at] = id;
}

// Moves the most probable ids into `chosen` until there are `most` or their weight reaches `share`.
static int take_best(struct sampler *s, int most, double share, double *sum) {
    int left = s->vocab, taken = 0;
    for (int32_t i = 0; i < s->vocab; i++) s->heap[i] = i;
    for (int i = left / 2 - 1; i >= 0; i--) sift_down(s, i, left);
    *sum = 0;
    while (taken < most && left > 0 && *sum < share) {
        *sum += s->weight[s->heap[0]];
        s->chosen[taken++] = s->heap[0];
        s->heap[0] = s->heap[--left];
        if (left > 0) sift_down(s, 0, left);
    }
    return taken;
}

// Ids to draw from, in `chosen`, and their weight.
static int candidates(struct sampler *s, double *sum) {
    const struct sampler_options *o = &s->options;
    bool few = o->top_k > 0 && o->top_k < s->vocab;
    double total = 0;
    if (!few) {
        for (int32_t i = 0; i < s->vocab; i++) total += s->weight[s->chosen[i] = i];
        *sum = total;
        return o->top_p < 1 ? take_best(s, s->vocab, o->top_p * total, sum) : s->vocab;
    }
    int count = take_best(s, o->top_k, INFINITY, &total);
    *sum = total;
    if (o->top_p == 1) return count;
    double reached = 0;
    int kept = 0;
    while (kept < count && reached < o->top_p * total) reached += s->weight[s->chosen[kept++]];
    *sum = reached;
    return kept;
}

int32_t sampler_pick(struct sampler *s, const float *logits, int64_t position, struct err *err) {
    const struct sampler_options *o = &s->options;
    int32_t best = largest(logits, s->vocab, err);
    if (best < 0 || o->greedy || o->temperature == 0 || o->top_k == 1 || isinf(logits[best]))
        return best;
    for (int32_t i = 0; i < s->vocab; i++)
        s->weight[i] = exp(((double)logits[i] - (double)logits[best]) / o->temperature);
    double sum, at = 0;
    int count = candidates(s, &sum);
    double draw = random_uniform(s->key, (uint64_t)position) * sum;
    int32_t last = best;
    for (int i = 0; i < count; i++) {
        double weight = s->weight[s->chosen[i]];
        if (weight == 0) continue;
        last = s->chosen[i];
        at += weight;
        if (draw < at) break;
    }
    return last;
}
