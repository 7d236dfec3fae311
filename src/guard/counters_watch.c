// A thread that watches the counters of counters.h: files are not opened by the compute thread.
#include "base/log.h"
#include "guard/counters.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct counters_watch {
    struct counters_places places;
    char storage[3][4096]; // of the places
    double seconds;
    struct counters known;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool closing, complained, told_gpu, told_log;
    int worst; // since the last take
    char why[300];
};

static const char *keep(char *storage, const char *path) {
    if (!path) return NULL;
    strncpy(storage, path, 4095);
    return storage;
}

static void tell(bool *told, const char *what, const char *why) {
    if (why[0] && !*told) log_line(LOG_INFO, "%s are not watched on this host: %s", what, why);
    *told = *told || why[0];
}

static void tell_unread(struct counters_watch *w, const struct counters *now) {
    tell(&w->told_gpu, "memory errors of GPUs", now->gpu_unread);
    tell(&w->told_log, "errors of accelerators in the kernel log (XID)", now->log_unread);
}

static void look(struct counters_watch *w) {
    struct counters now;
    struct err err = {0};
    char why[300];
    if (counters_read(&w->places, &now, &err) != 0) {
        if (!w->complained) log_line(LOG_WARN, "counters of this machine: %s", err.text);
        w->complained = true;
        return;
    }
    tell_unread(w, &now);
    int level = counters_compare(&w->known, &now, why);
    counters_learn(&w->known, &now);
    pthread_mutex_lock(&w->lock);
    if (level > w->worst) {
        w->worst = level;
        memcpy(w->why, why, sizeof why);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *watch_main(void *argument) {
    struct counters_watch *w = argument;
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t later = until.tv_nsec + (int64_t)(w->seconds * 1e9);
        until.tv_sec += later / 1000000000;
        until.tv_nsec = later % 1000000000;
        while (!w->closing && pthread_cond_timedwait(&w->wake, &w->lock, &until) == 0) continue;
        if (w->closing) break;
        pthread_mutex_unlock(&w->lock);
        look(w);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int counters_watch_open(struct counters_watch **out, const struct counters_places *places,
                        double seconds, struct err *err) {
    struct counters_watch *w = calloc(1, sizeof *w);
    pthread_condattr_t monotonic;
    if (!w) return err_set(err, ERR_MEMORY, "no memory for the watch of error counters");
    w->seconds = seconds;
    if (places) {
        w->places.edac_folder = keep(w->storage[0], places->edac_folder);
        w->places.nvml_library = keep(w->storage[1], places->nvml_library);
        w->places.kernel_log = keep(w->storage[2], places->kernel_log);
    }
    if (counters_read(&w->places, &w->known, err) != 0) {
        free(w);
        return -1;
    }
    tell_unread(w, &w->known);
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&w->thread, NULL, watch_main, w) != 0) {
        pthread_mutex_destroy(&w->lock);
        pthread_cond_destroy(&w->wake);
        free(w);
        return err_set(err, ERR_MEMORY,
                       "the system gave no thread for the watch of error counters");
    }
    *out = w;
    return 0;
}

void counters_watch_close(struct counters_watch *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
}

int counters_watch_take(struct counters_watch *w, char why[300]) {
    pthread_mutex_lock(&w->lock);
    int worst = w->worst;
    memcpy(why, w->why, sizeof w->why);
    w->worst = 0;
    w->why[0] = 0;
    pthread_mutex_unlock(&w->lock);
    return worst;
}
