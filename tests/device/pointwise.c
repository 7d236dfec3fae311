// Activations, look-ups, cross-entropy and the optimizer of every instruction set against the
// reference.
#include "base/random.h"
#include "device/reference/reference.h"
#include "kernel_test.h"

static void free_owned(struct run *r) {
    while (r->owned_count) free(r->owned[--r->owned_count]);
}

static void activations(struct run *r) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 7}, {2, 40}, {5, 333}, {1, 20000}};
    struct device *d = &r->device;
    for (int s = 0; s < 5; s++) {
        int64_t tokens = shapes[s][0], ffn = shapes[s][1], count = tokens * ffn;
        struct values x = run_values(r, r->type, 2 * count, 3),
                      dout = run_values(r, r->type, count, 1);
        struct values out = run_output(r, r->type, count), again = run_output(r, r->type, count);
        struct values dx = run_output(r, r->type, 2 * count);
        d->swiglu_forward(d, r->type, tokens, ffn, x.data, out.data);
        reference_swiglu_forward(tokens, ffn, x.exact, out.exact);
        run_check(r, "swiglu", &out, run_tolerance(r, 2e-6));
        d->swiglu_backward(d, r->type, tokens, ffn, x.data, dout.data, dx.data, again.data);
        reference_swiglu_backward(tokens, ffn, x.exact, dout.exact, dx.exact);
        run_check(r, "swiglu gradient", &dx, run_tolerance(r, 2e-6));
        CHECK_BYTES(again.data, out.data,
                    (size_t)count * dtype_bytes(r->type)); // recomputation is the same

        d->gelu_forward(d, r->type, count, x.data, out.data);
        reference_gelu_forward(count, x.exact, out.exact);
        run_check(r, "gelu", &out, run_tolerance(r, 2e-6));
        dx.count = count;
        d->gelu_backward(d, r->type, count, x.data, dout.data, dx.data, again.data);
        reference_gelu_backward(count, x.exact, dout.exact, dx.exact);
        run_check(r, "gelu gradient", &dx, run_tolerance(r, 3e-6));
        CHECK_BYTES(again.data, out.data, (size_t)count * dtype_bytes(r->type));

        d->add(d, r->type, count, x.data, dout.data, out.data);
        for (int64_t i = 0; i < count; i++) out.exact[i] = x.exact[i] + dout.exact[i];
        run_check(r, "add", &out, run_tolerance(r, 1e-7));
        // In place.
        d->swiglu_backward(d, r->type, tokens, ffn, x.data, dout.data, x.data, NULL);
        d->gelu_backward(d, r->type, count, out.data, dout.data, dout.data, NULL);
        free_owned(r);
    }
}
TEST(activations_equal_the_reference) {
    for_every_device(activations);
}

static void extremes(struct run *r) {
    static const float wild[] = {-1e30f, -100, -88.5f, -20, -0.0f, 0,
                                 1e-30f, 20,   88.5f,  100, 1e18f};
    struct device *d = &r->device;
    struct values x = run_output(r, DTYPE_F32, 22), out = run_output(r, DTYPE_F32, 11);
    for (int i = 0; i < 22; i++) ((float *)x.data)[i] = i < 11 ? wild[i] : 1;
    d->swiglu_forward(d, DTYPE_F32, 1, 11, x.data, out.data);
    for (int i = 0; i < 11; i++) {
        double v = wild[i], expected = v / (1 + exp(-v));
        CHECK_CLOSE(((float *)out.data)[i], v < -80 ? 0 : expected, 1e-6 * fmax(1, fabs(expected)));
    }
    ((float *)x.data)[3] = NAN; // NaN must not vanish
    d->gelu_forward(d, DTYPE_F32, 11, x.data, out.data);
    CHECK(isnan(((float *)out.data)[3]));
    CHECK(!isnan(((float *)out.data)[2]));
}
TEST(activations_at_extremes) {
    for_every_device(extremes);
}

