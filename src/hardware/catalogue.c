// The catalogue: named entries in four sections, the memory they live in, and looking them up.
#include "base/text.h"
#include "hardware/parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int keep(struct catalogue *catalogue, void *memory, struct err *err) {
    if (memory && catalogue->kept_count == catalogue->kept_capacity) {
        size_t capacity = catalogue->kept_capacity ? 2 * catalogue->kept_capacity : 64;
        void **grown = realloc(catalogue->kept, capacity * sizeof *grown);
        if (grown) {
            catalogue->kept = grown;
            catalogue->kept_capacity = capacity;
        } else {
            free(memory);
            memory = NULL;
        }
    }
    if (!memory) return err_set(err, ERR_MEMORY, "catalogue: no memory");
    catalogue->kept[catalogue->kept_count++] = memory;
    return 0;
}

void *catalogue_room(struct catalogue *catalogue, size_t bytes, struct err *err) {
    void *memory = calloc(1, bytes ? bytes : 1);
    return keep(catalogue, memory, err) == 0 ? memory : NULL;
}

const char *catalogue_text(struct catalogue *catalogue, const char *text, struct err *err) {
    char *copy = strdup(text);
    return keep(catalogue, copy, err) == 0 ? copy : NULL;
}

static const char *name_of(const void *entry) {
    return *(const char *const *)entry;
}

static int place_of(const struct entries *entries, const char *name) {
    for (int i = 0; i < entries->count; i++)
        if (strcmp(name_of(entries->entry[i]), name) == 0) return i;
    return -1;
}

void *catalogue_find(const struct catalogue *catalogue, enum section_kind kind, const char *name) {
    const struct entries *entries = &catalogue->sections[kind];
    int at = place_of(entries, name);
    return at < 0 ? NULL : entries->entry[at];
}

int catalogue_put(struct catalogue *catalogue, enum section_kind kind, void *entry,
                  struct err *err) {
    struct entries *entries = &catalogue->sections[kind];
    int at = place_of(entries, name_of(entry));
    if (at >= 0) {
        entries->entry[at] = entry;
        entries->names[at] = name_of(entry);
        return 0;
    }
    if (entries->count == entries->capacity) {
        int capacity = entries->capacity ? 2 * entries->capacity : 32;
        void **grown = realloc(entries->entry, (size_t)capacity * sizeof *grown);
        if (grown) entries->entry = grown;
        const char **names = realloc(entries->names, ((size_t)capacity + 1) * sizeof *names);
        if (names) entries->names = names;
        if (!grown || !names) return err_set(err, ERR_MEMORY, "catalogue: no memory");
        entries->capacity = capacity;
    }
    entries->entry[entries->count] = entry;
    entries->names[entries->count++] = name_of(entry);
    entries->names[entries->count] = NULL;
    return 0;
}

void catalogue_close(struct catalogue *catalogue) {
    if (!catalogue) return;
    for (int s = 0; s < SECTIONS; s++) {
        free(catalogue->sections[s].entry);
        free(catalogue->sections[s].names);
    }
    for (size_t i = 0; i < catalogue->kept_count; i++) free(catalogue->kept[i]);
    free(catalogue->kept);
    free(catalogue);
}

enum { MOST_FILES = 32 };
static int read_builtin(struct catalogue *catalogue, struct err *err) {
    struct yaml_leaves leaves[MOST_FILES] = {{0}};
    int result = 0;
    for (int i = 0; i < MOST_FILES && builtin_files[i].name && result == 0; i++)
        result = yaml_parse(builtin_files[i].text, strlen(builtin_files[i].text),
                            builtin_files[i].name, &leaves[i], err);
    for (int s = 0; s < SECTIONS && result == 0; s++)
        for (int i = 0; i < MOST_FILES && builtin_files[i].name && result == 0; i++)
            result = catalogue_read(catalogue, (enum section_kind)s, &leaves[i],
                                    builtin_files[i].name, err);
    for (int i = 0; i < MOST_FILES; i++) yaml_free(&leaves[i]);
    return result;
}

