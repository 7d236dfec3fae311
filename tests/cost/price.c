// Prices of products, attention and kernels.
#include "shapes.h"
#include "test.h"
#include <math.h>
#include <string.h>

TEST(a_large_product_reaches_the_sustained_rate) {
    struct accelerator a = test_accelerator();
    double n = 256 * 100, seconds = price_product(&a, HARDWARE_BF16, 256 * 20, 128 * 100, 8192, 1);
    double rate = 2.0 * (256 * 20) * (128 * 100) * 8192 / seconds;
    (void)n;
    CHECK(rate < 0.9 * 300e12);
    CHECK(rate > 0.87 * 300e12);
}

// 100 processors, tiles of 256 x 128: 2560 x 1280 is one wave, a row more is two.
TEST(a_product_one_tile_wider_than_a_wave_takes_two) {
    struct accelerator a = test_accelerator();
    a.tile_count = 1;
    double one = price_product(&a, HARDWARE_BF16, 2560, 1280, 256, 1);
    double more = price_product(&a, HARDWARE_BF16, 2568, 1280, 256, 1);
    CHECK_CLOSE((more - 2e-6) / (one - 2e-6), 2, 1e-9);
    // the next row costs nothing
    CHECK_CLOSE(price_product(&a, HARDWARE_BF16, 2816, 1280, 256, 1), more, 1e-12);
}

// One tile on each processor: 2 x 256 x 128 x (256 + 64) at 2.7 TFLOP/s.
TEST(a_wave_as_worked_by_hand) {
    struct accelerator a = test_accelerator();
    a.tile_count = 1;
    double expected = 2.0 * 256 * 128 * (256 + 64) / (300e12 * 0.9 / 100) + 2e-6;
    CHECK_CLOSE(price_product(&a, HARDWARE_BF16, 2560, 1280, 256, 1) / expected, 1, 1e-9);
}

TEST(small_tiles_help_small_products) {
    struct accelerator a = test_accelerator(), large = a;
    large.tile_count = 1;
    CHECK(price_product(&a, HARDWARE_BF16, 512, 512, 512, 1) <
          0.7 * price_product(&large, HARDWARE_BF16, 512, 512, 512, 1));
}

TEST(few_tiles_are_split_along_the_inner_dimension) {
    struct accelerator a = test_accelerator();
    // 16 tiles at most for 100 processors, k of 65536
    double seconds = price_product(&a, HARDWARE_BF16, 256, 256, 65536, 1);
    double unsplit = 2.0 * 64 * 64 * 65536 / (300e12 * 0.9 / 100);
    CHECK(seconds < unsplit);
}

TEST(batched_products_share_waves) {
    struct accelerator a = test_accelerator();
    double one = price_product(&a, HARDWARE_BF16, 128, 128, 4096, 1);
    double many = price_product(&a, HARDWARE_BF16, 128, 128, 4096, 50);
    CHECK(many < 25 * one);
    CHECK(many >= one);
}

TEST(forms_turn_the_product) {
    struct accelerator a = test_accelerator();
    CHECK_CLOSE(price_product_form(&a, HARDWARE_INPUT, HARDWARE_BF16, 4096, 3072, 768, 1),
                price_product(&a, HARDWARE_BF16, 4096, 768, 3072, 1), 1e-12);
    CHECK_CLOSE(price_product_form(&a, HARDWARE_WEIGHT, HARDWARE_BF16, 4096, 3072, 768, 1),
                price_product(&a, HARDWARE_BF16, 3072, 768, 4096, 1), 1e-12);
}

TEST(rows_off_sixteen_bytes_cost_more_and_off_lines_a_little) {
    struct accelerator a = test_accelerator();
    double even = price_product(&a, HARDWARE_BF16, 4096, 4096, 4096, 1);
    CHECK(price_product(&a, HARDWARE_BF16, 4096, 4096, 4095, 1) > 1.3 * even);
    CHECK(price_product(&a, HARDWARE_BF16, 4096, 4095, 4096, 1) > 1.3 * even);
    CHECK(price_product(&a, HARDWARE_BF16, 4096, 4096, 4096 - 8, 1) > 1.1 * even);
    double heads = price_product(&a, HARDWARE_BF16, 2048, 2048, 112, 64);
    CHECK(price_product(&a, HARDWARE_BF16, 2048, 2048, 108, 64) > 2 * heads);
}

TEST(a_thin_product_is_bound_by_memory) {
    struct accelerator a = test_accelerator();
    double bytes = 2.0 * (8192.0 * 8192 + 16 * 8192.0 * 2);
    double seconds = price_product(&a, HARDWARE_BF16, 16, 8192, 8192, 1);
    CHECK(seconds >= bytes / (2e12 * 0.9));
}

