// A step: walks the action list; and the forward-only uses of the same pieces.
#include "base/record.h"
#include "engine/state.h"
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
    if (batch->tokens < 1 || batch->tokens > e->shape.tokens)
        return err_set(err, ERR_USAGE,
                       "a micro-batch of %d tokens; memory was planned for %lld (%d rows of %d)",
                       batch->tokens, (long long)e->shape.tokens, e->options.rows,
                       e->options.context);
    if (check_tokens(e, batch, err) != 0) return -1;
    for (int i = 0; i < e->prepared_count; i++)
        if (e->prepared[i] == batch->tokens) return 0;
    uint64_t bytes;
    if (engine_prepare(e->device, e->model, &e->shape, e->weight, batch->tokens, &bytes, err) != 0)
        return -1;
    if (e->prepared_count == ENGINE_SHAPES) // forget one; the device may still have it
        memmove(e->prepared, e->prepared + 1, sizeof e->prepared - sizeof e->prepared[0]);
    else
        e->prepared_count++;
    e->prepared[e->prepared_count - 1] = batch->tokens;
    return 0;
}

static void forward(struct engine *e, const struct batch *batch) {
    embedding_forward(e, batch);
    for (int l = 0; l < e->model->config.layers; l++) layer_forward(e, l, batch);
    final_norm_forward(e, batch);
}

// Which halves an action holds: both run back to back layer by layer.
static void backward(struct engine *e, const struct batch *batch, bool input, bool weight) {
    if (input) final_norm_backward(e, batch);
    for (int l = e->model->config.layers - 1; l >= 0; l--) {
        if (input) layer_backward_input(e, l, batch);
        if (weight) layer_backward_weight(e, l, batch);
    }
    if (input) embedding_backward(e, batch);
}

static void update(struct engine *e, int count, struct engine_step *step) {
    double sum = 0;
    for (int m = 0; m < count; m++) sum += e->batch_loss[m];
    step->loss = sum / (double)step->counted;
    lookup_end(e);
    step->gradient_norm = engine_gradient_norm(e);
    step->clip_factor = 1;
    if (!isfinite(step->loss) || !isfinite(step->gradient_norm)) {
        step->skipped = true;
        return;
    }
    if (step->clip_norm > 0 && step->gradient_norm > step->clip_norm)
        step->clip_factor = step->clip_norm / step->gradient_norm;
    if (!step->no_update) engine_update(e, step);
}

static void perform(struct engine *e, struct action action, struct batch *const *batches, int count,
                    struct engine_step *step) {
    struct record_lane *lane = e->device->lane;
    double begin = record_begin(lane);
    const struct batch *batch = action.kind == ACTION_STEP ? NULL : batches[action.micro_batch];
    switch (action.kind) {
    case ACTION_FORWARD:
        forward(e, batch);
        e->batch_loss[action.micro_batch] = head_loss(e, batch, true);
        record_end(lane, RECORD_FORWARD, "forward", action.micro_batch, begin);
        break;
    case ACTION_BACKWARD:
        backward(e, batch, true, true);
        record_end(lane, RECORD_BACKWARD, "backward", action.micro_batch, begin);
        break;
    case ACTION_BACKWARD_INPUT:
        backward(e, batch, true, false);
        record_end(lane, RECORD_BACKWARD, "backward input", action.micro_batch, begin);
        break;
    case ACTION_BACKWARD_WEIGHT:
        backward(e, batch, false, true);
        record_end(lane, RECORD_BACKWARD, "backward weight", action.micro_batch, begin);
        break;
    case ACTION_STEP:
        update(e, count, step);
        record_end(lane, RECORD_OPTIMIZER, "optimizer", -1, begin);
        break;
    default:
        break;
    }
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
    double sum = 0;
    int64_t pairs = 0;
    for (int l = 0; l < e->model->config.layers; l++) {
        if (l == 0 || e->layers[l].window != e->layers[l - 1].window)
            pairs = window_pairs(b, e->layers[l].window);
        sum += (double)pairs;
    }
    return sum / e->model->config.layers;
}

static void count_tokens(const struct engine *e, struct batch *const *batches, int count,
                         struct engine_step *step) {
    step->counted = step->non_pad = step->processed = 0;
    step->attended_pairs = 0;
    for (int m = 0; m < count; m++) {
        step->counted += batches[m]->counted;
        step->non_pad += batches[m]->non_pad;
        step->processed += batches[m]->tokens;
        step->attended_pairs += mean_pairs(e, batches[m]);
    }
    step->loss = step->gradient_norm = 0;
    step->clip_factor = 1;
    step->skipped = step->counted == 0;
}

int engine_run_step(struct engine *engine, struct batch *const *batches, int count,
                    struct engine_step *step, struct err *err) {
    if (!engine->options.train)
        return err_set(err, ERR_INTERNAL, "a training step of an engine opened for evaluation");
    if (count < 1 || count > engine->options.micro_batches)
        return err_set(err, ERR_USAGE, "a step of %d micro-batches; planned were at most %d", count,
                       engine->options.micro_batches);
    for (int m = 0; m < count; m++)
        if (accept_batch(engine, batches[m], err) != 0) return -1;
    count_tokens(engine, batches, count, step);
    if (step->skipped) return 0;
    // The one place where the mean over the global batch enters.
    engine->loss_scale = (float)(1.0 / (double)step->counted);
    memset(engine->written, 0, (size_t)engine->model->param_count * sizeof *engine->written);
    lookup_begin(engine, batches, count);
    schedule_accumulate(&engine->schedule, count, engine->options.split_backward);
    for (int i = 0; i < engine->schedule.count; i++) {
        perform(engine, engine->schedule.actions[i], batches, count, step);
        if (device_check(engine->device, err) != 0) return -1;
    }
    return 0;
}

int engine_evaluate(struct engine *engine, const struct batch *batch, double *loss_sum,
                    int64_t *counted, float *token_loss, struct err *err) {
    if (accept_batch(engine, batch, err) != 0) return -1;
    double begin = record_begin(engine->device->lane);
    forward(engine, batch);
    *loss_sum = head_loss(engine, batch, false);
    *counted = batch->counted;
    if (token_loss)
        memcpy(token_loss, engine->single[SINGLE_LOSS], (size_t)batch->tokens * sizeof(float));
    record_end(engine->device->lane, RECORD_EVALUATE, "evaluate", -1, begin);
    return device_check(engine->device, err);
}

int engine_logits(struct engine *engine, const struct batch *batch, const int32_t *rows, int count,
                  float *logits, struct err *err) {
    const struct device_weight *w = &engine->weight[engine->head];
    if (accept_batch(engine, batch, err) != 0) return -1;
    for (int i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= batch->tokens)
            return err_set(err, ERR_USAGE, "logits of row %d of a micro-batch of %d tokens",
                           rows[i], batch->tokens);
    forward(engine, batch);
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
