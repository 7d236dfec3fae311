// Requests that no layout can meet: which of the user's numbers is at fault, and what would do.
#include "plan/search_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VALUES = 64, MOST_WORLD = 1 << 22, MOST_BATCH = 1 << 24, MOST_CONTEXT = 1 << 26 };

const char *search_reason_text(enum search_reason reason) {
    static const char *const texts[SEARCH_REASONS] = {
        [REASON_HEADS] = "tp does not divide the heads",
        [REASON_KV_HEADS] = "tp and the key/value heads do not divide each other",
        [REASON_QK_NORM] = "tp would cut a norm that goes over all heads",
        [REASON_FFN] = "tp does not divide the width of the MLP or of an expert",
        [REASON_EXPERTS] = "ep does not divide the experts",
        [REASON_LAYERS] = "more pipeline ranks than layers",
        [REASON_CONTEXT] = "2 cp does not divide the context",
        [REASON_BATCH] = "dp does not divide the global batch",
        [REASON_PINNED] = "fixed otherwise",
        [REASON_MICRO] = "the fixed micro-batch does not divide a replica's share of the batch",
        [REASON_ENGINE] = "refused by the engine",
        [REASON_MEMORY] = "does not fit in memory",
        [REASON_SLOW_BOUND] = "slower than the answers, by the bound on its step",
        [REASON_SLOW] = "slower than the answers, estimated",
    };
    return texts[reason];
}

int search_check(const struct search_request *r, struct err *err) {
    int64_t world = (int64_t)r->cluster->nodes * r->cluster->per_node;
    if (world < 1 || world > MOST_WORLD)
        return err_set(err, ERR_USAGE,
                       "plan: cluster %s has %d nodes of %d accelerators; expected 1 to %d in all",
                       r->cluster->name, r->cluster->nodes, r->cluster->per_node, MOST_WORLD);
    if (r->batch < 1 || r->batch > MOST_BATCH)
        return err_set(err, ERR_USAGE, "plan: a global batch of %lld sequences; expected 1 to %d",
                       (long long)r->batch, MOST_BATCH);
    if (r->context < 1 || r->context > MOST_CONTEXT)
        return err_set(err, ERR_USAGE, "plan: a context of %d tokens; expected 1 to %d", r->context,
                       MOST_CONTEXT);
    if (r->model->learned_positions && r->context > r->model->context)
        return err_set(err, ERR_USAGE,
                       "plan: a context of %d tokens; the model has a table of %d positions, and a "
                       "longer sequence needs another model (context or n_positions of it)",
                       r->context, r->model->context);
    if (r->best < 1 || r->best > SEARCH_MOST_BEST)
        return err_set(err, ERR_USAGE, "plan: %d answers wanted; expected 1 to %d", r->best,
                       SEARCH_MOST_BEST);
    if (!(r->cluster->accelerator.memory_bytes.value > 0))
        return err_set(err, ERR_USAGE,
                       "plan: accelerator %s of cluster %s has no memory_bytes; expected one",
                       r->cluster->accelerator.name, r->cluster->name);
    return 0;
}

// ---- values of a key that some candidate has

struct values {
    enum search_key key;
    int value[MOST_VALUES], count;
};

static int note_value(struct search_walk *walk, const struct search_choice *node, struct err *err) {
    struct values *values = walk->context;
    struct search_choice variants[SEARCH_MOST_VARIANTS];
    (void)err;
    int count = search_variants(walk->request, node, variants);
    for (int i = 0; i < count; i++) {
        int value = variants[i].value[values->key], at = 0;
        while (at < values->count && values->value[at] < value) at++;
        if (at < values->count && values->value[at] == value) continue;
        if (values->count == MOST_VALUES) continue;
        memmove(&values->value[at + 1], &values->value[at],
                (size_t)(values->count++ - at) * sizeof(int));
        values->value[at] = value;
    }
    return 0;
}

static struct values values_of(const struct search_request *request, enum search_key key) {
    struct values values = {.key = key};
    struct search_walk walk = {.request = request, .node = note_value, .context = &values};
    (void)search_walk_nodes(&walk, NULL);
    return values;
}

// The two values on either side, or all words. Empty: there are none.
static void list_values(const struct values *v, int wanted, char out[160]) {
    char text[24];
    out[0] = 0;
    int above = 0;
    while (above < v->count && v->value[above] < wanted) above++;
    int from = above > 1 ? above - 2 : 0, to = above + 2 < v->count ? above + 2 : v->count;
    for (int i = from; i < to; i++)
        snprintf(out + strlen(out), 160 - strlen(out), "%s%s",
                 i == from     ? ""
                 : i == to - 1 ? " or "
                               : ", ",
                 search_value_text(v->key, v->value[i], text));
}

// ---- fixed values

// What keeps the fixed key from being had: the most frequent reason, without those of other keys.
static enum search_reason main_reason(const struct search_request *request) {
    struct search_result *result = calloc(1, sizeof *result);
    struct values none = {.key = SEARCH_TP};
    struct search_walk walk = {
        .request = request, .result = result, .node = note_value, .context = &none};
    enum search_reason most = REASON_PINNED;
    if (result) (void)search_walk_nodes(&walk, NULL);
    for (int reason = 0; result && reason < SEARCH_REASONS; reason++)
        if (reason != REASON_PINNED && result->rejected_meshes[reason] > 0 &&
            (most == REASON_PINNED ||
             result->rejected_meshes[reason] > result->rejected_meshes[most]))
            most = (enum search_reason)reason;
    free(result);
    return most;
}

