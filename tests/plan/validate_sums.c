// Errors by source, ranking of layouts and reports over the committed selection of published rows.
#include "base/file.h"
#include "plan/validate.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    char *text;
    struct published_table table;
    struct catalogue *catalogue;
    struct validation v;
};

static void run_file(struct run *r, const char *path, const char *only) {
    struct err err = {0};
    size_t bytes;
    CHECK_OK(file_read(path, 0, &r->text, &bytes, &err), err);
    CHECK_OK(published_read(r->text, bytes, path, &r->table, &err), err);
    CHECK_OK(catalogue_open(&r->catalogue, &err), err);
    CHECK_OK(validate_table(&r->table, r->catalogue, only, &r->v, &err), err);
}
static void run_close(struct run *r) {
    validation_free(&r->v);
    catalogue_close(r->catalogue);
    published_close(&r->table);
    free(r->text);
}
static const char *selection(void) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/../plan/published.csv", test_golden_dir());
    return path;
}
static const struct validate_source *source_of(const struct validation *v, const char *name) {
    for (int i = 0; i < v->sources; i++)
        if (strcmp(v->source[i].name, name) == 0) return &v->source[i];
    test_fail(__FILE__, __LINE__, "no source %s", name);
}

// What docs/validation.md states, on a few rows of each source: mean error of the step at most.
// Arithmetic is the same everywhere, so these are no timings; they may only be lowered.
static const struct {
    const char *source;
    int used;
    double most;
} stated[] = {
    {"megatron2021_t1", 5, 0.030},    {"megatron_readme_jan2021", 4, 0.095},
    {"korthikanti2022_t5", 4, 0.025}, {"megatron_bridge_25.09", 6, 0.055},
    {"nemo_24.07", 5, 0.045},         {"mosaicml_llmfoundry", 6, 0.060},
    {"bigscience_prequel", 6, 0.075}, {"zerobubble_t4", 6, 0.065},
    {"vtrain_multi", 6, 0.100},       {"vtrain_single", 6, 0.120},
    {"nanotron_playbook", 6, 0.135},  {"flashattention2_t1", 3, 0.085},
    {"simumax_b200", 5, 0.050},       {"dgxc_25.04", 6, 0.045},
};

TEST(errors_stay_below_what_is_stated) {
    struct run r;
    run_file(&r, selection(), NULL);
    for (size_t i = 0; i < sizeof stated / sizeof stated[0]; i++) {
        const struct validate_source *s = source_of(&r.v, stated[i].source);
        CHECK_EQ_INT(s->used, stated[i].used);
        if (s->mean > stated[i].most)
            test_fail(__FILE__, __LINE__, "%s: mean error %.4f, at most %.4f is stated", s->name,
                      s->mean, stated[i].most);
    }
    run_close(&r);
}

TEST(every_row_is_used_or_says_why) {
    struct run r;
    run_file(&r, selection(), NULL);
    CHECK_EQ_INT(r.v.rows, r.table.rows);
    int used = 0, out = 0, ranked = 0;
    for (int i = 0; i < r.v.rows; i++) {
        const struct validated *row = &r.v.row[i];
        used += row->verdict == VALIDATE_USED;
        ranked += row->verdict == VALIDATE_RANKED;
        out += row->verdict == VALIDATE_LEFT_OUT;
        if (row->verdict == VALIDATE_LEFT_OUT)
            CHECK(row->reason[0]);
        else
            CHECK(row->predicted > 0 && row->measured > 0);
        if (strstr(row->row->notes, "NOTE")) CHECK_CONTAINS(row->reason, "contradiction");
        if (strcmp(row->row->source, "bigscience_prequel_oom") == 0) CHECK(row->ran_out);
    }
    CHECK_EQ_INT(used, 75);
    CHECK_EQ_INT(ranked, 1); // nanotron below 20 % MFU
    CHECK_EQ_INT(out, 3);
    CHECK_EQ_INT(r.v.failed, 1);
    run_close(&r);
}

