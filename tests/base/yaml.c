// YAML as flat leaves: places, kinds, everything that is refused, and a bounded fuzzer.
#include "base/yaml.h"
#include "base/file.h"
#include "base/random.h"
#include "base/text.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct yaml_leaf *find(const struct yaml_leaves *leaves, const char *key) {
    for (size_t i = 0; i < leaves->count; i++)
        if (strcmp(leaves->leaf[i].key, key) == 0) return &leaves->leaf[i];
    test_fail(__FILE__, __LINE__, "no leaf %s", key);
}

static void check_leaf(const struct yaml_leaves *leaves, const char *key, const char *text,
                       int line) {
    const struct yaml_leaf *leaf = find(leaves, key);
    CHECK_STR(leaf->text, text);
    CHECK_EQ_INT(leaf->line, line);
}

static const char sample[] = "# a comment\n"
                             "model:\n"
                             "  layers: 12\n"
                             "  name: 'a: b'   # quoted\n"
                             "  note: \"tab\\there\"\n"
                             "  none: ~\n"
                             "  quoted_null: \"null\"\n"
                             "  empty:\n"
                             "data:\n"
                             "  files: [a.txt, b.txt]\n"
                             "  more:\n"
                             "    - c\n"
                             "    - d\n"
                             "  sets:\n"
                             "    - path: x\n"
                             "      weight: 0.5\n"
                             "    - {path: y, weight: 2}\n"
                             "  no_files: []\n"
                             "long: |\n"
                             "  two\n"
                             "  lines\n"
                             "optim.lr: 3e-4\n";

TEST(yaml_leaves) {
    struct err err = {0};
    struct yaml_leaves leaves;
    CHECK_OK(yaml_parse(sample, sizeof sample - 1, "a.yaml", &leaves, &err), err);
    CHECK_EQ_INT(leaves.count, 15);
    check_leaf(&leaves, "model.layers", "12", 3);
    check_leaf(&leaves, "model.name", "a: b", 4);
    check_leaf(&leaves, "model.note", "tab\there", 5);
    check_leaf(&leaves, "model.none", "~", 6);
    check_leaf(&leaves, "model.quoted_null", "null", 7);
    check_leaf(&leaves, "model.empty", "", 8);
    check_leaf(&leaves, "data.files", "a.txt,b.txt", 10);
    check_leaf(&leaves, "data.more", "c,d", 11);
    check_leaf(&leaves, "data.sets.0.path", "x", 15);
    check_leaf(&leaves, "data.sets.0.weight", "0.5", 16);
    check_leaf(&leaves, "data.sets.1.path", "y", 17);
    check_leaf(&leaves, "data.sets.1.weight", "2", 17);
    check_leaf(&leaves, "data.no_files", "", 18);
    check_leaf(&leaves, "long", "two\nlines\n", 19);
    check_leaf(&leaves, "optim.lr", "3e-4", 22);
    CHECK(find(&leaves, "model.none")->is_null && !find(&leaves, "model.none")->is_quoted);
    CHECK(find(&leaves, "model.empty")->is_null);
    CHECK(!find(&leaves, "model.quoted_null")->is_null &&
          find(&leaves, "model.quoted_null")->is_quoted);
    CHECK(find(&leaves, "data.files")->is_list && find(&leaves, "data.no_files")->is_list);
    CHECK(!find(&leaves, "model.layers")->is_list);
    yaml_free(&leaves);
    CHECK_EQ_INT(leaves.count, 0);
}

TEST(yaml_empty_files) {
    static const char *const texts[] = {"",      "\n\n", "# only a comment\n",
                                        "---\n", "~\n",  "a: {}\n"};
    for (int i = 0; i < 6; i++) {
        struct err err = {0};
        struct yaml_leaves leaves;
        CHECK_OK(yaml_parse(texts[i], strlen(texts[i]), "a.yaml", &leaves, &err), err);
        CHECK_EQ_INT(leaves.count, 0);
        yaml_free(&leaves);
    }
}

