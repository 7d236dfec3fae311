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

const char *engine_stream_counts(const struct engine *engine, int stream, enum comm_kind kind,
                                 struct comm_counts *counts) {
    static const char *const reduce[FLAT_GROUPS] = {"reduce", "expert_reduce"};
    static const char *const gather[FLAT_GROUPS] = {"gather", "expert_gather"};
    const struct comm_stream *s = NULL;
    const char *name = "stages";
    *counts = (struct comm_counts){0};
    if (stream < GROUPS_END) {
        s = engine->stream[stream];
        name = mesh_group_name((enum mesh_group_kind)stream);
    } else if (stream < REDUCE_END) {
        s = engine->reduce[stream - GROUPS_END];
        name = reduce[stream - GROUPS_END];
    } else if (stream < GATHER_END) {
        s = engine->gather[stream - REDUCE_END];
        name = gather[stream - REDUCE_END];
    } else {
        comm_point_counts(engine->comm, kind, counts);
    }
    if (s) comm_stream_counts(s, kind, counts);
    return name;
}
