// weft trace merge: the timelines of all ranks in one file.
#include "base/text.h"
#include "cli/cli.h"
#include "observe/trace.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft trace merge OUT.json TRACE ...\n"
    "\n"
    "Puts the traces of a run's ranks (train.trace=FILE leaves FILE.rank0, FILE.rank1 ...) into\n"
    "one file for chrome://tracing or Perfetto, a process for each rank. The clocks of the hosts\n"
    "are aligned by the ends of the collectives that ranks share; how far each was ahead of the\n"
    "first is printed.\n";

static void print_alignment(const struct trace_alignment *found, int count) {
    for (int i = 0; i < count; i++) {
        const struct trace_alignment *a = &found[i];
        char spans[32];
        printf("rank %d on %s: %s spans", a->rank, a->host, text_count((int64_t)a->spans, spans));
        if (a->shared > 0)
            printf(", clock %.3f ms %s by %llu shared ends of collectives",
                   fabs(a->ahead_seconds) * 1e3, a->ahead_seconds < 0 ? "behind" : "ahead",
                   (unsigned long long)a->shared);
        else if (i > 0)
            printf(", shares no collective with the others: its wall clock stands");
        printf("\n");
    }
}

int verb_trace(int argc, char **argv) {
    struct err err = {0};
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc < 2 || strcmp(argv[1], "merge") != 0) {
        err_set(&err, ERR_USAGE, "trace: expected \"merge\"; weft trace --help");
        return cli_fail(&err);
    }
    for (int i = 2; i < argc; i++)
        if (argv[i][0] == '-') {
            if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
                fputs(usage, stdout);
                return 0;
            }
            err_set(&err, ERR_USAGE, "trace: unknown option \"%.200s\"; weft trace --help",
                    argv[i]);
            return cli_fail(&err);
        }
    int count = argc - 3;
    if (count < 1) {
        err_set(&err, ERR_USAGE, "trace merge: OUT and at least one trace are needed");
        return cli_fail(&err);
    }
    struct trace_alignment *found = calloc((size_t)count, sizeof *found);
    int status = 0;
    if (!found)
        err_set(&err, ERR_MEMORY, "no memory for %d traces", count);
    else if (trace_merge(argv[2], (const char *const *)argv + 3, count, found, &err) == 0)
        print_alignment(found, count);
    if (err.kind != ERR_NONE) status = cli_fail(&err);
    free(found);
    return status;
}
