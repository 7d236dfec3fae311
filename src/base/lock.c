// See lock.h.
#include "base/lock.h"
#include "base/clock.h"
#include <errno.h>
#include <sys/file.h>
#include <unistd.h>

enum { AGAIN_MICROSECONDS = 100000 };

int lock_take(int file, double seconds, bool (*wanted)(const void *context), const void *context) {
    double until = clock_seconds() + seconds;
    for (;;) {
        if (flock(file, LOCK_EX | LOCK_NB) == 0) return 1;
        if (errno != EWOULDBLOCK && errno != EINTR) return -1;
        if (clock_seconds() >= until || (wanted && !wanted(context))) return 0;
        usleep(AGAIN_MICROSECONDS);
    }
}
