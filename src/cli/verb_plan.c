// weft plan: layouts, step time, memory and cost of a training before anything runs. Its first
// argument may be a word of the table below, with or without dashes in front; anything else is a
// model whose layouts are searched.
#include "base/text.h"
#include "cli/cli.h"
#include "cli/plan.h"
#include <stdio.h>
#include <string.h>

static const struct plan_word {
    const char *name;
    int (*run)(int argc, char **argv); // argv[0] is "plan NAME"
    const char *summary;
} plan_words[] = {
    {"explain", plan_explain, "a run beside what was foretold of it"},
    {"this-machine", plan_machine, "a configuration foretold on this machine"},
    {"size", plan_size, "data path, packing, checkpoints, storage, pools of RLHF"},
    {"validate", plan_validate, "predictions beside published measurements"},
    {NULL, NULL, NULL},
};

static void print_help(FILE *to) {
    fprintf(to, "usage: weft plan MODEL CLUSTER [options]\n");
    for (const struct plan_word *w = plan_words; w->name; w++)
        fprintf(to, "       weft plan %-12s %s\n", w->name, w->summary);
    fprintf(to, "\nweft plan WORD --help describes one of them\n\n");
}

static const struct plan_word *word_of(const char *text) {
    const char *name = strncmp(text, "--", 2) == 0 ? text + 2 : text;
    for (const struct plan_word *w = plan_words; w->name; w++)
        if (strcmp(w->name, name) == 0) return w;
    return NULL;
}

// "weft plan --json --validate FILE": a word written as an option may stand behind other options.
static void bring_forward(int argc, char **argv) {
    for (int at = 2; at < argc; at++) {
        char *text = argv[at];
        if (strncmp(text, "--", 2) != 0 || !word_of(text)) continue;
        memmove(argv + 2, argv + 1, (size_t)(at - 1) * sizeof *argv);
        argv[1] = text;
        return;
    }
}

int verb_plan(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (!word_of(argv[1])) bring_forward(argc, argv);
    const struct plan_word *word = word_of(argv[1]);
    if (word) {
        char name[64];
        snprintf(name, sizeof name, "plan %s", word->name);
        argv[1] = name;
        return word->run(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
    }
    return plan_search(argc, argv);
}
