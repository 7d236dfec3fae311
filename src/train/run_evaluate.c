// Loss on the validation sets, in file order, each sample once whatever the number of ranks. See
// run_parts.h.
#include "base/clock.h"
#include "base/log.h"
#include "train/run_parts.h"
#include <math.h>
#include <stdio.h>

// Rows behind the last sample count nothing: the last round of micro-batches is seldom full.
static void leave_out(struct batch *batch, int64_t rows_left) {
    int64_t kept = rows_left < 0 ? 0 : rows_left * batch->context;
    for (int64_t i = kept; i < batch->tokens; i++) {
        batch->counted -= batch->target[i] >= 0;
        batch->target[i] = -1;
    }
}

int run_evaluate(struct run *run, struct err *err) {
    const struct train_config *c = run->config;
    // A micro-batch on each data-parallel rank at a time.
    int at[MESH_AXES];
    int64_t samples = (int64_t)c->micro_batch * run->layout.mesh.size[MESH_DP];
    int64_t last = (int64_t)loader_samples_per_epoch(run->validation);
    if (c->eval_batches > 0 && c->eval_batches <= last / c->micro_batch)
        last = c->eval_batches * c->micro_batch;
    mesh_at(&run->layout.mesh, run->rank, at);
    double sum = 0, start = clock_seconds();
    int64_t counted = 0;
    for (int64_t first = 0; first < last && !run->stopped; first += samples) {
        struct batch *const *batches;
        double loss;
        int64_t targets;
        if (loader_step(run->validation, (uint64_t)first, &batches, err) != 0) return -1;
        leave_out(batches[0], last - first - (int64_t)at[MESH_DP] * c->micro_batch);
        if (engine_evaluate(run->engine, batches[0], &loss, &targets, NULL, err) != 0) return -1;
        sum += loss;
        counted += targets;
        run_look_at_signals(run);
    }
    if (run->stopped || counted == 0) return 0; // half an evaluation is none
    double loss = sum / (double)counted, seconds = clock_seconds() - start;
    double bytes = (double)loader_text_bytes(run->validation);
    double bits = bytes > 0 ? loss / log(2) * (double)loader_tokens(run->validation) / bytes : NAN;
    run->result->validation_loss = loss;
    if (bytes > 0)
        log_line(LOG_INFO,
                 "evaluation at step %lld: loss %.4f, perplexity %.2f, %.4f bits per byte (%.1f s)",
                 (long long)run->step, loss, exp(loss), bits, seconds);
    else
        log_line(LOG_INFO, "evaluation at step %lld: loss %.4f, perplexity %.2f (%.1f s)",
                 (long long)run->step, loss, exp(loss), seconds);
    char more[64] = "";
    if (bytes > 0) snprintf(more, sizeof more, ",\"bits_per_byte\":%.9g", bits);
    metrics_put_event(&run->metrics, "evaluation", run->step,
                      "\"loss\":%.9g,\"loss_hex\":\"%a\",\"targets\":%lld,\"seconds\":%.3f%s", loss,
                      loss, (long long)counted, seconds, more);
    struct tensorboard_scalar scalars[] = {{"validation/loss", loss},
                                           {"validation/bits_per_byte", bits}};
    if (run->has_tensorboard)
        tensorboard_put(&run->tensorboard, clock_wall_seconds(), run->step, scalars,
                        bytes > 0 ? 2 : 1, NULL);
    return 0;
}
