// See svg.h.
#include "base/svg.h"
#include <stdarg.h>
#include <stdio.h>

void svg_put(struct svg *svg, const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= sizeof line)
        svg->failed = -1;
    else
        svg->failed |= text_put(svg->out, line, (size_t)length);
}

void svg_escaped(struct svg *svg, const char *text) {
    for (; *text; text++) {
        const char *entity = *text == '<'   ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '&' ? "&amp;"
                                            : NULL;
        svg->failed |= entity ? text_puts(svg->out, entity) : text_put(svg->out, text, 1);
    }
}

void svg_text(struct svg *svg, double x, double y, const char *attributes, const char *text) {
    svg_put(svg, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    svg_escaped(svg, text);
    svg_put(svg, "</text>\n");
}

void svg_begin(struct svg *svg, int width, int height, const char *title, const char *light,
               const char *dark) {
    svg_put(svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" role=\"img\">\n<title>",
            width, height, width, height);
    svg_escaped(svg, title);
    svg_put(svg, "</title>\n<style>\nsvg{background:#fff}\n"
                 "text{font:13px system-ui,-apple-system,\"Segoe UI\",Helvetica,Arial,sans-serif;"
                 "fill:#57606a}\n"
                 ".title{font-size:16px;font-weight:600;fill:#1f2328}\n"
                 ".grid{stroke:#d8dee4;stroke-width:1}\n");
    svg->failed |= text_puts(svg->out, light);
    svg_put(svg, "@media (prefers-color-scheme:dark){\n"
                 "svg{background:#0d1117}\ntext{fill:#9198a1}\n.title{fill:#f0f6fc}\n"
                 ".grid{stroke:#30363d}\n");
    svg->failed |= text_puts(svg->out, dark);
    svg_put(svg, "}\n</style>\n");
}

void svg_end(struct svg *svg) {
    svg_put(svg, "</svg>\n");
}
