// weft bench hosts CONFIG: what tensor parallelism costs when it crosses hosts. The links are a
// ninth and an eighteenth of what two ranks of one host reach with 1 MiB one way, measured first.
#include "cli/bench.h"
#include "cli/bench_child.h"
#include "cli/cli.h"
#include "cli/options.h"
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: weft bench hosts CONFIG [key=value ...] [options]\n\n"
    "Measures the bandwidth of 1 MiB one way between two ranks of this host (weft bench link),\n"
    "then the training step of two ranks with tensor parallelism: on one host, and as two hosts\n"
    "on simulated links (comm.link_rate) 9 and 18 times slower than that bandwidth.\n\n"
    "  --steps N    timed, after one to warm up (2)\n"
    "  --json\n";

enum { RANKS = 2, MIB = 1 << 20 };

static int measure_rate(double *rate, struct err *err) {
    static const char *const words[] = {"bench", "link", "--most", "1048576", "--json", NULL};
    json_t *root = child_run(RANKS, words, err), *one;
    size_t i;
    *rate = 0;
    if (!root) return -1;
    json_array_foreach(json_object_get(root, "messages"), i, one) {
        const char *kind = json_string_value(json_object_get(one, "kind"));
        if (kind && strcmp(kind, "send") == 0 && child_number(one, "bytes") == MIB)
            *rate = child_number(one, "bytes_per_second");
    }
    json_decref(root);
    return *rate > 0 ? 0 : err_set(err, ERR_INTERNAL, "bench link told no rate of 1 MiB");
}

static int measure_step(const struct child_arguments *a, double rate, double *seconds,
                        double *exposed, struct err *err) {
    char link[64];
    snprintf(link, sizeof link, "comm.link_rate=%.0f", rate);
    const char *const words[] = {"parallel.tp=2", "device.threads=1",
                                 rate > 0 ? "comm.ranks_per_host=1" : "comm.ranks_per_host=0", link,
                                 NULL};
    json_t *root = child_step(a, RANKS, words, err);
    if (!root) return -1;
    *seconds = child_number(root, "step_seconds");
    *exposed = child_number(json_object_get(root, "seconds"), "comm_wait");
    json_decref(root);
    return 0;
}

static int run(const struct child_arguments *a, bool json, struct err *err) {
    static const int slower[] = {0, 9, 18};
    double rate, first = 0;
    if (measure_rate(&rate, err) != 0) return -1;
    printf(json ? "{\"host_bytes_per_second\": %.0f, \"runs\": ["
                : "1 MiB one way between two ranks of this host: %.0f bytes/s\n",
           rate);
    for (int i = 0; i < 3; i++) {
        double link = slower[i] ? rate / slower[i] : 0, seconds, exposed;
        if (measure_step(a, link, &seconds, &exposed, err) != 0) return -1;
        if (i == 0) first = seconds;
        if (json)
            printf("%s\n {\"slower\": %d, \"link_bytes_per_second\": %.0f, \"step_seconds\": %.6f, "
                   "\"waiting_seconds\": %.6f, \"over_one_host\": %.5f}",
                   i ? "," : "", slower[i], link, seconds, exposed, seconds / first);
        else if (i == 0)
            printf("%-34s step %.3f s, waiting %.3f s\n", "inside one host", seconds, exposed);
        else
            printf("link %2d times slower, %6.0f MB/s    step %.3f s, waiting %.3f s: %.2f times "
                   "as long\n",
                   slower[i], link / 1e6, seconds, exposed, seconds / first);
        fflush(stdout);
    }
    if (json) printf("\n]}\n");
    return 0;
}

int bench_hosts(int argc, char **argv) {
    static struct child_arguments a;
    bool json = false;
    struct err err = {0};
    a = (struct child_arguments){.ranks = RANKS, .steps = 2};
    const struct option options[] = {
        {"--steps", OPTION_COUNT, &a.steps, 1},
        {"--json", OPTION_FLAG, &json, 0},
    };
    int got =
        child_arguments_read(&a, argc, argv, options, sizeof options / sizeof options[0], &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0) got = run(&a, json, &err);
    return got == 0 ? 0 : cli_fail(&err);
}
