// A counter with a condition variable. The order "count, then look for a sleeper" here and "say
// that one sleeps, then look at the count" there makes sure that no ring is lost.
#include "comm/transport.h"
#include <math.h>
#include <time.h>

void doorbell_open(struct doorbell *bell) {
    pthread_mutex_init(&bell->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&bell->cond, &attributes);
    pthread_condattr_destroy(&attributes);
    atomic_init(&bell->rings, 0);
    atomic_init(&bell->asleep, false);
}

void doorbell_close(struct doorbell *bell) {
    pthread_cond_destroy(&bell->cond);
    pthread_mutex_destroy(&bell->lock);
}

void doorbell_ring(struct doorbell *bell) {
    atomic_fetch_add(&bell->rings, 1);
    if (!atomic_load(&bell->asleep)) return;
    pthread_mutex_lock(&bell->lock);
    pthread_cond_signal(&bell->cond);
    pthread_mutex_unlock(&bell->lock);
}

uint64_t doorbell_wait(struct doorbell *bell, uint64_t seen, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    seconds = fmin(fmax(seconds, 0), 1e6);
    int64_t ns = (int64_t)until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&bell->lock);
    atomic_store(&bell->asleep, true);
    while (atomic_load(&bell->rings) == seen)
        if (pthread_cond_timedwait(&bell->cond, &bell->lock, &until) != 0) break;
    atomic_store(&bell->asleep, false);
    pthread_mutex_unlock(&bell->lock);
    return atomic_load(&bell->rings);
}
