// weft bench hardware: measures this machine and writes it down as a cluster, from which runs on it
// are predicted.
#include "base/affinity.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/bench.h"
#include "cli/bench_child.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include "cli/machine_file.h"
#include "cli/options.h"
#include "comm/comm.h"
#include "device/device.h"
#include "plan/machine.h"
#include "plan/measure.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: weft bench hardware [--out FILE] [--quick] [--folder DIR] [--json]\n\n"
    "Measures this machine: products by shape, form and precision, attention, kernels by size (by\n"
    "one rank of all cores, by one rank on each core at the same time, and between), memory\n"
    "bandwidth, messages between ranks, storage. Writes a file that weft plan takes as a cluster,\n"
    "and from which weft plan --this-machine and weft train predict runs here. About a minute on "
    "a\n"
    "machine that does nothing else.\n\n"
    "  --out FILE    (" MACHINE_FILE_HELP ")\n"
    "  --quick       a coarser grid, some ten seconds\n"
    "  --folder DIR  whose storage is measured (.)\n"
    "  --json        what is printed, as one JSON object\n";

static const char LINK_NAME[] = "this-machine-messages", NAME[] = "this-machine";
enum { MOST_LINK_RANKS = 16 };

struct hardware_bench {
    const char *out, *folder;
    bool quick, json;
    struct machine_identity identity;
    struct cluster cluster;
    char title[320], measured_on[320];
    double began;
};

static void say(const struct hardware_bench *b, const char *what) {
    fprintf(stderr, "%6.1f s  %s\n", clock_seconds() - b->began, what);
}

// ---- messages -----------------------------------------------------------------------------------

static struct figure measured(double value) {
    return (struct figure){value, FIGURE_MEASURED, "weft bench hardware"};
}

// `bench link` counts a member's piece where cost/network.h counts the whole vector.
static double whole_bytes(enum hardware_message_kind kind, double bytes, int ranks) {
    bool pieces =
        kind == MESSAGE_REDUCE_SCATTER || kind == MESSAGE_ALL_GATHER || kind == MESSAGE_ALL_TO_ALL;
    return pieces ? bytes * ranks : bytes;
}

static int keep_message(struct cluster *c, const json_t *one, int ranks, struct err *err) {
    const char *name = json_string_value(json_object_get(one, "kind"));
    for (int k = 0; name && k < HARDWARE_MESSAGES; k++) {
        enum hardware_message_kind kind = (enum hardware_message_kind)k;
        if (strcmp(name, hardware_message_name(kind)) != 0) continue;
        struct hardware_message *larger =
            realloc(c->messages, (size_t)(c->message_count + 1) * sizeof *larger);
        if (!larger) return err_set(err, ERR_MEMORY, "no memory for what was measured");
        c->messages = larger;
        c->messages[c->message_count++] =
            (struct hardware_message){.kind = kind,
                                      .ranks = ranks,
                                      .bytes = whole_bytes(kind, child_number(one, "bytes"), ranks),
                                      .seconds = child_number(one, "seconds")};
    }
    return 0;
}

static int measure_link(struct hardware_bench *b, int ranks, struct err *err) {
    bool processes = comm_built_with_mpi() && ranks <= b->identity.cores;
    char number[16], what[80];
    const char *most = b->quick ? "1048576" : "16777216";
    snprintf(number, sizeof number, "%d", ranks);
    snprintf(what, sizeof what, "messages between %d %s", ranks,
             processes ? "processes" : "threads");
    say(b, what);
    static const char WORK[] = "0.001"; // about as long as an operation of a layer
    const char *const words[] = {"bench",   "link", "--json", "--most", most,
                                 "--ranks", number, "--work", WORK,     NULL};
    json_t *root = child_run(processes ? ranks : 1, words, err), *one;
    size_t i;
    int status = root ? 0 : -1;
    json_array_foreach(json_object_get(root, "messages"), i, one) if (status == 0) status =
        keep_message(&b->cluster, one, ranks, err);
    json_decref(root);
    return status;
}

