// The table of a tied head gets gradients from two sides: the head's product, and the look-up,
// whose rows stand in an accumulator of their own. They are added once, at the step's end, before
// any sum over data-parallel ranks. With the two ends on different ranks the head's rank adds and
// sends the sum back, so that both copies of the table get the same bits.
#include "engine/states_parts.h"

enum { TAG_ROWS = TAG_TIED, TAG_IDS, TAG_VALUES, TAG_SUM };

static void add_rows(struct engine *e, int rows) {
    int table = e->param[PARAM_EMBEDDING];
    if (rows > 0)
        e->device->embedding_backward(e->device, DTYPE_F32, rows, e->model->config.hidden, 0,
                                      e->single[SINGLE_LOOKUP], e->single[SINGLE_LOOKUP_IDS],
                                      e->param_at[table].gradient, false);
}

static void send_rows(struct engine *e, int to) {
    struct comm *comm = e->comm;
    int64_t rows = e->looked_up, hidden = e->model->config.hidden;
    int table = e->param[PARAM_EMBEDDING];
    uint64_t bytes = (uint64_t)param_elements_padded(&e->model->params[table]) * sizeof(float);
    struct comm_event sent[3] = {comm_send(comm, to, TAG_ROWS, &rows, sizeof rows)};
    if (rows > 0) {
        sent[1] = comm_send(comm, to, TAG_IDS, e->single[SINGLE_LOOKUP_IDS],
                            (uint64_t)rows * sizeof(int32_t));
        sent[2] = comm_send(comm, to, TAG_VALUES, e->single[SINGLE_LOOKUP],
                            (uint64_t)(rows * hidden) * sizeof(float));
    }
    struct comm_event sum = comm_receive(comm, to, TAG_SUM, e->param_at[table].gradient, bytes);
    for (int i = 0; i < 3; i++) state_wait(e, sent[i]);
    state_wait(e, sum);
}

static void receive_rows(struct engine *e, int from) {
    struct comm *comm = e->comm;
    int64_t rows = 0, hidden = e->model->config.hidden;
    int table = e->param[PARAM_EMBEDDING];
    uint64_t bytes = (uint64_t)param_elements_padded(&e->model->params[table]) * sizeof(float);
    state_wait(e, comm_receive(comm, from, TAG_ROWS, &rows, sizeof rows));
    if (rows > 0) {
        struct comm_event ids = comm_receive(comm, from, TAG_IDS, e->single[SINGLE_LOOKUP_IDS],
                                             (uint64_t)rows * sizeof(int32_t));
        struct comm_event values = comm_receive(comm, from, TAG_VALUES, e->single[SINGLE_LOOKUP],
                                                (uint64_t)(rows * hidden) * sizeof(float));
        state_wait(e, ids);
        state_wait(e, values);
        add_rows(e, (int)rows);
    }
    state_wait(e, comm_send(comm, from, TAG_SUM, e->param_at[table].gradient, bytes));
}

void states_join_tied(struct engine *e) {
    int table = e->param[PARAM_EMBEDDING], stages = layout_stages(&e->layout);
    if (!e->model->config.tied_head || table < 0) return;
    int first = engine_rank_of_stage(e, 0), last = engine_rank_of_stage(e, stages - 1);
    if (first == last)
        add_rows(e, e->looked_up);
    else if (e->rank == first)
        send_rows(e, last);
    else if (e->rank == last)
        receive_rows(e, first);
}
