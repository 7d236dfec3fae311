// The program: finds the verb and hands over. A new verb is a file verb_<name>.c, a line in cli.h
// and a line in the table.
#include "base/text.h"
#include "base/version.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include <stdio.h>
#include <string.h>

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv); // argv[0] is the verb
    const char *summary;
} verbs[] = {
    {"config", verb_config, "documents the keys of a configuration, shows how one resolves"},
    {"train", verb_train, "trains a model as a configuration says, or goes on with it"},
    {"launch", verb_launch, "starts a verb as several ranks, through mpirun"},
    {"health", verb_health, "checks whether this machine is fit to compute"},
    {"layout", verb_layout, "shows how a model and a run are spread over ranks"},
    {"plan", verb_plan, "which layout a training should have, and what it will take"},
    {"data", verb_data, "turns text into shards of tokens, looks at shards, checks them"},
    {"tokenizer", verb_tokenizer, "trains, inspects and applies tokenizers"},
    {"plot", verb_plot, "draws the loss of a run"},
    {"trace", verb_trace, "puts the timelines of all ranks into one file"},
    {"sample", verb_sample, "continues a text"},
    {"eval", verb_eval, "loss, perplexity and bits per byte of a text"},
    {"convert", verb_convert, "models to Hugging Face layout or GGUF; checks model folders"},
    {"schedule", verb_schedule, "draws a pipeline schedule, with its bubble and memory"},
    {"simulate", verb_simulate, "whole runs under failures: effective time, interval, spares"},
    {"hardware", verb_hardware, "what clusters are made of: rates, links, prices, with sources"},
    {"bench", verb_bench, "measures parts of the program on this machine"},
    {NULL, NULL, NULL},
};

static void print_help(void) {
    printf("weft trains language models: from text to a checkpoint that other programs load.\n\n"
           "usage: weft VERB [arguments]\n\n");
    for (const struct verb *v = verbs; v->name; v++) printf("  %-12s %s\n", v->name, v->summary);
    printf("\n  weft VERB --help    describes a verb\n"
           "  weft --version      prints what was built\n"
           "\nexit status: 0 done, 2 wrong usage or configuration, 3 bad data, 4 input or output "
           "failed,\n"
           "5 out of memory, 70 internal error, 75 start it again, 76 start it on other hosts,\n"
           "130 interrupted after saving\n");
}

static void print_version(void) {
    printf("weft %s\nsources %s\nbuilt with %s\n", version_number(), version_digest(),
           version_recipe());
}

static int unknown_verb(const char *name) {
    const char *names[sizeof verbs / sizeof verbs[0] + 2] = {"help", "version"};
    size_t count = 2;
    for (const struct verb *v = verbs; v->name; v++) names[count++] = v->name;
    const char *nearest = text_nearest(name, names, count);
    fprintf(stderr, "weft: unknown verb \"%s\"", name);
    if (nearest) fprintf(stderr, "; did you mean \"%s\"?", nearest);
    fprintf(stderr, "\nweft --help lists the verbs\n");
    return 2;
}

// Results that did not reach a full disk or a closed pipe must not pass as success.
static int finish(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fprintf(stderr, "weft: standard output could not be written\n");
    return status ? status : 4;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_help();
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        return finish(0);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        print_version();
        return finish(0);
    }
    cli_keep_arguments(argc, argv);
    int status = -1;
    for (const struct verb *v = verbs; v->name && status < 0; v++)
        if (strcmp(v->name, name) == 0) status = v->run(argc - 1, argv + 1);
    if (status < 0) return unknown_verb(name);
    return finish(status);
}
