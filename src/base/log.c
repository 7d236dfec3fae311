// Where lines for the operator go, see log.h. One line at a time: threads wait for each other.
#include "base/log.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void (*log_sink)(enum log_level level, const char *line, void *context);
static void *log_context;
static enum log_level log_least = LOG_INFO;

void log_line(enum log_level level, const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    if (level >= log_least) {
        if (log_sink)
            log_sink(level, line, log_context);
        else
            fprintf(stderr, "%s%s\n", level == LOG_WARN ? "warning: " : "", line);
    }
    pthread_mutex_unlock(&lock);
}

void log_to(void (*sink)(enum log_level level, const char *line, void *context), void *context,
            enum log_level least) {
    pthread_mutex_lock(&lock);
    log_sink = sink;
    log_context = context;
    log_least = least;
    pthread_mutex_unlock(&lock);
}
