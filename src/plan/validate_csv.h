// A table of comma-separated values as text cells: quoted fields with commas, line ends and doubled
// quotes in them, a header line, lines of any end.
#pragma once
#include "base/error.h"
#include <stddef.h>

struct csv {
    char *text;  // cells point into it
    char **cell; // [rows x columns], without the header; never NULL
    int *line;   // [rows] first line of the row in the file, from 1
    char **name; // [columns] of the header
    int rows, columns;
};
// `name` is the file for messages. A row with more or fewer cells than the header, a quote that
// does not end and a header that names a column twice are errors with their line. Empty lines are
// left out.
int csv_parse(const char *text, size_t bytes, const char *name, struct csv *out, struct err *err);
void csv_free(struct csv *csv);
// The column of this name, or whose name goes on behind it with "(" ("sp" finds "sp(0/1)"); -1.
int csv_column(const struct csv *csv, const char *name);
static inline const char *csv_cell(const struct csv *csv, int row, int column) {
    return column < 0 ? "" : csv->cell[(size_t)row * (size_t)csv->columns + (size_t)column];
}