// Of the links as such: what messages between two ranks take.
static void describe_link(struct cluster *c) {
    double latency = 0, rate = 0;
    for (int i = 0; i < c->message_count; i++) {
        const struct hardware_message *m = &c->messages[i];
        if (m->kind != MESSAGE_SEND || m->ranks != 2) continue;
        if (latency == 0 || m->seconds < latency) latency = m->seconds;
        if (m->bytes / m->seconds > rate) rate = m->bytes / m->seconds;
    }
    c->fast = (struct link){.name = LINK_NAME,
                            .title = "messages between ranks of this machine",
                            .bandwidth = measured(rate),
                            .latency_seconds = measured(latency),
                            .share = measured(1),
                            .reduce_gain = measured(1)};
    c->slow = c->fast;
}

static int measure_links(struct hardware_bench *b, struct err *err) {
    int cores = b->identity.cores;
    for (int ranks = 2; ranks <= (cores > 2 ? cores : 2) && ranks <= MOST_LINK_RANKS; ranks *= 2)
        if (measure_link(b, ranks, err) != 0) return -1;
    describe_link(&b->cluster);
    return 0;
}

// ---- all of it ----------------------------------------------------------------------------------

static int identify(struct hardware_bench *b, struct err *err) {
    struct device device;
    struct device_cpu_options how = {.threads = 1};
    if (device_cpu_open(&device, &how, err) != 0) return -1;
    machine_identify(affinity_host_cpus(), device.name, &b->identity);
    device.close(&device);
    snprintf(b->title, sizeof b->title, "%s, %d cores, %s", b->identity.processor,
             b->identity.cores, b->identity.isa);
    snprintf(b->measured_on, sizeof b->measured_on, "%s, %s", b->identity.host, b->identity.date);
    b->cluster = (struct cluster){.name = NAME,
                                  .title = b->title,
                                  .accelerator = {.name = NAME, .title = b->title},
                                  .nodes = 1,
                                  .per_node = 1,
                                  .domain = 1,
                                  .cores = b->identity.cores,
                                  .measured_on = b->measured_on,
                                  .digest = b->identity.digest};
    return 0;
}

static int measure_all(struct hardware_bench *b, struct err *err) {
    struct measure_crew crews[MEASURE_MOST_CREWS];
    struct measure_options options = {.quick = b->quick};
    int count = measure_crews(b->identity.cores, b->quick, crews);
    // first what may be refused
    if (machine_file_make_folder(b->out, err) != 0) return -1;
    say(b, "storage");
    if (measure_storage(b->folder, &options, &b->cluster.storage[STORAGE_NODE], err) != 0)
        return -1;
    for (int i = 0; i < count; i++) {
        char what[96];
        snprintf(what, sizeof what, "products, attention and kernels: %d x %d thread%s",
                 crews[i].ranks, crews[i].threads, crews[i].threads == 1 ? "" : "s");
        say(b, what);
        if (measure_compute(&crews[i], &options, &b->cluster.accelerator, err) != 0) return -1;
    }
    b->cluster.host_memory_bytes = b->cluster.accelerator.memory_bytes;
    return measure_links(b, err);
}

static int write_file(const struct hardware_bench *b, struct err *err) {
    struct text out = {0};
    int status =
        text_printf(&out,
                    "# What \"weft bench hardware%s\" measured on %s: %s.\n"
                    "# A cluster like those of the catalogue: weft plan takes it, and runs "
                    "on this machine are predicted from it.\n",
                    b->quick ? " --quick" : "", b->measured_on, b->title);
    if (status != 0 || cluster_print_yaml(&b->cluster, &out) != 0)
        status = err_set(err, ERR_MEMORY, "no memory for the file of the machine");
    if (status == 0) status = file_replace(b->out, out.data, out.size, err);
    text_free(&out);
    return status;
}

