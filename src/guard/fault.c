// See fault.h.
#include "guard/fault.h"
#include "base/random.h"
#include "base/text.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ONCE, MAY_LAST, LASTS };
static const struct {
    const char *name;
    int span;
    double factor;
} kinds[FAULT_KIND_COUNT] = {
    [FAULT_NONE] = {"none", ONCE, 0},
    [FAULT_EXIT] = {"exit", ONCE, 0},
    [FAULT_ABORT] = {"abort", ONCE, 0},
    [FAULT_KILL] = {"kill", ONCE, 0},
    [FAULT_STOP] = {"stop", ONCE, 0},
    [FAULT_HANG] = {"hang", ONCE, 0},
    [FAULT_SLOW] = {"slow", LASTS, 2},
    [FAULT_NAN] = {"nan", MAY_LAST, 0},
    [FAULT_SPIKE] = {"spike", MAY_LAST, 1000},
    [FAULT_FLIP_WEIGHT] = {"flip_weight", ONCE, 0},
    [FAULT_FLIP_GRADIENT] = {"flip_gradient", MAY_LAST, 0},
    [FAULT_FLIP_OPTIMIZER] = {"flip_optimizer", ONCE, 0},
    [FAULT_FLIP_MESSAGE] = {"flip_message", ONCE, 0},
    [FAULT_FLIP_PRODUCT] = {"flip_product", MAY_LAST, 0},
    [FAULT_DISK_FAIL] = {"disk_fail", LASTS, 0},
    [FAULT_DISK_FULL] = {"disk_full", LASTS, 0},
    [FAULT_LINK_DROP] = {"link_drop", LASTS, 0},
    [FAULT_LINK_FLAP] = {"link_flap", LASTS, 1},
    [FAULT_LEAK] = {"leak", LASTS, 64},
};

const char *fault_kind_name(enum fault_kind kind) {
    return (unsigned)kind < FAULT_KIND_COUNT ? kinds[kind].name : "unknown";
}

int fault_kind_of(const char *name, enum fault_kind *out, struct err *err) {
    const char *names[FAULT_KIND_COUNT];
    for (int k = FAULT_NONE + 1; k < FAULT_KIND_COUNT; k++) {
        names[k] = kinds[k].name;
        if (strcmp(name, names[k]) != 0) continue;
        *out = (enum fault_kind)k;
        return 0;
    }
    const char *nearest = text_nearest(name, names + 1, FAULT_KIND_COUNT - 1);
    return err_set(err, ERR_USAGE, "\"%.60s\" is no kind of fault%s%s%s", name,
                   nearest ? "; did you mean \"" : " (weft config fault.kind lists them)",
                   nearest ? nearest : "", nearest ? "\"?" : "");
}

bool fault_lasts(const struct fault *fault) {
    int span = kinds[fault->kind].span;
    return span == LASTS || (span == MAY_LAST && fault->steps > 0);
}

double fault_factor(const struct fault *fault) {
    return fault->factor > 0 ? fault->factor : kinds[fault->kind].factor;
}

const char *fault_text(const struct fault *fault, char out[160]) {
    char rank[32] = "all ranks", step[40] = "the next step";
    if (fault->rank >= 0) snprintf(rank, sizeof rank, "rank %d", fault->rank);
    if (fault->step > 0) snprintf(step, sizeof step, "step %lld", (long long)fault->step);
    snprintf(out, 160, "%s on %s %s %s", fault_kind_name(fault->kind), rank,
             fault->in_save       ? "in the first save from"
             : fault_lasts(fault) ? "from"
                                  : "at",
             step);
    return out;
}

// ---- as JSON ------------------------------------------------------------------------------------

static int check_members(const json_t *object, struct err *err) {
    static const char *const known[] = {"kind", "steps",  "rank", "step", "attempt",
                                        "when", "factor", "peer", "bit",  "seed"};
    enum { KNOWN = sizeof known / sizeof known[0] };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        int i = 0;
        while (i < KNOWN && strcmp(known[i], key) != 0) i++;
        if (i == KNOWN)
            return err_set(err, ERR_USAGE,
                           "a fault has no \"%.60s\": expected kind, rank, step, steps, attempt, "
                           "when, factor, peer, bit or seed",
                           key);
    }
    return 0;
}

static int get_whole(struct json_at at, const char *key, int64_t least, int64_t most, int64_t *out,
                     struct err *err) {
    if (json_get_int(at, key, false, *out, out, err) != 0) return -1;
    if (*out >= least && *out <= most) return 0;
    return err_set(err, ERR_USAGE, "fault.%s: expected a value from %lld to %lld, found %lld", key,
                   (long long)least, (long long)most, (long long)*out);
}