int catalogue_open(struct catalogue **out, struct err *err) {
    struct catalogue *catalogue = calloc(1, sizeof *catalogue);
    if (!catalogue) return err_set(err, ERR_MEMORY, "catalogue: no memory");
    int result = read_builtin(catalogue, err);
    catalogue->added_count = 0;
    if (result != 0) {
        catalogue_close(catalogue);
        return err_context(err, "built-in catalogue");
    }
    *out = catalogue;
    return 0;
}

int catalogue_add(struct catalogue *catalogue, const char *path, struct err *err) {
    struct yaml_leaves leaves;
    if (yaml_read(path, &leaves, err) != 0) return -1;
    int result = 0;
    catalogue->added_count = 0;
    for (int s = 0; s < SECTIONS && result == 0; s++)
        result = catalogue_read(catalogue, (enum section_kind)s, &leaves, path, err);
    yaml_free(&leaves);
    return result;
}

// As users say it: in capitals, or without what tells the usual one from the others: "H100" is the
// first entry whose name begins with "h100-".
static void *find_spoken(const struct catalogue *catalogue, enum section_kind kind,
                         const char *name) {
    void *exact = catalogue_find(catalogue, kind, name);
    const struct entries *entries = &catalogue->sections[kind];
    size_t length = strlen(name);
    if (exact || length == 0) return exact;
    for (int i = 0; i < entries->count; i++)
        if (strcasecmp(entries->names[i], name) == 0) return entries->entry[i];
    for (int i = 0; i < entries->count; i++)
        if (strncasecmp(entries->names[i], name, length) == 0 && entries->names[i][length] == '-')
            return entries->entry[i];
    return NULL;
}

// The nearest name, whole or up to its first hyphen: "h101" is near to "h100-sxm".
static const char *nearest_spoken(const struct catalogue *catalogue, enum section_kind kind,
                                  const char *name) {
    const struct entries *entries = &catalogue->sections[kind];
    const char *nearest = text_nearest(name, entries->names, (size_t)entries->count);
    for (int i = 0; i < entries->count && !nearest; i++) {
        char stem[64];
        const char *one = stem;
        snprintf(stem, sizeof stem, "%.*s", (int)strcspn(entries->names[i], "-"),
                 entries->names[i]);
        if (text_nearest(name, &one, 1)) nearest = entries->names[i];
    }
    return nearest;
}

static void *look_up(const struct catalogue *catalogue, enum section_kind kind, const char *name,
                     struct err *err) {
    void *entry = kind == SECTION_ACCELERATORS ? find_spoken(catalogue, kind, name)
                                               : catalogue_find(catalogue, kind, name);
    if (entry) return entry;
    const char *nearest = nearest_spoken(catalogue, kind, name);
    if (nearest)
        err_set(err, ERR_USAGE, "unknown %s \"%.100s\"; did you mean \"%s\"?",
                section_of(kind)->one, name, nearest);
    else
        err_set(err, ERR_USAGE, "unknown %s \"%.100s\"; weft hardware lists the known ones",
                section_of(kind)->one, name);
    return NULL;
}

const struct accelerator *catalogue_accelerator(const struct catalogue *catalogue, const char *name,
                                                struct err *err) {
    return look_up(catalogue, SECTION_ACCELERATORS, name, err);
}
const struct link *catalogue_link(const struct catalogue *catalogue, const char *name,
                                  struct err *err) {
    return look_up(catalogue, SECTION_LINKS, name, err);
}
const struct stack *catalogue_stack(const struct catalogue *catalogue, const char *name,
                                    struct err *err) {
    return look_up(catalogue, SECTION_STACKS, name, err);
}

