// The two chapters that the project began from, number by number: what they say, what this program
// computes, and where the two differ, why. The rows make docs/chapter-check.md; a test holds the
// page to them, and each verdict to its two figures.
#pragma once
#include "base/text.h"

enum chapter_verdict {
    SAME,         // within 0.1 %
    ROUNDED,      // within 5 %: the chapter gives fewer digits
    WRONG,        // further off, or not what it says that it is
    CONVENTION,   // both right, counted differently; the reason says how
    UNATTAINABLE, // no value of the kind that the chapter asks for exists
    MEASURE,      // a measurement: the command that makes it
    JUDGEMENT     // a plan, a choice or a procedure: where this program makes it
};

struct chapter_page {
    struct text text;
    int rows, count[JUDGEMENT + 1];
};

void chapter_part(struct chapter_page *page, const char *title);
void chapter_put(struct chapter_page *page, const char *place, const char *what, double chapter,
                 double ours, const char *unit, const char *call, enum chapter_verdict verdict,
                 const char *reason);
// A row without figures of ours: MEASURE, JUDGEMENT, UNATTAINABLE. `call` is a command or function.
void chapter_say(struct chapter_page *page, const char *place, const char *what,
                 const char *chapter, const char *call, enum chapter_verdict verdict,
                 const char *reason);

// place, what, the chapter's value, the expression that computes ours (printed as it stands), unit,
// verdict, reason ("" for SAME and ROUNDED).
#define ROW(place, what, chapter, ours, unit, verdict, reason)                                     \
    chapter_put(page, place, what, chapter, ours, unit, #ours, verdict, reason)

// One function per part of a chapter, in its own file.
void rows_accelerators(struct chapter_page *page); // Chapter 6, 6.1: hardware
void rows_paradigms(struct chapter_page *page);    // 6.2 to 6.4 and its exercises
void rows_stack(struct chapter_page *page);        // Chapter 10, 10.1 and 10.2
void rows_memory(struct chapter_page *page);       // 10.3 and 10.4
void rows_reliability(struct chapter_page *page);  // 10.5 and 10.6
void rows_operation(struct chapter_page *page);    // 10.7 to 10.9: RLHF, MFU, cookbook
void rows_example(struct chapter_page *page);      // the worked example and the reference tables
void rows_questions(struct chapter_page *page);    // takeaways and review questions
