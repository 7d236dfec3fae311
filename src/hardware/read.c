// From the leaves of a YAML file to entries of the catalogue. A file has the sections accelerators,
// links, clusters and stacks; in each, entries by name. An entry may begin as a copy of another
// (base: NAME). A figure is a number with an optional unit, or {value, source, origin}.
#include "base/text.h"
#include "hardware/read_parts.h"
#include <stdio.h>
#include <string.h>

int read_refuse(const struct file_reader *r, const struct yaml_leaf *leaf, const char *what) {
    return err_set(r->err, ERR_USAGE, "%s: line %d: %s: %s", r->name, leaf->line, leaf->key, what);
}

// ---- splitting keys -----------------------------------------------------------------------------

// "links.nvlink4.bandwidth": section links, entry of `length` bytes at `name`, rest "bandwidth".
struct parts {
    int section;
    const char *name;
    size_t length;
    const char *rest; // "" when nothing follows
};
static int split(const struct file_reader *r, const struct yaml_leaf *leaf, struct parts *out) {
    const char *names[SECTIONS];
    for (int s = 0; s < SECTIONS; s++) {
        names[s] = section_of((enum section_kind)s)->name;
        size_t length = strlen(names[s]);
        if (strncmp(leaf->key, names[s], length) != 0) continue;
        if (leaf->key[length] == 0) {
            if (leaf->is_null) {
                *out = (struct parts){s, NULL, 0, ""};
                return 0;
            }
            return read_refuse(r, leaf, "expected entries by name below it");
        }
        if (leaf->key[length] != '.') continue;
        const char *name = leaf->key + length + 1, *dot = strchr(name, '.');
        *out =
            (struct parts){s, name, dot ? (size_t)(dot - name) : strlen(name), dot ? dot + 1 : ""};
        if (!dot && !leaf->is_null) return read_refuse(r, leaf, "expected the keys of an entry");
        return 0;
    }
    char top[128];
    snprintf(top, sizeof top, "%.*s", (int)strcspn(leaf->key, "."), leaf->key);
    const char *nearest = text_nearest(top, names, SECTIONS);
    if (nearest)
        return err_set(r->err, ERR_USAGE,
                       "%s: line %d: unknown section \"%.100s\"; did you mean \"%s\"?", r->name,
                       leaf->line, top, nearest);
    return err_set(r->err, ERR_USAGE,
                   "%s: line %d: unknown section \"%.100s\"; a hardware file has accelerators, "
                   "links, clusters and stacks",
                   r->name, leaf->line, top);
}

static bool same_entry(const struct parts *a, const struct parts *b) {
    bool named = a->name && b->name;
    return a->section == b->section && a->length == b->length &&
           (!named || memcmp(a->name, b->name, a->length) == 0);
}

// ---- entries ------------------------------------------------------------------------------------

static int unknown_key(const struct file_reader *r, const struct yaml_leaf *leaf,
                       const struct section *section, const char *key) {
    const char *names[128] = {"base"};
    size_t count = 1;
    for (int f = 0; f < section->field_count && count < 128; f++)
        names[count++] = section->fields[f].key;
    char what[300], stem[128];
    const char *nearest = text_nearest(key, names, count);
    if (!nearest) { // "memory.value" is nearest to "memory"
        snprintf(stem, sizeof stem, "%.*s", (int)strcspn(key, "."), key);
        nearest = text_nearest(stem, names, count);
    }
    if (nearest)
        snprintf(what, sizeof what, "unknown key of %s %s; did you mean \"%s\"?",
                 strchr("aeiou", section->one[0]) ? "an" : "a", section->one, nearest);
    else
        snprintf(what, sizeof what, "unknown key of %s %s",
                 strchr("aeiou", section->one[0]) ? "an" : "a", section->one);
    return read_refuse(r, leaf, what);
}

static const struct field *find_field(const struct section *section, const char *key,
                                      const char **rest) {
    for (int f = 0; f < section->field_count; f++) {
        const struct field *field = &section->fields[f];
        size_t length = strlen(field->key);
        if (strncmp(field->key, key, length) != 0) continue;
        *rest = key + length;
        if (**rest == 0) return field;
        if (field->kind == FIELD_FIGURE &&
            (strcmp(*rest, ".value") == 0 || strcmp(*rest, ".source") == 0 ||
             strcmp(*rest, ".origin") == 0))
            return field;
    }
    return NULL;
}

