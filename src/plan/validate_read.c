// Rows of a published table as numbers. See validate.h.
#include "plan/validate.h"
#include "plan/validate_csv.h"
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, WHOLE, LARGE, REAL };
static const struct field {
    const char *column;
    size_t at;
    enum kind kind;
    bool needed;
} fields[] = {
#define AT(field_) offsetof(struct published, field_)
    {"source_id", AT(source), TEXT, true},
    {"where_in_source", AT(place), TEXT, false},
    {"model_name", AT(model), TEXT, false},
    {"gpu", AT(gpu), TEXT, true},
    {"schedule", AT(schedule), TEXT, false},
    {"recompute", AT(recompute), TEXT, false},
    {"precision", AT(precision), TEXT, false},
    {"flops_definition", AT(definition), TEXT, false},
    {"notes", AT(notes), TEXT, false},
    {"params_b", AT(params_billions), REAL, false},
    {"layers", AT(layers), WHOLE, false},
    {"hidden", AT(hidden), WHOLE, false},
    {"ffn", AT(ffn), WHOLE, false},
    {"heads", AT(heads), WHOLE, false},
    {"kv_heads", AT(kv_heads), WHOLE, false},
    {"vocab", AT(vocab), WHOLE, false},
    {"seq_len", AT(context), WHOLE, false},
    {"moe_experts", AT(experts), WHOLE, false},
    {"moe_topk", AT(top_k), WHOLE, false},
    {"gpu_mem_gb", AT(gpu_memory_gb), REAL, false},
    {"n_gpus", AT(gpus), WHOLE, true},
    {"gpus_per_node", AT(per_node), WHOLE, false},
    {"inter_node_gbps_per_gpu", AT(link_gbits), REAL, false},
    {"tp", AT(tp), WHOLE, false},
    {"sp", AT(sequence_parallel), WHOLE, false},
    {"pp", AT(pp), WHOLE, false},
    {"vpp", AT(vpp), WHOLE, false},
    {"cp", AT(cp), WHOLE, false},
    {"ep", AT(ep), WHOLE, false},
    {"dp", AT(dp), WHOLE, false},
    {"zero_stage", AT(zero), WHOLE, false},
    {"micro_batch", AT(rows), WHOLE, false},
    {"global_batch_seqs", AT(sequences), LARGE, false},
    {"flash_attention", AT(flash), WHOLE, false},
    {"iter_time_s", AT(seconds), REAL, false},
    {"tokens_per_s_per_gpu", AT(tokens_per_second), REAL, false},
    {"tflops_per_gpu", AT(tflops), REAL, false},
    {"mfu_pct", AT(mfu), REAL, false},
    {"hfu_pct", AT(hfu), REAL, false},
    {"peak_mem_gb", AT(memory_gb), REAL, false},
#undef AT
};
enum { FIELDS = sizeof fields / sizeof fields[0] };
static const double largest = 1e15;

static int read_number(const char *cell, double *out) {
    char *end;
    errno = 0;
    *out = strtod(cell, &end);
    while (*end == ' ') end++;
    return *end || end == cell || errno || !isfinite(*out) || *out < 0 || *out > largest ? -1 : 0;
}

static void read_cell(const struct field *field, const char *cell, struct published *row) {
    void *at = (char *)row + field->at;
    while (*cell == ' ') cell++;
    if (field->kind == TEXT) {
        *(const char **)at = cell;
        return;
    }
    double value = field->kind == REAL ? NAN : -1;
    const char *wanted = NULL;
    if (*cell && read_number(cell, &value) != 0) {
        wanted = "a number of 0 or more";
        value = field->kind == REAL ? NAN : -1;
    } else if (field->kind != REAL &&
               (value != floor(value) || (field->kind == WHOLE && value > 1 << 30))) {
        wanted = "a whole number";
        value = -1;
    }
    if (wanted && !row->wrong[0])
        snprintf(row->wrong, sizeof row->wrong, "%s is \"%.30s\"; expected %s", field->column, cell,
                 wanted);
    if (field->kind == REAL)
        *(double *)at = value;
    else if (field->kind == WHOLE)
        *(int *)at = (int)value;
    else
        *(int64_t *)at = (int64_t)value;
}

static int read_rows(const struct csv *csv, const char *name, struct published *rows,
                     struct err *err) {
    int column[FIELDS];
    for (int f = 0; f < FIELDS; f++) {
        column[f] = csv_column(csv, fields[f].column);
        if (column[f] < 0 && fields[f].needed)
            return err_set(err, ERR_DATA,
                           "%s: no column \"%s\"; expected a table of published measurements, see "
                           "docs/validation.md",
                           name, fields[f].column);
    }
    for (int i = 0; i < csv->rows; i++) {
        rows[i].line = csv->line[i];
        for (int f = 0; f < FIELDS; f++)
            read_cell(&fields[f], csv_cell(csv, i, column[f]), &rows[i]);
    }
    return 0;
}

int published_read(const char *text, size_t bytes, const char *name, struct published_table *out,
                   struct err *err) {
    struct published_table table = {.csv = malloc(sizeof *table.csv)};
    if (!table.csv) return err_set(err, ERR_MEMORY, "%s: no memory for its rows", name);
    if (csv_parse(text, bytes, name, table.csv, err) != 0) {
        free(table.csv);
        return -1;
    }
    table.rows = table.csv->rows;
    table.row = calloc((size_t)table.rows + 1, sizeof *table.row);
    int result = table.row ? read_rows(table.csv, name, table.row, err)
                           : err_set(err, ERR_MEMORY, "%s: no memory for its rows", name);
    if (result == 0)
        *out = table;
    else
        published_close(&table);
    return result;
}

void published_close(struct published_table *table) {
    if (table->csv) csv_free(table->csv);
    free(table->csv);
    free(table->row);
    *table = (struct published_table){0};
}
