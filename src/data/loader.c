// The loader's threads and the ring of steps that they fill; see loader.h.
//
// A task is one micro-batch. Steps lie in a ring of steps_ahead + 1 slots: the caller holds one,
// readers fill the others in order. A step that does not follow the one before is a seek: readers
// come to rest, the ring is emptied, and filling goes on from there.
#include "base/clock.h"
#include "data/loader_parts.h"
#include <pthread.h>
#include <stdlib.h>

struct slot {
    struct batch **batches; // [micro_batches]
    int done;               // micro-batches filled
    int failed;             // micro-batch whose filling failed, or -1
    struct err err;
};

struct worker {
    struct loader *loader;
    struct loader_reader reader;
    pthread_t thread;
    bool runs;
};

struct loader {
    struct loader_options options;
    struct loader_sets sets;
    struct loader_reader self; // the caller's, for ids
    struct batch *batches;     // [slots * micro_batches]
    struct batch **pointers;
    struct slot *slots;
    uint64_t slot_count;
    struct worker *workers;
    struct loader_counts counts;

    pthread_mutex_t lock;
    pthread_cond_t wake, ready;
    uint64_t base;      // global sample of step 0 of the sequence
    uint64_t given;     // steps of the sequence handed out
    uint64_t released;  // first step whose slot may not be reused yet
    uint64_t next_task; // step * micro_batches + micro-batch
    int busy;           // readers at work
    bool paused, closing;
};

static uint64_t slot_count(const struct loader_options *o) {
    return (uint64_t)o->steps_ahead + 1;
}

uint64_t loader_bytes(const struct loader_options *o) {
    return slot_count(o) * (uint64_t)o->micro_batches * batch_bytes(o->rows * o->context);
}

// ---- readers -----------------------------------------------------------------------------------

static uint64_t local_samples(const struct loader *l) { // of this rank in a step
    return (uint64_t)l->options.rows * (uint64_t)l->options.micro_batches;
}

static uint64_t step_samples(const struct loader *l) {
    return local_samples(l) * (uint64_t)l->options.ranks;
}

static bool has_task(const struct loader *l) {
    return !l->paused &&
           l->next_task < (l->released + l->slot_count) * (uint64_t)l->options.micro_batches;
}

static void collect_counts(struct loader *l, struct loader_reader *r) {
    struct loader_counts *c = &l->counts;
    c->shard_opens += r->counts.opens;
    c->open_seconds += r->counts.open_seconds;
    c->cache_hits += r->counts.cache_hits;
    c->cache_misses += r->counts.cache_misses;
    c->shard_reads += r->reads;
    c->read_seconds += r->read_seconds;
    r->counts = (struct store_counts){.opens = 0};
    r->reads = 0;
    r->read_seconds = 0;
}

static void *worker_main(void *argument) {
    struct worker *w = argument;
    struct loader *l = w->loader;
    uint64_t micro_batches = (uint64_t)l->options.micro_batches;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->closing && !has_task(l)) pthread_cond_wait(&l->wake, &l->lock);
        if (l->closing) break;
        uint64_t task = l->next_task++, step = task / micro_batches;
        int micro_batch = (int)(task % micro_batches);
        struct slot *slot = &l->slots[step % l->slot_count];
        uint64_t n = l->base + step * step_samples(l) +
                     (uint64_t)l->options.rank * local_samples(l) +
                     (uint64_t)micro_batch * (uint64_t)l->options.rows;
        l->busy++;
        pthread_mutex_unlock(&l->lock);
        struct err err = {ERR_NONE, ""};
        int result = loader_fill(&w->reader, n, slot->batches[micro_batch], &err);
        pthread_mutex_lock(&l->lock);
        l->busy--;
        slot->done++;
        if (result != 0 && (slot->failed < 0 || micro_batch < slot->failed)) {
            slot->failed = micro_batch;
            slot->err = err;
        }
        collect_counts(l, &w->reader);
        if (slot->done == l->options.micro_batches || l->busy == 0) pthread_cond_signal(&l->ready);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