static int begin_entry(const struct file_reader *r, size_t first, const struct parts *parts,
                       char *entry) {
    const struct section *section = section_of((enum section_kind)parts->section);
    char name[64];
    if (parts->length >= sizeof name)
        return read_refuse(r, &r->leaves->leaf[first], "the name is longer than 63 characters");
    memcpy(name, parts->name, parts->length);
    name[parts->length] = 0;
    for (size_t i = first; i < r->leaves->count; i++) {
        struct parts other;
        const struct yaml_leaf *leaf = &r->leaves->leaf[i];
        if (split(r, leaf, &other) != 0) return -1;
        if (!same_entry(parts, &other) || strcmp(other.rest, "base") != 0) continue;
        const void *base =
            catalogue_find(r->catalogue, (enum section_kind)parts->section, leaf->text);
        if (!base) {
            const struct entries *entries = &r->catalogue->sections[parts->section];
            const char *nearest = text_nearest(leaf->text, entries->names, (size_t)entries->count);
            char what[300];
            snprintf(what, sizeof what, "unknown %s \"%.60s\"%s%s%s", section->one, leaf->text,
                     nearest ? "; did you mean \"" : "; it must stand before this one",
                     nearest ? nearest : "", nearest ? "\"?" : "");
            return read_refuse(r, leaf, what);
        }
        memcpy(entry, base, section->entry_bytes);
    }
    const char *kept = catalogue_text(r->catalogue, name, r->err);
    if (!kept) return -1;
    *(const char **)(void *)entry = kept;
    return 0;
}

static bool is_given(const struct field *field, const char *entry) {
    const void *at = entry + field->offset;
    if (field->kind == FIELD_FIGURE) return ((const struct figure *)at)->origin != FIGURE_ABSENT;
    if (field->kind == FIELD_REFERENCE || field->kind == FIELD_TEXT)
        return *(const char *const *)at != NULL;
    return true;
}

// What is missing: refused where it is needed, assumed where there is a usual value.
static int complete(const struct file_reader *r, size_t first, const struct parts *parts,
                    char *entry) {
    const struct section *section = section_of((enum section_kind)parts->section);
    for (int f = 0; f < section->field_count; f++) {
        const struct field *field = &section->fields[f];
        if (field->kind == FIELD_TEXT && !is_given(field, entry))
            *(const char **)(void *)(entry + field->offset) = "";
        if (is_given(field, entry)) continue;
        if (field->needed)
            return err_set(r->err, ERR_USAGE, "%s: line %d: %s %.*s: \"%s\" is missing", r->name,
                           r->leaves->leaf[first].line, section->one, (int)parts->length,
                           parts->name, field->key);
        if (field->kind != FIELD_FIGURE) continue;
        struct figure *figure = (struct figure *)(void *)(entry + field->offset);
        figure->source = "";
        if (field->usual > 0)
            *figure = (struct figure){field->usual, FIGURE_ASSUMED, "usual value, nothing given"};
    }
    return 0;
}

static int zero_figure(const struct file_reader *r, size_t first, const char *section,
                       const char *name, const char *key) {
    return err_set(r->err, ERR_USAGE, "%s: line %d: %s %s: \"%s\" must be more than 0", r->name,
                   r->leaves->leaf[first].line, section, name, key);
}

static int finish_accelerator(const struct file_reader *r, size_t first, struct accelerator *a) {
    if (a->memory_bytes.value == 0 || a->memory_bandwidth.value == 0 ||
        a->dense[HARDWARE_BF16].value == 0)
        return zero_figure(r, first, "accelerator", a->name,
                           a->memory_bytes.value == 0       ? "memory_bytes"
                           : a->memory_bandwidth.value == 0 ? "memory_bandwidth"
                                                            : "dense.bf16");
    if (a->units == 0) a->units = a->cpu ? 1 : 128;
    if (a->tile_count == 0) {
        a->tile_m[0] = a->tile_n[0] = 128;
        a->tile_count = 1;
    }
    return 0;
}

// Directions: what is written counts both, what is kept one.
static int finish_link(const struct file_reader *r, size_t first, bool bandwidth_given,
                       struct link *l) {
    if (bandwidth_given && l->both_directions_stated) l->bandwidth.value /= 2;
    if (l->bandwidth.value == 0) return zero_figure(r, first, "link", l->name, "bandwidth");
    if (l->share.value == 0) return zero_figure(r, first, "link", l->name, "share");
    return 0;
}

static int check_reference(const struct file_reader *r, size_t first,
                           const struct cluster_entry *entry, const struct field *field) {
    const char *name = *(const char *const *)(const void *)((const char *)entry + field->offset);
    if (!name || catalogue_find(r->catalogue, field->refers, name)) return 0;
    const struct entries *entries = &r->catalogue->sections[field->refers];
    const char *nearest = text_nearest(name, entries->names, (size_t)entries->count);
    int line = r->leaves->leaf[first].line;
    char key[200];
    snprintf(key, sizeof key, "clusters.%s.%s", entry->cluster.name, field->key);
    for (size_t i = 0; i < r->leaves->count; i++)
        if (strcmp(r->leaves->leaf[i].key, key) == 0) line = r->leaves->leaf[i].line;
    return err_set(r->err, ERR_USAGE, "%s: line %d: %s: unknown %s \"%.60s\"%s%s%s", r->name, line,
                   key, section_of(field->refers)->one, name, nearest ? "; did you mean \"" : "",
                   nearest ? nearest : "", nearest ? "\"?" : "");
}

