// See together.h.
#include "checkpoint/together.h"
#include "base/clock.h"
#include <pthread.h>
#include <time.h>

static const double shortest_pause_seconds = 0.0005, longest_pause_seconds = 0.3;

enum state { RUNNING, DONE, FAILED, STOPPED };

struct job {
    together_work *work;
    void *context;
    atomic_bool stop;
    _Atomic(enum state) state;
    struct err err;
};

int together_rank(struct comm_stream *world) {
    return world ? comm_stream_index(world) : 0;
}

int together_size(struct comm_stream *world) {
    return world ? comm_stream_size(world) : 1;
}

int together_wait(struct comm_stream *world, struct comm_event event, struct err *err) {
    comm_wait(event, NULL);
    return comm_check(comm_stream_comm(world), err);
}

int together_same(struct comm_stream *world, uint64_t value, struct err *err) {
    if (together_size(world) == 1) return 1;
    // the largest and, of the complements, the smallest
    int64_t own[2] = {(int64_t)value, (int64_t)~value}, most[2] = {own[0], own[1]};
    comm_max_integers(world, most, 2);
    if (comm_check(comm_stream_comm(world), err) != 0) return -1;
    return most[0] == own[0] && most[1] == own[1];
}

static void *run_job(void *argument) {
    struct job *job = argument;
    bool failed = job->work && job->work(job->context, &job->stop, &job->err) != 0;
    // One that gave up because of another's failure is not the one to be named.
    job->state = !failed ? DONE : job->stop ? STOPPED : FAILED;
    return NULL;
}

static void pause_since(double begin) {
    double seconds = (clock_seconds() - begin) / 10;
    if (seconds < shortest_pause_seconds) seconds = shortest_pause_seconds;
    if (seconds > longest_pause_seconds) seconds = longest_pause_seconds;
    struct timespec pause = {0, (long)(seconds * 1e9)};
    nanosleep(&pause, NULL);
}

static int give_up(struct comm_stream *world, int rank, double limit_seconds, struct err *err) {
    struct err why = {0};
    (void)err_set(
        &why, ERR_IO,
        "rank %d has not ended reading or writing a checkpoint within %.0f s; is its disk "
        "or file system stuck?",
        rank, limit_seconds);
    comm_fail(comm_stream_comm(world), &why);
    return err_set(err, why.kind, "%s", why.text);
}

// Until nobody runs. Returns the lowest rank that failed, -1 for none, or -2 when the communication
// has failed, or was made to.
static int watch(struct comm_stream *world, struct job *job, double limit_seconds,
                 struct err *err) {
    int rank = comm_stream_index(world), size = comm_stream_size(world);
    for (double begin = clock_seconds();; pause_since(begin)) {
        enum state state = job->state;
        if (state != RUNNING) comm_busy_rests(comm_stream_comm(world), true);
        // the lowest that runs, the lowest that failed, and whether it has lasted too long
        int64_t most[3] = {state == RUNNING ? size - rank : 0, state == FAILED ? size - rank : 0,
                           clock_seconds() - begin > limit_seconds};
        comm_max_integers(world, most, 3);
        bool broken = comm_check(comm_stream_comm(world), err) != 0;
        if (!broken && most[0] > 0 && most[2] > 0) {
            (void)give_up(world, size - (int)most[0], limit_seconds, err);
            broken = true;
        }
        if (broken || most[1] > 0) job->stop = true;
        if (broken) return -2;
        if (most[0] == 0) return most[1] > 0 ? size - (int)most[1] : -1;
    }
}

// Everybody gets the failed rank's message.
static int tell(struct comm_stream *world, const char *who, int failed, const struct err *own,
                struct err *err) {
    struct err told = {0};
    if (comm_stream_index(world) == failed) told = *own;
    if (together_wait(world, comm_broadcast(world, failed, &told, sizeof told), err) != 0)
        return -1;
    if (who) return err_set(err, told.kind, "%s %d: %.990s", who, failed, told.text);
    return err_set(err, told.kind, "%s", told.text);
}

int together_run_within(struct comm_stream *world, double limit_seconds, const char *who,
                        together_work *work, void *context, struct err *err) {
    struct job job = {.work = work, .context = context, .state = RUNNING};
    if (together_size(world) == 1) {
        run_job(&job);
        return job.state == DONE ? 0 : err_set(err, job.err.kind, "%s", job.err.text);
    }
    pthread_t thread;
    bool threaded = work && pthread_create(&thread, NULL, run_job, &job) == 0;
    if (!work) {
        job.state = DONE;
    } else if (!threaded) {
        (void)err_set(&job.err, ERR_MEMORY, "no thread for reading and writing could be started");
        job.state = FAILED;
    }
    int failed = watch(world, &job, limit_seconds, err);
    comm_busy_rests(comm_stream_comm(world), false);
    if (threaded) pthread_join(thread, NULL);
    if (failed == -2) return -1;
    return failed < 0 ? 0 : tell(world, who, failed, &job.err, err);
}

int together_run(struct comm_stream *world, const char *who, together_work *work, void *context,
                 struct err *err) {
    return together_run_within(world, TOGETHER_LIMIT_SECONDS, who, work, context, err);
}
