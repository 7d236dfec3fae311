// See launch_agent.h.
#include "cli/launch_agent.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "operate/agent.h"
#include <stdio.h>
#include <string.h>

// The key stands in no list of processes, and in no environment of theirs.
static int read_key(struct wire_key *key, struct err *err) {
    char line[WIRE_KEY_TEXT + 2];
    if (!fgets(line, sizeof line, stdin))
        return err_set(err, ERR_USAGE,
                       "launch --agent: no key came on standard input; weft launch starts agents");
    line[strcspn(line, "\r\n")] = 0;
    if (wire_key_parse(line, key) != 0)
        return err_set(err, ERR_USAGE,
                       "launch --agent: what came on standard input is no key (64 hex digits)");
    return 0;
}

int launch_agent(int argc, char **argv) {
    struct agent_options o = {
        .snapshot_folder = "/dev/shm", .disk_folder = "/", .patience_seconds = 30};
    const char *address = NULL;
    struct option options[] = {
        {"--address", OPTION_TEXT, &address, 0},
        {"--port", OPTION_COUNT, &o.port, 1},
        {"--run", OPTION_TEXT, &o.run, 0},
        {"--host", OPTION_TEXT, &o.host, 0},
        {"--snapshot-folder", OPTION_TEXT, &o.snapshot_folder, 0},
        {"--disk-folder", OPTION_TEXT, &o.disk_folder, 0},
        {"--patience", OPTION_NUMBER, &o.patience_seconds, 0},
    };
    const char *words[1];
    int word_count;
    struct err err = {0};
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], words, 0,
                           &word_count, &err);
    if (got == 0 && (!address || !o.run || !o.host || !o.port))
        got = err_set(&err, ERR_USAGE,
                      "launch --agent: --address, --port, --run and --host are needed; weft launch "
                      "starts agents by itself");
    if (got != 0) {
        if (got > 0)
            err_set(&err, ERR_USAGE, "launch --agent is for weft launch; see weft launch --help");
        return cli_fail(&err);
    }
    snprintf(o.address, sizeof o.address, "%s", address);
    if (read_key(&o.key, &err) != 0 || agent_run(&o, &err) != 0) return cli_fail(&err);
    return 0;
}