// ---- opening and closing -----------------------------------------------------------------------

static int place_batches(struct loader *l, void *memory, struct err *err) {
    const struct loader_options *o = &l->options;
    size_t micro_batches = (size_t)o->micro_batches, count = l->slot_count * micro_batches;
    l->batches = calloc(count, sizeof *l->batches);
    l->pointers = calloc(count, sizeof *l->pointers);
    l->slots = calloc(l->slot_count, sizeof *l->slots);
    if (!l->batches || !l->pointers || !l->slots)
        return err_set(err, ERR_MEMORY, "no memory for the list of micro-batches");
    uint64_t each = batch_bytes(o->rows * o->context);
    for (size_t i = 0; i < count; i++) {
        batch_place(&l->batches[i], (unsigned char *)memory + i * each, o->rows, o->context);
        l->pointers[i] = &l->batches[i];
    }
    for (size_t i = 0; i < l->slot_count; i++)
        l->slots[i] = (struct slot){.batches = l->pointers + i * micro_batches, .failed = -1};
    return 0;
}

static int start_workers(struct loader *l, struct err *err) {
    l->workers = calloc((size_t)l->options.readers, sizeof *l->workers);
    if (!l->workers) return err_set(err, ERR_MEMORY, "no memory for reader threads");
    for (int i = 0; i < l->options.readers; i++) {
        struct worker *w = &l->workers[i];
        w->loader = l;
        if (loader_reader_open(&w->reader, &l->options, &l->sets, err) != 0) return -1;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            return err_set(err, ERR_MEMORY, "the system gave no thread for reader %d of %d", i + 1,
                           l->options.readers);
        w->runs = true;
    }
    return 0;
}

struct loader *loader_open(const struct loader_options *options, void *memory, struct err *err) {
    struct loader *l = calloc(1, sizeof *l);
    if (!l) {
        err_set(err, ERR_MEMORY, "no memory for a loader");
        return NULL;
    }
    l->options = *options;
    l->paused = true; // until the first step says where to begin
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->wake, NULL);
    pthread_cond_init(&l->ready, NULL);
    int result = loader_sets_open(&l->sets, &l->options, err);
    l->slot_count = result == 0 ? slot_count(options) : 0;
    if (result == 0) result = loader_reader_open(&l->self, &l->options, &l->sets, err);
    if (result == 0) result = place_batches(l, memory, err);
    if (result == 0) result = start_workers(l, err);
    if (result == 0) return l;
    loader_close(l);
    return NULL;
}

void loader_stop(struct loader *l) {
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    pthread_cond_broadcast(&l->wake);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; l->workers && i < l->options.readers; i++) {
        if (l->workers[i].runs) pthread_join(l->workers[i].thread, NULL);
        l->workers[i].runs = false;
    }
}

void loader_close(struct loader *l) {
    if (!l) return;
    loader_stop(l);
    for (int i = 0; l->workers && i < l->options.readers; i++)
        loader_reader_close(&l->workers[i].reader);
    loader_reader_close(&l->self);
    loader_sets_close(&l->sets);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->wake);
    pthread_cond_destroy(&l->ready);
    free(l->workers);
    free(l->batches);
    free(l->pointers);
    free(l->slots);
    free(l);
}

// ---- the caller's side -------------------------------------------------------------------------

static void empty_slot(struct slot *slot) {
    slot->done = 0;
    slot->failed = -1;
    slot->err = (struct err){ERR_NONE, ""};
}

// Called with the lock held.
static void seek(struct loader *l, uint64_t sample) {
    l->paused = true;
    while (l->busy) pthread_cond_wait(&l->ready, &l->lock);
    for (uint64_t i = 0; i < l->slot_count; i++) empty_slot(&l->slots[i]);
    l->base = sample;
    l->given = l->released = l->next_task = 0;
    l->paused = false;
}

