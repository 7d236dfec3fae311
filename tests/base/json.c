// JSON: accepted and refused texts, typed members, and a bounded fuzzer.
#include "base/json.h"
#include "base/file.h"
#include "base/random.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *parse(const char *text, struct err *err) {
    return json_parse(text, strlen(text), "a.json", err);
}

static void check_refused(const char *text, const char *part) {
    struct err err = {0};
    CHECK(parse(text, &err) == NULL);
    CHECK_EQ_INT(err.kind, ERR_DATA);
    CHECK_CONTAINS(err.text, "a.json: ");
    CHECK_CONTAINS(err.text, part);
}

TEST(json_refusals) {
    check_refused("{\"a\": 1,\n \"a\": 2}", "line 2");
    check_refused("{\"a\": 1, \"\\u0061\": 2}", "duplicate"); // the same name in another spelling
    check_refused("", "line 1");
    check_refused("{", "not valid JSON");
    check_refused("{} x", "end of file");
    check_refused("{'a': 1}", "not valid JSON");
    check_refused("[1,]", "not valid JSON");
    check_refused("[NaN]", "not valid JSON");
    check_refused("[01]", "not valid JSON");
    check_refused("[123456789012345678901234567890]", "integer");
    check_refused("[\"\xff\"]", "byte 0xff");
    check_refused("[\"\\ud800\"]", "not valid JSON");
    check_refused("[1e999]", "real");
}

TEST(json_depth_is_limited) {
    char text[1200];
    memset(text, '[', 512), memset(text + 512, ']', 512);
    text[1024] = 0;
    struct err err = {0};
    json_t *tree = parse(text, &err);
    CHECK(tree);
    json_decref(tree);
    memset(text, '[', 513), memset(text + 513, ']', 513);
    text[1026] = 0;
    check_refused(text, "deeper than 512");
    memset(text, '[', 1000); // brackets inside of a string are no nesting
    text[0] = '"', text[998] = '\\', text[999] = '"', text[1000] = '"', text[1001] = 0;
    tree = parse(text, &err);
    CHECK(tree && json_is_string(tree));
    json_decref(tree);
}

TEST(json_members) {
    struct err err = {0};
    json_t *tree = parse("{\"i\": 7, \"r\": 0.5, \"whole\": 1e6, \"b\": true, \"s\": \"x\", \"n\": "
                         "null, \"z\": \"a\\u0000b\"}",
                         &err);
    CHECK(tree);
    struct json_at at = {tree, "a.json"};
    int64_t i;
    double d;
    bool b;
    const char *s;
    CHECK_OK(json_get_int(at, "i", true, 0, &i, &err), err);
    CHECK_EQ_INT(i, 7);
    CHECK_OK(json_get_int(at, "whole", true, 0, &i, &err), err);
    CHECK_EQ_INT(i, 1000000);
    CHECK_OK(json_get_int(at, "none", false, -3, &i, &err), err);
    CHECK_EQ_INT(i, -3);
    CHECK_OK(json_get_int(at, "n", false, 4, &i, &err), err); // null counts as absent
    CHECK_EQ_INT(i, 4);
    CHECK_OK(json_get_double(at, "i", true, 0, &d, &err), err);
    CHECK_CLOSE(d, 7, 0);
    CHECK_OK(json_get_double(at, "r", true, 0, &d, &err), err);
    CHECK_CLOSE(d, 0.5, 0);
    CHECK_OK(json_get_bool(at, "b", true, false, &b, &err), err);
    CHECK(b);
    CHECK_OK(json_get_bool(at, "none", false, true, &b, &err), err);
    CHECK(b);
    CHECK_OK(json_get_string(at, "s", true, NULL, &s, &err), err);
    CHECK_STR(s, "x");
    CHECK_OK(json_get_string(at, "none", false, NULL, &s, &err), err);
    CHECK(s == NULL);

    struct err e[8] = {0};
    CHECK_EQ_INT(json_get_int(at, "none", true, 0, &i, &e[0]), -1);
    CHECK_STR(e[0].text, "a.json: none: expected an integer, found no such key");
    CHECK_EQ_INT(json_get_int(at, "n", true, 0, &i, &e[1]), -1);
    CHECK_STR(e[1].text, "a.json: n: expected an integer, found null");
    CHECK_EQ_INT(json_get_int(at, "r", true, 0, &i, &e[2]), -1);
    CHECK_STR(e[2].text, "a.json: r: expected an integer, found a number with a fraction");
    CHECK_EQ_INT(json_get_double(at, "s", false, 0, &d, &e[3]), -1);
    CHECK_STR(e[3].text, "a.json: s: expected a number, found a string");
    CHECK_EQ_INT(json_get_bool(at, "i", false, 0, &b, &e[4]), -1);
    CHECK_STR(e[4].text, "a.json: i: expected true or false, found an integer");
    CHECK_EQ_INT(json_get_string(at, "b", false, NULL, &s, &e[5]), -1);
    CHECK_STR(e[5].text, "a.json: b: expected a string, found true");
    CHECK_EQ_INT(json_get_string(at, "z", false, NULL, &s, &e[6]), -1);
    CHECK_CONTAINS(e[6].text, "NUL");
    struct json_at inner = {json_object_get(tree, "i"), "a.json: i"};
    CHECK_EQ_INT(json_get_int(inner, "x", false, 0, &i, &e[7]), -1);
    CHECK_STR(e[7].text, "a.json: i: expected an object with the key \"x\", found an integer");
    json_decref(tree);
}

TEST(json_file) {
    struct err err = {0};
    char path[700];
    snprintf(path, sizeof path, "%s/x.json", test_temp_dir());
    CHECK_OK(file_replace(path, "{\"a\": [1, 2]}", 13, &err), err);
    json_t *tree = json_parse_file(path, &err);
    CHECK(tree && json_array_size(json_object_get(tree, "a")) == 2);
    json_decref(tree);
    CHECK(json_parse_file("/no/such/file", &err) == NULL);
    CHECK_EQ_INT(err.kind, ERR_IO);
}

// Changed texts end in a tree or in one message, never in anything else (the sanitized build
// watches memory).
TEST(json_fuzz) {
    const char seed[] = "{\"a\": [1, -2.5e3, \"x\\u00e9\\n\", null], \"b\": {\"c\": true, \"d\": "
                        "{}}, \"e\": \"\xc3\xa9\"}";
    for (uint64_t round = 0; round < 20000; round++) {
        char text[sizeof seed];
        memcpy(text, seed, sizeof seed);
        size_t size = sizeof seed - 1;
        uint32_t w[4];
        for (uint64_t change = 0; change <= round % 4; change++) {
            random_words(round, change, w);
            if (w[3] % 5 == 0)
                size = w[0] % sizeof seed;
            else
                text[w[0] % (sizeof seed - 1)] = w[3] % 2 ? (char)w[1] : "{}[]\":,\\u0"[w[1] % 10];
        }
        struct err err = {0};
        char *exact = malloc(size ? size : 1); // so that reading behind the end is seen
        memcpy(exact, text, size);
        json_t *tree = json_parse(exact, size, "f", &err);
        CHECK((tree != NULL) == (err.kind == ERR_NONE));
        json_decref(tree);
        free(exact);
    }
}
