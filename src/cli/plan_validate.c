// weft plan validate: predictions beside published measurements.
#include "base/file.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "plan/validate.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft plan validate FILE.csv [options]\n"
    "\n"
    "Predicts the step of each row of a table of published measurements from its configuration\n"
    "alone and compares. docs/validation.md describes the columns and what stands in them.\n"
    "\n"
    "  --source NAME  only rows whose source_id begins so\n"
    "  --summary      sources only, without their rows\n"
    "  --csv FILE     each row with the parts of its predicted step, as a table\n"
    "  --json         prints JSON (median_source_mape and the rest)\n"
    "  --svg FOLDER   draws predicted over measured: all.svg and one picture for each source\n";

struct arguments {
    const char *file, *source, *csv, *svg;
    bool summary, json;
};

static int write_text(const char *path, struct text *text, struct err *err) {
    int result = file_replace(path, text->data, text->size, err);
    text_free(text);
    return result;
}

static int draw(const struct validation *v, const char *folder, const char *source,
                struct err *err) {
    struct text out = {0};
    char path[4096], name[256];
    snprintf(name, sizeof name, "validation-%s.svg", source ? source : "all");
    for (char *c = name; *c; c++)
        if (*c == '/') *c = '-';
    if (validation_svg(v, source, &out, err) != 0 ||
        file_join(path, sizeof path, folder, name, err) != 0) {
        text_free(&out);
        return -1;
    }
    return write_text(path, &out, err);
}

static int draw_all(const struct validation *v, const char *folder, struct err *err) {
    if (file_make_folders(folder, err) != 0 || draw(v, folder, NULL, err) != 0) return -1;
    for (int i = 0; i < v->sources; i++)
        if (v->source[i].used >= 10 && draw(v, folder, v->source[i].name, err) != 0) return -1;
    return 0;
}

static int report(const struct validation *v, const struct arguments *a, struct err *err) {
    struct text out = {0};
    if (a->csv) {
        if (validation_csv(v, &out) != 0) return err_set(err, ERR_MEMORY, "no memory for a table");
        if (write_text(a->csv, &out, err) != 0) return -1;
    }
    if (a->svg && draw_all(v, a->svg, err) != 0) return -1;
    int bad =
        a->json ? validation_json(v, !a->summary, &out) : validation_print(v, !a->summary, &out);
    if (bad == 0) fwrite(out.data, 1, out.size, stdout);
    text_free(&out);
    return bad == 0 ? 0 : err_set(err, ERR_MEMORY, "no memory for a report");
}

static int run(const struct arguments *a, struct err *err) {
    char *text;
    size_t bytes;
    struct published_table table = {0};
    struct catalogue *catalogue = NULL;
    struct validation v = {0};
    if (file_read(a->file, 0, &text, &bytes, err) != 0) return -1;
    int result = published_read(text, bytes, a->file, &table, err);
    if (result == 0) result = catalogue_open(&catalogue, err);
    if (result == 0) result = validate_table(&table, catalogue, a->source, &v, err);
    if (result == 0 && v.rows == 0 && a->source)
        result = err_set(err, ERR_USAGE, "%s: no row has a source_id that begins with \"%s\"",
                         a->file, a->source);
    if (result == 0) result = report(&v, a, err);
    validation_free(&v);
    catalogue_close(catalogue);
    published_close(&table);
    free(text);
    return result;
}

int plan_validate(int argc, char **argv) {
    struct arguments a = {0};
    const struct option options[] = {
        {"--source", OPTION_TEXT, &a.source, 0}, {"--summary", OPTION_FLAG, &a.summary, 0},
        {"--csv", OPTION_TEXT, &a.csv, 0},       {"--json", OPTION_FLAG, &a.json, 0},
        {"--svg", OPTION_TEXT, &a.svg, 0},
    };
    struct err err = {0};
    int words;
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], &a.file, 1,
                           &words, &err);
    if (got > 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (got == 0 && !a.file)
        got = err_set(&err, ERR_USAGE,
                      "plan validate: a table of measurements (.csv) is needed; weft plan validate "
                      "--help");
    if (got == 0) got = run(&a, &err);
    return got == 0 ? 0 : cli_fail(&err);
}
