// Series, ranges and ticks, and reading them from a run's journal. Drawing is in plot_terminal.c
// and plot_svg.c. See plot.h.
#include "observe/plot.h"
#include "base/json.h"
#include "observe/plot_parts.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int plot_series_put(struct plot_series *s, double x, double y) {
    if (!isfinite(x) || !isfinite(y)) return 0;
    if (s->count == s->capacity) {
        int capacity = s->capacity ? s->capacity * 2 : 256;
        double *more_x = realloc(s->x, (size_t)capacity * sizeof *more_x);
        if (more_x) s->x = more_x;
        double *more_y = realloc(s->y, (size_t)capacity * sizeof *more_y);
        if (more_y) s->y = more_y;
        if (!more_x || !more_y) return -1;
        s->capacity = capacity;
    }
    s->x[s->count] = x;
    s->y[s->count++] = y;
    return 0;
}

void plot_series_free(struct plot_series *s) {
    free(s->x);
    free(s->y);
    *s = (struct plot_series){0};
}

void plot_ticks(double least, double most, int wanted, double *first, double *step) {
    double rough = (most - least) / (wanted > 0 ? wanted : 1);
    double power = pow(10, floor(log10(rough)));
    double share = rough / power;
    *step = (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10) * power;
    *first = ceil(least / *step - 1e-9) * *step;
}

static void widen(const struct plot_series *s, struct plot_range *r) {
    for (int i = 0; i < s->count; i++) {
        r->x_least = fmin(r->x_least, s->x[i]);
        r->x_most = fmax(r->x_most, s->x[i]);
        r->y_least = fmin(r->y_least, s->y[i]);
        r->y_most = fmax(r->y_most, s->y[i]);
    }
}

int plot_range_of(const struct plot *plot, struct plot_range *r, struct err *err) {
    *r = (struct plot_range){INFINITY, -INFINITY, INFINITY, -INFINITY};
    widen(&plot->main, r);
    widen(&plot->marks, r);
    if (!(r->x_least <= r->x_most))
        return err_set(err, ERR_DATA, "%s: no point to draw", plot->title);
    if (r->x_least == r->x_most) r->x_most += 1;
    double margin = 0.04 * (r->y_most - r->y_least);
    if (margin == 0) margin = fabs(r->y_most) > 0 ? 0.1 * fabs(r->y_most) : 1;
    r->y_least -= margin;
    r->y_most += margin;
    return 0;
}

// Means of equal stretches of x; a stretch without a point is left out.
static int thin(const struct plot_series *from, int most, struct plot_series *to) {
    if (from->count == 0) return 0;
    double least = from->x[0], width = (from->x[from->count - 1] - least) / most;
    for (int i = 0; i < from->count;) {
        double x = 0, y = 0;
        int begin = i, place = width > 0 ? (int)((from->x[i] - least) / width) : 0;
        while (i < from->count &&
               (i == begin || (width > 0 && (int)((from->x[i] - least) / width) == place))) {
            x += from->x[i];
            y += from->y[i++];
        }
        if (plot_series_put(to, x / (i - begin), y / (i - begin)) != 0) return -1;
    }
    return 0;
}

int plot_thin(const struct plot_series *from, int most, struct plot_series *to) {
    to->name = from->name;
    if (from->count > most) return thin(from, most, to);
    for (int i = 0; i < from->count; i++)
        if (plot_series_put(to, from->x[i], from->y[i]) != 0) return -1;
    return 0;
}

// Mean over a window around each point that grows from one point at the beginning (where a loss
// falls steeply) to a fiftieth of the series.
int plot_smooth(const struct plot_series *from, struct plot_series *to) {
    to->name = from->name;
    int half = from->count / 100, begin = 0, end = 0; // the window is [begin, end)
    double sum = 0;
    for (int i = 0; i < from->count; i++) {
        int reach = i / 8 < half ? i / 8 : half;
        while (end < from->count && end <= i + reach) sum += from->y[end++];
        while (begin < i - reach) sum -= from->y[begin++];
        if (plot_series_put(to, from->x[i], sum / (end - begin)) != 0) return -1;
    }
    return 0;
}

static int put_line(struct plot *plot, json_t *line, const char *key) {
    const json_t *step = json_object_get(line, "step"), *value = json_object_get(line, key);
    const json_t *event = json_object_get(line, "event");
    if (!json_is_number(step) || !json_is_number(value)) return 0;
    bool evaluation = json_is_string(event) && strcmp(json_string_value(event), "evaluation") == 0;
    if (event && !evaluation) return 0;
    return plot_series_put(evaluation ? &plot->marks : &plot->main, json_number_value(step),
                           json_number_value(value));
}

int plot_read(struct plot *plot, const char *text, size_t bytes, const char *path, const char *key,
              struct err *err) {
    size_t at = 0;
    for (int number = 1; at < bytes; number++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        if (!end) break;
        size_t length = (size_t)(end - (text + at));
        json_t *line = json_parse(text + at, length, path, err);
        if (!line) return err_context(err, "line %d", number);
        int result = put_line(plot, line, key);
        json_decref(line);
        if (result != 0) return err_set(err, ERR_MEMORY, "no memory for the curve");
        at += length + 1;
    }
    if (plot->main.count + plot->marks.count == 0)
        return err_set(err, ERR_DATA, "%s: no line has a number \"%s\"", path, key);
    return 0;
}
