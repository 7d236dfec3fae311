// A sampled product of the step, held against its operands. Of the product's result some rows are
// made again in double precision and compared element by element, before anything else reads them.
//
// Bound. With FP32 accumulators a sum of n products is off by at most n u / (1 - n u) times the sum
// of the products' magnitudes, u = 2^-24, whatever the order and however it is cut (Higham,
// Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 3.1); a result that is
// stored in BF16 is off by 2^-8 of itself in addition. What the processor flushes to zero counts
// 2^-126 per product. The comparison allows just that, so a clean run has no finding, and sees
// errors that a checksum of the row (the sum over j of C[i,j] = A[i,:] . (B 1)) would lose among
// the roundings of the whole row.
#include "base/clock.h"
#include "base/random.h"
#include "engine/seals.h"
#include <float.h>
#include <math.h>
#include <string.h>

enum { COLUMNS = 64 }; // of a thread's piece

static float value(const void *data, enum dtype type, int64_t i) {
    return type == DTYPE_BF16 ? bf16_to_float(((const bf16 *)data)[i]) : ((const float *)data)[i];
}

// ---- which one ----------------------------------------------------------------------------------

static const enum param_role roles[] = {PARAM_QKV, PARAM_OUT, PARAM_UP, PARAM_DOWN};
static const char kinds[] = {'f', 'i', 'w'};
enum { ROLES = 4, KINDS = 3 };

// A rank that does the work of another one (engine_step.data_shift) looks at that one's product, so
// that a replay elsewhere sees what was seen here.
static int whose_work(const struct engine *e) {
    int at[MESH_AXES];
    mesh_at(&e->layout.mesh, e->rank, at);
    at[MESH_DP] = (at[MESH_DP] + e->data_shift) % e->layout.mesh.size[MESH_DP];
    return mesh_rank(&e->layout.mesh, at);
}

// Every matrix of the dense layers in each of its three products, and the head's logits.
static void draw(struct engine *e, const struct engine_step *step) {
    struct seals_sample *s = &e->seals->sample;
    uint64_t key = random_key((uint64_t)whose_work(e), "guard.products");
    uint32_t word[4];
    random_words(key, (uint64_t)step->update, word);
    uint32_t choices = (uint32_t)e->model->config.layers * ROLES * KINDS;
    uint32_t choice = word[0] % (choices + (e->head >= 0));
    s->kind = kinds[choice % KINDS];
    s->later = (int)(word[1] % (uint32_t)e->batch_count);
    s->draw = (uint64_t)word[2] << 32 | word[3];
    if (choice == choices) {
        s->param = e->head;
        s->kind = 'f';
        return;
    }
    int layer = (int)(choice / KINDS / ROLES);
    s->param = e->layers[layer].param[roles[choice / KINDS % ROLES]];
    if (s->param < 0) s->param = e->layers[layer].param[PARAM_QKV]; // experts
}

void products_begin(struct engine *e, const struct engine_step *step) {
    struct seals *s = e->seals;
    int every = e->options.guards.products_every;
    s->sample.checks = s->sample.results && every > 0 && step->update % every == 0;
    s->sample.param = -1;
    if (s->sample.results && (s->sample.checks || s->fault.kind == ENGINE_FAULT_PRODUCT))
        draw(e, step);
}

static bool is_sampled(const struct engine *e, int param, char kind) {
    const struct seals_sample *s = &e->seals->sample;
    return s->param == param && s->kind == kind && e->seals->in_step;
}

// Distinct rows, the same before and behind the product.
static int64_t row_of(const struct engine *e, int which, int64_t rows) {
    return (int64_t)((e->seals->sample.draw + (uint64_t)which) % (uint64_t)rows);
}

// ---- one row ------------------------------------------------------------------------------------

// Element j is the sum over i of a[i a_step] b[i b_step + j b_next].
struct row {
    const void *a, *b;
    enum dtype type;
    int64_t a_step, b_step, b_next, terms, width;
    const float *added; // [width] bias, or what stood there; NULL: none
    const char *result; // [width]
    enum dtype result_type;
};

static inline __attribute__((always_inline)) void columns_of(const struct row *r, int64_t from,
                                                             int64_t to, double *sum, double *size,
                                                             enum dtype type) {
    for (int64_t j = from; j < to; j++) sum[j - from] = size[j - from] = 0;
    if (r->b_next == 1) {
        for (int64_t i = 0; i < r->terms; i++) {
            double a = (double)value(r->a, type, i * r->a_step);
            for (int64_t j = from; j < to; j++) {
                double p = a * (double)value(r->b, type, i * r->b_step + j);
                sum[j - from] += p;
                size[j - from] += fabs(p);
            }
        }
        return;
    }
    for (int64_t j = from; j < to; j++)
        for (int64_t i = 0; i < r->terms; i++) {
            double p = (double)value(r->a, type, i * r->a_step) *
                       (double)value(r->b, type, i * r->b_step + j * r->b_next);
            sum[j - from] += p;
            size[j - from] += fabs(p);
        }
}

static bool agrees(const struct row *r, int64_t j, double sum, double size, double *found) {
    double added = r->added ? (double)r->added[j] : 0;
    double terms = (double)(r->terms + r->terms / DEVICE_TOKEN_CHUNK + 4), u = ldexp(1, -24);
    double exact = sum + added;
    double bound = 1.01 * terms * u * (size + fabs(added)) + terms * ldexp(1, -126);
    *found = (double)value(r->result, r->result_type, j);
    if (r->result_type == DTYPE_BF16) bound += 1.01 * ldexp(1, -8) * (fabs(exact) + bound);
    if (!(fabs(exact) + bound < (double)FLT_MAX))
        return true; // overflows, or operands do not count
    return fabs(*found - exact) <= bound;
}

