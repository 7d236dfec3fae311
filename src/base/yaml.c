// YAML through libfyaml, flattened to leaves with dotted keys; see yaml.h.
#include "base/yaml.h"
#include "base/file.h"
#include "base/text.h"
#include <libfyaml.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_FILE_BYTES = 1 << 20, LONGEST_KEY = 1000 };

struct reader {
    const char *name; // of the file
    const char *text;
    size_t bytes;
    struct yaml_leaves leaves;
    size_t capacity;
    struct err *err;
};

static int line_of(struct fy_node *node) {
    struct fy_token *token = fy_node_get_scalar_token(node);
    const struct fy_mark *mark = token ? fy_token_start_mark(token) : NULL;
    return mark ? mark->line + 1 : 0;
}

static int refuse(struct reader *r, int line, const char *key, const char *what) {
    if (line > 0)
        return err_set(r->err, ERR_USAGE, "%s: line %d: %s%s%s", r->name, line, key,
                       key[0] ? ": " : "", what);
    return err_set(r->err, ERR_USAGE, "%s: %s%s%s", r->name, key, key[0] ? ": " : "", what);
}

// What a configuration has no use for, and where a hostile file could hide something.
static int plain_node(struct reader *r, struct fy_node *node, const char *key, int line) {
    size_t length;
    if (fy_node_is_alias(node))
        return refuse(r, line, key, "references (*name) are not supported, write the value");
    if (fy_node_get_anchor(node)) return refuse(r, line, key, "anchors (&name) are not supported");
    if (fy_node_get_tag(node, &length))
        return refuse(r, line, key, "tags (!name) are not supported");
    return 0;
}

static int add_leaf(struct reader *r, struct yaml_leaf leaf) {
    if (r->leaves.count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 32;
        struct yaml_leaf *grown = realloc(r->leaves.leaf, capacity * sizeof *grown);
        if (!grown) goto short_of_memory;
        r->leaves.leaf = grown;
        r->capacity = capacity;
    }
    if (!leaf.key || !leaf.text) goto short_of_memory;
    r->leaves.leaf[r->leaves.count++] = leaf;
    return 0;
short_of_memory:
    free(leaf.key);
    free(leaf.text);
    return err_set(r->err, ERR_MEMORY, "%s: no memory", r->name);
}

// The scalar's bytes, refused when a NUL hides in them.
static const char *scalar_text(struct reader *r, struct fy_node *node, const char *key, int line,
                               size_t *length) {
    const char *text = fy_node_get_scalar(node, length);
    if (!text) {
        *length = 0;
        return "";
    }
    if (memchr(text, 0, *length)) {
        refuse(r, line, key, "the value holds a NUL character");
        return NULL;
    }
    return text;
}

static bool is_plain(struct fy_node *node) {
    enum fy_node_style style = fy_node_get_style(node);
    return style == FYNS_PLAIN || style == FYNS_ANY;
}

static bool is_null(struct fy_node *node) {
    size_t length;
    const char *text = fy_node_get_scalar(node, &length);
    if (!text || length == 0) return is_plain(node);
    return is_plain(node) &&
           ((length == 1 && text[0] == '~') || (length == 4 && strncasecmp(text, "null", 4) == 0));
}

static int add_scalar(struct reader *r, struct fy_node *node, const char *key, int line) {
    size_t length;
    const char *text = scalar_text(r, node, key, line, &length);
    if (!text) return -1;
    struct yaml_leaf leaf = {.key = strdup(key),
                             .text = strndup(text, length),
                             .line = line,
                             .is_quoted = !is_plain(node)};
    leaf.is_null = is_null(node);
    return add_leaf(r, leaf);
}

static int add_list(struct reader *r, struct fy_node *node, const char *key, int line) {
    struct text joined = {0};
    void *at = NULL;
    struct fy_node *item;
    int index = 0;
    while ((item = fy_node_sequence_iterate(node, &at)) != NULL) {
        size_t length = 0;
        int here = line_of(item) ? line_of(item) : line;
        const char *text =
            plain_node(r, item, key, here) == 0 ? scalar_text(r, item, key, here, &length) : NULL;
        if (text && memchr(text, ',', length)) {
            refuse(r, here, key, "an element of a list must not hold a comma");
            text = NULL;
        }
        if (!text) {
            text_free(&joined);
            return -1;
        }
        if ((index++ > 0 && text_puts(&joined, ",") != 0) || text_put(&joined, text, length) != 0) {
            text_free(&joined);
            return err_set(r->err, ERR_MEMORY, "%s: no memory", r->name);
        }
    }
    struct yaml_leaf leaf = {.key = strdup(key),
                             .text = strdup(joined.data ? joined.data : ""),
                             .line = line,
                             .is_list = 1};
    text_free(&joined);
    return add_leaf(r, leaf);
}

