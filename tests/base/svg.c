// SVG pictures: head, escaping, and that a failure is not lost.
#include "base/svg.h"
#include "test.h"
#include <string.h>

TEST(svg_escapes_and_closes) {
    struct text out = {0};
    struct svg svg = {.out = &out};
    svg_begin(&svg, 40, 30, "a < b & c > d", ".x{fill:red}\n", ".x{fill:blue}\n");
    svg_text(&svg, 1, 2.25, "class=\"title\"", "<&>");
    svg_put(&svg, "<path d=\"M%d %dh%d\"/>\n", 1, 2, 3);
    svg_end(&svg);
    CHECK_EQ_INT(svg.failed, 0);
    CHECK_CONTAINS(out.data, "<title>a &lt; b &amp; c &gt; d</title>");
    CHECK_CONTAINS(out.data, "viewBox=\"0 0 40 30\"");
    CHECK_CONTAINS(out.data, "<text x=\"1.0\" y=\"2.2\" class=\"title\">&lt;&amp;&gt;</text>\n");
    CHECK_CONTAINS(out.data, "M1 2h3");
    // the dark rules stand inside the media query, the light ones before it
    const char *media = strstr(out.data, "@media (prefers-color-scheme:dark){");
    CHECK(media && strstr(out.data, "fill:red") < media && strstr(media, "fill:blue"));
    CHECK_STR(out.data + out.size - 7, "</svg>\n");
    text_free(&out);
}

TEST(svg_remembers_a_failure) {
    char longer[2000];
    struct text out = {0};
    struct svg svg = {.out = &out};
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    svg_put(&svg, "%s", longer); // more than a line may have
    CHECK(svg.failed);
    svg_put(&svg, "fine");
    CHECK(svg.failed);
    text_free(&out);
}
