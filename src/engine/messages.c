// What was sent and waited for, for reports.
#include "engine/state.h"

enum {
    GROUPS_END = GROUP_KIND_COUNT,
    REDUCE_END = GROUPS_END + FLAT_GROUPS,
    GATHER_END = REDUCE_END + FLAT_GROUPS
};

int engine_stream_count(const struct engine *engine) {
    return engine->comm ? GATHER_END + 1 : 0;
}

static const struct comm_stream *stream_at(const struct engine *e, int stream, const char **name) {
    static const char *const reduce[FLAT_GROUPS] = {"reduce", "expert_reduce"};
    static const char *const gather[FLAT_GROUPS] = {"gather", "expert_gather"};
    *name = "stages";
    if (stream < GROUPS_END) {
        *name = mesh_group_name((enum mesh_group_kind)stream);
        return e->stream[stream];
    }
    if (stream < REDUCE_END) {
        *name = reduce[stream - GROUPS_END];
        return e->reduce[stream - GROUPS_END];
    }
    if (stream < GATHER_END) {
        *name = gather[stream - REDUCE_END];
        return e->gather[stream - REDUCE_END];
    }
    return NULL;
}

const char *engine_stream_counts(const struct engine *engine, int stream, enum comm_kind kind,
                                 struct comm_counts *counts) {
    const char *name;
    const struct comm_stream *s = stream_at(engine, stream, &name);
    *counts = (struct comm_counts){0};
    if (s) comm_stream_counts(s, kind, counts);
    if (stream == GATHER_END) comm_point_counts(engine->comm, kind, counts);
    return name;
}

const char *engine_stream_algorithm(const struct engine *engine, int stream, enum comm_kind kind,
                                    int *ranks) {
    const char *name;
    const struct comm_stream *s = stream_at(engine, stream, &name);
    if (!s) return NULL;
    *ranks = comm_stream_size(s);
    return comm_algorithm(s, kind, (uint64_t)engine->flat.largest_bucket * sizeof(float));
}
