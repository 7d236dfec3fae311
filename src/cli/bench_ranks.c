// weft bench ranks CONFIG: the same training step by one process with several threads and by as
// many ranks of one thread each, in turns.
#include "base/numbers.h"
#include "base/text.h"
#include "cli/bench.h"
#include "cli/bench_child.h"
#include "cli/cli.h"
#include "cli/options.h"
#include <stdio.h>

static const char help[] =
    "usage: weft bench ranks CONFIG [key=value ...] [options]\n\n"
    "Runs \"weft bench step\" as one process of N threads, as N ranks of one thread with data\n"
    "parallelism and ZeRO-1, and as N ranks with tensor parallelism, one after the other and "
    "again\n"
    "in the other order, and prints tokens/s of each and their ratios to the one process: the\n"
    "median over the rounds, each ratio of neighbours in one round.\n\n"
    "  --ranks N    (2)\n"
    "  --rounds N   (2)\n"
    "  --steps N    timed, after one to warm up (2)\n"
    "  --json\n";

enum { MOST_ROUNDS = 100, VARIANTS = 3 };

struct variant {
    const char *name, *key, *settings[4];
    double rate[MOST_ROUNDS], ratio[MOST_ROUNDS], exposed[MOST_ROUNDS];
};

struct comparison {
    struct child_arguments child;
    int rounds;
    bool json;
    char threads[40], dp[40], tp[40];
    struct variant variants[VARIANTS];
};

static void describe(struct comparison *c) {
    int n = c->child.ranks;
    snprintf(c->threads, sizeof c->threads, "device.threads=%d", n);
    snprintf(c->dp, sizeof c->dp, "parallel.dp=%d", n);
    snprintf(c->tp, sizeof c->tp, "parallel.tp=%d", n);
    c->variants[0] =
        (struct variant){.name = "one process", .key = "one_process", .settings = {c->threads}};
    c->variants[1] = (struct variant){.name = "data parallel, ZeRO-1",
                                      .key = "data_parallel",
                                      .settings = {"device.threads=1", c->dp, "parallel.zero=1"}};
    c->variants[2] = (struct variant){.name = "tensor parallel",
                                      .key = "tensor_parallel",
                                      .settings = {"device.threads=1", c->tp}};
}

static int run_one(struct comparison *c, int variant, int round, struct err *err) {
    struct variant *v = &c->variants[variant];
    json_t *root = child_step(&c->child, variant == 0 ? 1 : c->child.ranks, v->settings, err);
    if (!root) return err_context(err, "%s", v->name);
    double step = child_number(root, "step_seconds");
    v->rate[round] = child_number(root, "tokens_per_second");
    v->exposed[round] = child_number(json_object_get(root, "seconds"), "comm_wait") / step;
    json_decref(root);
    if (!c->json) {
        printf("round %d  %-24s %10.1f tokens/s, step %.3f s, waiting %.3f of it\n", round + 1,
               v->name, v->rate[round], step, v->exposed[round]);
        fflush(stdout);
    }
    return 0;
}

static int run_rounds(struct comparison *c, struct err *err) {
    for (int round = 0; round < c->rounds; round++) {
        for (int i = 0; i < VARIANTS; i++)
            if (run_one(c, round % 2 ? VARIANTS - 1 - i : i, round, err) != 0) return -1;
        for (int i = 0; i < VARIANTS; i++)
            c->variants[i].ratio[round] = c->variants[i].rate[round] / c->variants[0].rate[round];
    }
    return 0;
}

static void print(struct comparison *c) {
    if (c->json)
        printf("{\"ranks\": %d, \"rounds\": %d, \"variants\": {", c->child.ranks, c->rounds);
    else
        printf("\n%-26s %12s %24s %12s\n", "", "tokens/s", "over the one process", "waiting");
    for (int i = 0; i < VARIANTS; i++) {
        struct variant *v = &c->variants[i];
        double rate = numbers_median(v->rate, (size_t)c->rounds),
               ratio = numbers_median(v->ratio, (size_t)c->rounds);
        double exposed = numbers_median(v->exposed, (size_t)c->rounds);
        printf(c->json ? "%s\n\"%s\": {\"tokens_per_second\": %.3f, \"over_one_process\": %.5f, "
                         "\"waiting_share\": %.5f}"
                       : "%s%-26s %12.1f %24.3f %12.3f\n",
               c->json && i ? "," : "", c->json ? v->key : v->name, rate, ratio, exposed);
    }
    if (c->json) printf("}}\n");
}

int bench_ranks(int argc, char **argv) {
    static struct comparison c;
    struct err err = {0};
    c = (struct comparison){.child = {.ranks = 2, .steps = 2}, .rounds = 2};
    const struct option options[] = {
        {"--ranks", OPTION_COUNT, &c.child.ranks, 2},
        {"--rounds", OPTION_COUNT, &c.rounds, 1},
        {"--steps", OPTION_COUNT, &c.child.steps, 1},
        {"--json", OPTION_FLAG, &c.json, 0},
    };
    int got = child_arguments_read(&c.child, argc, argv, options,
                                   sizeof options / sizeof options[0], &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0 && c.rounds > MOST_ROUNDS)
        got = err_set(&err, ERR_USAGE, "bench ranks: --rounds %d: expected 1 to %d", c.rounds,
                      MOST_ROUNDS);
    if (got != 0) return cli_fail(&err);
    describe(&c);
    if (run_rounds(&c, &err) != 0) return cli_fail(&err);
    print(&c);
    return 0;
}
