// Reading what Slurm left in the environment; see slurm.h.
#include "operate/slurm.h"
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MOST = 1 << 16, NAME_BYTES = 256 };

// ---- node lists

static int bad_list(const char *list, const char *why, struct err *err) {
    return err_set(err, ERR_USAGE, "node list \"%.300s\": %s; expected names like n[01-03,7],gpu-2",
                   list, why);
}

static int add_host(struct hosts *hosts, const char *name, const char *list, struct err *err) {
    if (name[0] == 0) return bad_list(list, "a name is empty", err);
    if (hosts->count == NODES_MOST) return bad_list(list, "more than 65536 nodes", err);
    struct host *grown = hosts->list;
    if ((hosts->count & (hosts->count - 1)) == 0) // 0, 1, 2, 4, ...: room for as many again
        grown = realloc(hosts->list, sizeof *grown * (size_t)(2 * hosts->count + 1));
    char *copy = grown ? strdup(name) : NULL;
    if (grown) hosts->list = grown;
    if (!copy) return err_set(err, ERR_MEMORY, "no memory for a list of nodes");
    hosts->list[hosts->count++] = (struct host){copy, 1, 0};
    hosts->slots++;
    return 0;
}

struct expansion {
    struct hosts *hosts;
    const char *list; // the whole, for messages
    char name[NAME_BYTES];
};

static int expand_item(struct expansion *e, size_t used, const char *item, const char *end,
                       struct err *err);

// One number, with zeros in front up to `width`, and what stands behind the bracket.
static int expand_number(struct expansion *e, size_t used, long number, int width, const char *rest,
                         const char *end, struct err *err) {
    int length = snprintf(e->name + used, NAME_BYTES - used, "%0*ld", width, number);
    if (length < 0 || used + (size_t)length >= NAME_BYTES)
        return bad_list(e->list, "a name is too long", err);
    return expand_item(e, used + (size_t)length, rest, end, err);
}

// A number of at most nine digits; *at moves behind it.
static int take_number(const char **at, const char *list, long *out, struct err *err) {
    char *behind;
    if (!isdigit((unsigned char)**at)) return bad_list(list, "a number is missing in [ ]", err);
    *out = strtol(*at, &behind, 10);
    if (behind - *at > 9) return bad_list(list, "a number has more than 9 digits", err);
    *at = behind;
    return 0;
}

static int expand_bracket(struct expansion *e, size_t used, const char *at, const char *end,
                          struct err *err) {
    const char *close = memchr(at, ']', (size_t)(end - at));
    if (!close) return bad_list(e->list, "a [ is not closed", err);
    while (at < close) {
        const char *digits = at;
        long first, last;
        if (take_number(&at, e->list, &first, err) != 0) return -1;
        int width = (int)(at - digits);
        last = first;
        if (*at == '-') {
            at++;
            if (take_number(&at, e->list, &last, err) != 0) return -1;
        }
        if (last < first) return bad_list(e->list, "a range runs backwards", err);
        if (last - first >= NODES_MOST) return bad_list(e->list, "more than 65536 nodes", err);
        for (long i = first; i <= last; i++)
            if (expand_number(e, used, i, width, close + 1, end, err) != 0) return -1;
        if (at < close && *at != ',') return bad_list(e->list, "[ ] holds more than numbers", err);
        if (at < close && ++at == close)
            return bad_list(e->list, "a number is missing in [ ]", err);
    }
    return 0;
}

// The rest of one item behind `used` bytes of a name.
static int expand_item(struct expansion *e, size_t used, const char *item, const char *end,
                       struct err *err) {
    for (; item < end && *item != '['; item++) {
        if (*item == ']') return bad_list(e->list, "a ] was not opened", err);
        if (isspace((unsigned char)*item)) return bad_list(e->list, "it holds a space", err);
        if (used + 1 >= NAME_BYTES) return bad_list(e->list, "a name is too long", err);
        e->name[used++] = *item;
    }
    if (item < end) {
        if (item + 1 < end && item[1] == ']') return bad_list(e->list, "[ ] is empty", err);
        return expand_bracket(e, used, item + 1, end, err);
    }
    e->name[used] = 0;
    return add_host(e->hosts, e->name, e->list, err);
}

