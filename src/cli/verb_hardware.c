// weft hardware: the catalogue of accelerators, links, clusters and training programs.
#include "base/text.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "hardware/hardware.h"
#include "hardware/show.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft hardware [list] [options]\n"
    "       weft hardware show NAME [options]\n"
    "       weft hardware check FILE.yaml\n"
    "\n"
    "The figures that plans rest on, each with its unit, where it comes from, and whether it is\n"
    "stated (by a vendor or a publication), measured, fitted on published runs, or assumed.\n"
    "\n"
    "  list         what there is: accelerators, links, clusters, training programs (stacks)\n"
    "  show NAME    all figures of an entry; of a cluster also its accelerator and links\n"
    "  check FILE   reads a file of your own and tells what it adds and what it leaves to "
    "assumptions\n"
    "\n"
    "  --add FILE   reads a file beside the catalogue first; its entries replace those of the "
    "name\n"
    "  --json       as JSON, in base units (B, B/s in one direction, FLOP/s, s)\n";

struct page {
    json_t *json; // or, when NULL, printed
    int assumed, figures;
};

static void print_line(const struct hardware_line *line) {
    const char *text = line->long_text ? line->long_text : line->text;
    if (!line->is_figure) {
        printf("  %-36s %s\n", line->key, text);
        return;
    }
    printf("  %-36s %-14s %-9s %s\n", line->key, text, figure_origin_name(line->origin),
           line->source);
}

static void take_line(void *context, const struct hardware_line *line) {
    const struct page *page = context;
    const char *text = line->long_text ? line->long_text : line->text;
    if (!page->json) {
        print_line(line);
        return;
    }
    json_t *value;
    if (line->is_figure)
        value = json_pack("{s:f, s:s, s:s, s:s}", "value", line->number, "unit", line->unit,
                          "origin", figure_origin_name(line->origin), "source", line->source);
    else if (line->is_number)
        value = json_real(line->number);
    else
        value = json_string(text);
    json_object_set_new(page->json, line->key, value);
}

static void count_line(void *context, const struct hardware_line *line) {
    struct page *page = context;
    page->figures += line->is_figure;
    page->assumed += line->is_figure && line->origin == FIGURE_ASSUMED;
}

static void print_json(json_t *json) {
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    if (text) printf("%s\n", text);
    free(text);
    json_decref(json);
}

static void show_entry(const struct catalogue *catalogue, const char *kind, const char *name,
                       json_t *all) {
    struct page page = {.json = all ? json_object() : NULL};
    if (!all) printf("%.*s %s\n", (int)strlen(kind) - 1, kind, name);
    hardware_lines(catalogue, kind, name, take_line, &page);
    if (all) {
        json_object_set_new(page.json, "kind", json_stringn(kind, strlen(kind) - 1));
        json_object_set_new(page.json, "name", json_string(name));
        json_array_append_new(all, page.json);
    } else
        printf("\n");
}

// ---- list ---------------------------------------------------------------------------------------