static bool all_scalars(struct fy_node *sequence) {
    void *at = NULL;
    struct fy_node *item;
    while ((item = fy_node_sequence_iterate(sequence, &at)) != NULL)
        if (!fy_node_is_scalar(item)) return false;
    return true;
}

// Recursion is as deep as the file nests, which libfyaml limits to 64 levels.
static int flatten(struct reader *r, struct fy_node *node, const char *key, int line);

static int flatten_child(struct reader *r, struct fy_node *node, const char *key, const char *name,
                         int line) {
    char inner[LONGEST_KEY];
    size_t a = strlen(key), b = strlen(name), dot = a > 0;
    if (a + dot + b + 1 > sizeof inner)
        return refuse(r, line, "", "the key is longer than anything known");
    memcpy(inner, key, a);
    if (dot) inner[a] = '.';
    memcpy(inner + a + dot, name, b + 1);
    return flatten(r, node, inner, line);
}

static int flatten_map(struct reader *r, struct fy_node *node, const char *key) {
    void *at = NULL;
    struct fy_node_pair *pair;
    while ((pair = fy_node_mapping_iterate(node, &at)) != NULL) {
        struct fy_node *name = fy_node_pair_key(pair), *value = fy_node_pair_value(pair);
        if (!name || !fy_node_is_scalar(name)) return refuse(r, 0, key, "expected names as keys");
        int line = line_of(name);
        size_t length;
        if (plain_node(r, name, key, line) != 0) return -1;
        const char *text = scalar_text(r, name, key, line, &length);
        if (!text) return -1;
        if (length == 0) return refuse(r, line, key, "expected a name before the colon");
        char *copy = strndup(text, length);
        if (!copy) return err_set(r->err, ERR_MEMORY, "%s: no memory", r->name);
        int result = flatten_child(r, value, key, copy, line);
        free(copy);
        if (result != 0) return -1;
    }
    return 0;
}

static int flatten(struct reader *r, struct fy_node *node, const char *key, int line) {
    if (!node) { // "key:" and nothing behind it
        struct yaml_leaf leaf = {
            .key = strdup(key), .text = strdup(""), .line = line, .is_null = 1};
        return add_leaf(r, leaf);
    }
    if (plain_node(r, node, key, line) != 0) return -1;
    if (fy_node_is_mapping(node)) return flatten_map(r, node, key);
    if (fy_node_is_scalar(node)) return add_scalar(r, node, key, line);
    if (all_scalars(node)) return add_list(r, node, key, line);
    void *at = NULL;
    struct fy_node *item;
    for (int index = 0; (item = fy_node_sequence_iterate(node, &at)) != NULL; index++) {
        char name[16];
        snprintf(name, sizeof name, "%d", index);
        if (flatten_child(r, item, key, name, line) != 0) return -1;
    }
    return 0;
}

static int compare_leaves(const void *a, const void *b) {
    const struct yaml_leaf *x = *(struct yaml_leaf *const *)a, *y = *(struct yaml_leaf *const *)b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x->line > y->line) - (x->line < y->line);
}

