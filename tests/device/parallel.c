// What parallel layouts ask of a device: look-ups of a table in parts, cross-entropy over a
// vocabulary in parts, and dropout that does not depend on who computes which row.
#include "device/reference/reference.h"
#include "kernel_test.h"

static void free_owned(struct run *r) {
    while (r->owned_count) free(r->owned[--r->owned_count]);
}

// ---- embedding ---------------------------------------------------------------------------------

static void absent_rows(struct run *r) {
    static const int64_t shapes[][3] = {{1, 1, 1}, {9, 33, 4}, {300, 130, 50}};
    struct device *d = &r->device;
    for (int s = 0; s < 3; s++) {
        int64_t tokens = shapes[s][0], width = shapes[s][1], rows = shapes[s][2];
        struct values table = run_values(r, r->type, rows * width, 1),
                      places = run_values(r, r->type, 16 * width, 1);
        struct values out = run_output(r, r->type, tokens * width),
                      dtable = run_output(r, DTYPE_F32, rows * width);
        struct values dout = run_values(r, r->type, tokens * width, 1);
        int32_t *id = run_memory(r, (size_t)tokens * 4),
                *position = run_memory(r, (size_t)tokens * 4);
        for (int64_t t = 0; t < tokens; t++) {
            id[t] = t % 3 == 0 ? -1 : run_below(r, (int)rows);
            position[t] = run_below(r, 16);
        }
        for (int with = 0; with < 2; with++) {
            d->embedding_forward(d, r->type, tokens, width, table.data, with ? places.data : NULL,
                                 id, position, out.data);
            reference_embedding_forward(tokens, width, table.exact, with ? places.exact : NULL, id,
                                        position, out.exact);
            for (int64_t i = 0; i < width; i++)
                CHECK(out.exact[i] == (with ? places.exact[position[0] * width + i] : 0));
            run_check(r, "embedding with absent rows", &out, run_tolerance(r, 1e-7));
        }
        d->embedding_backward(d, r->type, tokens, width, rows, dout.data, id, dtable.data, true);
        reference_embedding_backward(tokens, width, rows, dout.exact, id, dtable.exact);
        run_check(r, "its gradient", &dtable, 1e-5);
        free_owned(r);
    }
}
TEST(absent_rows_of_a_table_are_zero_and_get_no_gradient) {
    for_every_device(absent_rows);
}

// ---- cross-entropy -----------------------------------------------------------------------------

struct split { // one rank's part of the columns
    int64_t vocab, stride;
    struct values logits, loss, dlogits;
    int32_t *target;
};

static struct split cut(struct run *r, const struct values *whole, int64_t tokens, int64_t stride,
                        const int32_t *target, int64_t first, int64_t vocab) {
    struct split p = {.vocab = vocab, .stride = vocab + 3};
    p.logits = run_values(r, DTYPE_F32, tokens * p.stride, 100); // padding holds large numbers
    p.loss = run_output(r, DTYPE_F32, tokens);
    p.dlogits = run_output(r, r->type, tokens * p.stride);
    p.target = run_memory(r, (size_t)tokens * 4);
    for (int64_t t = 0; t < tokens; t++) {
        bool here = target[t] >= first && target[t] < first + vocab;
        p.target[t] = here ? (int32_t)(target[t] - first) : -1;
        for (int64_t i = 0; i < vocab; i++) {
            ((float *)p.logits.data)[t * p.stride + i] =
                ((float *)whole->data)[t * stride + first + i];
            p.logits.exact[t * p.stride + i] = whole->exact[t * stride + first + i];
        }
    }
    return p;
}

