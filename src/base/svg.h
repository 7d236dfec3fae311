// What all pictures of the program share: an SVG's head with a style that follows the reader's
// light or dark setting, and escaped text. No scripts, no fonts of its own.
#pragma once
#include "base/text.h"

struct svg {
    struct text *out;
    int failed; // of any call so far; look once at the end
};
// Opens the picture. Styled already: text, .title, .grid (lines). `light` and `dark` are further
// rules of the two settings; either may be "".
void svg_begin(struct svg *svg, int width, int height, const char *title, const char *light,
               const char *dark);
void svg_end(struct svg *svg);
void svg_put(struct svg *svg, const char *format, ...) __attribute__((format(printf, 2, 3)));
void svg_escaped(struct svg *svg, const char *text);
// A <text> at (x, y); `attributes` such as "class=\"title\" text-anchor=\"end\"".
void svg_text(struct svg *svg, double x, double y, const char *attributes, const char *text);
