// The benchmarks of several ranks on a tiny model: figures are there and fit together. No times.
#include "base/affinity.h"
#include "base/json.h"
#include "comm/comm.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static void write_config(char *path, size_t bytes) {
    snprintf(path, bytes, "%s/tiny.yaml", test_temp_dir());
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fputs("model:\n  family: llama\n  layers: 2\n  hidden: 32\n  heads: 4\n  kv_heads: 2\n"
          "  ffn: 64\n  vocab: 100\n  context: 32\n  tied_head: false\n"
          "train:\n  batch: 4\n  micro_batch: 2\n",
          file);
    fclose(file);
}

static double number(const json_t *root, const char *key) {
    json_t *value = json_object_get(root, key);
    if (!json_is_number(value)) test_fail(__FILE__, __LINE__, "no figure \"%s\"", key);
    return json_number_value(value);
}

static json_t *parse(const char *output) {
    struct err err = {0};
    json_t *root = json_parse(output, strlen(output), "output", &err);
    if (!root) test_fail(__FILE__, __LINE__, "%s in %s", err.text, output);
    return root;
}

// "weft WORDS" with the tiny configuration in place of %s, as JSON. Several processes want MPI and
// two cores.
static json_t *run(const char *before, const char *after) {
    static char output[1 << 16];
    char path[4096];
    write_config(path, sizeof path);
    int status =
        test_shell(output, sizeof output, "%s %s %s %s --json 2>%s/errors || cat %s/errors",
                   test_weft(), before, path, after, test_temp_dir(), test_temp_dir());
    if (status != 0 || output[0] != '{')
        test_fail(__FILE__, __LINE__, "%s: status %d, %s", before, status, output);
    return parse(output);
}

static void need_two_processes(void) {
    if (!comm_built_with_mpi()) SKIP("built without MPI");
    if (affinity_cpus() < 2) SKIP("two ranks need two cores here");
}

static const json_t *messages(const json_t *root, const char *stream, const char *kind) {
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(root, "messages"), i, one) {
        if (strcmp(json_string_value(json_object_get(one, "stream")), stream) == 0 &&
            strcmp(json_string_value(json_object_get(one, "kind")), kind) == 0)
            return one;
    }
    test_fail(__FILE__, __LINE__, "no messages %s %s", stream, kind);
    return NULL;
}

TEST(bench_step_of_two_ranks) {
    need_two_processes();
    json_t *one = run("bench step", "device.threads=1 train.gemm_seconds=0 --steps 1");
    json_t *root =
        run("launch -n 2 bench step", "parallel.zero=1 train.gemm_seconds=0 --steps 2 --warm-up 1");
    CHECK_EQ_INT(number(root, "ranks"), 2);
    CHECK_EQ_INT(number(root, "tokens_per_step"), 128); // of both together
    CHECK_EQ_INT(number(one, "tokens_per_step"), 128);
    json_t *ranks = json_object_get(root, "rank");
    CHECK_EQ_INT(json_array_size(ranks), 2);
    double slowest = 0;
    for (size_t r = 0; r < 2; r++) {
        const json_t *rank = json_array_get(ranks, r);
        CHECK_EQ_INT(number(rank, "planned_bytes"), number(rank, "allocated_bytes"));
        CHECK(json_object_get(rank, "resident_over_planned") == NULL); // too small to say something
        slowest = fmax(slowest, number(rank, "step_seconds"));
    }
    CHECK_CLOSE(number(root, "step_seconds"), slowest, 1e-5);
    // Matrices: each rank sends half of their gradients in FP32, and the half that it has updated
    // in BF16.
    double matrices = 2 * 100 * 32 + 2 * (32 * (32 + 16 + 16) + 32 * 32 + 3 * 32 * 64);
    const json_t *reduced = messages(root, "reduce", "reduce_scatter");
    const json_t *gathered = messages(root, "gather", "all_gather");
    CHECK(number(reduced, "bytes") >= matrices / 2 * 4);
    CHECK(number(reduced, "bytes") < matrices / 2 * 4 * 2); // padding of a tiny model
    CHECK_EQ_INT(2 * number(gathered, "bytes"), number(reduced, "bytes"));
    json_decref(one);
    json_decref(root);
}

TEST(bench_step_refuses_crowded_ranks) {
    char path[4096], output[4096];
    need_two_processes();
    write_config(path, sizeof path);
    CHECK_EQ_INT(test_shell(output, sizeof output,
                            "%s launch -n 2 bench step %s device.threads=%d 2>&1", test_weft(),
                            path, affinity_cpus()),
                 2);
    CHECK_CONTAINS(output, "a measurement would be of the binding");
}

