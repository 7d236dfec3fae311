// A validation as a picture. See validate.h.
#include "base/svg.h"
#include "plan/validate.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SIDE = 420, LEFT = 64, TOP = 40, WIDTH = 560, HEIGHT = 520, MOST_DOTS = 1500, LEGEND = 20 };
static const char *const colours[] = {"#3366cc", "#dc3912", "#ff9900", "#109618", "#990099",
                                      "#0099c6", "#dd4477", "#66aa00", "#b82e2e", "#316395",
                                      "#994499", "#22aa99", "#aaaa11", "#6633cc"};

enum { COLOURS = sizeof colours / sizeof colours[0] };

static bool drawn(const struct validated *r, const char *source) {
    return r->verdict == VALIDATE_USED && r->measured > 0 && r->predicted > 0 &&
           (!source || strcmp(r->row->source, source) == 0);
}

struct range {
    double least, most; // logarithms
};
static double place(const struct range *range, double seconds) {
    return (log(seconds) - range->least) / (range->most - range->least) * SIDE;
}

static void axes(struct svg *svg, const struct range *range) {
    svg_put(svg, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"frame\"/>\n", LEFT,
            TOP, SIDE, SIDE);
    svg_put(svg, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" class=\"even\"/>\n", LEFT,
            TOP + SIDE, LEFT + SIDE, TOP);
    double off = log(1.1) / (range->most - range->least) * SIDE; // 10 % to either side
    for (int sign = -1; sign <= 1; sign += 2)
        svg_put(svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"off\"/>\n",
                LEFT + (sign < 0 ? off : 0), TOP + SIDE - (sign > 0 ? off : 0),
                LEFT + SIDE - (sign > 0 ? off : 0), TOP + (sign < 0 ? off : 0));
    bool wide = range->most - range->least > log(100);
    for (int decade = -4; decade <= 5; decade++)
        for (int digit = 1; digit <= 5; digit += digit == 1 ? 1 : 3) {
            double value = digit * pow(10, decade), at = place(range, value);
            char text[32];
            if (at < 0 || at > SIDE || (wide && digit != 1)) continue;
            snprintf(text, sizeof text, "%g", value);
            svg_text(svg, LEFT + at, TOP + SIDE + 16, "text-anchor=\"middle\"", text);
            svg_text(svg, LEFT - 6, TOP + SIDE - at + 4, "text-anchor=\"end\"", text);
        }
}

// Sources that count have colours in their order, others are grey.
static const char *colour_of(const struct validation *v, const char *source) {
    int place = 0;
    for (int s = 0; s < v->sources; s++) {
        bool counts = v->source[s].used >= 10;
        if (strcmp(v->source[s].name, source) == 0)
            return counts ? colours[place % COLOURS] : "#888888";
        place += counts;
    }
    return "#888888";
}

static void dots(struct svg *svg, const struct validation *v, const char *source,
                 const struct range *range, int every) {
    int n = 0;
    for (int i = 0; i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        if (!drawn(r, source) || n++ % every) continue;
        svg_put(svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\" fill=\"%s\"/>\n",
                LEFT + place(range, r->measured), TOP + SIDE - place(range, r->predicted),
                colour_of(v, r->row->source));
    }
}

static void legend(struct svg *svg, const struct validation *v) {
    int line = 0;
    for (int s = 0; s < v->sources && line < LEGEND; s++) {
        if (v->source[s].used < 10) continue;
        svg_put(svg, "<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"%s\"/>\n", LEFT + 12,
                TOP + 14 + 16 * line, colour_of(v, v->source[s].name));
        svg_text(svg, LEFT + 22, TOP + 18 + 16 * line, "", v->source[s].name);
        line++;
    }
}

int validation_svg(const struct validation *v, const char *source, struct text *out,
                   struct err *err) {
    struct range range = {INFINITY, -INFINITY};
    int count = 0;
    double sum = 0;
    for (int i = 0; i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        if (!drawn(r, source)) continue;
        range.least = fmin(range.least, log(fmin(r->measured, r->predicted)));
        range.most = fmax(range.most, log(fmax(r->measured, r->predicted)));
        sum += fabs(r->error);
        count++;
    }
    if (!count) return err_set(err, ERR_DATA, "no row of %s can be drawn", source ? source : "all");
    range.least -= 0.15, range.most += 0.15;
    char title[160];
    snprintf(title, sizeof title, "%.40s: step time, %d rows, mean error %.1f %%",
             source ? source : "all sources", count, 100 * sum / count);
    struct svg svg = {.out = out};
    svg_begin(
        &svg, WIDTH, HEIGHT, title,
        ".frame{fill:none;stroke:#888}.even{stroke:#888}.off{stroke:#888;stroke-dasharray:3 4}"
        "circle{fill-opacity:.65}",
        "");
    svg_text(&svg, LEFT - 30, TOP - 14, "class=\"title\"", title);
    axes(&svg, &range);
    dots(&svg, v, source, &range, 1 + count / MOST_DOTS);
    if (!source) legend(&svg, v);
    svg_text(&svg, LEFT + SIDE / 2.0, TOP + SIDE + 36, "text-anchor=\"middle\"",
             "measured, seconds; upwards: predicted; dashed: 10 % off");
    svg_end(&svg);
    return svg.failed ? err_set(err, ERR_MEMORY, "no memory for a picture") : 0;
}
