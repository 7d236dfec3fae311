// A measured machine: its file, its identity, and what a run's ranks find of it.
#include "plan/machine.h"
#include "base/file.h"
#include "cost/measured.h"
#include "plan/measure.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cluster open_small(struct catalogue **catalogue) {
    struct err err = {0};
    struct cluster cluster;
    char path[1024];
    snprintf(path, sizeof path, "%s/../plan/machine-small.yaml", test_golden_dir());
    CHECK_OK(catalogue_open(catalogue, &err), err);
    CHECK_OK(catalogue_cluster(*catalogue, path, &cluster, &err), err);
    return cluster;
}

// The nearest crew: threads of a rank first. What is priced is what that crew measured.
TEST(machine_selects_the_crew) {
    struct catalogue *catalogue;
    struct cluster small = open_small(&catalogue);
    struct machine m;
    struct err err = {0};
    double seconds;
    static const struct {
        int ranks, threads, crew_ranks, crew_threads;
        double slowdown, rate;
    } cases[] = {{1, 2, 1, 2, 1, 100e9},
                 {2, 1, 2, 1, 1, 50e9},
                 {1, 1, 2, 1, 1, 50e9},
                 {4, 1, 2, 1, 2, 25e9},
                 {2, 2, 1, 2, 2, 50e9}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(machine_select(&small, cases[i].ranks, cases[i].threads, &m, &err), err);
        CHECK_EQ_INT(m.crew_ranks, cases[i].crew_ranks);
        CHECK_EQ_INT(m.crew_threads, cases[i].crew_threads);
        CHECK_CLOSE(m.slowdown, cases[i].slowdown, 1e-12);
        CHECK_STR(m.lacks, "");
        CHECK_EQ_INT(m.cluster.per_node, cases[i].ranks);
        CHECK(measured_product(&m.cluster.accelerator, HARDWARE_FORWARD, HARDWARE_BF16, 256, 512,
                               512, &seconds));
        CHECK_CLOSE(2.0 * 256 * 512 * 512 / seconds / cases[i].rate, 1, 1e-6);
        machine_share(&m);
        CHECK(measured_product(&m.cluster.accelerator, HARDWARE_FORWARD, HARDWARE_BF16, 256, 512,
                               512, &seconds));
        CHECK_CLOSE(2.0 * 256 * 512 * 512 / seconds / (cases[i].rate * cases[i].slowdown), 1, 1e-6);
        machine_free(&m);
    }
    catalogue_close(catalogue);
}

// What a file does not hold is said.
TEST(machine_lacks) {
    struct catalogue *catalogue;
    struct cluster small = open_small(&catalogue);
    struct machine m;
    struct err err = {0};
    small.accelerator.kernel_point_count = 0;
    small.message_count = 0;
    CHECK_OK(machine_select(&small, 1, 2, &m, &err), err);
    CHECK_STR(m.lacks, "kernels");
    machine_free(&m);
    CHECK_OK(machine_select(&small, 2, 1, &m, &err), err);
    CHECK_STR(m.lacks, "kernels, messages");
    machine_free(&m);
    catalogue_close(catalogue);
}

TEST(machine_of_another_processor) {
    struct catalogue *catalogue;
    struct cluster small = open_small(&catalogue);
    struct machine_identity here, again, other;
    char warning[512];
    machine_identify(2, "cpu avx2, 2 threads", &here);
    machine_identify(2, "cpu avx2, 1 threads", &again);
    machine_identify(3, "cpu avx2, 2 threads", &other);
    CHECK_EQ_INT(strlen(here.digest), 16);
    CHECK_STR(here.isa, "cpu avx2");
    CHECK_STR(here.digest, again.digest); // threads are the run's
    CHECK(strcmp(here.digest, other.digest) != 0);
    CHECK(!machine_same(&small, &here, warning, sizeof warning));
    CHECK_CONTAINS(warning, "0123456789abcdef");
    CHECK_CONTAINS(warning, here.digest);
    small.digest = here.digest;
    CHECK(machine_same(&small, &here, warning, sizeof warning));
    CHECK_STR(warning, "");
    catalogue_close(catalogue);
}