// Two spellings can name one key: "a: {b: 1}" and "a.b: 1". The parser sees only equal spellings.
static int refuse_duplicates(struct reader *r) {
    size_t count = r->leaves.count;
    if (count < 2) return 0;
    const struct yaml_leaf **sorted = malloc(count * sizeof(void *));
    if (!sorted) return err_set(r->err, ERR_MEMORY, "%s: no memory", r->name);
    for (size_t i = 0; i < count; i++) sorted[i] = &r->leaves.leaf[i];
    qsort(sorted, count, sizeof *sorted, compare_leaves);
    int result = 0;
    for (size_t i = 1; i < count && result == 0; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
            result = err_set(r->err, ERR_USAGE,
                             "%s: line %d: duplicate key \"%s\", first given in line %d", r->name,
                             sorted[i]->line, sorted[i]->key, sorted[i - 1]->line);
    free(sorted);
    return result;
}

void yaml_free(struct yaml_leaves *leaves) {
    for (size_t i = 0; i < leaves->count; i++) {
        free(leaves->leaf[i].key);
        free(leaves->leaf[i].text);
    }
    free(leaves->leaf);
    *leaves = (struct yaml_leaves){NULL, 0};
}

// The first line that is indented with a tab, or 0: the usual cause of findings that do not name
// it.
static int tab_line(const char *text, size_t bytes) {
    int line = 1;
    for (size_t i = 0; i < bytes; line++) {
        while (i < bytes && text[i] == ' ') i++;
        if (i < bytes && text[i] == '\t') return line;
        while (i < bytes && text[i] != '\n') i++;
        i++;
    }
    return 0;
}

// libfyaml writes its findings to a diagnostic object; the first one becomes our message.
static int syntax_error(struct reader *r, struct fy_diag *diag) {
    void *at = NULL;
    struct fy_diag_error *found = fy_diag_errors_iterate(diag, &at);
    if (found && found->msg)
        err_set(r->err, ERR_USAGE, "%s: line %d: not valid YAML: %s", r->name, found->line,
                found->msg);
    else
        err_set(r->err, ERR_USAGE, "%s: not valid YAML", r->name);
    int line = tab_line(r->text, r->bytes);
    if (line && r->err) {
        size_t length = strlen(r->err->text);
        snprintf(r->err->text + length, sizeof r->err->text - length,
                 " (line %d is indented with a tab; use spaces)", line);
    }
    return -1;
}

static void say_nothing(struct fy_diag *diag, void *user, const char *text, size_t length) {
    (void)diag, (void)user, (void)text, (void)length;
}

static int parse_with(struct reader *r, struct fy_parser *parser, struct fy_diag *diag,
                      const char *text, size_t bytes) {
    if (fy_parser_set_string(parser, text, bytes) != 0) return syntax_error(r, diag);
    struct fy_document *document = fy_parse_load_document(parser);
    int result = 0;
    if (fy_parser_get_stream_error(parser)) {
        result = syntax_error(r, diag);
    } else if (document) {
        struct fy_node *root = fy_document_root(document);
        if (root && fy_node_is_mapping(root))
            result = flatten(r, root, "", 1);
        else if (root && !(fy_node_is_scalar(root) && is_null(root)))
            result =
                refuse(r, 0, "", "expected keys and values (key: value), found something else");
    }
    fy_parse_document_destroy(parser, document);
    if (result != 0 || !document) return result;
    document = fy_parse_load_document(parser);
    if (fy_parser_get_stream_error(parser))
        result = syntax_error(r, diag);
    else if (document)
        result = refuse(r, 0, "", "expected one document, found a second one after \"---\"");
    fy_parse_document_destroy(parser, document);
    return result != 0 ? result : refuse_duplicates(r);
}

int yaml_parse(const char *text, size_t bytes, const char *name, struct yaml_leaves *out,
               struct err *err) {
    struct reader r = {.name = name, .text = text, .bytes = bytes, .err = err};
    if (bytes > LONGEST_FILE_BYTES)
        return refuse(&r, 0, "", "longer than the 1 MB that a configuration may have");
    size_t valid = text_utf8_valid_prefix(text, bytes);
    if (valid < bytes || memchr(text, 0, bytes)) {
        int line = 1;
        const char *nul = memchr(text, 0, bytes);
        size_t place = nul && (size_t)(nul - text) < valid ? (size_t)(nul - text) : valid;
        for (size_t i = 0; i < place; i++) line += text[i] == '\n';
        return refuse(&r, line, "", "expected text in UTF-8");
    }
    struct fy_diag_cfg diag_config;
    fy_diag_cfg_default(&diag_config);
    diag_config.fp = NULL;
    diag_config.output_fn = say_nothing;
    struct fy_diag *diag = fy_diag_create(&diag_config);
    if (!diag) return err_set(err, ERR_MEMORY, "%s: no memory", name);
    fy_diag_set_collect_errors(diag, true);
    struct fy_parse_cfg config = {.flags = FYPCF_QUIET, .diag = diag};
    struct fy_parser *parser = fy_parser_create(&config);
    int result = parser ? parse_with(&r, parser, diag, text, bytes)
                        : err_set(err, ERR_MEMORY, "%s: no memory", name);
    if (parser) fy_parser_destroy(parser);
    fy_diag_destroy(diag);
    if (result != 0) {
        yaml_free(&r.leaves);
        return -1;
    }
    *out = r.leaves;
    return 0;
}

int yaml_read(const char *path, struct yaml_leaves *out, struct err *err) {
    char *text;
    size_t bytes;
    if (file_read(path, LONGEST_FILE_BYTES, &text, &bytes, err) != 0) return -1;
    int result = yaml_parse(text, bytes, path, out, err);
    free(text);
    return result;
}