static void conversions(struct run *r) {
    struct device *d = &r->device;
    int64_t count = 65536 + 5;
    float *wide = run_memory(r, (size_t)count * 4);
    bf16 *narrow = run_memory(r, (size_t)count * 2), *expected = run_memory(r, (size_t)count * 2);
    for (int64_t i = 0; i < count; i++) { // every bf16 pattern, and rounding around it
        uint32_t bits = (uint32_t)(i & 0xffff) << 16 | (uint32_t)(i % 3 == 0   ? 0x8000
                                                                  : i % 3 == 1 ? 0x7fff
                                                                               : 0x8001);
        memcpy(wide + i, &bits, 4);
        expected[i] = bf16_from_float(wide[i]);
    }
    d->convert(d, count, wide, DTYPE_F32, narrow, DTYPE_BF16);
    CHECK_BYTES(narrow, expected, (size_t)count * 2);
    float *back = run_memory(r, (size_t)count * 4),
          *expected_back = run_memory(r, (size_t)count * 4);
    d->convert(d, count, narrow, DTYPE_BF16, back, DTYPE_F32);
    for (int64_t i = 0; i < count; i++) expected_back[i] = bf16_to_float(narrow[i]);
    CHECK_BYTES(back, expected_back, (size_t)count * 4);
}
TEST(conversions_round_like_the_scalar) {
    for_every_device(conversions);
}

static void embeddings(struct run *r) {
    static const int64_t shapes[][3] = {{1, 1, 1}, {9, 33, 4}, {700, 130, 50}, {64, 768, 10}};
    struct device *d = &r->device;
    for (int s = 0; s < 4; s++) {
        int64_t tokens = shapes[s][0], width = shapes[s][1], rows = shapes[s][2];
        struct values table = run_values(r, r->type, rows * width, 1),
                      places = run_values(r, r->type, 16 * width, 1);
        struct values out = run_output(r, r->type, tokens * width),
                      dtable = run_output(r, DTYPE_F32, rows * width);
        struct values dout = run_values(r, r->type, tokens * width, 1);
        int32_t *id = run_memory(r, (size_t)tokens * 4),
                *position = run_memory(r, (size_t)tokens * 4);
        for (int64_t t = 0; t < tokens; t++) {
            id[t] = run_below(r, (int)rows);
            position[t] = run_below(r, 16);
        }
        for (int with = 0; with < 2; with++) {
            d->embedding_forward(d, r->type, tokens, width, table.data, with ? places.data : NULL,
                                 id, with ? position : NULL, out.data);
            reference_embedding_forward(tokens, width, table.exact, with ? places.exact : NULL, id,
                                        position, out.exact);
            run_check(r, "embedding", &out, run_tolerance(r, 1e-7));
        }
        d->embedding_backward(d, r->type, tokens, width, rows, dout.data, id, dtable.data, true);
        reference_embedding_backward(tokens, width, rows, dout.exact, id, dtable.exact);
        run_check(r, "embedding gradient", &dtable, 1e-5);
        d->embedding_backward(d, r->type, tokens, width, rows, dout.data, id, dtable.data, false);
        for (int64_t i = 0; i < rows * width; i++) dtable.exact[i] *= 2;
        run_check(r, "embedding gradient added", &dtable, 1e-5);
        free_owned(r);
    }
}
TEST(embeddings_equal_the_reference) {
    for_every_device(embeddings);
}

static void losses(struct run *r) {
    static const int64_t shapes[][3] = {
        {1, 2, 2}, {1, 50, 64}, {13, 17, 32}, {37, 1000, 1024}, {3, 32001, 32064}};
    struct device *d = &r->device;
    for (int s = 0; s < 5; s++) {
        int64_t tokens = shapes[s][0], vocab = shapes[s][1], stride = shapes[s][2],
                count = tokens * stride;
        struct values logits = run_values(r, DTYPE_F32, count, 4),
                      loss = run_output(r, DTYPE_F32, tokens);
        struct values dlogits = run_output(r, r->type, count);
        int32_t *target = run_memory(r, (size_t)tokens * 4);
        for (int64_t t = 0; t < tokens; t++) target[t] = t % 5 == 3 ? -1 : run_below(r, (int)vocab);
        d->cross_entropy(d, r->type, tokens, vocab, stride, logits.data, target, 0.25f, loss.data,
                         dlogits.data);
        reference_cross_entropy(tokens, vocab, stride, logits.exact, target, 0.25, loss.exact,
                                dlogits.exact);
        run_check(r, "loss", &loss, 3e-6);
        run_check(r, "loss gradient", &dlogits, run_tolerance(r, 1e-5));
        struct values alone = run_output(r, DTYPE_F32, tokens);
        d->cross_entropy(d, r->type, tokens, vocab, stride, logits.data, target, 0.25f, alone.data,
                         NULL);
        CHECK_BYTES(alone.data, loss.data, (size_t)tokens * 4);
        // The gradient over the logits themselves.
        d->cross_entropy(d, r->type, tokens, vocab, stride, logits.data, target, 0.25f, alone.data,
                         logits.data);
        CHECK_BYTES(alone.data, loss.data, (size_t)tokens * 4);
        CHECK_BYTES(logits.data, dlogits.data, (size_t)count * dtype_bytes(r->type));
        free_owned(r);
    }
}
TEST(cross_entropy_equals_the_reference) {
    for_every_device(losses);
}

