// The saver's thread, and what ranks agree on. What the thread does stands in saver_work.c. See
// saver.h.
#include "base/clock.h"
#include "checkpoint/saver_parts.h"
#include "checkpoint/together.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static void carry_out(struct saver *s, enum saver_job job) {
    static int (*const work[])(struct saver *, struct err *) = {
        [SAVER_WRITE] = saver_write, [SAVER_PUBLISH] = saver_publish, [SAVER_DROP] = saver_drop};
    struct err err = {0};
    int result = work[job](s, &err);
    pthread_mutex_lock(&s->lock);
    s->job = SAVER_NO_JOB;
    s->why = err;
    // One that gave up because of another's failure is not the one to be named.
    s->failed = result != 0 && !s->stop;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *serve(void *argument) {
    enum { NICE = 19 }; // after whatever computes
    struct saver *s = argument;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->job == SAVER_NO_JOB && !s->leave) pthread_cond_wait(&s->changed, &s->lock);
        enum saver_job job = s->job;
        if (job == SAVER_NO_JOB) break;
        pthread_mutex_unlock(&s->lock);
        carry_out(s, job);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int saver_open(struct saver **out, const struct saver_options *options, struct err *err) {
    struct saver *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, ERR_MEMORY, "no memory for saving behind the run");
    s->options = *options;
    s->kept = calloc((size_t)options->keep_step_count + 1, sizeof *s->kept);
    if (!s->kept) {
        free(s);
        return err_set(err, ERR_MEMORY, "no memory for the steps that stay");
    }
    if (options->keep_step_count > 0)
        memcpy(s->kept, options->keep_steps, (size_t)options->keep_step_count * sizeof *s->kept);
    s->generation = -1;
    s->pinned = s->step = -1;
    snprintf(s->folder, sizeof s->folder, "%s", options->folder);
    snprintf(s->from, sizeof s->from, "%s", options->from ? options->from : "");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&s->thread, NULL, serve, s) != 0) {
        free(s->kept);
        free(s);
        return err_set(err, ERR_MEMORY, "no thread for saving could be started");
    }
    *out = s;
    return 0;
}

void saver_close(struct saver *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->leave = true;
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    if (s->generation >= 0) snapshot_release(s->options.snapshot, s->generation);
    json_decref(s->tree);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s->kept);
    free(s);
}

static void start(struct saver *s, enum saver_phase phase, enum saver_job job) {
    pthread_mutex_lock(&s->lock);
    s->phase = phase;
    s->job = job;
    s->failed = s->cancelled = false;
    s->stop = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

bool saver_idle(const struct saver *s) {
    return s->phase == SAVER_IDLE;
}

int64_t saver_step(const struct saver *s) {
    return s->step;
}

void saver_pin(struct saver *s, int64_t step) {
    s->pinned = step;
}

void saver_begin(struct saver *s, int64_t step, int generation, uint64_t session, uint64_t number) {
    s->step = step;
    s->session = session;
    s->number = number;
    s->begin = clock_seconds();
    if (s->options.snapshot) {
        s->generation = generation;
        snapshot_hold(s->options.snapshot, generation);
    }
    start(s, SAVER_WRITING, SAVER_WRITE);
}

void saver_begin_failed(struct saver *s, int64_t step, const struct err *why) {
    s->step = step;
    s->begin = clock_seconds();
    s->staging[0] = 0;
    pthread_mutex_lock(&s->lock);
    s->phase = SAVER_WRITING;
    s->stop = s->cancelled = false;
    s->failed = true;
    s->why = *why;
    pthread_mutex_unlock(&s->lock);
}

void saver_cancel(struct saver *s) {
    if (s->phase != SAVER_WRITING) return;
    s->cancelled = true;
    s->stop = true;
}

// ---- between steps

void saver_report(struct saver *s, int64_t slots[SAVER_SLOTS]) {
    pthread_mutex_lock(&s->lock);
    slots[0] = s->phase != SAVER_IDLE && s->job != SAVER_NO_JOB;
    slots[1] = s->phase != SAVER_IDLE && s->failed ? s->options.ranks - s->options.rank : 0;
    pthread_mutex_unlock(&s->lock);
}

static void release(struct saver *s) {
    if (s->generation >= 0) snapshot_release(s->options.snapshot, s->generation);
    s->generation = -1;
}

// Everybody gets the failed rank's message.
static int tell(struct saver *s, int failed, struct comm_stream *world, struct saver_result *r,
                struct err *err) {
    struct err told = {0};
    if (s->options.rank == failed) told = s->why;
    if (together_size(world) > 1) {
        if (together_wait(world, comm_broadcast(world, failed, &told, sizeof told), err) != 0)
            return -1;
        err_set(&r->why, told.kind, "rank %d: %.990s", failed, told.text);
    } else {
        r->why = told;
    }
    return 0;
}

int saver_agree(struct saver *s, const int64_t agreed[SAVER_SLOTS], struct comm_stream *world,
                struct saver_result *result, struct err *err) {
    bool first = s->options.rank == 0;
    *result = (struct saver_result){.step = s->step};
    if (s->phase == SAVER_IDLE) return 0;
    if (s->phase == SAVER_WRITING && agreed[1] > 0) s->stop = true;
    if (agreed[0] > 0) return 0;
    result->seconds = clock_seconds() - s->begin;
    release(s);
    if (s->phase != SAVER_DROPPING && agreed[1] > 0) {
        result->news = SAVER_FAILED;
        if (tell(s, s->options.ranks - (int)agreed[1], world, result, err) != 0) return -1;
        start(s, SAVER_DROPPING, first ? SAVER_DROP : SAVER_NO_JOB);
    } else if (s->phase == SAVER_WRITING && s->cancelled) {
        result->news = SAVER_FAILED;
        err_set(&result->why, ERR_INTERRUPT, "no longer wanted");
        start(s, SAVER_DROPPING, first ? SAVER_DROP : SAVER_NO_JOB);
    } else if (s->phase == SAVER_WRITING) {
        start(s, SAVER_PUBLISHING, first ? SAVER_PUBLISH : SAVER_NO_JOB);
    } else {
        if (s->phase == SAVER_PUBLISHING) {
            result->news = SAVER_PERSISTED;
            result->bytes = s->bytes;
            memcpy(result->path, s->final, sizeof result->path);
        }
        s->phase = SAVER_IDLE;
    }
    return 0;
}
