// weft launch --emit-sbatch: a batch script of Slurm in place of the run itself.
#include "base/file.h"
#include "cli/cli.h"
#include "cli/launch.h"
#include "cli/launch_config.h"
#include "operate/slurm.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Slurm looks at the time that is left about once a minute, and the run needs some to leave.
enum { SIGNAL_EARLIER_SECONDS = 30 };

// Options that the script says in its own way, with their values left out.
static bool is_taken(const char *word, bool *has_value) {
    static const char *const valued[] = {"-n", "--spares", "--ranks-per-node", "--time"};
    for (size_t i = 0; i < sizeof valued / sizeof *valued; i++)
        if (strcmp(word, valued[i]) == 0) return *has_value = true;
    *has_value = false;
    return strcmp(word, "--emit-sbatch") == 0;
}

// The rest of the command line.
static char **rest_of(int argc, char **argv, const struct launch_options *o) {
    char **words = calloc((size_t)argc + 1, sizeof *words);
    int count = 0;
    for (int i = 1; words && i < argc; i++) {
        bool has_value = false;
        bool is_option = argv + i < o->words;
        if (is_option && is_taken(argv[i], &has_value)) {
            i += has_value;
            continue;
        }
        words[count++] = argv[i];
    }
    return words;
}

// Letters that sbatch takes in a job's name and a file's, of the run folder's last part.
static void name_of(const char *folder, char *out, size_t bytes) {
    const char *slash = strrchr(folder, '/');
    snprintf(out, bytes, "%.60s", slash && slash[1] ? slash + 1 : folder);
    for (char *p = out; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *p))
            *p = '-';
}

static int emit(const struct launch_options *o, const struct launch_config *c, char *const *words,
                struct err *err) {
    char program[PATH_MAX], name[64];
    struct text text = {0};
    name_of(c->resolved->folder, name, sizeof name);
    struct slurm_script script = {.name = name,
                                  .ranks = o->ranks,
                                  .ranks_per_node = o->ranks_per_node > 0 ? o->ranks_per_node : 1,
                                  .spares = o->spares,
                                  .cores_per_rank = c->resolved->threads,
                                  .time_limit = o->time_limit,
                                  .grace_seconds =
                                      (int)ceil(o->grace_seconds) + SIGNAL_EARLIER_SECONDS,
                                  .program = program,
                                  .run_folder = c->resolved->folder,
                                  .words = words};
    int result = launch_program(program, err);
    if (result == 0) result = slurm_emit(&script, &text, err);
    if (result == 0) fwrite(text.data, 1, text.size, stdout);
    text_free(&text);
    return result;
}

int launch_sbatch(const struct launch_options *o, int argc, char **argv, struct err *err) {
    struct launch_config config = {0};
    if (!launch_is_run(o)) {
        err_set(err, ERR_USAGE, "launch: --emit-sbatch is for a training run (train CONFIG.yaml)");
        return cli_fail(err);
    }
    if (o->hosts) {
        err_set(err, ERR_USAGE,
                "launch: --emit-sbatch: Slurm chooses the hosts; leave --hosts out");
        return cli_fail(err);
    }
    char **words = rest_of(argc, argv, o);
    int result = words ? launch_config_open(&config, o->words, o->word_count, o->ranks, err)
                       : err_set(err, ERR_MEMORY, "no memory for a command line");
    if (result == 0) result = emit(o, &config, words, err);
    launch_config_close(&config);
    free(words);
    return result == 0 ? 0 : cli_fail(err);
}
