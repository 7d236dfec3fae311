// Messages of failures.
#include "base/error.h"
#include "test.h"
#include <errno.h>
#include <string.h>

TEST(error_first_message_wins) {
    struct err err = {0};
    CHECK_EQ_INT(err_set(&err, ERR_DATA, "first %d", 1), -1);
    CHECK_EQ_INT(err_set(&err, ERR_IO, "second"), -1);
    errno = ENOSPC;
    CHECK_EQ_INT(err_set_errno(&err, "third"), -1);
    CHECK_STR(err.text, "first 1");
    CHECK_EQ_INT(err.kind, ERR_DATA);
    CHECK_EQ_INT(err_context(&err, "%s", "a.txt"), -1);
    CHECK_STR(err.text, "a.txt: first 1");
    CHECK_EQ_INT(err_set(NULL, ERR_DATA, "nobody listens"), -1);
    CHECK_EQ_INT(err_set_errno(NULL, "nobody listens"), -1);
    CHECK_EQ_INT(err_context(NULL, "nobody listens"), -1);
}

TEST(error_errno_is_named) {
    struct err err = {0};
    errno = ENOSPC;
    err_set_errno(&err, "disk %s", "full");
    CHECK_STR(err.text, "disk full: No space left on device");
    CHECK_EQ_INT(err.kind, ERR_IO);
}

TEST(error_long_texts_are_cut) {
    struct err err = {0};
    char text[5000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    err_set(&err, ERR_DATA, "%s", text);
    CHECK_EQ_INT(strlen(err.text), sizeof err.text - 1);
    err_context(&err, "%s", text);
    CHECK_EQ_INT(strlen(err.text), sizeof err.text - 1);
    struct err second = {0};
    errno = EACCES;
    err_set_errno(&second, "%s", text);
    CHECK_CONTAINS(second.text, "Permission denied");
}

TEST(error_exit_statuses) {
    static const int expected[] = {0, 2, 3, 4, 5, 130, 75, 76, 70};
    for (int kind = ERR_NONE; kind <= ERR_INTERNAL; kind++) {
        struct err err = {.kind = (enum err_kind)kind};
        CHECK_EQ_INT(err_exit_status(&err), expected[kind]);
    }
}
