// Going back to bytes already written, as writers of headers do.
#include "base/file.h"
#include "test.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(file_writer_rewrites_its_beginning) {
    struct err err = {ERR_NONE, ""};
    struct file_writer w;
    char path[4096], *data;
    size_t size;
    snprintf(path, sizeof path, "%s/f", test_temp_dir());
    CHECK_OK(file_writer_open(&w, path, &err), err);
    CHECK_OK(file_writer_put(&w, "....body", 8, &err), err);
    CHECK_OK(file_writer_rewrite(&w, 0, "head", 4, &err), err);
    CHECK_OK(file_writer_put(&w, " tail", 5, &err), err);
    CHECK_OK(file_writer_rewrite(&w, 12, "L", 1, &err), err);
    CHECK_EQ_INT(w.offset_bytes, 13);
    CHECK(file_writer_rewrite(&w, 12, "xy", 2, &err) == -1); // beyond what was written
    CHECK_EQ_INT(err.kind, ERR_INTERNAL);
    err = (struct err){ERR_NONE, ""};
    CHECK_OK(file_writer_close(&w, false, &err), err);
    CHECK_OK(file_read(path, 0, &data, &size, &err), err);
    CHECK_STR(data, "headbody taiL");
    free(data);
}

TEST(file_writer_rewrite_meets_a_full_disk) {
    struct err err = {ERR_NONE, ""};
    struct file_writer w;
    char path[4096];
    snprintf(path, sizeof path, "%s/f", test_temp_dir());
    CHECK_OK(file_writer_open(&w, path, &err), err);
    CHECK_OK(file_writer_put(&w, "....", 4, &err), err);
    file_fail_after(6, ENOSPC);
    CHECK(file_writer_rewrite(&w, 0, "head", 4, &err) == -1);
    file_fail_after(0, 0);
    CHECK_EQ_INT(err.kind, ERR_IO);
    file_writer_abandon(&w);
}