const char *const *catalogue_names(const struct catalogue *catalogue, const char *kind) {
    static const char *const none[] = {NULL};
    for (int s = 0; s < SECTIONS; s++)
        if (strcmp(section_of((enum section_kind)s)->name, kind) == 0 &&
            catalogue->sections[s].count > 0)
            return catalogue->sections[s].names;
    return none;
}

// ---- clusters by name ---------------------------------------------------------------------------

static void resolve(const struct catalogue *catalogue, const struct cluster_entry *entry,
                    struct cluster *out) {
    *out = entry->cluster;
    const struct accelerator *a =
        catalogue_find(catalogue, SECTION_ACCELERATORS, entry->accelerator);
    if (a) out->accelerator = *a;
    const struct link *fast =
        entry->fast ? catalogue_find(catalogue, SECTION_LINKS, entry->fast) : NULL;
    const struct link *slow =
        entry->slow ? catalogue_find(catalogue, SECTION_LINKS, entry->slow) : NULL;
    if (fast) out->fast = *fast;
    if (slow) out->slow = *slow;
    if (out->domain == 0) out->domain = out->per_node;
}

// A job is placed in whole parts of domains: of a rack of 72, a job of 256 takes 64 each.
static void fit_domain(struct cluster *c) {
    int total = c->nodes * c->per_node;
    if (c->domain > total) c->domain = total;
    while (c->domain > c->per_node && (total % c->domain != 0 || c->domain % c->per_node != 0))
        c->domain--;
    if (c->domain < c->per_node) c->domain = c->per_node;
}

// That more than one accelerator or node has a way to the others.
static int check_links(const char *text, const struct cluster *c, struct err *err) {
    bool fast = c->per_node > 1 && !(c->fast.bandwidth.value > 0);
    bool slow = c->domain < c->nodes * c->per_node && !(c->slow.bandwidth.value > 0);
    if (!fast && !slow) return 0;
    return err_set(
        err, ERR_USAGE,
        "cluster \"%.100s\": nothing links its %s; expected 1 of them, or a file that says "
        "\"%s\" (docs/hardware.md)",
        text, fast ? "accelerators of a node" : "nodes", fast ? "fast" : "slow");
}

// "512" or "64x8" behind the colon.
static int resize(const char *text, const char *counts, struct cluster *c, struct err *err) {
    char *end;
    long n = strtol(counts, &end, 10), per_node = 0;
    bool by_node = *end == 'x' && end > counts;
    if (by_node) {
        const char *second = end + 1;
        per_node = strtol(second, &end, 10);
        if (end == second) end = (char *)counts;
    }
    if (end == counts || *end || counts[0] < '0' || counts[0] > '9')
        return err_set(err, ERR_USAGE,
                       "cluster \"%.100s\": expected NAME:COUNT or NAME:NODESxPER_NODE, such as "
                       "h100-sxm:512 or h100-sxm:64x8",
                       text);
    if (n < 1 || n > 10000000 ||
        (by_node && (per_node < 1 || per_node > 1024 || n * per_node > 10000000)))
        return err_set(err, ERR_USAGE,
                       "cluster \"%.100s\": expected 1 to 10000000 accelerators, at most 1024 "
                       "in a node",
                       text);
    if (by_node) {
        c->nodes = (int)n;
        c->per_node = (int)per_node;
        if (c->domain < c->per_node) c->domain = c->per_node;
    } else if (n <= c->per_node) {
        c->nodes = 1;
        c->per_node = (int)n;
    } else if (n % c->per_node != 0) {
        long down = n - n % c->per_node;
        return err_set(err, ERR_USAGE,
                       "cluster \"%.100s\": %ld is no multiple of the %d accelerators of a node; "
                       "%ld or %ld would be",
                       text, n, c->per_node, down, down + c->per_node);
    } else
        c->nodes = (int)(n / c->per_node);
    if (c->domain > c->per_node || c->nodes == 1) fit_domain(c);
    return check_links(text, c, err);
}

