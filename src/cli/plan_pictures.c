// See plan_pictures.h.
#include "cli/plan_pictures.h"
#include "base/file.h"
#include "plan/draw.h"
#include "plan/size.h"
#include <stdlib.h>
#include <string.h>

struct pictures {
    const struct report *report;
    const struct report_plan *plan;
    char subject[160]; // "llama3-70b on h100-sxm:512"
};

static int waterfall(const struct pictures *p, struct text *out, struct err *err) {
    char title[200];
    snprintf(title, sizeof title, "Where the rate goes: %s", p->subject);
    return draw_waterfall(&p->plan->estimate, title, out, err);
}

static int memory(const struct pictures *p, struct text *out, struct err *err) {
    char title[200];
    snprintf(title, sizeof title, "Memory of the pipeline ranks: %s", p->subject);
    return draw_memory(p->plan->estimate.memory, p->plan->estimate.memory_ranks,
                       p->plan->job.cluster.accelerator.memory_bytes.value, title, out, err);
}

static int timeline(const struct pictures *p, struct text *out, struct err *err) {
    char title[200];
    snprintf(title, sizeof title, "A step of the pipeline: %s", p->subject);
    if (pipeline_draw_svg(&p->plan->estimate.pipeline, &p->plan->estimate.times, title, out) == 0)
        return 0;
    return err_set(err, ERR_MEMORY, "no memory for the picture");
}

static int scaling(const struct pictures *p, enum scaling_kind kind, struct text *out,
                   struct err *err) {
    char title[200];
    snprintf(title, sizeof title, "Scaling of the layout: %s", p->subject);
    return draw_scaling(&p->plan->job, kind, title, out, err);
}

static int scaling_weak(const struct pictures *p, struct text *out, struct err *err) {
    return scaling(p, SCALING_WEAK, out, err);
}

static int scaling_strong(const struct pictures *p, struct text *out, struct err *err) {
    return scaling(p, SCALING_STRONG, out, err);
}

// Answers wanted for the picture of costs: the more, the less a search may skip. Where the report's
// own search was slow, its answers have to do.
enum { MOST_LAYOUTS = 40, SLOW_SECONDS = 3 };

// Of one model and batch, cost and 1 / MFU both follow the step's time.
static int draw_costs(const struct pictures *p, const struct search_result *result,
                      struct text *out, struct err *err) {
    struct draw_layout layouts[SEARCH_MOST_BEST + 1];
    struct report_run run = plan_report_run(p->report, p->plan);
    const struct search_choice *choice = &p->plan->entry.choice;
    double whole = (run.cost > 0 ? run.cost : run.accelerator_hours) / 1000;
    double step = p->plan->estimate.step_seconds, mfu = p->plan->estimate.mfu_full;
    char title[200], name[96];
    int count = 1;
    snprintf(name, sizeof name, "tp %d, pp %d, cp %d, dp %d", choice->value[SEARCH_TP],
             choice->value[SEARCH_PP], choice->value[SEARCH_CP], choice->value[SEARCH_DP]);
    layouts[0] = (struct draw_layout){name, mfu, whole, true};
    for (int i = 0; i < result->count; i++) {
        double times = result->best[i].step_seconds / step;
        if (times > 0)
            layouts[count++] = (struct draw_layout){"", mfu / times, whole * times, true};
    }
    snprintf(title, sizeof title, "Cost against MFU: %s", p->subject);
    return draw_cost(layouts, count,
                     run.cost > 0 ? "thousand dollars" : "thousand accelerator-hours", title, out,
                     err);
}

static int cost(const struct pictures *p, struct text *out, struct err *err) {
    if (p->report->result.seconds > SLOW_SECONDS)
        return draw_costs(p, &p->report->result, out, err);
    struct search_request request = p->report->request->search;
    struct search_result *result = calloc(1, sizeof *result);
    if (!result) return err_set(err, ERR_MEMORY, "no memory for the picture");
    request.best = MOST_LAYOUTS;
    request.every = false; // one of each mesh
    int status = search_run(&request, result, err);
    if (status == 0) status = draw_costs(p, result, out, err);
    free(result);
    return status;
}

static int interval(const struct pictures *p, struct text *out, struct err *err) {
    struct runs runs;
    char title[200];
    size_run(&p->plan->job.cluster, (double)p->report->parameters, p->plan->estimate.step_seconds,
             plan_report_run(p->report, p->plan).steps, &runs);
    snprintf(title, sizeof title, "Checkpoint interval: %s", p->subject);
    return draw_interval(&runs, 100, 1, title, out, err);
}

static const struct {
    const char *file;
    int (*draw)(const struct pictures *pictures, struct text *out, struct err *err);
} all[] = {{"waterfall.svg", waterfall},
           {"memory.svg", memory},
           {"timeline.svg", timeline},
           {"scaling-weak.svg", scaling_weak},
           {"scaling-strong.svg", scaling_strong},
           {"cost.svg", cost},
           {"interval.svg", interval}};

// Of a file's path the name without ending.
static const char *short_name(const char *text, char out[64]) {
    const char *slash = strrchr(text, '/');
    const char *from = slash && slash[1] ? slash + 1 : text;
    size_t length = strlen(from);
    if (text_ends_with(from, ".yaml") || text_ends_with(from, ".json")) length -= 5;
    snprintf(out, 64, "%.*s", (int)(length < 63 ? length : 63), from);
    return out;
}

int plan_pictures(const struct report *report, const char *folder, struct text *names,
                  struct err *err) {
    struct pictures pictures = {.report = report, .plan = &report->plans[0]};
    char model[64], cluster[64];
    snprintf(pictures.subject, sizeof pictures.subject, "%s on %s",
             short_name(report->request->model_name, model),
             short_name(report->request->cluster_name, cluster));
    if (file_make_folders(folder, err) != 0) return -1;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct text out = {0};
        char path[4096];
        int result = all[i].draw(&pictures, &out, err);
        if (result == 0) result = file_join(path, sizeof path, folder, all[i].file, err);
        if (result == 0) result = file_replace(path, out.data, out.size, err);
        text_free(&out);
        if (result != 0) return -1;
        if (text_printf(names, "%s\n", path) != 0)
            return err_set(err, ERR_MEMORY, "no memory for the names of pictures");
    }
    return 0;
}
