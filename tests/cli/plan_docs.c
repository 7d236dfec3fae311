// The examples of docs/planning.md are what the program prints.
#include "base/file.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 1 << 20 };

TEST(plan_examples_are_up_to_date) {
    struct err err = {0};
    char *page, *printed = malloc(PAGE_BYTES), command[512];
    size_t bytes;
    int count = 0;
    CHECK(printed != NULL);
    CHECK_OK(file_read(WEFT_SOURCE_DIR "/docs/planning.md", 1 << 20, &page, &bytes, &err), err);
    for (char *at = page; (at = strstr(at, "```text\n$ weft ")) != NULL; count++) {
        char *words = at + strlen("```text\n$ weft "), *begin = strchr(words, '\n') + 1;
        char *end = strstr(begin, "```");
        CHECK(end != NULL);
        snprintf(command, sizeof command, "%.*s", (int)(begin - 1 - words), words);
        CHECK_EQ_INT(test_shell(printed, PAGE_BYTES, "cd %s && %s %s", WEFT_SOURCE_DIR, test_weft(),
                                command),
                     0);
        *end = 0;
        if (strcmp(printed, begin) != 0)
            test_fail(__FILE__, __LINE__,
                      "docs/planning.md: \"weft %s\" prints something else; make plan-examples",
                      command);
        at = end + 1;
    }
    CHECK(count >= 1);
    free(page);
    free(printed);
}