int fault_read(struct fault *out, const json_t *object, struct err *err) {
    struct json_at at = {(json_t *)(uintptr_t)object, "fault"};
    struct fault f = {0};
    const char *kind, *when;
    int64_t rank = -1, step = 0, steps = 0, attempt = -1, peer = -1, bit = -1, seed = 1;
    if (!json_is_object(object))
        return err_set(err, ERR_USAGE, "a fault is a JSON object: {\"kind\":\"kill\",\"rank\":1}");
    if (check_members(object, err) != 0 ||
        json_get_string(at, "kind", true, NULL, &kind, err) != 0 ||
        fault_kind_of(kind, &f.kind, err) != 0 ||
        json_get_string(at, "when", false, "step", &when, err) != 0 ||
        json_get_double(at, "factor", false, 0, &f.factor, err) != 0 ||
        get_whole(at, "rank", -1, 1 << 24, &rank, err) != 0 ||
        get_whole(at, "step", 0, INT64_MAX, &step, err) != 0 ||
        get_whole(at, "steps", 0, INT64_MAX, &steps, err) != 0 ||
        get_whole(at, "attempt", -1, 1000000, &attempt, err) != 0 ||
        get_whole(at, "peer", -1, 1 << 24, &peer, err) != 0 ||
        get_whole(at, "bit", -1, 31, &bit, err) != 0 ||
        get_whole(at, "seed", 0, INT64_MAX, &seed, err) != 0)
        return -1;
    if (strcmp(when, "step") != 0 && strcmp(when, "save") != 0)
        return err_set(err, ERR_USAGE, "fault.when: expected step or save, found \"%.60s\"", when);
    if (!(f.factor >= 0 && f.factor <= 1e9))
        return err_set(err, ERR_USAGE, "fault.factor: expected a value from 0 to 1e9, found %g",
                       f.factor);
    f.rank = (int)rank;
    f.step = step;
    f.steps = steps;
    f.attempt = (int)attempt;
    f.in_save = strcmp(when, "save") == 0;
    f.peer = (int)peer;
    f.bit = (int)bit;
    f.seed = (uint64_t)seed;
    *out = f;
    return 0;
}

json_t *fault_write(const struct fault *f) {
    return json_pack("{s:s,s:i,s:I,s:I,s:i,s:s,s:f,s:i,s:i,s:I}", "kind", fault_kind_name(f->kind),
                     "rank", f->rank, "step", (json_int_t)f->step, "steps", (json_int_t)f->steps,
                     "attempt", f->attempt, "when", f->in_save ? "save" : "step", "factor",
                     f->factor, "peer", f->peer, "bit", f->bit, "seed", (json_int_t)f->seed);
}

// ---- when it is due -----------------------------------------------------------------------------

struct fault *fault_due(struct fault *list, int count, enum fault_kind kind, bool in_save, int rank,
                        int64_t step, int attempt) {
    for (struct fault *f = list; f < list + count; f++) {
        bool lasts = fault_lasts(f);
        if (lasts && f->steps > 0 && step - f->step >= f->steps) f->done = true;
        bool here = f->kind == kind && f->in_save == in_save && !f->done &&
                    (f->rank < 0 || f->rank == rank) && (f->attempt < 0 || f->attempt == attempt);
        bool later = in_save || lasts; // than its step counts too
        if (!here || (later ? step < f->step : step != f->step)) continue;
        f->done = !lasts;
        return f;
    }
    return NULL;
}

// ---- what it does -------------------------------------------------------------------------------

void fault_strike(const struct fault *fault) {
    switch (fault->kind) {
    case FAULT_EXIT:
        _exit(1);
    case FAULT_ABORT:
        signal(SIGABRT, SIG_DFL);
        raise(SIGABRT);
        return;
    case FAULT_KILL:
        raise(SIGKILL);
        return;
    case FAULT_STOP:
        kill(getpid(), SIGSTOP); // the process, not this thread
        return;
    case FAULT_HANG:
        for (;;) pause();
    default:
        return;
    }
}

uint64_t fault_draw(const struct fault *fault) {
    uint32_t words[4];
    random_words(fault->seed, (uint64_t)fault->step, words);
    return (uint64_t)words[0] << 32 | words[1];
}

int fault_bit(const struct fault *fault) {
    uint32_t words[4];
    if (fault->bit >= 0) return fault->bit;
    random_words(fault->seed, (uint64_t)fault->step, words);
    return 16 + (int)(words[2] % 16); // as many as BF16 has: sign, 8 of the exponent, 7
}

int64_t fault_flip(const struct fault *fault, void *data, int element_bytes, int64_t count) {
    int64_t at = (int64_t)(fault_draw(fault) % (uint64_t)count);
    int bit = fault_bit(fault);
    if (element_bytes == 2)
        ((uint16_t *)data)[at] ^= (uint16_t)(1u << (bit >= 16 ? bit - 16 : 0));
    else
        ((uint32_t *)data)[at] ^= 1u << bit;
    return at;
}