static int refuse_alone(const struct search_request *request, enum search_key key,
                        struct err *err) {
    char value[24], list[160], cause[96] = "";
    int pinned = request->pins.value[key];
    enum search_reason reason = main_reason(request);
    struct search_request open = *request;
    open.pins.set[key] = false;
    struct values values = values_of(&open, key);
    list_values(&values, pinned, list);
    if (reason != REASON_PINNED) snprintf(cause, sizeof cause, " (%s)", search_reason_text(reason));
    return err_set(err, ERR_USAGE,
                   "plan: no layout of %d accelerators and %lld sequences of %d tokens has the "
                   "fixed %s=%s%s%s%s",
                   search_world(request), (long long)request->batch, request->context,
                   search_key_name(key), search_value_text(key, pinned, value), cause,
                   list[0] ? "; nearest that do: " : "", list);
}

static int refuse_pins(const struct search_request *request, struct err *err) {
    char text[512] = "", value[24], list[160];
    struct search_request alone = *request;
    for (int key = 0; key < SEARCH_KEYS; key++) {
        if (!request->pins.set[key]) continue;
        memset(&alone.pins, 0, sizeof alone.pins);
        alone.pins.set[key] = true;
        alone.pins.value[key] = request->pins.value[key];
        if (values_of(&alone, (enum search_key)key).count == 0)
            return refuse_alone(&alone, (enum search_key)key, err);
    }
    for (int key = 0; key < SEARCH_KEYS; key++) {
        if (!request->pins.set[key]) continue;
        struct search_request open = *request;
        open.pins.set[key] = false;
        struct values values = values_of(&open, (enum search_key)key);
        list_values(&values, request->pins.value[key], list);
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "%s%s=%s%s%s%s", at ? ", " : "",
                 search_key_name((enum search_key)key),
                 search_value_text((enum search_key)key, request->pins.value[key], value),
                 list[0] ? " (with the others it can be " : "", list, list[0] ? ")" : "");
    }
    return err_set(err, ERR_USAGE,
                   "plan: no layout of %d accelerators and %lld sequences of %d tokens has all "
                   "fixed values: %s",
                   search_world(request), (long long)request->batch, request->context, text);
}

// ---- the batch and the world

struct near_batch {
    int64_t batch, below, above;
};

static void note_batch(struct search_walk *walk, const struct search_choice *mesh,
                       enum search_reason reason) {
    struct near_batch *near = walk->context;
    int64_t dp = mesh->value[SEARCH_DP], below = near->batch / dp * dp;
    if (reason != REASON_BATCH) return;
    if (below > near->below) near->below = below;
    if (near->above == 0 || below + dp < near->above) near->above = below + dp;
}

static int pass_node(struct search_walk *walk, const struct search_choice *node, struct err *err) {
    (void)walk, (void)node, (void)err;
    return 0;
}

static int stop_at_node(struct search_walk *walk, const struct search_choice *node,
                        struct err *err) {
    struct search_choice variants[SEARCH_MOST_VARIANTS];
    (void)err;
    return search_variants(walk->request, node, variants) > 0;
}

static bool is_possible(const struct search_request *request) {
    struct search_walk walk = {.request = request, .node = stop_at_node};
    return search_walk_nodes(&walk, NULL) == 1;
}

// The nearest number of accelerators that can be split, as whole nodes.
static int near_nodes(const struct search_request *request) {
    struct cluster cluster = *request->cluster;
    struct search_request other = *request;
    other.cluster = &cluster;
    for (int step = 1; step < request->cluster->nodes || step <= 8; step++)
        for (int side = -1; side <= 1; side += 2) {
            cluster.nodes = request->cluster->nodes + side * step;
            if (cluster.nodes > 0 && is_possible(&other)) return cluster.nodes;
        }
    return 0;
}

static int refuse_world(const struct search_request *request, const struct search_result *result,
                        struct err *err) {
    struct near_batch near = {.batch = request->batch};
    struct search_walk walk = {
        .request = request, .node = pass_node, .context = &near, .refused = note_batch};
    char batches[96] = "", worlds[96] = "", causes[320] = "";
    (void)search_walk_nodes(&walk, NULL);
    if (near.above > 0 && near.below > 0)
        snprintf(batches, sizeof batches, "a batch of %lld or %lld", (long long)near.below,
                 (long long)near.above);
    else if (near.above > 0)
        snprintf(batches, sizeof batches, "a batch of %lld", (long long)near.above);
    int nodes = near_nodes(request);
    if (nodes > 0)
        snprintf(worlds, sizeof worlds, "%s%d accelerators (%d nodes)", batches[0] ? ", or " : "",
                 nodes * request->cluster->per_node, nodes);
    for (int reason = 0; reason < SEARCH_REASONS; reason++)
        if (result->rejected_meshes[reason] > 0)
            snprintf(causes + strlen(causes), sizeof causes - strlen(causes), "%s%s (%lld)",
                     causes[0] ? ", " : "", search_reason_text((enum search_reason)reason),
                     (long long)result->rejected_meshes[reason]);
    return err_set(err, ERR_USAGE,
                   "plan: %lld sequences of %d tokens cannot be spread over %d accelerators in any "
                   "of %lld ways: %s%s%s%s",
                   (long long)request->batch, request->context, search_world(request),
                   (long long)result->meshes, causes,
                   batches[0] || worlds[0] ? "; these would do: " : "", batches, worlds);
}

int search_refuse(const struct search_request *request, const struct search_result *result,
                  struct err *err) {
    for (int key = 0; key < SEARCH_KEYS; key++) {
        if (!request->pins.set[key]) continue;
        struct search_request open = *request;
        memset(&open.pins, 0, sizeof open.pins);
        if (is_possible(&open)) return refuse_pins(request, err);
        break;
    }
    return refuse_world(request, result, err);
}
