// A program of weft as a file: asked of which sources it was built, told from what is none.
#include "operate/program.h"
#include "base/file.h"
#include "test.h"
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *write_script(const char *text) {
    struct err err = {0};
    const char *path = test_path("program");
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    CHECK_EQ_INT(chmod(path, 0700), 0);
    return path;
}

TEST(program_tells_its_sources) {
    char digest[PROGRAM_DIGEST_BYTES], said[4096], line[64];
    struct err err = {0};
    CHECK_OK(program_digest(test_weft(), digest, &err), err);
    CHECK_EQ_INT(test_shell(said, sizeof said, "%s --version", test_weft()), 0);
    snprintf(line, sizeof line, "\nsources %s\n", digest);
    CHECK_CONTAINS(said, line);
}

TEST(program_that_is_none) {
    static const struct {
        const char *script, *why;
    } bad[] = {{"#!/bin/sh\nexit 0\n", "it said nothing"},
               {"#!/bin/sh\necho no libmpi >&2\nexit 127\n", "it said: no libmpi"},
               {"#!/bin/sh\necho weft 1; echo sources 0123; exit 1\n", "it said: weft 1"},
               {"#!/bin/sh\necho other 1; echo sources 0123\n", "it said: other 1"},
               {"#!/nonexistent/shell\n", "it said: No such file"},
               {"#!/bin/sh\nexec sleep 1000\n", "it did not answer"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char digest[PROGRAM_DIGEST_BYTES] = "as before";
        struct err err = {0};
        CHECK_EQ_INT(program_digest(write_script(bad[i].script), digest, &err), -1);
        CHECK_EQ_INT(err.kind, ERR_USAGE);
        CHECK_CONTAINS(err.text, "is no weft that runs here");
        CHECK_CONTAINS(err.text, bad[i].why);
        CHECK_STR(digest, "as before");
    }
}

TEST(program_that_is_replaced_is_another_file) {
    char first[PROGRAM_MARK_BYTES], again[PROGRAM_MARK_BYTES];
    program_mark(write_script("one"), first);
    program_mark(test_path("program"), again);
    CHECK(first[0]);
    CHECK_STR(again, first);
    program_mark(write_script("other"), again);
    CHECK(strcmp(again, first) != 0);
    program_mark(test_path("none"), again);
    CHECK_STR(again, "");
}
