// Parameters into buckets, buckets into the flat order, shards out of buckets; see flat.h.
#include "memory/flat.h"
#include "memory/rank.h"
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = RANK_NORM_BLOCK,
    ALIGN = 64 // elements: vectors of the kernels, and lines of the cache, begin with a parameter
};

static bool by_unit(const struct flat_options *options) {
    return options->zero >= 2 || options->by_unit;
}

static int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

struct flat_options flat_options_for(const struct layout *layout, int rank, uint64_t bucket_bytes) {
    const struct mesh *mesh = &layout->mesh;
    int d = mesh_data_index(mesh, rank), data = mesh->size[MESH_DP] * mesh->size[MESH_CP];
    int same = data / mesh->ep; // ranks with the same experts
    int shard = layout->zero ? mesh->shard : 1, expert_shard = shard < same ? shard : same;
    return (struct flat_options){.zero = layout->zero,
                                 .shards = {shard, expert_shard},
                                 .ranks = {data, same},
                                 .index = {d % shard, d / mesh->ep % expert_shard},
                                 .bucket_bytes = bucket_bytes};
}

static int check_options(const struct flat_options *o, struct err *err) {
    for (int group = 0; group < FLAT_GROUPS; group++)
        if (o->shards[group] < 1 || o->ranks[group] < o->shards[group] ||
            o->ranks[group] % o->shards[group] != 0 || o->index[group] < 0 ||
            o->index[group] >= o->shards[group] || (o->zero == 0 && o->shards[group] != 1))
            return err_set(err, ERR_INTERNAL,
                           "flat buffers: shard %d of %d in a group of %d ranks (zero %d)",
                           o->index[group], o->shards[group], o->ranks[group], o->zero);
    if (o->zero < 0 || o->zero > 3 || o->bucket_bytes < 4)
        return err_set(err, ERR_INTERNAL, "flat buffers: zero %d with buckets of %llu bytes",
                       o->zero, (unsigned long long)o->bucket_bytes);
    return 0;
}

// The buckets while parameters are put into them. Offsets count from the bucket's start, lengths
// have no padding yet.
struct filling {
    struct flat *flat;
    const struct local_model *local;
    const struct flat_options *options;
    int open[FLAT_GROUPS]; // bucket that takes the group's next matrix, or -1
};

static bool is_tied_table(const struct local_model *local, int param) {
    return local->model.config.tied_head && local->model.params[param].role == PARAM_EMBEDDING;
}

static void set_units(struct flat *flat, const struct local_model *local) {
    flat->unit_count = local->model.config.layers;
    flat->unit_embedding = flat->unit_head = -1;
    for (int i = 0; i < local->stage_count; i++) {
        if (local->stages[i].first) flat->unit_embedding = flat->unit_count++;
        if (local->stages[i].last) flat->unit_head = flat->unit_count++;
    }
    for (int i = 0; i < local->model.param_count; i++) {
        const struct param *p = &local->model.params[i];
        bool embedding = p->role == PARAM_POSITION ||
                         (p->role == PARAM_EMBEDDING && !local->slices[i].tied_copy);
        flat->unit_of[i] = p->layer >= 0 ? p->layer
                           : embedding   ? flat->unit_embedding
                                         : flat->unit_head;
    }
}

// Where a parameter begins behind `used` elements of its bucket: parameters of a block or more on
// the grid, smaller ones inside a block.
static int64_t place_behind(int64_t used, int64_t elements) {
    int64_t begin = round_up(used, ALIGN);
    if (elements >= BLOCK || begin / BLOCK != (begin + elements - 1) / BLOCK)
        begin = round_up(begin, BLOCK);
    return begin;
}

static struct flat_bucket *new_bucket(struct filling *f, enum flat_group group, int unit) {
    struct flat_bucket *bucket = &f->flat->buckets[f->flat->bucket_count++];
    *bucket =
        (struct flat_bucket){.group = group, .unit = unit, .shards = f->options->shards[group]};
    return bucket;
}

static void put(struct filling *f, int bucket_index, int param) {
    struct flat *flat = f->flat;
    struct flat_bucket *bucket = &flat->buckets[bucket_index];
    int64_t elements = param_elements_padded(&f->local->model.params[param]);
    flat->bucket_of[param] = bucket_index;
    flat->offset[param] = place_behind(bucket->end, elements);
    bucket->end = flat->offset[param] + elements;
    if (bucket->unit != flat->unit_of[param]) bucket->unit = -1;
}