int slurm_expand(struct hosts *out, const char *list, struct err *err) {
    struct expansion e = {.hosts = out, .list = list};
    for (const char *item = list;;) {
        const char *end = item;
        for (bool inside = false; *end && (inside || *end != ','); end++)
            inside = *end == '[' || (inside && *end != ']');
        if (expand_item(&e, 0, item, end, err) != 0) return -1;
        if (*end == 0) return 0;
        item = end + 1;
    }
}

int slurm_counts(struct hosts *hosts, const char *text, struct err *err) {
    int at = 0;
    const char *p = text;
    while (*p) {
        char *behind;
        errno = 0;
        long count = strtol(p, &behind, 10), times = 1;
        bool good = isdigit((unsigned char)*p) && !errno && count > 0 && count <= INT_MAX;
        if (good && strncmp(behind, "(x", 2) == 0) {
            p = behind + 2;
            times = strtol(p, &behind, 10);
            good = isdigit((unsigned char)*p) && !errno && times > 0 && *behind == ')';
            behind += good;
        }
        if (!good || (*behind && *behind != ',') || strcmp(behind, ",") == 0)
            return err_set(err, ERR_USAGE, "\"%.200s\": expected tasks per node like 2(x3),1",
                           text);
        if (times > hosts->count - at) break;
        for (long i = 0; i < times; i++) hosts->list[at++].slots = (int)count;
        p = *behind ? behind + 1 : behind;
    }
    if (*p || at != hosts->count)
        return err_set(err, ERR_USAGE, "\"%.200s\" does not say how many tasks %d nodes have", text,
                       hosts->count);
    hosts->slots = 0;
    for (int i = 0; i < hosts->count; i++) hosts->slots += hosts->list[i].slots;
    return 0;
}

// ---- the allocation

static const char *value_of(launched_lookup *lookup, void *context, const char *name) {
    const char *text = lookup(name, context);
    return text && text[0] ? text : NULL;
}

static int read_count(launched_lookup *lookup, void *context, const char *name, long most,
                      long *out, struct err *err) {
    const char *text = value_of(lookup, context, name);
    char *end;
    *out = 0;
    if (!text) return 0;
    errno = 0;
    *out = strtol(text, &end, 10);
    if (*end || errno || *out < 0 || *out > most)
        return err_set(err, ERR_USAGE, "%s is \"%.100s\" in the environment; expected a number",
                       name, text);
    return 0;
}

static int read_hosts(struct slurm_job *job, launched_lookup *lookup, void *context,
                      struct err *err) {
    const char *list = value_of(lookup, context, "SLURM_JOB_NODELIST");
    const char *tasks = value_of(lookup, context, "SLURM_TASKS_PER_NODE");
    if (!list)
        return err_set(err, ERR_USAGE,
                       "SLURM_JOB_ID is %s in the environment, but SLURM_JOB_NODELIST is missing: "
                       "name the machines with --hosts, or unset SLURM_JOB_ID",
                       job->id);
    if (slurm_expand(&job->hosts, list, err) != 0) return err_context(err, "SLURM_JOB_NODELIST");
    if (tasks && slurm_counts(&job->hosts, tasks, err) != 0)
        return err_context(err, "SLURM_TASKS_PER_NODE");
    return 0;
}

int slurm_read(struct slurm_job *out, launched_lookup *lookup, void *context, struct err *err) {
    struct slurm_job job = {0};
    const char *id = value_of(lookup, context, "SLURM_JOB_ID");
    long restarts, end_time;
    if (id) {
        job.inside = true;
        snprintf(job.id, sizeof job.id, "%s", id);
        if (read_hosts(&job, lookup, context, err) != 0 ||
            read_count(lookup, context, "SLURM_RESTART_COUNT", INT_MAX, &restarts, err) != 0 ||
            read_count(lookup, context, "SLURM_JOB_END_TIME", LONG_MAX, &end_time, err) != 0) {
            slurm_free(&job);
            return -1;
        }
        job.restarts = (int)restarts;
        job.end_time = (double)end_time;
    }
    *out = job;
    return 0;
}

void slurm_free(struct slurm_job *job) {
    hosts_free(&job->hosts);
    *job = (struct slurm_job){0};
}

int slurm_spares(const struct hosts *hosts, long ranks) {
    int needed = 0;
    for (long room = 0; needed < hosts->count && room < ranks; needed++)
        room += hosts->list[needed].slots;
    return hosts->count - needed;
}
