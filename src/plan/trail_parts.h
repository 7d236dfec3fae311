// What the files of the trail share.
#pragma once
#include "plan/trail.h"

void trail_say(struct trail *out, enum trail_kind kind, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int trail_choices(const struct trail_subject *subject, struct trail *out, struct err *err);
void trail_traps(const struct trail_subject *subject, struct trail *out);
void trail_chapters(const struct trail_subject *subject, struct trail *out);