// Written and read again: the same points.
TEST(machine_file_round_trip) {
    struct catalogue *catalogue, *second;
    struct cluster small = open_small(&catalogue), back;
    struct text text = {0};
    struct err err = {0};
    CHECK_EQ_INT(cluster_print_yaml(&small, &text), 0);
    CHECK_OK(file_replace(test_path("again.yaml"), text.data, text.size, &err), err);
    CHECK_OK(catalogue_open(&second, &err), err);
    CHECK_OK(catalogue_cluster(second, test_path("again.yaml"), &back, &err), err);
    const struct accelerator *a = &small.accelerator, *b = &back.accelerator;
    CHECK_EQ_INT(b->product_count, a->product_count);
    CHECK_EQ_INT(b->attention_count, a->attention_count);
    CHECK_EQ_INT(b->kernel_point_count, a->kernel_point_count);
    CHECK_EQ_INT(back.message_count, small.message_count);
    CHECK_EQ_INT(back.cores, 2);
    CHECK_STR(back.digest, small.digest);
    for (int i = 0; i < a->product_count; i++) {
        CHECK(a->products[i].form == b->products[i].form);
        CHECK(a->products[i].m == b->products[i].m && a->products[i].n == b->products[i].n);
        CHECK(a->products[i].seconds == b->products[i].seconds);
        CHECK_EQ_INT(a->products[i].ranks, b->products[i].ranks);
        CHECK_EQ_INT(a->products[i].threads, b->products[i].threads);
    }
    for (int i = 0; i < a->kernel_point_count; i++) {
        CHECK(a->kernel_points[i].kernel == b->kernel_points[i].kernel);
        CHECK(a->kernel_points[i].seconds == b->kernel_points[i].seconds);
    }
    for (int i = 0; i < small.message_count; i++) {
        CHECK(small.messages[i].kind == back.messages[i].kind);
        CHECK(small.messages[i].bytes == back.messages[i].bytes);
    }
    text_free(&text);
    catalogue_close(second);
    catalogue_close(catalogue);
}

TEST(measure_crews_of_machines) {
    struct measure_crew crews[MEASURE_MOST_CREWS];
    CHECK_EQ_INT(measure_crews(1, false, crews), 1);
    CHECK_EQ_INT(measure_crews(2, false, crews), 3);
    CHECK(crews[0].ranks == 1 && crews[0].threads == 2);
    CHECK(crews[1].ranks == 2 && crews[1].threads == 1);
    CHECK(crews[2].ranks == 1 && crews[2].threads == 1);
    CHECK_EQ_INT(measure_crews(2, true, crews), 2);
    int count = measure_crews(96, false, crews);
    CHECK(count <= MEASURE_MOST_CREWS);
    for (int i = 0; i < count; i++) CHECK(crews[i].ranks * crews[i].threads <= 96);
}

// One rank of one thread on the coarse grid: every list is filled with what can be.
TEST_LIMIT(measure_compute_fills_the_lists, 600) {
    struct accelerator a = {0};
    struct measure_crew crew = {1, 1};
    struct measure_options options = {.quick = true};
    struct err err = {0};
    CHECK_OK(measure_compute(&crew, &options, &a, &err), err);
    int forms[3] = {0};
    for (int i = 0; i < a.product_count; i++) {
        const struct hardware_product *p = &a.products[i];
        double rate = 2.0 * (double)p->m * (double)p->n * (double)p->k / p->seconds;
        CHECK(rate > 1e6 && rate < 1e13 && p->ranks == 1 && p->threads == 1);
        forms[p->form]++;
    }
    CHECK(forms[HARDWARE_FORWARD] > 4 && forms[HARDWARE_FORWARD] == forms[HARDWARE_INPUT]);
    CHECK_EQ_INT(forms[HARDWARE_WEIGHT], forms[HARDWARE_INPUT]);
    CHECK(a.attention_count >= 2);
    for (int k = 0; k < HARDWARE_KERNELS; k++) {
        double seconds;
        bool made = k != KERNEL_BIAS && k != KERNEL_SOFTMAX; // inside products and attention
        CHECK(measured_kernel(&a, (enum hardware_kernel)k, 1e5, HARDWARE_BF16, &seconds) == made);
    }
    CHECK(a.memory_bandwidth.value > 1e8 && a.dense[HARDWARE_BF16].value > 1e8);
    measure_free(&a);
}