static void losses_in_parts(struct run *r) {
    static const int64_t shapes[][3] = {{1, 5, 1}, {13, 17, 2}, {37, 1000, 3}, {5, 3, 4}};
    struct device *d = &r->device;
    for (int s = 0; s < 4; s++) {
        int64_t tokens = shapes[s][0], vocab = shapes[s][1], ranks = shapes[s][2];
        int64_t stride = vocab + 4, each = (vocab + ranks - 1) / ranks;
        struct values logits = run_values(r, DTYPE_F32, tokens * stride, 4);
        struct values loss = run_output(r, DTYPE_F32, tokens),
                      dlogits = run_output(r, r->type, tokens * stride),
                      statistics = run_output(r, DTYPE_F32, ranks * tokens * 3);
        int32_t *target = run_memory(r, (size_t)tokens * 4);
        for (int64_t t = 0; t < tokens; t++) target[t] = t % 5 == 3 ? -1 : run_below(r, (int)vocab);
        struct split part[4];
        for (int64_t p = 0; p < ranks; p++) { // the last may have fewer columns, or none
            int64_t first = p * each < vocab ? p * each : vocab;
            int64_t own = vocab - first < each ? vocab - first : each;
            part[p] = cut(r, &logits, tokens, stride, target, first, own);
            d->cross_entropy_statistics(d, tokens, own, part[p].stride, part[p].logits.data,
                                        part[p].target, (float *)statistics.data + p * tokens * 3);
            reference_cross_entropy_statistics(tokens, own, part[p].stride, part[p].logits.exact,
                                               part[p].target, statistics.exact + p * tokens * 3);
        }
        if (part[ranks - 1].vocab == 0) {
            CHECK(((float *)statistics.data)[(ranks - 1) * tokens * 3] == -INFINITY);
            CHECK(((float *)statistics.data)[(ranks - 1) * tokens * 3 + 1] == 0);
        } else {
            run_check(r, "statistics", &statistics, 1e-5);
        }
        reference_cross_entropy(tokens, vocab, stride, logits.exact, target, 0.25, loss.exact,
                                dlogits.exact);
        d->cross_entropy(d, r->type, tokens, vocab, stride, logits.data, target, 0.25f, loss.data,
                         dlogits.data);
        for (int64_t p = 0; p < ranks; p++) {
            struct split *q = &part[p];
            d->cross_entropy_finish(d, r->type, tokens, q->vocab, q->stride, q->logits.data,
                                    q->target, target, statistics.data, (int)ranks, 0.25f,
                                    q->loss.data, q->dlogits.data);
            reference_cross_entropy_finish(tokens, q->vocab, q->stride, q->logits.exact, q->target,
                                           target, statistics.exact, (int)ranks, 0.25,
                                           q->loss.exact, q->dlogits.exact);
            // The reference of the parts is the reference of the whole.
            for (int64_t t = 0; t < tokens; t++) {
                CHECK_CLOSE(q->loss.exact[t], loss.exact[t], 1e-12);
                for (int64_t i = 0; i < q->stride; i++)
                    CHECK_CLOSE(q->dlogits.exact[t * q->stride + i],
                                i < q->vocab && target[t] >= 0
                                    ? dlogits.exact[t * stride + p * each + i]
                                    : 0,
                                1e-12);
            }
            run_check(r, "loss of parts", &q->loss, 3e-6);
            run_check(r, "its gradient", &q->dlogits, run_tolerance(r, 1e-5));
            CHECK_BYTES(q->loss.data, part[0].loss.data, (size_t)tokens * 4); // on every rank
            if (ranks == 1) CHECK_BYTES(q->loss.data, loss.data, (size_t)tokens * 4);
            // Over the logits themselves, and without a gradient.
            struct values alone = run_output(r, DTYPE_F32, tokens);
            d->cross_entropy_finish(d, r->type, tokens, q->vocab, q->stride, q->logits.data,
                                    q->target, target, statistics.data, (int)ranks, 0.25f,
                                    alone.data, NULL);
            CHECK_BYTES(alone.data, q->loss.data, (size_t)tokens * 4);
            d->cross_entropy_finish(d, r->type, tokens, q->vocab, q->stride, q->logits.data,
                                    q->target, target, statistics.data, (int)ranks, 0.25f,
                                    alone.data, q->logits.data);
            CHECK_BYTES(q->logits.data, q->dlogits.data,
                        (size_t)(tokens * q->stride) * dtype_bytes(r->type));
        }
        free_owned(r);
    }
}
TEST(cross_entropy_of_a_vocabulary_in_parts) {
    for_every_device(losses_in_parts);
}

