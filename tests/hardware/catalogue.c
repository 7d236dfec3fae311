// The built-in catalogue, files beside it, clusters by name and count, writing and reading again.
#include "base/file.h"
#include "hardware/hardware.h"
#include "hardware/parts.h"
#include "hardware/stack.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct catalogue *open_catalogue(void) {
    struct catalogue *catalogue = NULL;
    struct err err = {0};
    CHECK_OK(catalogue_open(&catalogue, &err), err);
    return catalogue;
}

static struct cluster cluster_of(struct catalogue *catalogue, const char *text) {
    struct cluster cluster;
    struct err err = {0};
    CHECK_OK(catalogue_cluster(catalogue, text, &cluster, &err), err);
    return cluster;
}

TEST(catalogue_holds_what_users_name) {
    static const char *const accelerators[] = {
        "v100",   "a100-40", "a100-80", "a100-pcie-80", "h100-sxm",    "h100-pcie", "h100-hbm2e",
        "h800",   "h200",    "gh200",   "b200",         "b300",        "gb200",     "gb300",
        "mi300x", "mi325x",  "mi355x",  "epyc-9654-2s", "xeon-8480-2s"};
    struct catalogue *c = open_catalogue();
    for (size_t i = 0; i < sizeof accelerators / sizeof accelerators[0]; i++) {
        struct err err = {0};
        const struct accelerator *a = catalogue_accelerator(c, accelerators[i], &err);
        CHECK(a != NULL);
        CHECK_STR(a->name, accelerators[i]);
        // and each has a usual node
        struct cluster cluster = cluster_of(c, accelerators[i]);
        CHECK_STR(cluster.accelerator.name, accelerators[i]);
        CHECK_EQ_INT(cluster.nodes, 1);
    }
    catalogue_close(c);
}

// Figures of datasheets, one direction for links.
TEST(catalogue_worked_values) {
    struct catalogue *c = open_catalogue();
    struct err err = {0};
    const struct accelerator *h100 = catalogue_accelerator(c, "h100-sxm", &err);
    CHECK_CLOSE(h100->dense[HARDWARE_BF16].value / 989.4e12, 1, 1e-12);
    CHECK_CLOSE(h100->sparse[HARDWARE_BF16].value / h100->dense[HARDWARE_BF16].value, 2, 1e-3);
    CHECK_CLOSE(h100->dense[HARDWARE_BF16].value / h100->dense[HARDWARE_FP32].value, 14.8, 1e-2);
    const struct link *nvlink = catalogue_link(c, "nvlink4", &err),
                      *ib = catalogue_link(c, "ib-ndr", &err);
    CHECK_CLOSE(nvlink->bandwidth.value / 450e9, 1, 1e-12);
    CHECK(nvlink->both_directions_stated && !ib->both_directions_stated);
    CHECK_CLOSE(nvlink->bandwidth.value / ib->bandwidth.value, 9, 1e-12);
    CHECK_CLOSE(catalogue_link(c, "nvlink4-h800", &err)->bandwidth.value / 200e9, 1, 1e-12);
    struct cluster dgx = cluster_of(c, "dgx-h100");
    CHECK_CLOSE(dgx.failures_per_node_day.value, 419.0 / (54 * 2048), 1e-4);
    catalogue_close(c);
}

// Every figure of the catalogue says where it comes from, and nothing rests on the reader's own
// stand-ins but what the tables call usual.
TEST(catalogue_figures_have_sources) {
    struct catalogue *c = open_catalogue();
    for (int s = 0; s < SECTIONS; s++) {
        const struct section *section = section_of((enum section_kind)s);
        CHECK(c->sections[s].count > 5);
        for (int e = 0; e < c->sections[s].count; e++)
            for (int f = 0; f < section->field_count; f++) {
                const struct field *field = &section->fields[f];
                const char *entry = c->sections[s].entry[e];
                const struct figure *figure = (const void *)(entry + field->offset);
                if (field->kind != FIELD_FIGURE || figure->origin == FIGURE_ABSENT) continue;
                if (!figure->source[0] || strstr(figure->source, ".yaml"))
                    test_fail(__FILE__, __LINE__, "%s %s: %s has no source", section->one,
                              *(const char *const *)(const void *)entry, field->key);
            }
    }
    catalogue_close(c);
}