static bool is_path(const char *text) {
    return strchr(text, '/') || text_ends_with(text, ".yaml") || text_ends_with(text, ".yml");
}

static int cluster_of_file(struct catalogue *catalogue, const char *path, struct cluster *out,
                           struct err *err) {
    if (catalogue_add(catalogue, path, err) != 0) return -1;
    const char *first = NULL, *second = NULL;
    for (int i = 0; i < catalogue->added_count; i++) {
        if (catalogue->added[i].section != SECTION_CLUSTERS) continue;
        if (first && !second) second = catalogue->added[i].name;
        if (!first) first = catalogue->added[i].name;
    }
    if (!first)
        return err_set(err, ERR_USAGE, "%s: expected a cluster below \"clusters:\", found none",
                       path);
    if (second)
        return err_set(err, ERR_USAGE,
                       "%s: expected one cluster, found several (\"%s\", \"%s\"): keep one in a "
                       "file",
                       path, first, second);
    resolve(catalogue, catalogue_find(catalogue, SECTION_CLUSTERS, first), out);
    return 0;
}

// The usual node of an accelerator is that of the first cluster that is made of it.
static const struct cluster_entry *usual_cluster(const struct catalogue *catalogue,
                                                 const char *accelerator) {
    const struct entries *clusters = &catalogue->sections[SECTION_CLUSTERS];
    for (int i = 0; i < clusters->count; i++) {
        const struct cluster_entry *entry = clusters->entry[i];
        if (strcmp(entry->accelerator, accelerator) == 0) return entry;
    }
    return NULL;
}

static int unknown_cluster(const struct catalogue *catalogue, const char *name, struct err *err) {
    const char *near_a = nearest_spoken(catalogue, SECTION_CLUSTERS, name),
               *near_b = nearest_spoken(catalogue, SECTION_ACCELERATORS, name);
    const char *nearest =
        near_a && near_b
            ? (text_distance(name, near_a) <= text_distance(name, near_b) ? near_a : near_b)
            : (near_a ? near_a : near_b);
    if (nearest)
        return err_set(err, ERR_USAGE,
                       "unknown cluster or accelerator \"%.100s\"; did you mean \"%s\"?", name,
                       nearest);
    return err_set(err, ERR_USAGE,
                   "unknown cluster or accelerator \"%.100s\"; weft hardware lists the known ones, "
                   "a file ends in .yaml",
                   name);
}

int catalogue_cluster(struct catalogue *catalogue, const char *text, struct cluster *out,
                      struct err *err) {
    if (is_path(text)) return cluster_of_file(catalogue, text, out, err);
    char name[128];
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    if (length >= sizeof name) length = sizeof name - 1;
    memcpy(name, text, length);
    name[length] = 0;
    const struct cluster_entry *entry = catalogue_find(catalogue, SECTION_CLUSTERS, name);
    const struct accelerator *a = NULL;
    if (!entry) a = find_spoken(catalogue, SECTION_ACCELERATORS, name);
    if (!entry && !a) entry = find_spoken(catalogue, SECTION_CLUSTERS, name);
    if (!entry) {
        if (!a) return unknown_cluster(catalogue, name, err);
        entry = usual_cluster(catalogue, a->name);
        if (!entry)
            return err_set(err, ERR_USAGE,
                           "accelerator \"%s\": no cluster of the catalogue is made of it, so its "
                           "links are not known; write a cluster file",
                           a->name);
    }
    struct cluster c;
    resolve(catalogue, entry, &c);
    if (a && !colon) c.nodes = 1;
    if (colon && resize(text, colon + 1, &c, err) != 0) return -1;
    if (c.nodes > 1 && !(c.slow.bandwidth.value > 0) && c.domain < c.nodes * c.per_node)
        return err_set(err, ERR_USAGE,
                       "cluster \"%.100s\": %d nodes need a link between them (key \"slow\")", text,
                       c.nodes);
    *out = c;
    return 0;
}
