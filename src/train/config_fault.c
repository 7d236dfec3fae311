// The keys fault.*, lists of equal length or of one value for all, as faults.
#include "guard/fault.h"
#include "train/config_table.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int list_length(const char *list) {
    int count = list[0] != 0;
    for (; *list; list++) count += *list == ',';
    return count;
}

// Element `at` of a list, or its only one.
static void list_element(const char *list, int at, char *out, size_t bytes) {
    if (list_length(list) == 1) at = 0;
    for (; at > 0; at--) list += strcspn(list, ",") + 1;
    snprintf(out, bytes, "%.*s", (int)strcspn(list, ","), list);
}

struct fault_key {
    const char *name, *list;
};

static int whole(const struct fault_key *key, int at, int64_t *out, struct err *err) {
    char text[64];
    list_element(key->list, at, text, sizeof text);
    double value = strtod(text, NULL);
    if (value != floor(value))
        return err_set(err, ERR_USAGE, "%s: expected whole numbers, found %s", key->name, text);
    *out = (int64_t)value;
    return 0;
}

static int read_one(const struct fault_key *keys, int at, struct fault *f, struct err *err) {
    char kind[64], when[64], factor[64];
    int64_t rank, step, attempt, peer, bit;
    list_element(keys[0].list, at, kind, sizeof kind);
    list_element(keys[1].list, at, when, sizeof when);
    list_element(keys[2].list, at, factor, sizeof factor);
    if (fault_kind_of(kind, &f->kind, err) != 0) return err_context(err, "fault.kind");
    if (strcmp(when, "step") != 0 && strcmp(when, "save") != 0)
        return err_set(err, ERR_USAGE, "fault.when: expected step or save, found \"%s\"", when);
    f->in_save = strcmp(when, "save") == 0;
    if (f->in_save && (f->kind < FAULT_EXIT || f->kind > FAULT_HANG))
        return err_set(err, ERR_USAGE,
                       "fault.when: save is for exit, abort, kill, stop and hang; %s happens in "
                       "steps",
                       kind);
    f->factor = strtod(factor, NULL);
    if (whole(&keys[3], at, &rank, err) != 0 || whole(&keys[4], at, &step, err) != 0 ||
        whole(&keys[5], at, &attempt, err) != 0 || whole(&keys[6], at, &peer, err) != 0 ||
        whole(&keys[7], at, &bit, err) != 0 || whole(&keys[8], at, &f->steps, err) != 0)
        return -1;
    f->rank = (int)rank;
    f->step = step;
    f->attempt = (int)attempt;
    f->peer = (int)peer;
    f->bit = (int)bit;
    return 0;
}

int config_faults(const struct train_config *c, struct fault list[FAULT_MOST], int *count,
                  struct err *err) {
    const struct fault_key keys[] = {
        {"fault.kind", c->fault_kind},     {"fault.when", c->fault_when},
        {"fault.factor", c->fault_factor}, {"fault.rank", c->fault_rank},
        {"fault.step", c->fault_step},     {"fault.attempt", c->fault_attempt},
        {"fault.peer", c->fault_peer},     {"fault.bit", c->fault_bit},
        {"fault.steps", c->fault_steps},
    };
    int wanted = list_length(c->fault_kind);
    if (wanted > FAULT_MOST)
        return err_set(err, ERR_USAGE, "fault.kind: %d faults, at most %d are provided for", wanted,
                       FAULT_MOST);
    for (size_t k = 1; k < sizeof keys / sizeof keys[0]; k++) {
        int found = list_length(keys[k].list);
        if (wanted > 0 && found != 1 && found != wanted)
            return err_set(err, ERR_USAGE,
                           "%s has %d values, fault.kind %d: expected one for all, or one for each",
                           keys[k].name, found, wanted);
    }
    for (int i = 0; i < wanted; i++) {
        list[i] = (struct fault){.seed = (uint64_t)c->fault_seed + (uint64_t)i};
        if (read_one(keys, i, &list[i], err) != 0) return -1;
    }
    *count = wanted;
    return 0;
}
