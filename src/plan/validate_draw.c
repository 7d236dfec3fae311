// A validation as a picture. See validate.h.
#include "plan/validate.h"
#include <math.h>
#include <string.h>

enum { SIDE = 420, LEFT = 64, TOP = 40, WIDTH = 560, HEIGHT = 520, MOST_DOTS = 1500, LEGEND = 12 };
static const char *const colours[] = {"#3366cc", "#dc3912", "#ff9900", "#109618",
                                      "#990099", "#0099c6", "#dd4477", "#66aa00",
                                      "#b82e2e", "#316395", "#994499", "#22aa99"};

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

static int axes(const struct range *range, struct text *out) {
    int bad = text_printf(out,
                          "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"frame\"/>\n"
                          "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" class=\"even\"/>\n",
                          LEFT, TOP, SIDE, SIDE, LEFT, TOP + SIDE, LEFT + SIDE, TOP);
    // 10 % to either side
    double off = log(1.1) / (range->most - range->least) * SIDE;
    for (int sign = -1; sign <= 1; sign += 2)
        bad |= text_printf(
            out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"off\"/>\n",
            LEFT + (sign < 0 ? off : 0), TOP + SIDE - (sign > 0 ? off : 0),
            LEFT + SIDE - (sign > 0 ? off : 0), TOP + (sign < 0 ? off : 0));
    for (int decade = -4; decade <= 5; decade++)
        for (int digit = 1; digit <= 5; digit += digit == 1 ? 1 : 3) {
            double value = digit * pow(10, decade), at = place(range, value);
            bool wide = range->most - range->least > log(100);
            if (at < 0 || at > SIDE || (wide && digit != 1)) continue;
            bad |= text_printf(out,
                               "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n"
                               "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                               LEFT + at, TOP + SIDE + 16, value, LEFT - 6, TOP + SIDE - at + 4,
                               value);
        }
    return bad;
}

static int colour_of(const struct validation *v, const struct validated *r) {
    int s = 0;
    while (s < v->sources && strcmp(v->source[s].name, r->row->source) != 0) s++;
    return s % (int)(sizeof colours / sizeof colours[0]);
}

static int dots(const struct validation *v, const char *source, const struct range *range,
                int every, struct text *out) {
    int bad = 0, n = 0;
    for (int i = 0; i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        if (!drawn(r, source) || n++ % every) continue;
        bad |= text_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\" fill=\"%s\"/>\n",
                           LEFT + place(range, r->measured),
                           TOP + SIDE - place(range, r->predicted), colours[colour_of(v, r)]);
    }
    return bad;
}

static int legend(const struct validation *v, struct text *out) {
    int bad = 0, line = 0;
    for (int s = 0; s < v->sources && line < LEGEND; s++) {
        if (v->source[s].used < 10) continue;
        bad |= text_printf(out,
                           "<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"%s\"/>"
                           "<text x=\"%d\" y=\"%d\">%s</text>\n",
                           LEFT + 12, TOP + 14 + 16 * line,
                           colours[s % (int)(sizeof colours / sizeof colours[0])], LEFT + 22,
                           TOP + 18 + 16 * line, v->source[s].name);
        line++;
    }
    return bad;
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
    int bad = text_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" "
        "font-size=\"11\">\n<style>text{fill:#222}.frame{fill:none;stroke:#888}.even{stroke:#888}"
        ".off{stroke:#888;stroke-dasharray:3 4}circle{fill-opacity:.65}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>\n"
        "<text x=\"%d\" y=\"20\" font-size=\"14\">%s: predicted step over measured, seconds "
        "(%d rows, mean error %.1f %%)</text>\n",
        WIDTH, HEIGHT, LEFT - 40, source ? source : "all sources", count, 100 * sum / count);
    bad |= axes(&range, out);
    bad |= dots(v, source, &range, 1 + count / MOST_DOTS, out);
    if (!source) bad |= legend(v, out);
    bad |= text_printf(out, "<text x=\"%d\" y=\"%d\">measured; dashed: 10 %% off</text>\n</svg>\n",
                       LEFT + SIDE / 2 - 60, TOP + SIDE + 36);
    return bad ? err_set(err, ERR_MEMORY, "no memory for a picture") : 0;
}
