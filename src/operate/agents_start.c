// The words that start a host's agent; see agents.h.
#include "base/text.h"
#include "operate/agents_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The agent's own words.
static int add_agent(struct launch_command *c, const struct agents_options *o, const char *host) {
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    const char *const words[] = {o->program,
                                 "launch",
                                 "--agent",
                                 "--address",
                                 o->address,
                                 "--port",
                                 port,
                                 "--run",
                                 o->run,
                                 "--host",
                                 host,
                                 "--snapshot-folder",
                                 o->snapshot_folder,
                                 "--disk-folder",
                                 o->disk_folder};
    int failed = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) failed |= launch_add(c, words[i]);
    return failed;
}

// For the shell of the other host.
static int quote(struct text *line, const char *word) {
    int failed = text_puts(line, line->size > 0 ? " '" : "'");
    for (const char *p = word; *p; p++)
        failed |= *p == '\'' ? text_puts(line, "'\\''") : text_put(line, p, 1);
    return failed | text_puts(line, "'");
}

static int add_remote(struct launch_command *c, const struct agents_options *o, const char *host) {
    static const char usual[] = "ssh -x -o BatchMode=yes -o ConnectTimeout=10";
    struct launch_command agent = {0};
    struct text line = {0};
    char words[1024], *rest = NULL, path[4352];
    snprintf(words, sizeof words, "%s", o->remote ? o->remote : usual);
    words[strcspn(words, ":")] = 0; // Open MPI takes a list of shells; the first one counts
    int failed = add_agent(&agent, o, host);
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        failed |= launch_add(c, word);
    failed |= launch_add(c, host) | text_puts(&line, "exec");
    if (o->loader_path) {
        snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", o->loader_path);
        failed |= text_puts(&line, " env") | quote(&line, path);
    }
    for (int i = 0; i < agent.count; i++) failed |= quote(&line, agent.words[i]);
    failed |= failed ? -1 : launch_add(c, line.data);
    launch_command_free(&agent);
    text_free(&line);
    return failed;
}

// A step beside that of the ranks, which takes nothing away from them.
static int add_srun(struct launch_command *c, const struct agents_options *o, const char *host) {
    char list[300];
    snprintf(list, sizeof list, "--nodelist=%s", host);
    const char *const words[] = {"srun",    "--overlap", "--nodes=1",       "--ntasks=1", list,
                                 "--mem=0", "--quiet",   "--cpu-bind=none", "--no-kill"};
    int failed = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) failed |= launch_add(c, words[i]);
    return failed | add_agent(c, o, host);
}

int agents_command(struct launch_command *out, const struct agents_options *options,
                   const char *host, bool here, struct err *err) {
    struct launch_command c = {0};
    int failed = here             ? add_agent(&c, options, host)
                 : options->slurm ? add_srun(&c, options, host)
                                  : add_remote(&c, options, host);
    if (failed) {
        launch_command_free(&c);
        return err_set(err, ERR_MEMORY, "no memory for the command that starts the agent of %.200s",
                       host);
    }
    *out = c;
    return 0;
}
