// Figures that were fitted or assumed belong to classes of programs: a program that one publisher
// ran carries none of its own, else it would be a constant of that publisher's table.
#include "base/yaml.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

static const char *const classes[] = {"weft", "eager", "transformer-engine", "compiled"};

static bool is_class(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (strlen(classes[i]) == length && strncmp(name, classes[i], length) == 0) return true;
    return false;
}

// The first stack that is no class and holds such a figure, or NULL.
static const char *offender(const struct yaml_leaves *leaves) {
    static char found[128];
    for (size_t i = 0; i < leaves->count; i++) {
        const struct yaml_leaf *leaf = &leaves->leaf[i];
        const char *end = strrchr(leaf->key, '.');
        if (strncmp(leaf->key, "stacks.", 7) != 0 || !end || strcmp(end, ".origin") != 0) continue;
        if (strcmp(leaf->text, "fitted") != 0 && strcmp(leaf->text, "assumed") != 0) continue;
        const char *name = leaf->key + 7;
        if (is_class(name, strcspn(name, "."))) continue;
        snprintf(found, sizeof found, "%s", leaf->key);
        return found;
    }
    return NULL;
}

TEST(fitted_figures_belong_to_classes) {
    struct yaml_leaves leaves;
    struct err err = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/../../hardware/stacks.yaml", test_golden_dir());
    CHECK_OK(yaml_read(path, &leaves, &err), err);
    int fitted = 0;
    for (size_t i = 0; i < leaves.count; i++) fitted += strcmp(leaves.leaf[i].text, "fitted") == 0;
    CHECK(fitted >= 2);
    const char *found = offender(&leaves);
    if (found) test_fail(__FILE__, __LINE__, "%s is fitted or assumed outside a class", found);
    yaml_free(&leaves);
}

TEST(a_figure_of_one_program_is_found) {
    static const char text[] =
        "stacks:\n"
        "  eager:\n"
        "    launch_seconds: {value: 5 us, source: \"x\", origin: fitted}\n"
        "  mine:\n"
        "    base: eager\n"
        "    launch_seconds: {value: 9 us, source: \"y\", origin: assumed}\n";
    struct yaml_leaves leaves;
    struct err err = {0};
    CHECK_OK(yaml_parse(text, sizeof text - 1, "text", &leaves, &err), err);
    CHECK_STR(offender(&leaves), "stacks.mine.launch_seconds.origin");
    yaml_free(&leaves);
}