TEST(cluster_by_accelerator_and_count) {
    struct catalogue *c = open_catalogue();
    struct cluster a = cluster_of(c, "h100-sxm:512");
    CHECK_EQ_INT(a.nodes, 64);
    CHECK_EQ_INT(a.per_node, 8);
    CHECK_EQ_INT(a.domain, 8);
    CHECK_STR(a.fast.name, "nvlink4");
    CHECK_STR(a.slow.name, "ib-ndr");
    struct cluster b = cluster_of(c, "h100-sxm:64x4");
    CHECK_EQ_INT(b.nodes, 64);
    CHECK_EQ_INT(b.per_node, 4);
    struct cluster two = cluster_of(c, "h100-sxm:2");
    CHECK_EQ_INT(two.nodes, 1);
    CHECK_EQ_INT(two.per_node, 2);
    CHECK_EQ_INT(two.domain, 2);
    struct cluster named = cluster_of(c, "aws-p5:128");
    CHECK_EQ_INT(named.nodes, 16);
    CHECK_STR(named.slow.name, "efa-p5");
    catalogue_close(c);
}

TEST(cluster_as_users_say_it) {
    struct catalogue *c = open_catalogue();
    CHECK_STR(cluster_of(c, "h100:512").accelerator.name, "h100-sxm");
    CHECK_STR(cluster_of(c, "H100-SXM:8").accelerator.name, "h100-sxm");
    CHECK_STR(cluster_of(c, "A100").accelerator.name, "a100-80");
    CHECK_STR(cluster_of(c, "MI300X:16").accelerator.name, "mi300x");
    CHECK_STR(cluster_of(c, "DGX-H100").name, "dgx-h100");
    struct err err = {0};
    CHECK_STR(catalogue_accelerator(c, "h100", &err)->name, "h100-sxm");
    CHECK(catalogue_accelerator(c, "h10", &err) == NULL);
    catalogue_close(c);
}

// Jobs take equal parts of racks of 72: 256 are 4 x 64, 144 are 2 x 72.
TEST(cluster_domains_of_racks) {
    static const struct {
        const char *text;
        int domain;
    } cases[] = {{"gb200-nvl72:256", 64}, {"gb200-nvl72:144", 72}, {"gb200-nvl72:64", 64},
                 {"gb200:512", 64},       {"gb200:4", 4},          {"gb200:8", 8}};
    struct catalogue *c = open_catalogue();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_EQ_INT(cluster_of(c, cases[i].text).domain, cases[i].domain);
    catalogue_close(c);
}

static const char *write_file(const char *name, const char *text) {
    struct err err = {0};
    const char *path = test_path(name);
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    return path;
}

TEST(cluster_of_a_users_file) {
    const char *path = write_file("mine.yaml", "links:\n"
                                               "  mine:\n"
                                               "    base: ib-ndr\n"
                                               "    bandwidth: 200 Gb/s\n"
                                               "clusters:\n"
                                               "  our-cluster:\n"
                                               "    base: dgx-h100\n"
                                               "    nodes: 16\n"
                                               "    slow: mine\n"
                                               "    price_per_hour: {value: 1.7, source: ours}\n");
    struct catalogue *c = open_catalogue();
    struct cluster cluster = cluster_of(c, path);
    CHECK_STR(cluster.name, "our-cluster");
    CHECK_EQ_INT(cluster.nodes, 16);
    CHECK_CLOSE(cluster.slow.bandwidth.value / 25e9, 1, 1e-12);
    CHECK_STR(cluster.slow.bandwidth.source, path); // a plain figure's source is its file
    CHECK_STR(cluster.price_per_hour.source, "ours");
    CHECK_EQ_INT(cluster.price_per_hour.origin, FIGURE_STATED);
    // and by its name afterwards
    CHECK_EQ_INT(cluster_of(c, "our-cluster:64").nodes, 8);
    catalogue_close(c);
}

