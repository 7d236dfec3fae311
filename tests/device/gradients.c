// The gradients of the reference against central differences in double.
#include "device/reference/reference.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 7;
static double draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 33) / 1073741824.0 - 1;
}
static void fill(double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] = draw();
}

// sum(weights * f(x)) as a function of the inputs that `f` reads.
struct objective {
    void (*f)(double *out);
    int64_t count;
    double out[512], weights[512];
};
static double value(struct objective *o) {
    double sum = 0;
    o->f(o->out);
    for (int64_t i = 0; i < o->count; i++) sum += o->weights[i] * o->out[i];
    return sum;
}
static void check_gradient(const char *what, struct objective *o, double *x, int64_t count,
                           const double *gradient) {
    for (int64_t i = 0; i < count; i++) {
        double keep = x[i], h = 1e-5;
        x[i] = keep + h;
        double up = value(o);
        x[i] = keep - h;
        double down = value(o);
        x[i] = keep;
        double slope = (up - down) / (2 * h);
        if (!(fabs(slope - gradient[i]) <= 1e-7 * (1 + fabs(slope))))
            test_fail(__FILE__, __LINE__, "%s: element %d: gradient %.12g, differences give %.12g",
                      what, (int)i, gradient[i], slope);
    }
}

static struct objective goal;
static double x[512], w[512], b[512], k[512], v[512], dx[512], dw[512], db[512], dk[512], dv[512];

static void start(void (*f)(double *), int64_t count) {
    goal.f = f;
    goal.count = count;
    fill(goal.weights, count);
    fill(x, 512);
    fill(w, 512);
    fill(b, 512);
    fill(k, 512);
    fill(v, 512);
}

static void linear(double *out) {
    reference_linear_forward(3, 5, 4, x, w, b, out);
}
TEST(gradient_of_products) {
    start(linear, 15);
    reference_linear_backward(3, 5, 4, goal.weights, x, w, dx, dw, db);
    check_gradient("x", &goal, x, 12, dx);
    check_gradient("w", &goal, w, 20, dw);
    check_gradient("bias", &goal, b, 5, db);
}

static struct reference_norm norm = {
    .tokens = 3, .width = 7, .eps = 0.01, .x = x, .weight = w, .bias = b};
static void norm_out(double *out) {
    reference_norm_forward(&norm, out);
}
TEST(gradient_of_norms) {
    for (int centred = 0; centred < 2; centred++) {
        norm.centred = centred;
        start(norm_out, 21);
        reference_norm_backward(&norm, goal.weights, dx, dw, db);
        check_gradient("x", &goal, x, 21, dx);
        check_gradient("weight", &goal, w, 7, dw);
        check_gradient("bias", &goal, b, 7, db);
    }
}

static const int32_t places[] = {0, 2, 1};
static struct reference_rope rope = {.tokens = 3,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 6,
                                     .qkv = x,
                                     .position = places,
                                     .cosine = k,
                                     .sine = v,
                                     .eps = 0.01};
static void rope_out(double *out) {
    reference_rope_forward(&rope, out);
}
TEST(gradient_of_rope_with_norms) {
    for (int form = 0; form < 3; form++) {
        rope.q_norm = form ? w : NULL;
        rope.k_norm = form ? b : NULL;
        rope.norm_over_all_heads = form == 2;
        start(rope_out, 72);
        reference_rope_backward(&rope, goal.weights, dx, dw, db);
        check_gradient("qkv", &goal, x, 72, dx);
        if (form) check_gradient("q norm", &goal, w, form == 2 ? 12 : 6, dw);
        if (form) check_gradient("k norm", &goal, b, 6, db);
    }
}

static void swiglu(double *out) {
    reference_swiglu_forward(2, 9, x, out);
}
static void gelu(double *out) {
    reference_gelu_forward(30, x, out);
}
TEST(gradient_of_activations) {
    start(swiglu, 18);
    reference_swiglu_backward(2, 9, x, goal.weights, dx);
    check_gradient("gate and up", &goal, x, 36, dx);
    start(gelu, 30);
    for (int i = 0; i < 30; i++) x[i] *= 4;
    reference_gelu_backward(30, x, goal.weights, dx);
    check_gradient("gelu", &goal, x, 30, dx);
}

static const int32_t ids[] = {1, 0, 1, 2};
static void embedding(double *out) {
    reference_embedding_forward(4, 5, x, NULL, ids, NULL, out);
}
TEST(gradient_of_embedding) {
    start(embedding, 20);
    reference_embedding_backward(4, 5, 4, goal.weights, ids, dx);
    check_gradient("table", &goal, x, 20, dx);
}

static const int32_t targets[] = {2, -1, 0};
static double scratch[512];
static void loss(double *out) {
    reference_cross_entropy(3, 6, 8, x, targets, 1, out, scratch);
}
TEST(gradient_of_cross_entropy) {
    start(loss, 3);
    double losses[3];
    for (int i = 0; i < 3; i++) goal.weights[i] = 0.3;
    reference_cross_entropy(3, 6, 8, x, targets, 0.3, losses, dx);
    check_gradient("logits", &goal, x, 24, dx);
    CHECK(losses[1] == 0);
}

// A document of three queries, one query without keys, one with a window; two query heads on each
// key head.
static const int32_t from[] = {0, 0, 0, 3, 3}, to[] = {1, 2, 3, 3, 7};
static struct reference_attention attention = {.queries = 5,
                                               .keys = 7,
                                               .heads = 4,
                                               .kv_heads = 2,
                                               .head_dim = 3,
                                               .scale = 0.7,
                                               .q = x,
                                               .k = k,
                                               .v = v,
                                               .from = from,
                                               .to = to};
static void attend(double *out) {
    reference_attention_forward(&attention, out, NULL);
}
TEST(gradient_of_attention) {
    for (int window = 0; window < 4; window += 3) {
        attention.window = window;
        start(attend, 60);
        reference_attention_backward(&attention, goal.weights, dx, dk, dv);
        check_gradient("q", &goal, x, 60, dx);
        check_gradient("k", &goal, k, 42, dk);
        check_gradient("v", &goal, v, 42, dv);
    }
}
