// Reads comma-separated values. See validate_csv.h.
#include "plan/validate_csv.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    char *at, *end, *put; // cells are written back over the text that they come from
    const char *name;
    int line;
    struct csv *csv;
    int cells, capacity, row_capacity;
};

static int put_cell(struct reader *r, char *cell, struct err *err) {
    struct csv *csv = r->csv;
    if (r->cells == r->capacity) {
        int capacity = r->capacity ? 2 * r->capacity : 256;
        char **grown = realloc(csv->cell, (size_t)capacity * sizeof *grown);
        if (!grown) return err_set(err, ERR_MEMORY, "%s: no memory for its cells", r->name);
        csv->cell = grown;
        r->capacity = capacity;
    }
    csv->cell[r->cells++] = cell;
    return 0;
}

static int quoted(struct reader *r, struct err *err) {
    int begin = r->line;
    for (r->at++; r->at < r->end; r->at++) {
        if (*r->at == '"' && r->at + 1 < r->end && r->at[1] == '"')
            r->at++;
        else if (*r->at == '"') {
            r->at++;
            if (r->at == r->end || *r->at == ',' || *r->at == '\n' || *r->at == '\r') return 0;
            return err_set(err, ERR_DATA,
                           "%s, line %d: expected a comma behind the closing quote; a quote inside "
                           "a quoted cell is written twice",
                           r->name, r->line);
        }
        r->line += *r->at == '\n';
        *r->put++ = *r->at;
    }
    return err_set(err, ERR_DATA, "%s, line %d: the quote that begins here does not end", r->name,
                   begin);
}

// One cell; returns the character that ends it (',' or '\n'), or -1.
static int read_cell(struct reader *r, struct err *err) {
    char *begin = r->put;
    if (r->at < r->end && *r->at == '"') {
        if (quoted(r, err) != 0) return -1;
    } else {
        while (r->at < r->end && *r->at != ',' && *r->at != '\n' && *r->at != '\r')
            *r->put++ = *r->at++;
    }
    if (r->at < r->end && *r->at == '\r') r->at++;
    int ends = r->at < r->end && *r->at == ',' ? ',' : '\n';
    if (r->at < r->end && ends == '\n' && *r->at != '\n')
        return err_set(err, ERR_DATA, "%s, line %d: a carriage return inside a line", r->name,
                       r->line);
    r->at++;
    *r->put++ = 0;
    if (put_cell(r, begin, err) != 0) return -1;
    return ends;
}

static int put_row(struct reader *r, int line, int first, struct err *err) {
    struct csv *csv = r->csv;
    int found = r->cells - first;
    if (found != csv->columns)
        return err_set(err, ERR_DATA, "%s, line %d: expected %d cells as in the header, found %d",
                       r->name, line, csv->columns, found);
    if (csv->rows == r->row_capacity) {
        int capacity = r->row_capacity ? 2 * r->row_capacity : 64;
        int *grown = realloc(csv->line, (size_t)capacity * sizeof *grown);
        if (!grown) return err_set(err, ERR_MEMORY, "%s: no memory for its rows", r->name);
        csv->line = grown;
        r->row_capacity = capacity;
    }
    csv->line[csv->rows++] = line;
    return 0;
}

static int take_header(struct reader *r, struct err *err) {
    struct csv *csv = r->csv;
    csv->columns = r->cells;
    csv->name = malloc((size_t)r->cells * sizeof *csv->name);
    if (!csv->name) return err_set(err, ERR_MEMORY, "%s: no memory for its header", r->name);
    memcpy(csv->name, csv->cell, (size_t)r->cells * sizeof *csv->name);
    r->cells = 0;
    for (int i = 0; i < csv->columns; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(csv->name[i], csv->name[j]) == 0)
                return err_set(err, ERR_DATA, "%s, line 1: the column \"%s\" stands twice", r->name,
                               csv->name[i]);
    return 0;
}

static int read_rows(struct reader *r, struct err *err) {
    while (r->at < r->end) {
        int line = r->line, first = r->cells, ends;
        do {
            ends = read_cell(r, err);
            if (ends < 0) return -1;
        } while (ends == ',');
        r->line++;
        bool empty = r->cells - first == 1 && !r->csv->cell[first][0];
        if (empty && r->csv->columns != 1)
            r->cells = first;
        else if (!r->csv->columns) {
            if (take_header(r, err) != 0) return -1;
        } else if (put_row(r, line, first, err) != 0)
            return -1;
    }
    if (!r->csv->columns)
        return err_set(err, ERR_DATA, "%s: expected a header line with the names of the columns",
                       r->name);
    return 0;
}

int csv_parse(const char *text, size_t bytes, const char *name, struct csv *out, struct err *err) {
    struct csv csv = {0};
    if (memchr(text, 0, bytes))
        return err_set(err, ERR_DATA, "%s: expected text, found a zero byte", name);
    csv.text = malloc(bytes + 2); // a last cell without a line end gets its NUL
    if (!csv.text) return err_set(err, ERR_MEMORY, "%s: no memory for %zu bytes", name, bytes);
    memcpy(csv.text, text, bytes);
    struct reader r = {.at = csv.text,
                       .end = csv.text + bytes,
                       .put = csv.text,
                       .name = name,
                       .line = 1,
                       .csv = &csv};
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) r.at += 3;
    if (read_rows(&r, err) != 0) {
        csv_free(&csv);
        return -1;
    }
    *out = csv;
    return 0;
}

void csv_free(struct csv *csv) {
    free(csv->text);
    free(csv->cell);
    free(csv->line);
    free(csv->name);
    *csv = (struct csv){0};
}

int csv_column(const struct csv *csv, const char *name) {
    size_t length = strlen(name);
    for (int i = 0; i < csv->columns; i++)
        if (strncmp(csv->name[i], name, length) == 0 &&
            (csv->name[i][length] == 0 || csv->name[i][length] == '('))
            return i;
    return -1;
}