static void optimizer(struct run *r) {
    struct device *d = &r->device;
    int64_t count = 40007;
    struct values w = run_values(r, DTYPE_F32, count, 1), m = run_output(r, DTYPE_F32, count);
    struct values v = run_output(r, DTYPE_F32, count), low = run_output(r, DTYPE_BF16, count);
    memset(m.data, 0, (size_t)count * 4);
    memset(v.data, 0, (size_t)count * 4);
    memset(m.exact, 0, (size_t)count * 8);
    memset(v.exact, 0, (size_t)count * 8);
    for (int step = 1; step <= 5; step++) {
        struct values g = run_values(r, DTYPE_F32, count, 0.01);
        struct device_adamw a = {.count = count,
                                 .master = w.data,
                                 .moment1 = m.data,
                                 .moment2 = v.data,
                                 .gradient = g.data,
                                 .weight = r->type == DTYPE_BF16 ? low.data : NULL,
                                 .learning_rate = 0.01,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .decay = 0.1,
                                 .gradient_scale = 0.5,
                                 .step = step};
        d->adamw(d, &a);
        struct reference_adamw ref = {0.01, 0.9, 0.95, 1e-8, 0.1, 0.5, step};
        reference_adamw(&ref, count, w.exact, m.exact, v.exact, g.exact);
    }
    run_check(r, "master", &w, 2e-6);
    run_check(r, "first moment", &m, 2e-6);
    run_check(r, "second moment", &v, 2e-6);
    for (int64_t i = 0; r->type == DTYPE_BF16 && i < count; i++)
        CHECK(((bf16 *)low.data)[i] ==
              bf16_from_float(((float *)w.data)[i])); // always round(master)

    int64_t blocks = (count + DEVICE_NORM_BLOCK - 1) / DEVICE_NORM_BLOCK;
    struct values sums = run_output(r, DTYPE_F64, blocks);
    d->square_sums(d, count, w.data, sums.data, NULL);
    for (int64_t b = 0; b < blocks; b++) {
        sums.exact[b] = 0;
        for (int64_t i = b * DEVICE_NORM_BLOCK; i < count && i < (b + 1) * DEVICE_NORM_BLOCK; i++)
            sums.exact[b] += (double)((float *)w.data)[i] * (double)((float *)w.data)[i];
    }
    run_check(r, "square sums", &sums, 1e-13);
}
TEST(adamw_and_square_sums_equal_the_reference) {
    for_every_device(optimizer);
}

// Plain sums of 32-bit words; a BF16 value counts as the word that it widens to.
static uint64_t words_of(const void *data, enum dtype type, int64_t first, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = first; i < end; i++) {
        uint32_t word;
        float f =
            type == DTYPE_BF16 ? bf16_to_float(((const bf16 *)data)[i]) : ((const float *)data)[i];
        memcpy(&word, &f, sizeof word);
        sum += word;
    }
    return sum;
}

static void check_seals(const float *w, const float *m, const float *v, int64_t count,
                        const struct device_seal *seals) {
    for (int64_t b = 0; b * DEVICE_NORM_BLOCK < count; b++) {
        int64_t first = b * DEVICE_NORM_BLOCK, end = first + DEVICE_NORM_BLOCK;
        if (end > count) end = count;
        CHECK(seals[b].master == words_of(w, DTYPE_F32, first, end));
        CHECK(seals[b].moment1 == words_of(m, DTYPE_F32, first, end));
        CHECK(seals[b].moment2 == words_of(v, DTYPE_F32, first, end));
    }
}