TEST(bench_step_refuses_a_world_that_does_not_factor) {
    char path[4096], output[4096];
    need_two_processes();
    write_config(path, sizeof path);
    CHECK_EQ_INT(test_shell(output, sizeof output,
                            "%s launch -n 2 bench step %s parallel.tp=3 device.threads=1 2>&1",
                            test_weft(), path),
                 2);
    CHECK_CONTAINS(output, "tp (3) does not divide 2");
}

TEST(bench_ranks_figures) {
    need_two_processes();
    json_t *root = run("bench ranks", "--rounds 1 --steps 1");
    const json_t *variants = json_object_get(root, "variants");
    double one = number(json_object_get(variants, "one_process"), "tokens_per_second");
    static const char *const keys[] = {"one_process", "data_parallel", "tensor_parallel"};
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_object_get(variants, keys[i]);
        CHECK_CLOSE(number(v, "over_one_process"), number(v, "tokens_per_second") / one, 1e-3);
        CHECK(number(v, "waiting_share") >= 0 && number(v, "waiting_share") <= 1);
    }
    json_decref(root);
}

TEST(bench_overlap_figures) {
    need_two_processes();
    json_t *root = run("bench overlap", "--share 0.5 --steps 1");
    json_t *runs = json_object_get(root, "runs");
    CHECK_EQ_INT(json_array_size(runs), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *r = json_array_get(runs, i);
        CHECK_EQ_INT(number(r, "zero"), i == 0 ? 1 : 3);
        CHECK(number(r, "link_bytes_per_second") > 0);
        json_t *flows = json_object_get(r, "flows");
        CHECK_EQ_INT(json_array_size(flows), 2);
        for (size_t f = 0; f < 2; f++) {
            const json_t *flow = json_array_get(flows, f);
            // The link lets nothing through sooner than its rate.
            CHECK(number(flow, "in_flight_seconds") >=
                  0.9 * number(flow, "bytes") / number(r, "link_bytes_per_second"));
            CHECK_CLOSE(number(flow, "exposed_over_in_flight"),
                        number(flow, "exposed_seconds") / number(flow, "in_flight_seconds"), 1e-2);
        }
    }
    json_decref(root);
}

TEST(bench_hosts_figures) {
    need_two_processes();
    json_t *root = run("bench hosts", "--steps 1");
    json_t *runs = json_object_get(root, "runs");
    double rate = number(root, "host_bytes_per_second");
    CHECK_EQ_INT(json_array_size(runs), 3);
    CHECK_CLOSE(number(json_array_get(runs, 0), "over_one_host"), 1, 1e-6);
    for (size_t i = 1; i < 3; i++) {
        const json_t *r = json_array_get(runs, i);
        CHECK_CLOSE(number(r, "link_bytes_per_second"), rate / number(r, "slower"), 1e-3);
    }
    json_decref(root);
}

static void check_link(json_t *root, int kinds) {
    json_t *list = json_object_get(root, "messages");
    CHECK_EQ_INT(number(root, "ranks"), 3);
    CHECK_EQ_INT(json_array_size(list), kinds);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        CHECK(number(one, "seconds") > 0);
        const char *kind = json_string_value(json_object_get(one, "kind"));
        double sent = number(one, "bytes_per_second") * number(one, "seconds");
        double bytes = number(one, "bytes");
        if (strcmp(kind, "all_gather") == 0 || strcmp(kind, "all_to_all") == 0)
            CHECK_CLOSE(sent, 2 * bytes, 0.05);
        if (strcmp(kind, "send") == 0) CHECK_CLOSE(sent, bytes, 0.05);
    }
}

TEST(bench_link_of_threads) {
    static char output[1 << 16];
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench link --ranks 3 --most 4096 --json",
                            test_weft()),
                 0);
    json_t *root = parse(output);
    check_link(root, 6 * 3 + 1); // 16, 256 and 4096 bytes, and a barrier
    json_decref(root);
}

TEST(bench_ranks_refuses) {
    char path[4096], output[4096];
    write_config(path, sizeof path);
    static const char *const verbs[] = {"ranks", "overlap", "hosts"};
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench %s 2>&1", test_weft(), verbs[i]),
                     2);
        CHECK_CONTAINS(output, "no configuration");
        CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench %s %s %s 2>&1", test_weft(),
                                verbs[i], path, path),
                     2);
        CHECK_CONTAINS(output, "expected one CONFIG");
        CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench %s --help", test_weft(), verbs[i]),
                     0);
    }
    CHECK_EQ_INT(
        test_shell(output, sizeof output, "%s bench overlap %s --share 0 2>&1", test_weft(), path),
        2);
    CHECK_CONTAINS(output, "--share");
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s bench link --ranks 5000 2>&1", test_weft()),
                 2);
    CHECK_CONTAINS(output, "--ranks");
    CHECK_EQ_INT(test_shell(output, sizeof output,
                            "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 %s bench ranks %s 2>&1",
                            test_weft(), path),
                 2);
    CHECK_CONTAINS(output, "start it without launcher");
}
