// Work that one rank does alone for longer than the others would wait: the run goes on.
#include "base/file.h"
#include "ranks.h"
#include "test.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const double patience = 1.5, nap = 3.5; // seconds: of the watchdog, and of what is slow

// What rank 0 alone does to files while a run opens, in this order: newer checkpoints are put aside
// for checkpoint.back, the configuration is written beside the journals, the folder is tried.
static const struct {
    const char *call, *path, *busy;
} slow[] = {{"rename", ".aside", "loads its weights"},
            {"rename", "/run/config.yaml", "opens data.train"},
            {"rename", "/checkpoints/try-", "tries its checkpoint folder"}};
enum { SLOW = sizeof slow / sizeof slow[0] };
static atomic_int napped[SLOW], waited[SLOW];

static int take_long(void *context, const char *call, const char *path) {
    (void)context;
    for (int i = 0; i < SLOW; i++) {
        if (strcmp(call, slow[i].call) != 0 || !strstr(path, slow[i].path)) continue;
        if (atomic_fetch_add(&napped[i], 1) > 0) continue;
        struct timespec left = {(time_t)nap, (long)((nap - (double)(time_t)nap) * 1e9)};
        nanosleep(&left, NULL);
    }
    return 0;
}

static void listen(enum log_level level, const char *line) {
    (void)level;
    printf("%s\n", line);
    for (int i = 0; i < SLOW; i++) {
        char busy[80];
        snprintf(busy, sizeof busy, "which is busy: %s", slow[i].busy);
        if (strstr(line, "rank 1 waits since ") && strstr(line, busy)) atomic_store(&waited[i], 1);
    }
}

// Three naps of seconds, each longer than the watchdog: that is what the test takes.
TEST(r70_a_rank_that_is_slow_to_open_is_waited_for) {
    ranks_run_to_end("run", 2, WORDS("parallel.dp=2"));
    file_hook_calls(take_long, NULL);
    ranks_ways.listener = listen;
    ranks_ways.watchdog_seconds = patience;
    ranks_run_to_end("run", 2, WORDS("parallel.dp=2", "checkpoint.back=1"));
    file_hook_calls(NULL, NULL);
    CHECK_EQ_INT(ranked[0].result.resumed_from, 8);
    for (int i = 0; i < SLOW; i++) {
        if (atomic_load(&napped[i]) == 0)
            test_fail(__FILE__, __LINE__, "nobody %s of %s", slow[i].call, slow[i].path);
        if (!atomic_load(&waited[i]))
            test_fail(__FILE__, __LINE__, "nobody was told that a rank %s", slow[i].busy);
    }
}