TEST(yaml_refusals) {
    static const struct {
        const char *text, *place, *part;
    } bad[] = {
        {"a: 1\nb: 2\na: 3\n", "line 3", "duplicate"},
        {"a:\n  b: 1\n  b: 2\n", "line 3", "duplicate"},
        {"a:\n  b: 1\na.b: 2\n", "line 3", "duplicate key \"a.b\", first given in line 2"},
        {"a: 1\n\tb: 2\n", "line 1", "line 2 is indented with a tab"},
        {"a:\n\t- 1\n", "line 2", ""},
        {"a: 1\n  b: 2\n", "line 1", "not valid YAML"},
        {"a: [1, 2\n", "line ", ""},
        {"a: \"x\nb: 1\n", "line ", ""},
        {"a: {b: 1\n", "line ", ""},
        {"a: &x 1\nb: *x\n", "line 1", "anchors"},
        {"b: *x\n", "line 1", ""},
        {"a: &x [*x]\n", "line 1", ""},
        {"a: !!int 1\n", "line 1", "tags"},
        {"- 1\n- 2\n", "a.yaml", "expected keys and values"},
        {"just words\n", "a.yaml", "expected keys and values"},
        {"a: 1\n---\nb: 2\n", "a.yaml", "second"},
        {"a: [x, 'y,z']\n", "line 1", "comma"},
        {"? [a, b]\n: 1\n", "a.yaml", "names as keys"},
        {": 1\n", "a.yaml", "name before the colon"},
        {"a: 1\nb: \xff\n", "line 2", "UTF-8"},
        {"a: \"\\0\"\n", "line 1", "NUL"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {0};
        struct yaml_leaves leaves = {0};
        if (yaml_parse(bad[i].text, strlen(bad[i].text), "a.yaml", &leaves, &err) == 0)
            test_fail(__FILE__, __LINE__, "accepted: %s", bad[i].text);
        CHECK_EQ_INT(err.kind, ERR_USAGE);
        CHECK_CONTAINS(err.text, "a.yaml: ");
        CHECK_CONTAINS(err.text, bad[i].place);
        CHECK_CONTAINS(err.text, bad[i].part);
        CHECK_EQ_INT(leaves.count, 0);
    }
}

TEST(yaml_deep_and_large) {
    struct text t = {0};
    for (int i = 0; i < 5000; i++) text_puts(&t, "[");
    struct err deep = {0}, large = {0};
    struct yaml_leaves leaves;
    CHECK_EQ_INT(yaml_parse(t.data, t.size, "a.yaml", &leaves, &deep), -1);
    text_free(&t);
    text_puts(&t, "a: ");
    for (int i = 0; i < 1 << 17; i++) text_puts(&t, "12345678");
    CHECK_EQ_INT(yaml_parse(t.data, t.size, "a.yaml", &leaves, &large), -1);
    CHECK_CONTAINS(large.text, "1 MB");
    text_free(&t);
    struct err named = {0};
    text_printf(&t, "%02000d: 1\n", 1);
    CHECK_EQ_INT(yaml_parse(t.data, t.size, "a.yaml", &leaves, &named), -1);
    text_free(&t);
    // many keys stay quick
    for (int i = 0; i < 2000; i++) text_printf(&t, "key%d: %d\n", i, i);
    struct err err = {0};
    CHECK_OK(yaml_parse(t.data, t.size, "a.yaml", &leaves, &err), err);
    CHECK_EQ_INT(leaves.count, 2000);
    yaml_free(&leaves);
    text_free(&t);
}

TEST(yaml_read_file) {
    struct err err = {0};
    struct yaml_leaves leaves;
    char path[700];
    snprintf(path, sizeof path, "%s/c.yaml", test_temp_dir());
    CHECK_OK(file_replace(path, "a: 1\r\nb: 2\r\n", 12, &err), err); // line ends of other systems
    CHECK_OK(yaml_read(path, &leaves, &err), err);
    check_leaf(&leaves, "a", "1", 1);
    check_leaf(&leaves, "b", "2", 2);
    yaml_free(&leaves);
    CHECK_EQ_INT(yaml_read("/no/such.yaml", &leaves, &err), -1);
    CHECK_CONTAINS(err.text, "/no/such.yaml");
}

TEST(yaml_fuzz) {
    for (uint64_t round = 0; round < 4000; round++) {
        char text[sizeof sample];
        size_t size = sizeof sample - 1;
        memcpy(text, sample, sizeof sample);
        for (uint64_t change = 0; change <= round % 6; change++) {
            uint32_t w[4];
            random_words(round, change, w);
            size_t at = w[0] % (sizeof sample - 1);
            switch (w[3] % 8) {
            case 0:
                size = w[0] % sizeof sample;
                break;
            case 1:
                text[at] = (char)w[1];
                break;
            case 2: // a piece of the text somewhere else
                if (at + 20 < sizeof sample)
                    memmove(text + at, sample + w[1] % (sizeof sample - 20), 20);
                break;
            default:
                text[at] = "{}[]&*!|>'\"%@`,:#- \n\t?"[w[1] % 23];
                break;
            }
        }
        struct err err = {0};
        struct yaml_leaves leaves = {0};
        char *exact = malloc(size ? size : 1);
        memcpy(exact, text, size);
        int result = yaml_parse(exact, size, "f", &leaves, &err);
        CHECK_EQ_INT(result == 0, err.kind == ERR_NONE);
        for (size_t i = 0; i < leaves.count; i++)
            CHECK(leaves.leaf[i].key[0] && leaves.leaf[i].text);
        yaml_free(&leaves);
        free(exact);
    }
}