static int finish_cluster(const struct file_reader *r, size_t first, struct cluster_entry *entry) {
    struct cluster *c = &entry->cluster;
    const struct section *section = section_of(SECTION_CLUSTERS);
    for (int f = 0; f < section->field_count; f++)
        if (section->fields[f].kind == FIELD_REFERENCE &&
            check_reference(r, first, entry, &section->fields[f]) != 0)
            return -1;
    if (c->nodes == 0) c->nodes = 1;
    if (c->per_node == 0) c->per_node = 1;
    const char *missing = NULL;
    int64_t total = (int64_t)c->nodes * c->per_node;
    if (c->per_node > 1 && !entry->fast) missing = "fast";
    if (c->nodes > 1 && c->domain < total && !entry->slow) missing = "slow";
    if (missing)
        return err_set(r->err, ERR_USAGE,
                       "%s: line %d: cluster %s: %d nodes of %d need a link \"%s\"", r->name,
                       r->leaves->leaf[first].line, c->name, c->nodes, c->per_node, missing);
    if (total > 10000000)
        return err_set(r->err, ERR_USAGE,
                       "%s: line %d: cluster %s: %d nodes of %d are more than 10000000 "
                       "accelerators",
                       r->name, r->leaves->leaf[first].line, c->name, c->nodes, c->per_node);
    if (c->domain > c->per_node && c->domain % c->per_node != 0)
        return err_set(r->err, ERR_USAGE,
                       "%s: line %d: cluster %s: domain %d is no multiple of the %d accelerators "
                       "of a node",
                       r->name, r->leaves->leaf[first].line, c->name, c->domain, c->per_node);
    if (c->domain > 0 && c->domain < c->per_node && c->per_node % c->domain != 0)
        return err_set(
            r->err, ERR_USAGE,
            "%s: line %d: cluster %s: domain %d does not divide the %d accelerators of a "
            "node",
            r->name, r->leaves->leaf[first].line, c->name, c->domain, c->per_node);
    for (int k = 0; k < STORAGE_KINDS; k++) {
        struct storage *s = &c->storage[k];
        s->given = s->read.value > 0 || s->write.value > 0 || s->capacity_bytes.value > 0;
    }
    return 0;
}

static int note_added(const struct file_reader *r, enum section_kind section, const char *name) {
    struct catalogue *c = r->catalogue;
    size_t count = (size_t)c->added_count;
    struct added *grown = catalogue_room(c, (count + 1) * sizeof *grown, r->err);
    if (!grown) return -1;
    if (count > 0) memcpy(grown, c->added, count * sizeof *grown);
    grown[count] = (struct added){section, name};
    c->added = grown;
    c->added_count++;
    return 0;
}

static int read_entry(const struct file_reader *r, size_t first, const struct parts *parts) {
    const struct section *section = section_of((enum section_kind)parts->section);
    char *entry = catalogue_room(r->catalogue, section->entry_bytes, r->err);
    if (!entry || begin_entry(r, first, parts, entry) != 0) return -1;
    bool bandwidth_given = false;
    for (size_t i = first; i < r->leaves->count; i++) {
        const struct yaml_leaf *leaf = &r->leaves->leaf[i];
        struct parts other;
        if (split(r, leaf, &other) != 0) return -1;
        if (!same_entry(parts, &other)) continue;
        r->used[i] = true;
        const char *rest;
        if (*other.rest == 0 || strcmp(other.rest, "base") == 0) continue;
        const struct field *field = find_field(section, other.rest, &rest);
        if (!field) return unknown_key(r, leaf, section, other.rest);
        if (read_field(r, i, field, rest, entry) != 0) return -1;
        if (parts->section == SECTION_LINKS && strcmp(field->key, "bandwidth") == 0)
            bandwidth_given = true;
    }
    if (complete(r, first, parts, entry) != 0) return -1;
    void *at = entry;
    if (parts->section == SECTION_ACCELERATORS && finish_accelerator(r, first, at) != 0) return -1;
    if (parts->section == SECTION_LINKS && finish_link(r, first, bandwidth_given, at) != 0)
        return -1;
    if (parts->section == SECTION_CLUSTERS && finish_cluster(r, first, at) != 0) return -1;
    if (note_added(r, (enum section_kind)parts->section, *(const char **)at) != 0) return -1;
    return catalogue_put(r->catalogue, (enum section_kind)parts->section, entry, r->err);
}

int catalogue_read(struct catalogue *catalogue, enum section_kind section,
                   const struct yaml_leaves *leaves, const char *name, struct err *err) {
    struct file_reader r = {.catalogue = catalogue, .leaves = leaves, .name = name, .err = err};
    r.kept = catalogue_text(catalogue, name, err);
    if (!r.kept) return -1;
    r.used = catalogue_room(catalogue, leaves->count * sizeof *r.used, err);
    if (!r.used) return -1;
    for (size_t i = 0; i < leaves->count; i++) {
        struct parts parts;
        if (split(&r, &leaves->leaf[i], &parts) != 0) return -1;
        if (parts.section != (int)section || r.used[i]) continue;
        r.used[i] = true;
        if (parts.length > 0 && read_entry(&r, i, &parts) != 0) return -1;
    }
    return 0;
}
