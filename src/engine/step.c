// A step: walks the action list; and the forward-only uses of the same pieces.
#include "base/record.h"
#include "engine/seals.h"
#include <math.h>
#include <string.h>

static int check_tokens(const struct engine *e, const struct batch *b, struct err *err) {
    const struct model_config *c = &e->model->config;
    for (int32_t i = 0; i < b->tokens; i++) {
        int32_t id = b->input[i], target = b->target[i];
        if (id < 0 || id >= c->vocab || target < -1 || target >= c->vocab)
            return err_set(err, ERR_DATA,
                           "token %d of a micro-batch: id %d, target %d: the vocabulary has %d", i,
                           id, target, c->vocab);
        if (b->position[i] < 0 || b->position[i] >= e->options.context)
            return err_set(err, ERR_DATA,
                           "token %d of a micro-batch: position %d: the context has %d", i,
                           b->position[i], e->options.context);
        if (b->attend_from[i] < 0 || b->attend_from[i] >= b->attend_to[i] ||
            b->attend_to[i] > b->tokens)
            return err_set(err, ERR_DATA, "token %d of a micro-batch sees keys [%d, %d) of %d", i,
                           b->attend_from[i], b->attend_to[i], b->tokens);
    }
    return 0;
}

// Another size than planned, at most as large, gets its products made when it is first seen.
static int accept_batch(struct engine *e, const struct batch *batch, struct err *err) {
    int64_t most = (int64_t)e->options.rows * e->options.context;
    if (batch->tokens < 1 || batch->tokens > most)
        return err_set(err, ERR_USAGE,
                       "a micro-batch of %d tokens; memory was planned for %lld (%d rows of %d)",
                       batch->tokens, (long long)most, e->options.rows, e->options.context);
    if (e->moe && batch->rows > e->options.rows)
        return err_set(err, ERR_USAGE,
                       "a micro-batch of %d rows; counters of experts were planned for %d",
                       batch->rows, e->options.rows);
    if (check_tokens(e, batch, err) != 0) return -1;
    int64_t tokens = batch->tokens / e->cp;
    if (e->sequence && tokens % e->tp != 0)
        return err_set(err, ERR_USAGE,
                       "%lld tokens of a micro-batch do not divide over the %d ranks of sequence "
                       "parallelism",
                       (long long)tokens, e->tp);
    for (int i = 0; i < e->prepared_count; i++)
        if (e->prepared[i] == tokens) return 0;
    uint64_t bytes;
    if (engine_prepare(e->device, e->model, e->head, &e->shape, e->weight, tokens, &bytes, err) !=
        0)
        return -1;
    if (e->prepared_count == ENGINE_SHAPES) // forget one; the device may still have it
        memmove(e->prepared, e->prepared + 1, sizeof e->prepared - sizeof e->prepared[0]);
    else
        e->prepared_count++;
    e->prepared[e->prepared_count - 1] = tokens;
    return 0;
}

// Losses in micro-batch order on each rank of the last stage, then over data ranks in their order,
// then to everybody.
static double global_loss(struct engine *e, double sum) {
    if (e->stream[GROUP_DATA]) comm_sum_doubles(e->stream[GROUP_DATA], &sum, 1);
    if (e->stream[GROUP_PP]) {
        int root = layout_stage_rank(&e->layout, layout_stages(&e->layout) - 1);
        comm_wait(comm_broadcast(e->stream[GROUP_PP], root, &sum, sizeof sum), e->device->lane);
    }
    return sum;
}

static double forward(struct engine *e, int micro_batch, bool loss);

static void update(struct engine *e, int count, struct engine_step *step) {
    double sum = 0;
    for (int m = 0; m < count; m++) sum += e->batch_loss[m];
    states_finish_gradients(e);
    seals_check_weights(e);
    seals_fault_gradient(e, true);
    step->loss = global_loss(e, sum) / (double)step->counted;
    step->gradient_norm = states_norm(e);
    engine_moe_end(e, step);
    step->clip_factor = 1;
    step->skipped = !isfinite(step->loss) || !isfinite(step->gradient_norm);
    if (step->clip_norm > 0 && step->gradient_norm > step->clip_norm)
        step->clip_factor = step->clip_norm / step->gradient_norm;
    // Asked by every rank: a fault may have made the values of one of them others.
    if (!step->no_update && step->may_update && !step->may_update(step->context, step))
        step->skipped = true;
    if (step->no_update || step->skipped) {
        seals_check_states(e);
        return;
    }
    states_update(e, step);
    engine_moe_update(e);
}

