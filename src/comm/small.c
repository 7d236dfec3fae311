// Blocking sums of a few values: everybody gets everybody's, and adds them in group order.
#include "comm/internal.h"
#include <string.h>

// Gathers `count` <= SMALL_VALUES values of eight bytes into s->small; those of member i begin at
// i * count. False in a world that has failed.
static bool gather(struct comm_stream *s, const void *values, int count) {
    uint64_t *own = s->small + (size_t)s->count * SMALL_VALUES;
    memcpy(own, values, (size_t)count * 8);
    struct comm_event event = comm_all_gather(s, own, s->small, (uint64_t)count * 8);
    comm_wait(event, s->lane);
    return !atomic_load(&s->comm->failed);
}

static int next_count(int left) {
    return left < SMALL_VALUES ? left : SMALL_VALUES;
}

void comm_sum_integers(struct comm_stream *s, int64_t *values, int count) {
    for (int at = 0, n; at < count; at += n) {
        n = next_count(count - at);
        if (!gather(s, values + at, n)) return;
        const int64_t *all = (const void *)s->small;
        for (int i = 0; i < n; i++) {
            uint64_t sum = 0; // wraps around instead of trapping
            for (int m = 0; m < s->count; m++) sum += (uint64_t)all[m * n + i];
            values[at + i] = (int64_t)sum;
        }
    }
}

void comm_max_integers(struct comm_stream *s, int64_t *values, int count) {
    for (int at = 0, n; at < count; at += n) {
        n = next_count(count - at);
        if (!gather(s, values + at, n)) return;
        const int64_t *all = (const void *)s->small;
        for (int i = 0; i < n; i++)
            for (int m = 0; m < s->count; m++)
                if (all[m * n + i] > values[at + i]) values[at + i] = all[m * n + i];
    }
}

void comm_sum_doubles(struct comm_stream *s, double *values, int count) {
    for (int at = 0, n; at < count; at += n) {
        n = next_count(count - at);
        if (!gather(s, values + at, n)) return;
        const double *all = (const void *)s->small;
        for (int i = 0; i < n; i++) {
            double sum = all[i];
            for (int m = 1; m < s->count; m++) sum += all[m * n + i];
            values[at + i] = sum;
        }
    }
}
