// weft config: documentation of all keys, and a configuration as it resolves.
#include "base/hash.h"
#include "cli/cli.h"
#include "model/families.h"
#include "train/config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft config [KEY or GROUP] [--markdown]\n"
    "       weft config show FILE.yaml [key=value ...] [--origins | --digest]\n"
    "       weft config presets\n"
    "\n"
    "Without \"show\": describes every key, one key (train.steps) or a group (train).\n"
    "show prints the configuration as it resolves, as YAML that reads back to the same values.\n"
    "  --origins   with the place that each value comes from\n"
    "  --digest    only the digest of keys and values\n"
    "presets lists the names that model.preset knows.\n";

static int show(int argc, char **argv) {
    struct err err = {0};
    bool origins = false, digest = false;
    char *words[256];
    const char *path = NULL;
    int count = 0;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--origins") == 0)
            origins = true;
        else if (strcmp(argv[i], "--digest") == 0)
            digest = true;
        else if (argv[i][0] == '-' && argv[i][1] == '-')
            return err_set(&err, ERR_USAGE, "config show: unknown option \"%s\"", argv[i]),
                   cli_fail(&err);
        else if (!path && !strchr(argv[i], '='))
            path = argv[i];
        else if (count < 256)
            words[count++] = argv[i];
    }
    struct train_config *config = calloc(1, sizeof *config);
    struct text out = {0};
    int status = 0;
    if (!config || config_load(config, path, words, count, &err) != 0 ||
        config_print(config, origins, &out) != 0) {
        err_set(&err, ERR_MEMORY, "no memory for the configuration");
        status = cli_fail(&err);
    } else if (digest) {
        char text[17];
        hash_text(config_digest(config), text);
        printf("%s\n", text);
    } else {
        fwrite(out.data, 1, out.size, stdout);
    }
    text_free(&out);
    free(config);
    return status;
}

static int describe(const char *key, bool markdown) {
    struct err err = {0};
    struct text out = {0};
    const char *nearest = NULL;
    if (markdown)
        text_puts(&out,
                  "# Keys of a configuration\n\nWritten by `weft config --markdown`. Keys stand in "
                  "groups (`train:` and below it `steps: 100`); on the command\nline they are "
                  "written with dots: `train.steps=100`.\n");
    int result = config_document(key, markdown, &out, &nearest);
    if (result > 0)
        err_set(&err, ERR_USAGE, "unknown key \"%.200s\"%s%s%s", key,
                nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
    else if (result < 0)
        err_set(&err, ERR_MEMORY, "no memory for the text");
    else
        fwrite(out.data, 1, out.size, stdout);
    text_free(&out);
    return result ? cli_fail(&err) : 0;
}

int verb_config(int argc, char **argv) {
    bool markdown = false;
    const char *key = NULL;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return 0;
        }
    if (argc > 1 && strcmp(argv[1], "show") == 0) return show(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "presets") == 0) {
        for (const char *const *name = model_preset_names(NULL); *name; name++) puts(*name);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--markdown") == 0) {
            markdown = true;
        } else if (!key && argv[i][0] != '-') {
            key = argv[i];
        } else {
            fprintf(stderr, "weft: config: unexpected \"%s\"\n%s", argv[i], usage);
            return 2;
        }
    }
    return describe(key, markdown);
}