static void perform(struct engine *e, const struct action *action, struct engine_step *step) {
    struct record_lane *lane = e->device->lane;
    double begin = record_begin(lane);
    int m = action->micro_batch;
    switch (action->kind) {
    case ACTION_FORWARD:
        stage_forward(e, action, e->batches[m]);
        record_end(lane, RECORD_FORWARD, "forward", m, begin);
        break;
    case ACTION_BACKWARD:
        stage_backward(e, action, e->batches[m], true, true);
        record_end(lane, RECORD_BACKWARD, "backward", m, begin);
        break;
    case ACTION_BACKWARD_INPUT:
        stage_backward(e, action, e->batches[m], true, false);
        record_end(lane, RECORD_BACKWARD, "backward input", m, begin);
        break;
    case ACTION_BACKWARD_WEIGHT:
        stage_backward(e, action, e->batches[m], false, true);
        record_end(lane, RECORD_BACKWARD, "backward weight", m, begin);
        break;
    case ACTION_SEND_FORWARD:
    case ACTION_RECEIVE_FORWARD:
    case ACTION_SEND_BACKWARD:
    case ACTION_RECEIVE_BACKWARD:
        stage_message(e, action);
        break;
    case ACTION_STEP:
        update(e, e->batch_count, step);
        record_end(lane, RECORD_OPTIMIZER, "optimizer", -1, begin);
        break;
    case ACTION_GATHER: // units wait for their weights, and send their gradients when they are done
    case ACTION_REDUCE:
    case ACTION_KIND_COUNT:
        break;
    }
    if (action->kind == ACTION_STEP) return;
    seals_action(e, action_is_last_of_backward(action->kind));
    seals_fault_gradient(e, false);
}

// Pairs of a micro-batch in a layer whose queries see at most `window` keys (0: all).
static int64_t window_pairs(const struct batch *b, int32_t window) {
    if (window == 0) return b->attended_pairs;
    int64_t pairs = 0;
    for (int32_t i = 0; i < b->tokens; i++) {
        int32_t seen = b->attend_to[i] - b->attend_from[i];
        pairs += seen < window ? seen : window;
    }
    return pairs;
}

static double mean_pairs(const struct engine *e, const struct batch *b) {
    const struct model_config *c = &e->whole->config;
    double sum = 0;
    int64_t pairs = 0;
    for (int l = 0; l < c->layers; l++) {
        if (l == 0 || c->layer_window[l] != c->layer_window[l - 1])
            pairs = window_pairs(b, c->layer_window[l]);
        sum += (double)pairs;
    }
    return sum / c->layers;
}

// Of the global batch, each token once: whole sequences are counted, over data-parallel ranks.
static void count_tokens(const struct engine *e, struct batch *const *batches, int count,
                         struct engine_step *step) {
    int64_t tokens[3] = {0, 0, 0};
    double pairs = 0;
    for (int m = 0; m < count; m++) {
        tokens[0] += batches[m]->counted;
        tokens[1] += batches[m]->non_pad;
        tokens[2] += batches[m]->tokens;
        pairs += mean_pairs(e, batches[m]);
    }
    if (e->stream[GROUP_DP]) {
        comm_sum_integers(e->stream[GROUP_DP], tokens, 3);
        comm_sum_doubles(e->stream[GROUP_DP], &pairs, 1);
    }
    step->counted = tokens[0];
    step->non_pad = tokens[1];
    step->processed = tokens[2];
    step->attended_pairs = pairs;
    step->loss = step->gradient_norm = 0;
    step->clip_factor = 1;
    step->skipped = step->counted == 0;
}

static int check(struct engine *e, struct err *err) {
    if (e->comm && comm_check(e->comm, err) != 0) return -1;
    return device_check(e->device, err);
}

// The counting pass of engine_experts.aux_global: forward only, everything of it is redone.
static void count_choices(struct engine *e, int count) {
    if (!engine_moe_counts_ahead(e)) return;
    engine_moe_ahead(e, true);
    for (int m = 0; m < count; m++) forward(e, m, false);
    engine_moe_ahead(e, false);
}

int engine_run_step(struct engine *engine, struct batch *const *batches, int count,
                    struct engine_step *step, struct err *err) {
    struct engine *e = engine;
    e->seals->found_count = 0;
    if (!e->options.train)
        return err_set(err, ERR_INTERNAL, "a training step of an engine opened for evaluation");
    if (count < 1 || count > e->options.micro_batches)
        return err_set(err, ERR_USAGE, "a step of %d micro-batches; planned were at most %d", count,
                       e->options.micro_batches);
    for (int m = 0; m < count; m++)
        if (accept_batch(e, batches[m], err) != 0) return -1;
    if (count != e->pipeline.shape.micro_batches && pipeline_remake(&e->pipeline, count, err) != 0)
        return -1;
    count_tokens(e, batches, count, step);
    if (check(e, err) != 0) return -1;
    if (step->skipped) return 0;
    if (layer_context_share(e, batches, count, err) != 0) return -1;
    // The one place where the mean over the global batch enters.
    e->loss_scale = (float)(1.0 / (double)step->counted);
    memset(e->batch_loss, 0, (size_t)count * sizeof *e->batch_loss);
    e->drops = e->options.dropout > 0;
    e->dropout_key = step->dropout_seed;
    e->data_shift = step->data_shift;
    lookup_begin(e);
    engine_moe_begin(e, step->non_pad);
    count_choices(e, count);
    states_begin(e, count);
    seals_begin(e, step);
    seals_fault_scale(e);
    for (int i = 0; i < e->schedule->count; i++) {
        perform(e, &e->schedule->actions[i], step);
        if (check(e, err) != 0) return -1;
    }
    e->seals->in_step = false;
    return 0;
}