struct summary {
    char title[100], memory[32], rate[32], bandwidth[32], nodes[24], per_node[24], accelerator[64];
};
static void summarise(void *context, const struct hardware_line *line) {
    struct summary *s = context;
    const char *text = line->long_text ? line->long_text : line->text;
    static const struct {
        const char *key;
        size_t offset, bytes;
    } wanted[] = {
        {"title", offsetof(struct summary, title), sizeof s->title},
        {"memory_bytes", offsetof(struct summary, memory), sizeof s->memory},
        {"dense.bf16", offsetof(struct summary, rate), sizeof s->rate},
        {"bandwidth", offsetof(struct summary, bandwidth), sizeof s->bandwidth},
        {"nodes", offsetof(struct summary, nodes), sizeof s->nodes},
        {"per_node", offsetof(struct summary, per_node), sizeof s->per_node},
        {"accelerator", offsetof(struct summary, accelerator), sizeof s->accelerator},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (strcmp(line->key, wanted[i].key) == 0)
            snprintf((char *)s + wanted[i].offset, wanted[i].bytes, "%s", text);
}

static void list_section(const struct catalogue *catalogue, const char *kind) {
    printf("%s\n", kind);
    for (const char *const *name = catalogue_names(catalogue, kind); *name; name++) {
        struct summary s = {{0}, {0}, {0}, {0}, {0}, {0}, {0}};
        hardware_lines(catalogue, kind, *name, summarise, &s);
        if (strcmp(kind, "accelerators") == 0)
            printf("  %-22s %-10s %-14s %s\n", *name, s.memory, s.rate, s.title);
        else if (strcmp(kind, "links") == 0)
            printf("  %-22s %-12s %s\n", *name, s.bandwidth, s.title);
        else if (strcmp(kind, "clusters") == 0)
            printf("  %-22s %4s x %-3s %-14s %s\n", *name, s.nodes, s.per_node, s.accelerator,
                   s.title);
        else
            printf("  %-22s %s\n", *name, s.title);
    }
    printf("\n");
}

static void list_all(const struct catalogue *catalogue, bool json) {
    if (!json) {
        for (const char *const *kind = hardware_kinds; *kind; kind++)
            list_section(catalogue, *kind);
        printf("Memory and BF16 rate per accelerator; bandwidth per accelerator, one direction.\n"
               "weft hardware show NAME has all figures with their sources.\n");
        return;
    }
    json_t *all = json_object();
    for (const char *const *kind = hardware_kinds; *kind; kind++) {
        json_t *names = json_array();
        for (const char *const *name = catalogue_names(catalogue, *kind); *name; name++)
            json_array_append_new(names, json_string(*name));
        json_object_set_new(all, *kind, names);
    }
    print_json(all);
}

// ---- show and check -----------------------------------------------------------------------------

static bool has(const struct catalogue *catalogue, const char *kind, const char *name) {
    for (const char *const *n = catalogue_names(catalogue, kind); *n; n++)
        if (strcmp(*n, name) == 0) return true;
    return false;
}

// A cluster's parts follow it.
static int show_parts(struct catalogue *catalogue, const char *name, json_t *all, struct err *err) {
    struct cluster cluster;
    if (catalogue_cluster(catalogue, name, &cluster, err) != 0) return -1;
    show_entry(catalogue, "accelerators", cluster.accelerator.name, all);
    if (cluster.fast.name) show_entry(catalogue, "links", cluster.fast.name, all);
    if (cluster.slow.name) show_entry(catalogue, "links", cluster.slow.name, all);
    return 0;
}

static int show(struct catalogue *catalogue, const char *name, bool json, struct err *err) {
    const struct accelerator *spoken = catalogue_accelerator(catalogue, name, NULL);
    if (spoken) name = spoken->name;
    json_t *all = json ? json_array() : NULL;
    bool found = false;
    int result = 0;
    for (const char *const *kind = hardware_kinds; *kind && result == 0; kind++) {
        if (!has(catalogue, *kind, name)) continue;
        found = true;
        show_entry(catalogue, *kind, name, all);
        if (strcmp(*kind, "clusters") == 0) result = show_parts(catalogue, name, all, err);
    }
    if (!found) {
        const char *near[4] = {NULL}, *best = NULL;
        for (int k = 0; k < 4; k++) {
            const char *const *names = catalogue_names(catalogue, hardware_kinds[k]);
            size_t count = 0;
            while (names[count]) count++;
            near[k] = text_nearest(name, names, count);
            if (near[k] && (!best || text_distance(name, near[k]) < text_distance(name, best)))
                best = near[k];
        }
        result = err_set(err, ERR_USAGE, "hardware: nothing is called \"%.100s\"%s%s%s", name,
                         best ? "; did you mean \"" : "; weft hardware lists what there is",
                         best ? best : "", best ? "\"?" : "");
    }
    if (all && result == 0)
        print_json(all);
    else
        json_decref(all);
    return result;
}

static int check(struct catalogue *catalogue, const char *path, struct err *err) {
    if (catalogue_add(catalogue, path, err) != 0) return -1;
    const char *kind = "", *name = "";
    int count = catalogue_added(catalogue, -1, &kind, &name);
    if (count == 0)
        return err_set(err, ERR_USAGE,
                       "%s: expected accelerators, links, clusters or stacks, found none", path);
    for (int i = 0; i < count; i++) {
        struct page page = {0};
        catalogue_added(catalogue, i, &kind, &name);
        hardware_lines(catalogue, kind, name, count_line, &page);
        printf("%-12.*s %-24s %d figures, %d of them assumed\n", (int)strlen(kind) - 1, kind, name,
               page.figures, page.assumed);
    }
    return 0;
}

int verb_hardware(int argc, char **argv) {
    const char *add = NULL, *words[2];
    bool json = false;
    const struct option options[] = {{"--add", OPTION_TEXT, &add, 0},
                                     {"--json", OPTION_FLAG, &json, 0}};
    struct err err = {0};
    struct catalogue *catalogue = NULL;
    int count, got = options_read(argc, argv, options, 2, words, 2, &count, &err);
    if (got > 0) {
        fputs(usage, stdout);
        return 0;
    }
    const char *word = got == 0 && count > 0 ? words[0] : "list";
    static const char *const known[] = {"list", "show", "check"};
    if (got == 0) got = catalogue_open(&catalogue, &err);
    if (got == 0 && add) got = catalogue_add(catalogue, add, &err);
    if (got == 0 && strcmp(word, "list") == 0)
        list_all(catalogue, json);
    else if (got == 0 && count < 2 && (strcmp(word, "show") == 0 || strcmp(word, "check") == 0))
        got = err_set(&err, ERR_USAGE, "hardware: %s needs %s", word,
                      word[0] == 's' ? "a name" : "a file");
    else if (got == 0 && strcmp(word, "show") == 0)
        got = show(catalogue, words[1], json, &err);
    else if (got == 0 && strcmp(word, "check") == 0)
        got = check(catalogue, words[1], &err);
    else if (got == 0) {
        const char *nearest = text_nearest(word, known, 3);
        got = err_set(
            &err, ERR_USAGE, "hardware: expected list, show or check, found \"%.100s\"%s%s%s", word,
            nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
    }
    catalogue_close(catalogue);
    return got == 0 ? 0 : cli_fail(&err);
}