static void print_json(const struct hardware_bench *b) {
    const struct cluster *c = &b->cluster;
    const struct accelerator *a = &c->accelerator;
    const struct storage *s = &c->storage[STORAGE_NODE];
    json_t *root = json_pack(
        "{s:s, s:s, s:i, s:f, s:f, s:f, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "file",
        b->out, "digest", b->identity.digest, "cores", c->cores, "best_bf16_flops_per_second",
        a->dense[HARDWARE_BF16].value, "best_fp32_flops_per_second", a->dense[HARDWARE_FP32].value,
        "memory_bytes_per_second", a->memory_bandwidth.value, "products", a->product_count,
        "kernel_points", a->kernel_point_count, "messages", c->message_count, "message_seconds",
        c->fast.latency_seconds.value, "message_bytes_per_second", c->fast.bandwidth.value,
        "write_bytes_per_second", s->write.value, "read_bytes_per_second", s->read.value,
        "metadata_per_second", s->metadata_per_second.value, "seconds", clock_seconds() - b->began);
    json_dumpf(root, stdout, JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(root);
}

static void print(const struct hardware_bench *b) {
    const struct cluster *c = &b->cluster;
    const struct accelerator *a = &c->accelerator;
    const struct storage *s = &c->storage[STORAGE_NODE];
    if (b->json) {
        print_json(b);
        return;
    }
    printf("machine            %s\n", b->title);
    printf("measured on        %s, digest %s, in %.0f s\n", b->measured_on, b->identity.digest,
           clock_seconds() - b->began);
    printf("best product rate  bf16 %.1f GFLOP/s, fp32 %.1f GFLOP/s\n",
           a->dense[HARDWARE_BF16].value / 1e9, a->dense[HARDWARE_FP32].value / 1e9);
    printf("memory             %.1f GB/s\n", a->memory_bandwidth.value / 1e9);
    printf("messages           %.1f us, %.2f GB/s one way between two ranks\n",
           c->fast.latency_seconds.value * 1e6, c->fast.bandwidth.value / 1e9);
    printf("storage of %-8s writes %.2f GB/s, reads %.2f GB/s, %.0f operations/s on small files\n",
           b->folder, s->write.value / 1e9, s->read.value / 1e9, s->metadata_per_second.value);
    printf("points             %d products, %d of attention, %d of kernels, %d messages\n",
           a->product_count, a->attention_count, a->kernel_point_count, c->message_count);
    printf("written to         %s\n", b->out);
}

int bench_hardware(int argc, char **argv) {
    static struct hardware_bench b;
    static char usual[4096];
    struct launch_environment launched;
    struct err err = {0};
    int words = 0;
    b = (struct hardware_bench){.folder = ".", .began = clock_seconds()};
    const struct option options[] = {
        {"--out", OPTION_TEXT, &b.out, 0},
        {"--folder", OPTION_TEXT, &b.folder, 0},
        {"--quick", OPTION_FLAG, &b.quick, 0},
        {"--json", OPTION_FLAG, &b.json, 0},
    };
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], NULL, 0, &words,
                           &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0) got = cli_launched(&launched, false, &err);
    if (got == 0 && launched.launcher != LAUNCHER_NONE)
        got = err_set(&err, ERR_USAGE,
                      "bench hardware launches its own ranks; start it without launcher (%s is "
                      "set)",
                      launched.variable);
    if (got == 0 && !b.out) {
        got = machine_file_usual(usual, sizeof usual, &err);
        b.out = usual;
    }
    if (got == 0 && !file_is_folder(b.folder))
        got = err_set(&err, ERR_USAGE, "bench hardware: --folder %s is no folder", b.folder);
    if (got == 0) got = identify(&b, &err);
    if (got == 0) got = measure_all(&b, &err);
    if (got == 0) got = write_file(&b, &err);
    if (got == 0) print(&b);
    measure_free(&b.cluster.accelerator);
    free(b.cluster.messages);
    return got == 0 ? 0 : cli_fail(&err);
}