// ---- forward only -------------------------------------------------------------------------------

// All stages of this rank one after the other; they ascend on every rank, so nobody waits in a
// circle.
static double forward(struct engine *e, int micro_batch, bool loss) {
    const struct batch *batch = e->batches[micro_batch];
    double sum = 0;
    for (int i = 0; i < e->shape.stage_count; i++) {
        const struct stage_part *part = &e->stages[i].part;
        struct action a = {ACTION_RECEIVE_FORWARD, part->stage, micro_batch, 0, 0, 0};
        bool receives = !part->first && e->stages[i].previous_rank != e->rank;
        bool sends = !part->last && e->stages[i].next_rank != e->rank;
        engine_enter(e, i, 0, 0);
        if (receives) stage_message(e, &a);
        stage_layers_forward(e, i, 0, 0, batch);
        a.kind = ACTION_SEND_FORWARD;
        if (sends) stage_message(e, &a);
        if (!part->last || !loss) continue;
        int unit = engine_unit_of_head(e);
        unit_acquire(e, unit, false);
        sum = head_loss(e, batch, NULL);
        unit_release(e, unit);
    }
    return sum;
}

// Makes it the only micro-batch.
static int begin_forward(struct engine *e, const struct batch *batch, struct err *err) {
    e->shared_list[0] = (struct batch *)(uintptr_t)batch; // read only
    e->drops = false;
    if (accept_batch(e, batch, err) != 0) return -1;
    return layer_context_share(e, e->shared_list, 1, err);
}

int engine_evaluate(struct engine *engine, const struct batch *batch, double *loss_sum,
                    int64_t *counted, float *token_loss, struct err *err) {
    if (begin_forward(engine, batch, err) != 0) return -1;
    double begin = record_begin(engine->device->lane);
    *loss_sum = global_loss(engine, forward(engine, 0, true));
    *counted = batch->counted;
    if (engine->stream[GROUP_DP]) comm_sum_integers(engine->stream[GROUP_DP], counted, 1);
    if (token_loss)
        memcpy(token_loss, engine->single[SINGLE_LOSS], (size_t)batch->tokens * sizeof(float));
    record_end(engine->device->lane, RECORD_EVALUATE, "evaluate", -1, begin);
    return check(engine, err);
}

int engine_logits(struct engine *engine, const struct batch *batch, const int32_t *rows, int count,
                  float *logits, struct err *err) {
    const struct device_weight *w = &engine->weight[engine->head];
    if (!engine_alone(engine))
        return err_set(err, ERR_INTERNAL, "logits of a model that is spread over ranks");
    if (begin_forward(engine, batch, err) != 0) return -1;
    for (int i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= batch->tokens)
            return err_set(err, ERR_USAGE, "logits of row %d of a micro-batch of %d tokens",
                           rows[i], batch->tokens);
    forward(engine, 0, false);
    // The wanted rows are gathered; DELTA is free behind the final norm.
    size_t row = (size_t)w->k * dtype_bytes(engine->type);
    int64_t chunk = batch->tokens < engine->shape.chunk ? batch->tokens : engine->shape.chunk;
    size_t vocab = (size_t)engine->model->config.vocab;
    for (int from = 0; from < count; from += (int)chunk) {
        int n = count - from < chunk ? count - from : (int)chunk;
        char *gathered = engine->single[SINGLE_DELTA];
        for (int i = 0; i < n; i++)
            memcpy(gathered + (size_t)i * row,
                   (char *)engine->single[SINGLE_FINAL_NORM] + (size_t)rows[from + i] * row, row);
        const float *found = engine->single[SINGLE_LOGITS];
        engine->device->linear_forward(engine->device, w, chunk, gathered, w->k, NULL,
                                       engine->single[SINGLE_LOGITS], w->n, DTYPE_F32);
        for (int i = 0; i < n; i++)
            memcpy(logits + (size_t)(from + i) * vocab, found + (size_t)i * (size_t)w->n,
                   vocab * sizeof(float));
    }
    return device_check(engine->device, err);
}
