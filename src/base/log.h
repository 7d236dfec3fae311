// Lines for the operator. Nothing below `cli/` prints to stdout; it reports here, and `cli/`
// decides where a line goes (standard error unless set otherwise).
#pragma once

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_NONE }; // LOG_NONE: as `least` only

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
// `sink` NULL restores standard error. Lines below `least` are dropped.
void log_to(void (*sink)(enum log_level level, const char *line, void *context), void *context,
            enum log_level least);