// An entry of a later file takes the place of the built-in one, also for clusters that name it.
TEST(catalogue_later_entries_replace) {
    const char *path = write_file("faster.yaml", "links:\n"
                                                 "  ib-ndr: {bandwidth: 900 GB/s, directions: both,"
                                                 " latency_seconds: 1 us}\n");
    struct catalogue *c = open_catalogue();
    struct err err = {0};
    CHECK_OK(catalogue_add(c, path, &err), err);
    CHECK_CLOSE(cluster_of(c, "dgx-h100").slow.bandwidth.value / 450e9, 1, 1e-12);
    // what is not said is assumed, and says so
    CHECK_EQ_INT(cluster_of(c, "dgx-h100").slow.share.origin, FIGURE_ASSUMED);
    int count = 0;
    for (const char *const *name = catalogue_names(c, "links"); *name; name++)
        count += strcmp(*name, "ib-ndr") == 0;
    CHECK_EQ_INT(count, 1);
    catalogue_close(c);
}

static void check_figure(const struct figure *a, const struct figure *b) {
    CHECK(a->value == b->value);
    CHECK_EQ_INT(a->origin, b->origin);
    CHECK_STR(a->source ? a->source : "", b->source ? b->source : "");
}

// What is written reads back: every field of every cluster of the catalogue.
TEST(cluster_yaml_round_trip) {
    struct catalogue *c = open_catalogue();
    const struct section *accelerator = section_of(SECTION_ACCELERATORS),
                         *link = section_of(SECTION_LINKS);
    for (const char *const *name = catalogue_names(c, "clusters"); *name; name++) {
        struct cluster before = cluster_of(c, *name);
        struct text yaml = {0};
        CHECK_EQ_INT(cluster_print_yaml(&before, &yaml), 0);
        struct catalogue *fresh = open_catalogue();
        const char *path = write_file("again.yaml", yaml.data);
        struct cluster after = cluster_of(fresh, path);
        struct text again = {0};
        CHECK_EQ_INT(cluster_print_yaml(&after, &again), 0);
        CHECK_STR(again.data, yaml.data);
        CHECK_EQ_INT(after.nodes, before.nodes);
        CHECK_EQ_INT(after.fabric.kind, before.fabric.kind);
        check_figure(&after.price_per_hour, &before.price_per_hour);
        check_figure(&after.storage[STORAGE_NODE].read, &before.storage[STORAGE_NODE].read);
        for (int f = 0; f < accelerator->field_count; f++)
            if (accelerator->fields[f].kind == FIELD_FIGURE)
                check_figure((const void *)((const char *)&after.accelerator +
                                            accelerator->fields[f].offset),
                             (const void *)((const char *)&before.accelerator +
                                            accelerator->fields[f].offset));
        for (int f = 0; f < link->field_count; f++)
            if (link->fields[f].kind == FIELD_FIGURE)
                check_figure((const void *)((const char *)&after.slow + link->fields[f].offset),
                             (const void *)((const char *)&before.slow + link->fields[f].offset));
        text_free(&yaml);
        text_free(&again);
        catalogue_close(fresh);
    }
    catalogue_close(c);
}