// One rank has everything: the bits of the plain call.
static void one_part(struct run *r) {
    struct device *d = &r->device;
    int64_t tokens = 19, vocab = 77, stride = 80, count = tokens * stride;
    struct values logits = run_values(r, DTYPE_F32, count, 5);
    struct values plain = run_output(r, r->type, count), parts = run_output(r, r->type, count);
    float loss[2][19], statistics[19 * 3];
    int32_t target[19];
    for (int t = 0; t < tokens; t++) target[t] = t == 7 ? -1 : run_below(r, (int)vocab);
    d->cross_entropy(d, r->type, tokens, vocab, stride, logits.data, target, 0.5f, loss[0],
                     plain.data);
    d->cross_entropy_statistics(d, tokens, vocab, stride, logits.data, target, statistics);
    d->cross_entropy_finish(d, r->type, tokens, vocab, stride, logits.data, target, target,
                            statistics, 1, 0.5f, loss[1], parts.data);
    CHECK_BYTES(loss[1], loss[0], sizeof loss[0]);
    CHECK_BYTES(parts.data, plain.data, (size_t)count * dtype_bytes(r->type));
}
TEST(cross_entropy_in_one_part_has_the_plain_bits) {
    for_every_device(one_part);
}

// ---- dropout -----------------------------------------------------------------------------------

static void dropout(struct run *r) {
    static const int64_t widths[] = {1, 3, 16, 65, 700};
    struct device *d = &r->device;
    for (int s = 0; s < 5; s++) {
        int64_t rows = 11, width = widths[s], count = rows * width;
        struct values x = run_values(r, r->type, count, 1), out = run_output(r, r->type, count);
        int32_t row[11];
        for (int i = 0; i < rows; i++) row[i] = (int32_t)run_below(r, 1 << 30);
        for (int with = 0; with < 2; with++) {
            struct device_dropout a = {.type = r->type,
                                       .rows = rows,
                                       .width = width,
                                       .key = 0x123456789abcdefu + (uint64_t)s,
                                       .first_row = with ? 5 : (int64_t)1 << 33,
                                       .row = with ? row : NULL,
                                       .rate = 0.1 + 0.2 * s,
                                       .x = x.data,
                                       .out = out.data};
            d->dropout(d, &a);
            reference_dropout(rows, width, a.key, a.first_row, a.row, a.rate, x.exact, out.exact);
            run_check(r, "dropout", &out, run_tolerance(r, 1e-6));
            // The same elements stay, to the last one; in place too.
            for (int64_t i = 0; i < count; i++) {
                double found = r->type == DTYPE_BF16 ? bf16_to_float(((bf16 *)out.data)[i])
                                                     : ((float *)out.data)[i];
                CHECK((found == 0) == (out.exact[i] == 0));
            }
            struct values copy = run_output(r, r->type, count);
            memcpy(copy.data, x.data, (size_t)count * dtype_bytes(r->type));
            a.x = a.out = copy.data;
            d->dropout(d, &a);
            CHECK_BYTES(copy.data, out.data, (size_t)count * dtype_bytes(r->type));
        }
        free_owned(r);
    }
}
TEST(dropout_equals_the_reference) {
    for_every_device(dropout);
}