// A table whose times are those that this program predicts has no error, and its best layout is
// ranked first; one row made slower must show.
TEST(own_predictions_agree) {
    struct run first, second;
    struct text csv = {0};
    struct err err = {0};
    const char *header = "source_id,model_name,layers,hidden,heads,seq_len,gpu,n_gpus,tp,pp,dp,"
                         "micro_batch,global_batch_seqs,recompute,precision,iter_time_s\n";
    text_puts(&csv, header);
    for (int tp = 1; tp <= 8; tp *= 2)
        text_printf(&csv, "vtrain_x,GPT,24,2048,16,2048,A100,8,%d,1,%d,2,64,full,fp16,1\n", tp,
                    8 / tp);
    CHECK_OK(file_replace(test_path("one.csv"), csv.data, csv.size, &err), err);
    run_file(&first, test_path("one.csv"), NULL);
    CHECK_EQ_INT(first.v.source[0].used, 4);
    csv.size = 0;
    text_puts(&csv, header);
    for (int i = 0, tp = 1; tp <= 8; tp *= 2, i++)
        text_printf(&csv, "vtrain_x,GPT,24,2048,16,2048,A100,8,%d,1,%d,2,64,full,fp16,%.9g\n", tp,
                    8 / tp, first.v.row[i].predicted * (tp == 8 ? 2 : 1));
    CHECK_OK(file_replace(test_path("two.csv"), csv.data, csv.size, &err), err);
    run_file(&second, test_path("two.csv"), "vtrain");
    CHECK_CLOSE(second.v.source[0].mean, 0.125, 1e-6);
    CHECK_CLOSE(second.v.source[0].bias, -0.125, 1e-6);
    CHECK_CLOSE(second.v.source[0].worst, -0.5, 1e-6);
    CHECK_CLOSE(second.v.source[0].median, 0, 1e-6);
    CHECK_EQ_INT(second.v.rankings, 1);
    CHECK_EQ_INT(second.v.ranking[0].groups, 1);
    CHECK_CLOSE(second.v.ranking[0].regret_worst, 1, 1e-6);
    CHECK(second.v.ranking[0].spearman > 0.3);
    run_close(&first);
    run_close(&second);
    text_free(&csv);
}

TEST(reports) {
    struct run r;
    struct text out = {0};
    struct err err = {0};
    run_file(&r, selection(), NULL);
    CHECK_EQ_INT(validation_print(&r.v, true, &out), 0);
    CHECK_CONTAINS(out.data, "vtrain_multi");
    CHECK_CONTAINS(out.data, "marked with a contradiction");
    CHECK_CONTAINS(out.data, "(ranking only)");
    out.size = 0;
    CHECK_EQ_INT(validation_csv(&r.v, &out), 0);
    CHECK_CONTAINS(out.data, "line,source,model");
    out.size = 0;
    CHECK_OK(validation_svg(&r.v, NULL, &out, &err), err);
    CHECK_CONTAINS(out.data, "<svg");
    CHECK_CONTAINS(out.data, "</svg>");
    out.size = 0;
    CHECK_EQ_INT(validation_svg(&r.v, "nobody", &out, &err), -1);
    CHECK_CONTAINS(err.text, "no row of nobody can be drawn");
    text_free(&out);
    run_close(&r);
}

TEST(the_command) {
    char out[16384];
    const char *table = selection();
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s plan validate %s --json --summary", test_weft(), table), 0);
    CHECK_CONTAINS(out, "\"median_source_mape\": 0.0");
    CHECK_CONTAINS(out, "\"ranking\"");
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s plan --validate %s --source vtrain", test_weft(), table),
        0);
    CHECK_CONTAINS(out, "error");
    CHECK(!strstr(out, "mosaicml"));
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s plan validate %s --source nobody", test_weft(), table), 2);
    CHECK_CONTAINS(out, "no row has a source_id that begins with \"nobody\"");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s plan validate nowhere.csv", test_weft()), 4);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s plan validate", test_weft()), 2);
    CHECK_CONTAINS(out, "a table of measurements (.csv) is needed");
    const char *path = test_path("t.csv");
    CHECK_EQ_INT(test_shell(out, sizeof out, "printf 'a,b\\n1\\n' > %s && %s plan validate %s",
                            path, test_weft(), path),
                 3);
    CHECK_CONTAINS(out, "t.csv, line 2: expected 2 cells");
}

// The whole table where it is at hand, beside the folder of external data.
TEST_LIMIT(whole_table, 300) {
    char path[4096];
    struct run r;
    if (!test_data_dir()) SKIP("no external data (make test DATA=DIR)");
    snprintf(path, sizeof path, "%s/../validation/published_dev.csv", test_data_dir());
    if (!file_exists(path)) SKIP("no %s", path);
    run_file(&r, path, NULL);
    CHECK(r.v.counted_sources >= 13);
    CHECK(r.v.median_source < 0.065);
    CHECK(r.v.schedule_mean < 0.05);
    run_close(&r);
}
