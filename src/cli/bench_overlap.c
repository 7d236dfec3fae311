// weft bench overlap CONFIG: how much of the traffic of data parallelism hides behind compute on a
// slow link. Of every stage of ZeRO that is asked for, a first run without a link tells the compute
// and the bytes; the second one has the link on which the bytes take the wanted share of the
// compute.
#include "cli/bench.h"
#include "cli/bench_child.h"
#include "cli/cli.h"
#include "cli/options.h"
#include <stdio.h>

static const char help[] =
    "usage: weft bench overlap CONFIG [key=value ...] [options]\n\n"
    "Two hosts of one rank each (simulated: comm.ranks_per_host=1) share a training step by data\n"
    "parallelism, with ZeRO-1 and with ZeRO-3. A run without a link gives the seconds of backward\n"
    "and the bytes that are to hide behind it: gradients (ZeRO-1), gradients and weights\n"
    "(ZeRO-3). From both follows comm.link_rate, so that the bytes take SHARE of the compute, and\n"
    "a run on that link gives, for each kind of message, the seconds in flight and those "
    "exposed.\n\n"
    "  --share X    (0.65)\n"
    "  --steps N    timed, after one to warm up (3)\n"
    "  --json\n";

enum { RANKS = 2 };

struct overlap {
    struct child_arguments child;
    double share;
    bool json;
};

// Compute and bytes of a step.
struct traffic {
    double forward_seconds, backward_seconds; // without waiting
    double reduced, gathered;                 // bytes that a rank sends
    double gathered_backward;                 // of them in backward
};

struct flow { // messages of a stream beside what they can hide behind
    const char *what, *stream;
    double bytes, compute_seconds;
};

// ZeRO-1 waits for gradients behind backward, and for weights in forward; ZeRO-3 for weights inside
// both, about as long in each.
static void read_traffic(const json_t *root, int zero, struct traffic *t) {
    const json_t *seconds = json_object_get(root, "seconds");
    double waited = child_messages(root, "gather", "exposed_seconds");
    t->forward_seconds = child_number(seconds, "forward") - (zero == 3 ? waited / 2 : waited);
    t->backward_seconds = child_number(seconds, "backward") - (zero == 3 ? waited / 2 : 0);
    t->reduced = child_messages(root, "reduce", "bytes");
    t->gathered = child_messages(root, "gather", "bytes");
    t->gathered_backward = zero == 3 ? t->gathered / 2 : 0;
}

static void print_flow(const struct overlap *o, const struct flow *f, const json_t *root,
                       double rate, bool first) {
    double sent = child_messages(root, f->stream, "bytes");
    double in_flight = child_messages(root, f->stream, "in_flight_seconds");
    double exposed = child_messages(root, f->stream, "exposed_seconds");
    double share = in_flight > 0 ? exposed / in_flight : 0;
    double filled = f->bytes / rate / f->compute_seconds;
    if (o->json)
        printf("%s\n  {\"what\": \"%s\", \"bytes\": %.0f, \"link_over_compute\": %.4f, "
               "\"in_flight_seconds\": %.6f, \"exposed_seconds\": %.6f, "
               "\"exposed_over_in_flight\": %.5f}",
               first ? "" : ",", f->what, sent, filled, in_flight, exposed, share);
    else
        printf("  %-34s %9.1f MB %10.2f %9.3f s %9.3f s %12.3f\n", f->what, sent / 1e6, filled,
               in_flight, exposed, share);
}

static void print(const struct overlap *o, int zero, double rate, const json_t *alone,
                  const json_t *linked) {
    struct traffic t;
    read_traffic(linked, zero, &t);
    double plain = child_number(alone, "step_seconds"), slow = child_number(linked, "step_seconds");
    // What goes through the link while backward computes is one sum: gradients, and weights too.
    double backward = t.reduced + t.gathered_backward;
    struct flow flows[] = {{zero == 3 ? "gradients, with the weights" : "gradients, backward",
                            "reduce", backward, t.backward_seconds},
                           {zero == 3 ? "weights, forward and backward" : "weights, forward",
                            "gather", t.gathered - t.gathered_backward, t.forward_seconds}};
    if (o->json)
        printf("\n {\"zero\": %d, \"link_bytes_per_second\": %.0f, \"step_seconds_without\": %.6f, "
               "\"step_seconds\": %.6f, \"flows\": [",
               zero, rate, plain, slow);
    else
        printf("ZeRO-%d on a link of %.1f MB/s: step %.3f s, %.3f s without a link\n"
               "  %-34s %12s %10s %11s %11s %12s\n",
               zero, rate / 1e6, slow, plain, "", "sent", "of compute", "in flight", "exposed",
               "share");
    for (int i = 0; i < 2; i++) print_flow(o, &flows[i], linked, rate, i == 0);
    if (o->json) printf("]}");
    fflush(stdout);
}

static json_t *run(const struct overlap *o, int zero, double rate, struct err *err) {
    char stage[40], link[64];
    snprintf(stage, sizeof stage, "parallel.zero=%d", zero);
    snprintf(link, sizeof link, "comm.link_rate=%.0f", rate);
    const char *const words[] = {
        stage, "parallel.dp=2", "device.threads=1", "comm.ranks_per_host=1", link, NULL};
    json_t *root = child_step(&o->child, RANKS, words, err);
    if (!root) err_context(err, "ZeRO-%d", zero);
    return root;
}

static int measure(const struct overlap *o, int zero, struct err *err) {
    struct traffic t;
    json_t *alone = run(o, zero, 0, err);
    if (!alone) return -1;
    read_traffic(alone, zero, &t);
    double bytes = t.reduced + t.gathered_backward;
    json_t *linked = NULL;
    double rate = bytes / (o->share * t.backward_seconds);
    if (bytes <= 0 || t.backward_seconds <= 0)
        err_set(err, ERR_USAGE,
                "bench overlap: no gradients go over ranks in this configuration (%.0f bytes)",
                bytes);
    else
        linked = run(o, zero, rate, err);
    if (linked) print(o, zero, rate, alone, linked);
    json_decref(alone);
    if (!linked) return -1;
    json_decref(linked);
    return 0;
}

int bench_overlap(int argc, char **argv) {
    static struct overlap o;
    struct err err = {0};
    o = (struct overlap){.child = {.ranks = RANKS, .steps = 3}, .share = 0.65};
    const struct option options[] = {
        {"--share", OPTION_NUMBER, &o.share, 0},
        {"--steps", OPTION_COUNT, &o.child.steps, 1},
        {"--json", OPTION_FLAG, &o.json, 0},
    };
    int got = child_arguments_read(&o.child, argc, argv, options,
                                   sizeof options / sizeof options[0], &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0 && (o.share <= 0 || o.share > 10))
        got = err_set(&err, ERR_USAGE, "bench overlap: --share %g: expected more than 0, up to 10",
                      o.share);
    if (got != 0) return cli_fail(&err);
    if (o.json) printf("{\"share\": %g, \"runs\": [", o.share);
    for (int zero = 1; zero <= 3 && got == 0; zero += 2) {
        if (zero > 1 && o.json) printf(",");
        got = measure(&o, zero, &err);
    }
    if (got != 0) return cli_fail(&err);
    if (o.json) printf("\n]}\n");
    return 0;
}