TEST(narrower_formats_are_quicker_and_absent_ones_fall_back) {
    struct accelerator a = test_accelerator();
    double wide = price_product(&a, HARDWARE_BF16, 8192, 8192, 8192, 1);
    CHECK(price_product(&a, HARDWARE_FP8, 8192, 8192, 8192, 1) < 0.55 * wide);
    CHECK(price_product(&a, HARDWARE_FP32, 8192, 8192, 8192, 1) > 10 * wide);
    a.dense[HARDWARE_FP8] = (struct figure){0, FIGURE_ABSENT, ""};
    CHECK_CLOSE(price_product(&a, HARDWARE_FP8, 8192, 8192, 8192, 1) / wide, 1, 0.05);
}

TEST(nothing_costs_nothing) {
    struct accelerator a = test_accelerator();
    CHECK(price_product(&a, HARDWARE_BF16, 0, 8, 8, 1) == 0);
    CHECK(price_product(&a, HARDWARE_BF16, 8, 8, 8, 0) == 0);
    struct price_attention none = {.rows = 0};
    CHECK(price_attention(&a, &none, false) == 0);
}

// ---- attention

static struct price_attention heads_of(int64_t rows, int64_t context, int64_t head_dim) {
    double pairs = (double)context * ((double)context + 1) / 2;
    return (struct price_attention){.precision = HARDWARE_BF16,
                                    .rows = rows,
                                    .queries = context,
                                    .keys = context,
                                    .pairs = pairs,
                                    .heads = 32,
                                    .kv_heads = 32,
                                    .head_dim = head_dim,
                                    .causal = true};
}

static double attention_rate(const struct accelerator *a, const struct price_attention *s) {
    double flops = 4 * s->pairs * (double)(s->rows * s->heads * s->head_dim);
    return flops / price_attention(a, s, false);
}

TEST(attention_nears_its_share_with_context) {
    struct accelerator a = test_accelerator();
    struct price_attention brief = heads_of(8, 512, 128), medium = heads_of(4, 2048, 128),
                           lengthy = heads_of(1, 65536, 128);
    CHECK(attention_rate(&a, &brief) < attention_rate(&a, &medium));
    CHECK(attention_rate(&a, &medium) < attention_rate(&a, &lengthy));
    CHECK(attention_rate(&a, &lengthy) < 0.6 * 300e12);
    CHECK(attention_rate(&a, &lengthy) > 0.57 * 300e12);
}

TEST(narrow_heads_are_slower) {
    struct accelerator a = test_accelerator();
    struct price_attention narrow = heads_of(4, 4096, 64), wide = heads_of(4, 4096, 128);
    CHECK(attention_rate(&a, &narrow) < 0.9 * attention_rate(&a, &wide));
}

TEST(a_window_saves_attention) {
    struct accelerator a = test_accelerator();
    struct price_attention whole = heads_of(1, 32768, 128), window = whole;
    window.pairs = 4096.0 * 4097 / 2 + (32768.0 - 4096) * 4096;
    double ratio = price_attention(&a, &window, false) / price_attention(&a, &whole, false);
    CHECK(ratio > window.pairs / whole.pairs);
    CHECK(ratio < 1.2 * window.pairs / whole.pairs);
}

TEST(attention_backward_is_longer) {
    struct accelerator a = test_accelerator();
    struct price_attention s = heads_of(4, 4096, 128);
    double ratio = price_attention(&a, &s, true) / price_attention(&a, &s, false);
    CHECK(ratio > 2);
    CHECK(ratio < 3);
}

// ---- kernels

TEST(kernels_move_bytes_or_are_measured) {
    struct accelerator a = test_accelerator();
    CHECK_CLOSE(price_kernel(&a, KERNEL_ADD, 1e9, 6e9, HARDWARE_BF16) * 1e3,
                (6e9 / 1.8e12 + 2e-6) * 1e3, 1e-9);
    a.kernels[KERNEL_ADD][1] = (struct hardware_kernel_rate){2e-10, 1e-6};
    CHECK_CLOSE(price_kernel(&a, KERNEL_ADD, 1e9, 6e9, HARDWARE_BF16), 0.2 + 1e-6, 1e-9);
    // of the other type nothing is measured
    CHECK_CLOSE(price_kernel(&a, KERNEL_ADD, 1e9, 6e9, HARDWARE_FP32) * 1e3,
                (6e9 / 1.8e12 + 2e-6) * 1e3, 1e-9);
}
