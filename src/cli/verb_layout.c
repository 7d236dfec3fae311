// weft layout: who is where on a world of ranks, what each holds, and who talks to whom. Describes
// only: no memory of the model is taken, so a world of any size can be looked at on one machine.
#include "cli/cli.h"
#include "cli/layout_view.h"
#include "cli/options.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft layout CONFIG.yaml [key=value ...] [-n RANKS] [options]\n"
    "\n"
    "Shows how a configuration is spread over ranks: coordinates, pipeline stages and their\n"
    "layers, the bytes of weights, gradients, masters and moments on each kind of rank for every\n"
    "ZeRO stage, all groups of ranks that communicate, and for each parameter how it is cut and\n"
    "over which groups its gradient is summed. Refuses what does not fit, and says what would.\n"
    "\n"
    "  -n RANKS             ranks of the world; unless given, as many as the sizes multiply to\n"
    "  --ranks-per-host N   consecutive ranks on a host (8)\n"
    "  --rank R             one rank: its groups with all members, its part of each parameter\n"
    "  --json               for programs; all groups with all members\n";

enum { MOST_WORDS = 256 };

static int print(struct train_config *config, int ranks, int per_host, int rank, bool json,
                 struct err *err) {
    struct layout_view view;
    struct text out = {0};
    if (layout_view_open(&view, config, ranks, per_host, err) != 0) return -1;
    int result = -1;
    if (rank >= view.ranks)
        err_set(err, ERR_USAGE, "layout: --rank %d: the world has the ranks 0 to %d", rank,
                view.ranks - 1);
    else
        result =
            json ? layout_print_json(&out, &view, rank, err) : layout_print(&out, &view, rank, err);
    if (result == 0) fwrite(out.data, 1, out.size, stdout);
    text_free(&out);
    layout_view_close(&view);
    return result;
}

int verb_layout(int argc, char **argv) {
    int ranks = 0, per_host = 8, rank = -1, count;
    bool json = false;
    const char *words[MOST_WORDS];
    char *keys[MOST_WORDS];
    const struct option options[] = {{"-n", OPTION_COUNT, &ranks, 1},
                                     {"--ranks-per-host", OPTION_COUNT, &per_host, 1},
                                     {"--rank", OPTION_COUNT, &rank, 0},
                                     {"--json", OPTION_FLAG, &json, 0}};
    struct err err = {0};
    int read = options_read(argc, argv, options, sizeof options / sizeof options[0], words,
                            MOST_WORDS, &count, &err);
    if (read == 1) {
        fputs(usage, stdout);
        return 0;
    }
    if (read != 0) return cli_fail(&err);
    const char *path = NULL;
    int key_count = 0;
    for (int i = 0; i < count; i++) {
        if (!path && !strchr(words[i], '='))
            path = words[i];
        else
            keys[key_count++] = (char *)words[i];
    }
    struct train_config *config = calloc(1, sizeof *config);
    int result = config ? config_load(config, path, keys, key_count, &err)
                        : err_set(&err, ERR_MEMORY, "no memory for the configuration");
    if (result == 0) result = print(config, ranks, per_host, rank, json, &err);
    free(config);
    return result == 0 ? 0 : cli_fail(&err);
}
