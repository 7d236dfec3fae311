// The whole model's gradients: against finite differences of its own loss, for every kind of model
// and every parameter.
#include "fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double loss_of(struct fixture *f, struct batch *b) {
    struct err err = {0};
    double sum;
    int64_t counted;
    engine_weights_changed(f->engine);
    CHECK_OK(engine_evaluate(f->engine, b, &sum, &counted, NULL, &err), err);
    return sum / (double)counted;
}

// Along a direction d in one parameter, (loss(w + h d) - loss(w - h d)) / 2h must be the gradient's
// product with d. The direction is the gradient itself, scaled: FP32 rounding of the loss is then
// smallest beside the difference.
static void check_param(struct fixture *f, struct batch *b, struct tensor *master,
                        const float *gradient) {
    size_t n = (size_t)tensor_elements(master);
    float *w = master->data, *kept = malloc(n * sizeof *kept);
    double norm = 0;
    for (size_t i = 0; i < n; i++) norm += (double)gradient[i] * (double)gradient[i];
    norm = sqrt(norm);
    memcpy(kept, w, n * sizeof *w);
    if (norm < 1e-6) { // GPT-2's key bias alone has none; a fused bias has one from q and v
        free(kept);
        test_fail(__FILE__, __LINE__, "%s has no gradient", master->name);
    }
    double h = fmin(0.02, 0.02 / norm), loss[2];
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < n; i++)
            w[i] = (float)((double)kept[i] + (side ? -h : h) * (double)gradient[i] / norm);
        loss[side] = loss_of(f, b);
    }
    memcpy(w, kept, n * sizeof *w);
    double found = (loss[0] - loss[1]) / (2 * h);
    if (fabs(found - norm) > 0.01 * norm + 1e-4)
        test_fail(__FILE__, __LINE__, "%s: gradient norm %.6g, by differences %.6g", master->name,
                  norm, found);
    free(kept);
}

static void check_kind(const char *kind) {
    struct model_config config = fixture_config(kind);
    struct engine_options options = {.compute = DTYPE_F32, .rows = 2, .context = 11, .train = true};
    struct fixture f;
    fixture_open(&f, &config, options, 1, DEVICE_ISA_PORTABLE);
    struct batch b = fixture_batch(2, 11, config.vocab, 3);
    b.target[4] = b.target[17] = -1;
    fixture_count(&b);
    struct engine_step step = fixture_step(&f, &b, 1, false);
    CHECK_CLOSE(step.loss, loss_of(&f, &b), 1e-6);
    struct err err = {0};
    struct tensor *masters, *gradients;
    int count;
    CHECK_OK(engine_tensors(f.engine, ENGINE_GRADIENTS, &gradients, &count, &err), err);
    CHECK_OK(engine_tensors(f.engine, ENGINE_MASTER, &masters, &count, &err), err);
    CHECK_EQ_INT(count, f.model.param_count);
    for (int i = 0; i < count; i++) check_param(&f, &b, &masters[i], gradients[i].data);
    free(masters);
    free(gradients);
    fixture_free(&b);
    fixture_close(&f);
}

TEST(gradients_by_differences_gpt2) {
    check_kind("gpt2");
}
TEST(gradients_by_differences_llama) {
    check_kind("llama");
}
TEST(gradients_by_differences_tied_head_and_window) {
    check_kind("tied");
}
TEST(gradients_by_differences_norm_of_heads) {
    check_kind("qwen3");
}
TEST(gradients_by_differences_norms_after) {
    check_kind("olmo2");
}