static void put_matrix(struct filling *f, int param) {
    const struct param *p = &f->local->model.params[param];
    struct flat *flat = f->flat;
    enum flat_group group = p->expert < 0 ? FLAT_DENSE : FLAT_EXPERT;
    int64_t elements = param_elements_padded(p), room = (int64_t)(f->options->bucket_bytes / 4);
    bool fits = f->open[group] >= 0;
    if (fits) {
        const struct flat_bucket *bucket = &flat->buckets[f->open[group]];
        fits = by_unit(f->options) ? bucket->unit == flat->unit_of[param]
                                   : place_behind(bucket->end, elements) + elements <= room;
    }
    if (!fits) {
        f->open[group] = flat->bucket_count;
        new_bucket(f, group, flat->unit_of[param]);
    }
    put(f, f->open[group], param);
}

static void put_tied_table(struct filling *f, int param) {
    new_bucket(f, FLAT_DENSE, f->flat->unit_of[param])->tied = true;
    put(f, f->flat->bucket_count - 1, param);
}

static void put_vectors(struct filling *f, enum flat_group group) {
    int bucket = -1;
    for (int i = f->local->model.param_count - 1; i >= 0; i--) {
        const struct param *p = &f->local->model.params[i];
        if (param_is_matrix(p) || (p->expert >= 0) != (group == FLAT_EXPERT)) continue;
        if (bucket < 0) {
            bucket = f->flat->bucket_count;
            struct flat_bucket *made = new_bucket(f, group, f->flat->unit_of[i]);
            made->vectors = true;
            made->shards = 1;
        }
        put(f, bucket, i);
    }
}

// Buckets one behind the other, each padded so that its shards end on the grid.
static void line_up(struct flat *flat, const struct flat_options *options) {
    int64_t at = 0, shard_at = 0;
    for (int i = 0; i < flat->bucket_count; i++) {
        struct flat_bucket *bucket = &flat->buckets[i];
        int parts = bucket->vectors       ? 1
                    : bucket->shards == 1 ? options->ranks[bucket->group]
                                          : bucket->shards;
        int64_t length = round_up(bucket->end, (int64_t)parts * BLOCK);
        bucket->begin = at;
        bucket->end = at += length;
        bucket->shard_begin = shard_at;
        shard_at += length / bucket->shards;
        if (bucket->vectors) {
            flat->vectors_begin[bucket->group] = bucket->begin;
            flat->vectors_end[bucket->group] = bucket->end;
        } else if (length > flat->largest_bucket)
            flat->largest_bucket = length;
    }
    flat->elements = at;
    flat->shard_elements = shard_at;
}

static void count_elements(struct flat *flat, const struct model *model) {
    for (int i = 0; i < model->param_count; i++) {
        const struct param *p = &model->params[i];
        flat->offset[i] += flat->buckets[flat->bucket_of[i]].begin;
        if (param_is_matrix(p))
            flat->matrix_elements += param_elements(p);
        else
            flat->vector_elements += param_elements(p);
    }
}

int flat_open(struct flat *flat, const struct local_model *local,
              const struct flat_options *options, struct err *err) {
    int params = local->model.param_count;
    struct flat made = {0};
    if (check_options(options, err) != 0) return -1;
    made.offset = calloc((size_t)params + 1, sizeof *made.offset);
    made.bucket_of = calloc((size_t)params + 1, sizeof *made.bucket_of);
    made.unit_of = calloc((size_t)params + 1, sizeof *made.unit_of);
    made.buckets = calloc((size_t)params + FLAT_GROUPS, sizeof *made.buckets);
    if (!made.offset || !made.bucket_of || !made.unit_of || !made.buckets) {
        flat_close(&made);
        return err_set(err, ERR_MEMORY, "flat buffers: no memory for the places of %d parameters",
                       params);
    }
    struct filling f = {&made, local, options, {-1, -1}};
    set_units(&made, local);
    for (int i = params - 1; i >= 0; i--)
        if (param_is_matrix(&local->model.params[i]) && !is_tied_table(local, i)) put_matrix(&f, i);
    for (int i = 0; i < params; i++)
        if (is_tied_table(local, i)) put_tied_table(&f, i);
    for (int group = 0; group < FLAT_GROUPS; group++) put_vectors(&f, (enum flat_group)group);
    line_up(&made, options);
    count_elements(&made, &local->model);
    *flat = made;
    return 0;
}

void flat_close(struct flat *flat) {
    free(flat->offset);
    free(flat->bucket_of);
    free(flat->unit_of);
    free(flat->buckets);
    *flat = (struct flat){0};
}

void flat_shard(const struct flat *flat, int bucket, int index, int64_t *begin, int64_t *end) {
    const struct flat_bucket *b = &flat->buckets[bucket];
    int64_t length = (b->end - b->begin) / b->shards;
    *begin = b->begin + index * length;
    *end = *begin + length;
}