// A measured machine: lists of products, attention, kernels and messages.
TEST(cluster_yaml_round_trip_measured) {
    struct hardware_product products[] = {
        {HARDWARE_BF16, HARDWARE_FORWARD, 4096, 768, 3072, 0.0123, 1, 2},
        {HARDWARE_FP32, HARDWARE_WEIGHT, 512, 64, 33, 1.0 / 3.0, 2, 1}};
    struct hardware_attention attention[] = {{HARDWARE_BF16, 1024, 64, 1.2e11, 0.1e11, 0, 0}};
    struct hardware_kernel_point points[] = {{KERNEL_NORM, HARDWARE_BF16, 1e6, 4e-4, 1, 2}};
    struct hardware_message messages[] = {{MESSAGE_ALL_REDUCE, 2, 1048576, 3.3e-4},
                                          {MESSAGE_SEND, 2, 100, 1e-6}};
    struct cluster machine = {
        .name = "this-machine",
        .title = "a \"quoted\" title \\ with a backslash",
        .accelerator = {.name = "this-cpu",
                        .cpu = true,
                        .memory_bytes = {16e9, FIGURE_MEASURED, "system"},
                        .memory_bandwidth = {1.7e10, FIGURE_MEASURED, "weft bench hardware"},
                        .products = products,
                        .product_count = 2,
                        .attention = attention,
                        .attention_count = 1,
                        .kernel_points = points,
                        .kernel_point_count = 1},
        .nodes = 1,
        .per_node = 2,
        .domain = 2,
        .fast = {.name = "this-memory",
                 .bandwidth = {5e9, FIGURE_MEASURED, "weft bench hardware"},
                 .latency_seconds = {1e-6, FIGURE_MEASURED, "weft bench hardware"}},
        .messages = messages,
        .message_count = 2,
        .cores = 2,
        .measured_on = "a host, 2026-01-01",
        .digest = "0123456789abcdef"};
    machine.accelerator.dense[HARDWARE_BF16] =
        (struct figure){1.1e11, FIGURE_MEASURED, "weft bench hardware"};
    machine.accelerator.kernels[KERNEL_ADAMW][0] = (struct hardware_kernel_rate){1e-10, 2e-6};
    struct text yaml = {0};
    CHECK_EQ_INT(cluster_print_yaml(&machine, &yaml), 0);
    struct catalogue *c = open_catalogue();
    struct cluster got = cluster_of(c, write_file("machine.yaml", yaml.data));
    CHECK_STR(got.title, machine.title);
    CHECK_EQ_INT(got.accelerator.product_count, 2);
    CHECK_EQ_INT(got.accelerator.products[1].form, HARDWARE_WEIGHT);
    CHECK_EQ_INT(got.accelerator.products[1].k, 33);
    CHECK_EQ_INT(got.accelerator.products[0].threads, 2);
    CHECK(got.accelerator.products[1].seconds == 1.0 / 3.0);
    CHECK_EQ_INT(got.accelerator.attention_count, 1);
    CHECK(got.accelerator.attention[0].backward_rate == 0.1e11);
    CHECK_EQ_INT(got.accelerator.kernel_point_count, 1);
    CHECK_EQ_INT(got.accelerator.kernel_points[0].kernel, KERNEL_NORM);
    CHECK(got.accelerator.kernels[KERNEL_ADAMW][0].fixed_seconds == 2e-6);
    CHECK_EQ_INT(got.message_count, 2);
    CHECK_EQ_INT(got.messages[1].kind, MESSAGE_SEND);
    CHECK(got.messages[0].seconds == 3.3e-4);
    CHECK_EQ_INT(got.cores, 2);
    CHECK_STR(got.digest, "0123456789abcdef");
    text_free(&yaml);
    catalogue_close(c);
}

TEST(stack_by_name) {
    struct catalogue *c = open_catalogue();
    struct err err = {0};
    const struct stack *weft = catalogue_stack(c, "weft", &err);
    CHECK(weft && weft->own && weft->gradient == DTYPE_F32 && weft->masters);
    CHECK(catalogue_stack(c, "wefd", &err) == NULL);
    CHECK_CONTAINS(err.text, "did you mean \"weft\"?");
    catalogue_close(c);
}