int loader_step(struct loader *l, uint64_t sample, struct batch *const **batches, struct err *err) {
    double span = record_begin(l->options.lane), begin = clock_seconds();
    pthread_mutex_lock(&l->lock);
    if (l->closing) {
        pthread_mutex_unlock(&l->lock);
        return err_set(err, ERR_INTERNAL, "a step was asked of a loader that was stopped");
    }
    uint64_t size = step_samples(l), expected = l->base + l->given * size;
    bool again = l->given > 0 && sample == expected - size;
    if (!again && (l->paused || sample != expected)) {
        seek(l, sample);
    } else if (!again && l->given > 0) {
        empty_slot(&l->slots[(l->given - 1) % l->slot_count]);
        l->released = l->given;
    }
    if (!again) {
        l->given++;
        pthread_cond_broadcast(&l->wake);
    }
    struct slot *slot = &l->slots[(l->given - 1) % l->slot_count];
    while (slot->done < l->options.micro_batches) pthread_cond_wait(&l->ready, &l->lock);
    l->counts.wait_seconds += clock_seconds() - begin;
    int result = 0;
    if (slot->failed >= 0) {
        if (err) *err = slot->err;
        result = -1;
    }
    pthread_mutex_unlock(&l->lock);
    record_end(l->options.lane, RECORD_DATA_WAIT, "wait for data", (int64_t)sample, span);
    if (result == 0) *batches = slot->batches;
    return result;
}

uint64_t loader_samples_per_epoch(const struct loader *l) {
    uint64_t samples = 0;
    for (int i = 0; i < l->sets.count; i++) samples += l->sets.source[i].samples;
    return samples;
}

uint64_t loader_tokens(const struct loader *l) {
    uint64_t tokens = 0;
    for (int i = 0; i < l->sets.count; i++) tokens += l->sets.source[i].data.tokens;
    return tokens;
}

uint64_t loader_text_bytes(const struct loader *l) {
    uint64_t bytes = 0;
    for (int i = 0; i < l->sets.count; i++) {
        if (l->sets.source[i].data.text_bytes == 0) return 0;
        bytes += l->sets.source[i].data.text_bytes;
    }
    return bytes;
}

void loader_counts(const struct loader *l, struct loader_counts *out) {
    pthread_mutex_t *lock = (pthread_mutex_t *)&l->lock; // the one thing that looking changes
    pthread_mutex_lock(lock);
    *out = l->counts;
    pthread_mutex_unlock(lock);
}

uint64_t loader_digest(const struct loader *l) {
    return l->sets.digest;
}

void loader_sample_ids(struct loader *l, uint64_t sample, uint64_t *ids) {
    uint64_t first = sample + (uint64_t)l->options.rank * local_samples(l);
    for (uint64_t i = 0; i < local_samples(l); i++) {
        int set;
        uint32_t next;
        uint64_t id = loader_draw(&l->self, first + i, &set, &next);
        ids[i] = l->sets.source[set].sample_base + id;
    }
}

int loader_origin(struct loader *l, uint64_t n, struct loader_origin *out, struct err *err) {
    return loader_find_origin(&l->self, n, out, err);
}

int loader_read(struct loader *l, uint64_t n, struct batch *batch, struct err *err) {
    return loader_fill(&l->self, n, batch, err);
}

int loader_mix_rows(const struct loader *l, uint64_t draws, struct loader_mix_row *rows) {
    double total = 0;
    for (int i = 0; i < l->sets.count; i++) total += l->options.sets[i].weight;
    for (int i = 0; i < l->sets.count; i++) {
        const struct loader_source *s = &l->sets.source[i];
        uint64_t drawn = mix_draws(&l->sets.mix, i, draws);
        rows[i] = (struct loader_mix_row){
            .path = l->options.sets[i].path,
            .share = total > 0 ? l->options.sets[i].weight / total : 1,
            .samples = s->samples,
            .drawn = drawn,
            .tokens = drawn * (uint64_t)l->options.context,
            .epochs = (double)drawn / (double)s->samples,
        };
    }
    return l->sets.count;
}

const struct record_lane *loader_lane(const struct loader *l, int reader) {
    return &l->workers[reader].reader.lane;
}