static void check_row(struct engine *e, const struct row *r, int64_t row) {
    struct seals *s = e->seals;
    double *exact = s->sample.exact, *read = exact + s->sample.widest;
    bool *wrong = s->sample.wrong;
    int64_t pieces = (r->width + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) num_threads(e->device->threads)
    for (int64_t c = 0; c < pieces; c++) {
        int64_t from = c * COLUMNS, to = from + COLUMNS < r->width ? from + COLUMNS : r->width;
        double sum[COLUMNS], size[COLUMNS];
        if (r->type == DTYPE_BF16)
            columns_of(r, from, to, sum, size, DTYPE_BF16);
        else
            columns_of(r, from, to, sum, size, DTYPE_F32);
        for (int64_t j = from; j < to; j++) {
            wrong[j] = !agrees(r, j, sum[j - from], size[j - from], &read[j]);
            exact[j] = sum[j - from] + (r->added ? (double)r->added[j] : 0);
        }
    }
    for (int64_t j = 0; j < r->width; j++) {
        uint64_t bits[2];
        if (!wrong[j]) continue;
        memcpy(&bits[0], &exact[j], sizeof bits[0]);
        memcpy(&bits[1], &read[j], sizeof bits[1]);
        seals_found(e, FOUND_PRODUCT, s->sample.param, "", row, bits[0], bits[1]);
        return; // one for a row
    }
}

static void flip_one(struct engine *e, void *result, enum dtype type, int64_t width) {
    struct engine_fault *f = &e->seals->fault;
    if (f->kind != ENGINE_FAULT_PRODUCT) return;
    size_t bytes = dtype_bytes(type);
    int64_t at = (int64_t)(f->element % (uint64_t)width);
    seals_flip_word((char *)result + (size_t)at * bytes, (int)bytes, f->bit);
    f->kind = ENGINE_FAULT_NONE;
}

// ---- the three products -------------------------------------------------------------------------

struct result { // [rows][width], rows `stride` apart
    void *data;
    enum dtype type;
    int64_t rows, width, stride;
};

// `r`: of row 0; a row further, `a` lies a_row elements further.
static void check(struct engine *e, struct row r, const struct result *out, int64_t a_row) {
    struct seals_sample *s = &e->seals->sample;
    const char *a = r.a;
    double begin = clock_seconds();
    r.width = out->width;
    r.result_type = out->type;
    for (int k = 0; k < SEALS_ROWS && k < out->rows; k++) {
        int64_t row = row_of(e, k, out->rows);
        char *result = (char *)out->data + (size_t)(row * out->stride) * dtype_bytes(out->type);
        if (k == 0) flip_one(e, result, out->type, out->width);
        r.a = a + (size_t)(row * a_row) * dtype_bytes(r.type);
        r.result = result;
        if (s->kind == 'w') r.added = s->before + k * s->widest;
        if (s->checks) check_row(e, &r, row);
    }
    s->param = -1;
    e->seals->seconds += clock_seconds() - begin;
}

void products_forward(struct engine *e, int param, int64_t tokens, const void *x, const float *bias,
                      void *y, enum dtype y_type) {
    const struct device_weight *w = &e->weight[param];
    if (!is_sampled(e, param, 'f') || e->seals->sample.later-- > 0) return;
    struct row r = {.a = x,
                    .a_step = 1,
                    .b = e->param_at[param].plain,
                    .b_step = 1,
                    .b_next = w->k,
                    .type = e->type,
                    .terms = w->k,
                    .added = bias};
    struct result out = {y, y_type, tokens, w->n, w->n};
    check(e, r, &out, w->k);
}

void products_input(struct engine *e, int param, int64_t tokens, const void *dy, void *dx) {
    const struct device_weight *w = &e->weight[param];
    if (!is_sampled(e, param, 'i') || e->seals->sample.later-- > 0) return;
    struct row r = {.a = dy,
                    .a_step = 1,
                    .b = e->param_at[param].plain,
                    .b_step = w->k,
                    .b_next = 1,
                    .type = e->type,
                    .terms = w->n};
    struct result out = {dx, e->type, tokens, w->k, w->k};
    check(e, r, &out, w->n);
}

// What the sampled rows of a gradient hold before the product is added to them.
void products_before(struct engine *e, int param, bool store) {
    struct seals_sample *s = &e->seals->sample;
    const struct device_weight *w = &e->weight[param];
    if (!is_sampled(e, param, 'w') || s->later > 0) return;
    for (int k = 0; k < SEALS_ROWS && k < w->n; k++) {
        float *to = s->before + k * s->widest;
        const float *row = e->param_at[param].gradient + row_of(e, k, w->n) * w->k;
        if (store)
            memset(to, 0, (size_t)w->k * sizeof *to);
        else
            memcpy(to, row, (size_t)w->k * sizeof *to);
    }
}

void products_weight(struct engine *e, int param, int64_t tokens, const void *dy, const void *x) {
    const struct device_weight *w = &e->weight[param];
    if (!is_sampled(e, param, 'w') || e->seals->sample.later-- > 0) return;
    struct row r = {.a = dy,
                    .a_step = w->n,
                    .b = x,
                    .b_step = w->k,
                    .b_next = 1,
                    .type = e->type,
                    .terms = tokens};
    struct result out = {e->param_at[param].gradient, DTYPE_F32, w->n, w->k, w->k};
    check(e, r, &out, 1);
}