TEST(measure_storage_of_a_folder) {
    struct storage storage = {0};
    struct measure_options options = {.quick = true};
    struct err err = {0};
    char **names;
    size_t count;
    CHECK_OK(measure_storage(test_temp_dir(), &options, &storage, &err), err);
    CHECK(storage.given && storage.write.value > 0 && storage.read.value > 0);
    CHECK(storage.metadata_per_second.value > 0);
    CHECK(storage.write.origin == FIGURE_MEASURED);
    CHECK_OK(file_list(test_temp_dir(), &names, &count, &err), err);
    CHECK_EQ_INT(count, 0); // nothing is left
    file_list_free(names, count);
    CHECK_OK(file_replace(test_path("file"), "x", 1, &err), err);
    CHECK_EQ_INT(measure_storage(test_path("file"), &options, &storage, &err), -1);
    CHECK_CONTAINS(err.text, test_path("file"));
}

// ---- prices between points

TEST(measured_points_decide) {
    struct hardware_product products[] = {
        {HARDWARE_BF16, HARDWARE_FORWARD, 256, 256, 256, 1e-3, 1, 1},
        {HARDWARE_BF16, HARDWARE_FORWARD, 256, 1024, 1024, 8e-3, 1, 1},
        {HARDWARE_BF16, HARDWARE_WEIGHT, 512, 256, 256, 4e-3, 1, 1},
        {HARDWARE_BF16, HARDWARE_WEIGHT, 128, 256, 256, 2e-3, 1, 1}};
    struct hardware_kernel_point kernels[] = {{KERNEL_NORM, HARDWARE_BF16, 1e4, 1e-5, 1, 1},
                                              {KERNEL_NORM, HARDWARE_BF16, 1e6, 4e-3, 1, 1},
                                              {KERNEL_NORM, HARDWARE_BF16, 1e6, 9, 2, 1}};
    struct hardware_attention attention[] = {{HARDWARE_BF16, 256, 64, 1e9, 2e9, 1, 1}};
    struct accelerator a = {.cpu = true,
                            .products = products,
                            .product_count = 4,
                            .kernel_points = kernels,
                            .kernel_point_count = 3,
                            .attention = attention,
                            .attention_count = 1};
    double s, t;
    CHECK(measured_product(&a, HARDWARE_FORWARD, HARDWARE_BF16, 256, 256, 256, &s));
    CHECK_CLOSE(s, 1e-3, 1e-9);
    // in between: no quicker than the quick point, no slower than the slow one
    CHECK(measured_product(&a, HARDWARE_FORWARD, HARDWARE_BF16, 256, 512, 512, &s));
    CHECK(s > 8e-3 / 4 && s < 4e-3);
    // FP8 is not there: BF16 stands for it; no input gradient was measured at all
    CHECK(measured_product(&a, HARDWARE_FORWARD, HARDWARE_FP8, 256, 256, 256, &t));
    CHECK_CLOSE(t, 1e-3, 1e-9);
    CHECK(!measured_product(&a, HARDWARE_INPUT, HARDWARE_BF16, 256, 256, 256, &t));
    // weight gradients go in chunks of 512 tokens: 1,152 = 512 + 512 + 128
    CHECK(measured_product(&a, HARDWARE_WEIGHT, HARDWARE_BF16, 1152, 256, 256, &s));
    CHECK_CLOSE(s, 2 * 4e-3 + 2e-3, 1e-8);
    // kernels: points, the geometric middle of the cost of an element, and beyond the ends
    CHECK(measured_kernel(&a, KERNEL_NORM, 1e6, HARDWARE_BF16, &s));
    CHECK_CLOSE(s, 4e-3, 1e-12); // that of the first crew
    CHECK(measured_kernel(&a, KERNEL_NORM, 1e5, HARDWARE_BF16, &s));
    CHECK_CLOSE(s, 1e5 * 2e-9, 1e-12);
    CHECK(measured_kernel(&a, KERNEL_NORM, 2e6, HARDWARE_BF16, &s));
    CHECK_CLOSE(s, 8e-3, 1e-12);
    CHECK(!measured_kernel(&a, KERNEL_ROPE, 1e6, HARDWARE_BF16, &s));
    // attention: 2 products forward, 4 backward, over the pairs
    struct price_attention shape = {.precision = HARDWARE_BF16,
                                    .rows = 3,
                                    .queries = 256,
                                    .keys = 256,
                                    .pairs = 256 * 257 / 2.0,
                                    .heads = 2,
                                    .kv_heads = 2,
                                    .head_dim = 64,
                                    .causal = true};
    CHECK(measured_attention(&a, &shape, false, &s));
    CHECK_CLOSE(s, 4 * shape.pairs * 6 * 64 / 1e9, 1e-9);
    CHECK(measured_attention(&a, &shape, true, &s));
    CHECK_CLOSE(s, 8 * shape.pairs * 6 * 64 / 2e9, 1e-9);
}
