// See chapter.h.
#include "chapter.h"
#include "base/file.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const verdict_names[] = {
    "same", "rounded", "wrong", "other convention", "unattainable", "measured", "judgement"};

static void number(char out[48], double value, const char *unit) {
    if (strcmp(unit, "%") == 0)
        snprintf(out, 48, "%.4g %%", 100 * value);
    else
        snprintf(out, 48, "%.5g%s%s", value, *unit ? " " : "", unit);
}

static void check_verdict(const char *place, const char *what, double chapter, double ours,
                          enum chapter_verdict verdict, const char *reason) {
    double off = fabs(ours - chapter) / fmax(fabs(chapter), 1e-300);
    bool holds = verdict == SAME      ? off <= 0.001
                 : verdict == ROUNDED ? off <= 0.05
                 : verdict == WRONG   ? off > 0.01
                                      : true;
    if (!isfinite(ours) || !holds)
        test_fail(__FILE__, __LINE__, "%s, %s: the chapter's %g and our %g are not \"%s\"", place,
                  what, chapter, ours, verdict_names[verdict]);
    if (verdict >= WRONG && !*reason)
        test_fail(__FILE__, __LINE__, "%s, %s: %s without a reason", place, what,
                  verdict_names[verdict]);
}

static void cells(struct chapter_page *page, const char *place, const char *what,
                  const char *chapter, const char *ours, const char *call,
                  enum chapter_verdict verdict, const char *reason) {
    page->rows++;
    page->count[verdict]++;
    text_printf(&page->text, "| %s | %s | %s | %s | %s | %s | `%s` |\n", place, what, chapter, ours,
                verdict_names[verdict], reason, call);
}

void chapter_part(struct chapter_page *page, const char *title) {
    text_printf(&page->text,
                "\n## %s\n\n| place | what | chapter | ours | verdict | why | computed by |\n"
                "| --- | --- | --- | --- | --- | --- | --- |\n",
                title);
}

void chapter_put(struct chapter_page *page, const char *place, const char *what, double chapter,
                 double ours, const char *unit, const char *call, enum chapter_verdict verdict,
                 const char *reason) {
    char a[48], b[48];
    check_verdict(place, what, chapter, ours, verdict, reason);
    number(a, chapter, unit);
    number(b, ours, unit);
    cells(page, place, what, a, b, call, verdict, reason);
}

void chapter_say(struct chapter_page *page, const char *place, const char *what,
                 const char *chapter, const char *call, enum chapter_verdict verdict,
                 const char *reason) {
    if (verdict < UNATTAINABLE)
        test_fail(__FILE__, __LINE__, "%s, %s: \"%s\" needs two figures", place, what,
                  verdict_names[verdict]);
    if (!*reason) test_fail(__FILE__, __LINE__, "%s, %s: nothing is said", place, what);
    cells(page, place, what, chapter, "", call, verdict, reason);
}

static const char head[] =
    "# The chapters, number by number\n\n"
    "weft began from two chapters on training at scale: one on infrastructure (6 of its book), one "
    "on training systems\n(10 of its). This page sets every figure, formula, exercise and review "
    "question of them beside what the program\ncomputes. `tests/chapter/` holds the rows, computes "
    "them and fails when a verdict does not hold; `make chapter-check`\nwrites this page.\n\n"
    "*same*: within 0.1 %. *rounded*: within 5 %. *wrong*: further off, or not what it is said to "
    "be. *other convention*: both\nhold, counted differently. *unattainable*: no such value "
    "exists. "
    "*measured*: the command that measures it. *judgement*:\na choice, and what makes it here.\n";

static void make(struct chapter_page *page) {
    text_puts(&page->text, head);
    chapter_part(page, "Chapter 6.1: hardware");
    rows_accelerators(page);
    chapter_part(page, "Chapter 6.2 to 6.4, and its exercises");
    rows_paradigms(page);
    chapter_part(page, "Chapter 10.1 and 10.2: the stack, and four dimensions of parallelism");
    rows_stack(page);
    chapter_part(page, "Chapter 10.3 and 10.4: ZeRO, and overlap");
    rows_memory(page);
    chapter_part(page, "Chapter 10.5 and 10.6: faults, and techniques");
    rows_reliability(page);
    chapter_part(page, "Chapter 10.7 to 10.9: RLHF, MFU, and the cookbook");
    rows_operation(page);
    chapter_part(page, "Chapter 10: worked example and reference tables");
    rows_example(page);
    chapter_part(page, "Chapter 10: takeaways and review questions");
    rows_questions(page);
    text_printf(&page->text, "\n%d rows:", page->rows);
    for (int v = 0; v <= JUDGEMENT; v++)
        text_printf(&page->text, " %d %s%s", page->count[v], verdict_names[v],
                    v < JUDGEMENT ? "," : ".\n");
}

TEST(chapter_page_is_what_the_program_computes) {
    struct chapter_page page = {0};
    struct err err = {0};
    char *stored;
    size_t bytes;
    make(&page);
    const char *to = getenv("WEFT_CHAPTER_PAGE");
    if (to) CHECK_OK(file_replace(to, page.text.data, page.text.size, &err), err);
    CHECK_OK(file_read(WEFT_SOURCE_DIR "/docs/chapter-check.md", 1 << 20, &stored, &bytes, &err),
             err);
    if (bytes != page.text.size || memcmp(stored, page.text.data, bytes) != 0)
        test_fail(
            __FILE__, __LINE__,
            "docs/chapter-check.md is not what the rows make; `make chapter-check` writes it");
    CHECK(page.rows >= 200);
    CHECK(page.count[WRONG] > 0 && page.count[SAME] > 0);
    free(stored);
    text_free(&page.text);
}
