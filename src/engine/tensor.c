// Tensor and sequence parallelism: the two places where the tp ranks of a layer meet. A
// column-parallel product reads all tokens and gives this rank's features; a row-parallel one gives
// a partial sum of all features. With sequence parallelism the residual stream between them is cut
// over the ranks, token by token: gather before, reduce and scatter behind. Without it every rank
// holds all of it, and the sum goes to all.
#include "engine/state.h"

const void *tensor_gather(struct engine *e, const struct batch *batch, const void *shard,
                          void *full) {
    if (!e->sequence) return shard;
    uint64_t row = (uint64_t)e->model->config.hidden * dtype_bytes(e->type);
    uint64_t bytes = (uint64_t)engine_residual(e, batch) * row;
    comm_wait(comm_all_gather(e->stream[GROUP_TP], shard, full, bytes), e->device->lane);
    return full;
}

void tensor_reduce(struct engine *e, const struct batch *batch, void *partial, void *out) {
    if (e->tp == 1) return;
    struct comm_stream *tp = e->stream[GROUP_TP];
    struct comm_reduction sum = comm_reduction_plain(e->type, e->type);
    int64_t elements = batch->tokens * (int64_t)e->model->config.hidden;
    void *scratch = e->single[SINGLE_TP_SCRATCH];
    if (e->sequence)
        comm_wait(comm_reduce_scatter(tp, partial, scratch, out, elements / e->tp, &sum),
                  e->device->lane);
    else
        comm_wait(comm_all_reduce(tp, out, scratch, elements, &sum), e->device->lane);
}

void *tensor_partial(const struct engine *e, void *out) {
    return e->sequence ? e->single[SINGLE_PARTIAL] : out;
}

const int32_t *tensor_local_ids(const struct engine *e, const int32_t *ids, int64_t count) {
    if (e->tp == 1) return ids;
    int32_t *local = e->single[SINGLE_LOCAL_IDS];
    int64_t first = e->local.vocab_first, end = first + e->local.vocab_rows;
    for (int64_t i = 0; i < count; i++)
        local[i] = ids[i] >= first && ids[i] < end ? (int32_t)(ids[i] - first) : -1;
    return local;
}
