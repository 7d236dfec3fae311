// Messages of failures, see error.h.
#include "base/error.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// The header wraps them in macros of the same names.
#undef err_set
#undef err_set_errno
#undef err_context

int err_set(struct err *err, enum err_kind kind, const char *format, ...) {
    if (!err || err->kind != ERR_NONE) return -1;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(err->text, sizeof err->text, format, arguments);
    va_end(arguments);
    err->kind = kind;
    return -1;
}

int err_set_errno(struct err *err, const char *format, ...) {
    int number = errno; // before anything below can change it
    if (!err || err->kind != ERR_NONE) return -1;
    char reason[128], text[sizeof err->text - sizeof reason];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *known = strerror_r(number, reason, sizeof reason);
    snprintf(err->text, sizeof err->text, "%s: %.100s", text, known);
    err->kind = ERR_IO;
    return -1;
}

int err_context(struct err *err, const char *format, ...) {
    if (!err) return -1;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(err->text, sizeof err->text, format, arguments);
    va_end(arguments);
    if (length < 0) length = 0;
    size_t at = (size_t)length < sizeof err->text ? (size_t)length : sizeof err->text - 1;
    snprintf(err->text + at, sizeof err->text - at, ": %s", old);
    return -1;
}

int err_exit_status(const struct err *err) {
    switch (err->kind) {
    case ERR_NONE:
        return 0;
    case ERR_USAGE:
        return 2;
    case ERR_DATA:
        return 3;
    case ERR_IO:
        return 4;
    case ERR_MEMORY:
        return 5;
    case ERR_INTERRUPT:
        return 130;
    case ERR_RETRY:
        return 75;
    case ERR_BAD_HOST:
        return 76;
    case ERR_INTERNAL:
        return 70;
    }
    return 70;
}