static void seals(struct run *r) {
    enum { COUNT = 5 * DEVICE_NORM_BLOCK + 37, BLOCKS = 6 };
    static float w[2][COUNT], m[2][COUNT], v[2][COUNT], g[COUNT];
    static bf16 low[2][COUNT];
    struct device_seal before[BLOCKS], after[BLOCKS];
    struct device *d = &r->device;
    uint64_t sums[BLOCKS], key = random_key(3, "seals");
    double squares[BLOCKS];
    bool rounded = r->type == DTYPE_BF16;
    for (int i = 0; i < COUNT; i++) {
        w[0][i] = w[1][i] = (float)random_normal(key, 4 * (uint64_t)i);
        m[0][i] = m[1][i] = (float)random_normal(key, 4 * (uint64_t)i + 1);
        v[0][i] = v[1][i] = fabsf(m[0][i]);
        g[i] = (float)random_normal(key, 4 * (uint64_t)i + 2);
        low[0][i] = low[1][i] = bf16_from_float(w[0][i]);
    }
    low[1][2 * DEVICE_NORM_BLOCK + 5] ^= 0x40; // no longer round(master)
    for (int k = 0; k < 2; k++) {
        struct device_adamw a = {.count = COUNT,
                                 .master = w[k],
                                 .moment1 = m[k],
                                 .moment2 = v[k],
                                 .gradient = g,
                                 .weight = rounded ? low[k] : NULL,
                                 .learning_rate = 0.01,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .decay = 0.1,
                                 .gradient_scale = 0.5,
                                 .step = 3};
        if (k) {
            a.before = before;
            a.after = after;
        }
        d->word_sums(d, COUNT, w[k], DTYPE_F32, sums);
        d->adamw(d, &a);
        for (int b = 0; k && b < BLOCKS; b++) {
            CHECK(before[b].master == sums[b]);
            CHECK_EQ_INT((int)before[b].apart, rounded && b == 2 ? 0x400000 : 0);
        }
    }
    CHECK_BYTES(w[1], w[0], sizeof w[0]); // checksums change no bit
    CHECK_BYTES(m[1], m[0], sizeof m[0]);
    CHECK_BYTES(v[1], v[0], sizeof v[0]);
    CHECK_BYTES(low[1], low[0], rounded ? sizeof low[0] : 1);
    check_seals(w[1], m[1], v[1], COUNT, after);
    d->square_sums(d, COUNT, w[1], squares, sums);
    for (int b = 0; b < BLOCKS; b++) CHECK(sums[b] == after[b].master);
    d->word_sums(d, COUNT, low[1], DTYPE_BF16, sums);
    for (int b = 0; b < BLOCKS; b++) {
        int64_t first = b * DEVICE_NORM_BLOCK, end = first + DEVICE_NORM_BLOCK;
        CHECK(sums[b] == words_of(low[1], DTYPE_BF16, first, end < COUNT ? end : COUNT));
    }
}
TEST(checksums_of_an_update_are_sums_of_words_and_change_no_bit) {
    for_every_device(seals);
}

// Eight steps of -0.001 from 1.0 reach 0.992 in the master; bf16 alone would stay at 1.
static void small_steps(struct run *r) {
    float w = 1, m = 0, v = 0, g = 1;
    bf16 low = bf16_from_float(1);
    for (int step = 1; step <= 8; step++) {
        struct device_adamw a = {.count = 1,
                                 .master = &w,
                                 .moment1 = &m,
                                 .moment2 = &v,
                                 .gradient = &g,
                                 .weight = &low,
                                 .learning_rate = 0.001,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .gradient_scale = 1,
                                 .step = step};
        r->device.adamw(&r->device, &a);
    }
    CHECK_CLOSE(w, 0.992, 1e-6);
    CHECK(bf16_to_float(low) == 0.9921875f);
}
TEST(small_steps_move_the_master) {
    for_every_device(small_steps);
}
