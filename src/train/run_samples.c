// Steps that are passed over, and where the samples of a step come from, see run_guard.h.
#include "base/log.h"
#include "train/run_guard.h"
#include "train/run_parts.h"
#include <stdio.h>
#include <string.h>

// ---- steps without an update -------------------------------------------------------------------

bool run_skip_add(struct run *run, int64_t from, int64_t to) {
    struct run_guard *g = &run->guard;
    for (int i = 0; i < g->skip_count; i++) {
        if (from > g->skip[i].to + 1 || to + 1 < g->skip[i].from) continue;
        if (from < g->skip[i].from) g->skip[i].from = from;
        if (to > g->skip[i].to) g->skip[i].to = to;
        return true;
    }
    if (g->skip_count == RUN_SKIP_RANGES) return false;
    g->skip[g->skip_count].from = from;
    g->skip[g->skip_count++].to = to;
    return true;
}

bool run_passes_over(const struct run *run, int64_t step) {
    const struct run_guard *g = &run->guard;
    for (int i = 0; i < g->skip_count; i++)
        if (step >= g->skip[i].from && step <= g->skip[i].to) return true;
    return false;
}

void run_pass_over(struct run *run, int batch) {
    run->step++;
    run->samples += batch;
    run->result->step = run->step;
    metrics_put_event(&run->metrics, "passed_over", run->step, "\"samples\":%d", batch);
    log_line(LOG_INFO, "step %lld: passed over, its %d samples are not used", (long long)run->step,
             batch);
}

// ---- names -------------------------------------------------------------------------------------

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static json_t *documents_of(const struct loader_origin *o) {
    json_t *list = json_array();
    for (int i = 0; i < o->documents && i < LOADER_ORIGIN_DOCUMENTS; i++) {
        json_t *one = json_sprintf("%s:%llu", o->document[i].shard,
                                   (unsigned long long)o->document[i].number);
        json_array_append_new(list, one);
    }
    if (o->documents > LOADER_ORIGIN_DOCUMENTS)
        json_array_append_new(list,
                              json_sprintf("%d more", o->documents - LOADER_ORIGIN_DOCUMENTS));
    return list;
}

static void append(char text[600], const struct loader_origin *o, bool first) {
    size_t used = strlen(text);
    int last =
        o->documents < LOADER_ORIGIN_DOCUMENTS ? o->documents - 1 : LOADER_ORIGIN_DOCUMENTS - 1;
    used += (size_t)snprintf(text + used, 600 - used, "%s%llu", first ? "" : ", ",
                             (unsigned long long)o->id);
    if (used >= 600 || o->documents < 1) return;
    used += (size_t)snprintf(text + used, 600 - used, " (%s document %llu",
                             file_name(o->document[0].shard),
                             (unsigned long long)o->document[0].number);
    if (used >= 600) return;
    if (o->documents > 1)
        snprintf(text + used, 600 - used, " to %s %llu%s)", file_name(o->document[last].shard),
                 (unsigned long long)o->document[last].number,
                 o->documents > LOADER_ORIGIN_DOCUMENTS ? " ..." : "");
    else
        snprintf(text + used, 600 - used, ")");
}

json_t *run_samples(struct run *run, int64_t from, int batch, char text[600]) {
    enum { IN_TEXT = 6, MOST = 4096 };
    text[0] = 0;
    if (!run_leads(run)) return NULL; // it alone tells
    json_t *list = json_array();
    for (int i = 0; i < batch && i < MOST; i++) {
        struct loader_origin o;
        struct err err = {0};
        if (loader_origin(run->loader, (uint64_t)(from + i), &o, &err) != 0) {
            log_line(LOG_WARN, "sample %lld cannot be traced: %s", (long long)(from + i), err.text);
            break;
        }
        if (i < IN_TEXT) append(text, &o, i == 0);
        json_array_append_new(list, json_pack("{s:I,s:s,s:o}", "id", (json_int_t)o.id, "set", o.set,
                                              "documents", documents_of(&o)));
    }
    if (batch > IN_TEXT && strlen(text) < 590) strcat(text, " ...");
    return list;
}