// Rows of a split, in any order, get what they get in one piece.
static void dropout_split(struct run *r) {
    struct device *d = &r->device;
    enum { ROWS = 24, WIDTH = 37 };
    size_t row_bytes = WIDTH * dtype_bytes(r->type);
    struct values x = run_values(r, r->type, ROWS * WIDTH, 1),
                  whole = run_output(r, r->type, ROWS * WIDTH),
                  parts = run_output(r, r->type, ROWS * WIDTH);
    struct device_dropout a = {.type = r->type,
                               .rows = ROWS,
                               .width = WIDTH,
                               .key = 99,
                               .first_row = 1000,
                               .rate = 0.3,
                               .x = x.data,
                               .out = whole.data};
    d->dropout(d, &a);
    for (int p = 0; p < 3; p++) { // rows p, p + 3, ...
        int32_t row[ROWS / 3];
        unsigned char in[sizeof(float) * WIDTH * ROWS / 3], out[sizeof in];
        for (int i = 0; i < ROWS / 3; i++) {
            row[i] = p + 3 * i;
            memcpy(in + (size_t)i * row_bytes, (char *)x.data + (size_t)row[i] * row_bytes,
                   row_bytes);
        }
        a.rows = ROWS / 3;
        a.row = row;
        a.x = in;
        a.out = out;
        d->dropout(d, &a);
        for (int i = 0; i < ROWS / 3; i++)
            memcpy((char *)parts.data + (size_t)row[i] * row_bytes, out + (size_t)i * row_bytes,
                   row_bytes);
    }
    CHECK_BYTES(parts.data, whole.data, ROWS * row_bytes);
}
TEST(dropout_does_not_depend_on_the_split) {
    for_every_device(dropout_split);
}

// The share that stays, of all and of each column; the mean; no correlation of neighbouring rows or
// of two keys.
static void dropout_statistics(struct run *r) {
    if (r->type != DTYPE_F32) return;
    enum { ROWS = 2000, WIDTH = 64 };
    struct device *d = &r->device;
    struct values x = run_output(r, DTYPE_F32, ROWS * WIDTH), out[2];
    float *ones = x.data;
    for (int i = 0; i < ROWS * WIDTH; i++) ones[i] = 1;
    double kept[2] = {0}, both = 0, neighbours = 0, rate = 0.2;
    for (int k = 0; k < 2; k++) {
        out[k] = run_output(r, DTYPE_F32, ROWS * WIDTH);
        struct device_dropout a = {.type = DTYPE_F32,
                                   .rows = ROWS,
                                   .width = WIDTH,
                                   .key = 7 + (uint64_t)k,
                                   .rate = rate,
                                   .x = x.data,
                                   .out = out[k].data};
        d->dropout(d, &a);
    }
    const float *first = out[0].data, *second = out[1].data;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        CHECK(first[i] == 0 || first[i] == 1.25f);
        kept[0] += first[i] != 0;
        kept[1] += second[i] != 0;
        both += first[i] != 0 && second[i] != 0;
        if (i >= WIDTH) neighbours += first[i] != 0 && first[i - WIDTH] != 0;
    }
    double count = ROWS * WIDTH, four_sigma = 4 * sqrt(rate * (1 - rate) / count);
    CHECK_CLOSE(kept[0] / count, 0.8, four_sigma);
    CHECK_CLOSE(kept[1] / count, 0.8, four_sigma);
    CHECK_CLOSE(both / count, 0.64, 4 * sqrt(0.64 * 0.36 / count));
    CHECK_CLOSE(neighbours / (count - WIDTH), 0.64, 6 * sqrt(0.64 * 0.36 / count));
    for (int c = 0; c < WIDTH; c++) {
        double column = 0;
        for (int i = 0; i < ROWS; i++) column += first[i * WIDTH + c] != 0;
        CHECK_CLOSE(column / ROWS, 0.8, 5 * sqrt(rate * (1 - rate) / ROWS));
    }
}
TEST(dropout_keeps_the_share_it_should) {
    for_every_device(dropout_statistics);
}

static void dropout_none(struct run *r) {
    struct device *d = &r->device;
    struct values x = run_values(r, r->type, 300, 1), out = run_output(r, r->type, 300);
    struct device_dropout a = {
        .type = r->type, .rows = 3, .width = 100, .x = x.data, .out = out.data};
    d->dropout(d, &a);
    CHECK_BYTES(out.data, x.data, 300 * dtype_bytes(r->type));
}
TEST(dropout_of_rate_zero_changes_nothing) {
    for_every_device(dropout_none);
}
