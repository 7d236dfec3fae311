// Files and folders, and what happens when the system refuses.
#include "base/file.h"
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *in_temp(const char *name) {
    static char paths[8][1024];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", test_temp_dir(), name);
    return path;
}

static void check_content(const char *path, const char *expected) {
    struct err err = {0};
    char *data;
    size_t size;
    CHECK_OK(file_read(path, 0, &data, &size, &err), err);
    CHECK_EQ_INT(size, strlen(expected));
    CHECK_STR(data, expected);
    free(data);
}

TEST(file_replace_and_read) {
    struct err err = {0};
    const char *path = in_temp("a");
    CHECK_OK(file_replace(path, "one", 3, &err), err);
    check_content(path, "one");
    CHECK_OK(file_replace(path, "", 0, &err), err);
    check_content(path, "");
    CHECK(!file_exists(in_temp("a.tmp")));
    uint64_t bytes = 1;
    CHECK_OK(file_size(path, &bytes, &err), err);
    CHECK_EQ_INT(bytes, 0);
}

TEST(file_read_without_known_size) {
    struct err err = {0};
    char *data;
    size_t size;
    CHECK_OK(file_read("/proc/self/maps", 0, &data, &size, &err), err); // claims to have no bytes
    CHECK(size > 1000 && strstr(data, "[stack]"));
    CHECK_EQ_INT(data[size], 0);
    free(data);
}

TEST(file_read_refusals) {
    struct err none = {0}, folder = {0}, longer = {0}, endless = {0};
    char *data;
    size_t size;
    CHECK_EQ_INT(file_read(in_temp("none"), 0, &data, &size, &none), -1);
    CHECK_CONTAINS(none.text, "/none: cannot open for reading: No such file");
    CHECK_EQ_INT(none.kind, ERR_IO);
    CHECK_EQ_INT(file_read(test_temp_dir(), 0, &data, &size, &folder), -1);
    CHECK_CONTAINS(folder.text, "found a folder");
    CHECK_OK(file_replace(in_temp("long"), "123456", 6, &none), none);
    CHECK_EQ_INT(file_read(in_temp("long"), 5, &data, &size, &longer), -1);
    CHECK_CONTAINS(longer.text, "longer than the 5 bytes");
    CHECK_EQ_INT(file_read("/dev/zero", 1 << 20, &data, &size, &endless), -1);
    CHECK_CONTAINS(endless.text, "longer than");
}

TEST(file_map) {
    struct err err = {0};
    struct file_map map;
    CHECK_OK(file_replace(in_temp("m"), "mapped", 6, &err), err);
    CHECK_OK(file_map_open(&map, in_temp("m"), &err), err);
    CHECK_EQ_INT(map.size, 6);
    CHECK_BYTES(map.data, "mapped", 6);
    file_map_close(&map);
    CHECK_OK(file_replace(in_temp("e"), "", 0, &err), err);
    CHECK_OK(file_map_open(&map, in_temp("e"), &err), err);
    CHECK_EQ_INT(map.size, 0);
    file_map_close(&map);
    CHECK_EQ_INT(file_map_open(&map, "/dev/null", &err), -1);
    CHECK_CONTAINS(err.text, "regular file");
    struct err second = {0};
    CHECK_EQ_INT(file_map_open(&map, in_temp("none"), &second), -1);
}

// Pieces of many sizes around the buffer's, compared with what was put.
TEST(file_writer_pieces) {
    struct err err = {0};
    struct file_writer w;
    size_t total = 0, capacity = 5u << 20;
    unsigned char *all = malloc(capacity), *found;
    for (size_t i = 0; i < capacity; i++) all[i] = (unsigned char)(i * 2654435761u >> 13);
    static const size_t sizes[] = {0,       1, 1000,          (1 << 20) - 1001, 1,
                                   1 << 20, 7, (1 << 20) + 5, (1 << 20) - 7,    3};
    CHECK_OK(file_writer_open(&w, in_temp("w"), &err), err);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK_OK(file_writer_put(&w, all + total, sizes[i], &err), err);
        total += sizes[i];
        CHECK_EQ_INT(w.offset_bytes, total);
    }
    CHECK_OK(file_writer_close(&w, true, &err), err);
    size_t size;
    CHECK_OK(file_read(in_temp("w"), 0, (char **)&found, &size, &err), err);
    CHECK_EQ_INT(size, total);
    CHECK_BYTES(found, all, total);
    free(found), free(all);
    CHECK_EQ_INT(file_writer_put(&w, "x", 1, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_INTERNAL);
}

TEST(file_writer_refusals) {
    struct err err = {0}, full = {0};
    struct file_writer w;
    CHECK_EQ_INT(file_writer_open(&w, in_temp("no/such/folder"), &err), -1);
    CHECK_CONTAINS(err.text, "cannot open for writing");
    struct err fine = {0};
    CHECK_OK(file_writer_open(&w, "/dev/full", &fine), fine);
    CHECK_OK(file_writer_put(&w, "x", 1, &fine),
             fine); // buffered: the refusal comes with the flush
    CHECK_EQ_INT(file_writer_close(&w, false, &full), -1);
    CHECK_CONTAINS(full.text, "/dev/full: write failed at byte 0: No space left on device");
    CHECK_EQ_INT(w.fd, -1);
}

// Wherever a write breaks off, the old content stays and no half file remains.
// What is no plain file stays what it is: /dev/null is never renamed away.
TEST(file_replace_leaves_pipes_and_links) {
    struct err err = {0};
    struct stat now;
    const char *pipe_path = in_temp("pipe"), *link_path = in_temp("link"), *real = in_temp("real");
    char got[8] = {0};
    CHECK_EQ_INT(mkfifo(pipe_path, 0600), 0);
    int fd = open(pipe_path, O_RDWR | O_NONBLOCK);
    CHECK(fd >= 0);
    CHECK_OK(file_replace(pipe_path, "abc", 3, &err), err);
    CHECK_EQ_INT(read(fd, got, sizeof got), 3);
    CHECK_STR(got, "abc");
    close(fd);
    CHECK(lstat(pipe_path, &now) == 0 && S_ISFIFO(now.st_mode));
    CHECK_OK(file_replace(real, "old content", 11, &err), err);
    CHECK_EQ_INT(symlink(real, link_path), 0);
    CHECK_OK(file_replace(link_path, "new", 3, &err), err);
    CHECK(lstat(link_path, &now) == 0 && S_ISLNK(now.st_mode));
    check_content(real, "new");
    // a full device says so, and stays
    CHECK_EQ_INT(symlink("/dev/full", in_temp("full")), 0);
    CHECK_EQ_INT(file_replace(in_temp("full"), "x", 1, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_IO);
}

TEST(file_replace_survives_a_full_disk) {
    struct err err = {0};
    char path[1024];
    snprintf(path, sizeof path, "%s", in_temp("kept"));
    CHECK_OK(file_replace(path, "old content", 11, &err), err);
    for (uint64_t at = 0; at < 11; at++) {
        struct err fault = {0};
        file_fail_after(at, ENOSPC);
        CHECK_EQ_INT(file_replace(path, "new content", 11, &fault), -1);
        char expected[100];
        snprintf(expected, sizeof expected, "write failed at byte %llu: No space left",
                 (unsigned long long)at);
        CHECK_CONTAINS(fault.text, expected);
        CHECK_EQ_INT(fault.kind, ERR_IO);
        check_content(path, "old content");
        CHECK(!file_exists(in_temp("kept.tmp")));
    }
    file_fail_after(11, EIO); // exactly enough
    CHECK_OK(file_replace(path, "new content", 11, &err), err);
    struct err next = {0};
    CHECK_EQ_INT(file_replace(path, "x", 1, &next), -1);
    CHECK_CONTAINS(next.text, "Input/output error");
    file_fail_after(0, 0);
    check_content(path, "new content");
}

TEST(file_folders) {
    struct err err = {0};
    CHECK_OK(file_make_folders(in_temp("a/b//c/"), &err), err);
    CHECK_OK(file_make_folders(in_temp("a/b/c"), &err), err);
    CHECK(file_is_folder(in_temp("a/b/c")));
    CHECK_OK(file_replace(in_temp("a/z"), "", 0, &err), err);
    CHECK_OK(file_replace(in_temp("a/Z"), "", 0, &err), err);
    CHECK(symlink("/", in_temp("a/link")) == 0);
    char **names;
    size_t count;
    CHECK_OK(file_list(in_temp("a"), &names, &count, &err), err);
    CHECK_EQ_INT(count, 4);
    CHECK_STR(names[0], "Z");
    CHECK_STR(names[1], "b");
    CHECK_STR(names[2], "link");
    CHECK_STR(names[3], "z");
    file_list_free(names, count);
    CHECK_OK(file_list(in_temp("a/b/c"), &names, &count, &err), err);
    CHECK_EQ_INT(count, 0);
    file_list_free(names, count);
    CHECK_OK(file_rename(in_temp("a/z"), in_temp("a/b/z"), &err), err);
    CHECK_OK(file_remove_tree(in_temp("a"), &err), err); // the link goes, what it names stays
    CHECK(!file_exists(in_temp("a")) && file_is_folder("/proc"));
}

TEST(file_folder_refusals) {
    struct err file = {0}, empty = {0}, list = {0}, gone = {0}, moved = {0}, fine = {0};
    CHECK_OK(file_replace(in_temp("f"), "", 0, &fine), fine);
    CHECK_EQ_INT(file_make_folders(in_temp("f/g"), &file), -1);
    CHECK_CONTAINS(file.text, "Not a directory");
    CHECK_EQ_INT(file_make_folders("", &empty), -1);
    char **names;
    size_t count;
    CHECK_EQ_INT(file_list(in_temp("f"), &names, &count, &list), -1);
    CHECK_EQ_INT(file_remove_tree(in_temp("none"), &gone), -1);
    CHECK_EQ_INT(file_rename(in_temp("none"), in_temp("g"), &moved), -1);
    CHECK_CONTAINS(moved.text, "/g");
}

TEST(file_join_paths) {
    struct err err = {0};
    char out[12] = "";
    CHECK_OK(file_join(out, sizeof out, "ab", "cd", &err), err);
    CHECK_STR(out, "ab/cd");
    CHECK_OK(file_join(out, sizeof out, out, "ef", &err), err);
    CHECK_STR(out, "ab/cd/ef");
    CHECK_OK(file_join(out, sizeof out, "ab/", "cd", &err), err);
    CHECK_STR(out, "ab/cd");
    CHECK_OK(file_join(out, sizeof out, "", "cd", &err), err);
    CHECK_STR(out, "cd");
    CHECK_OK(file_join(out, sizeof out, "12345", "67890", &err), err);
    CHECK_EQ_INT(file_join(out, sizeof out, "12345", "678901", &err), -1);
    CHECK_CONTAINS(err.text, "too long");
}

TEST(file_writer_append_cuts_and_goes_on) {
    char path[4096], *text;
    size_t size;
    struct err err = {0};
    struct file_writer w;
    CHECK_OK(file_join(path, sizeof path, test_temp_dir(), "log", &err), err);
    CHECK_OK(file_writer_append(&w, path, 0, &err), err);
    CHECK_OK(file_writer_put(&w, "one\ntwo\n", 8, &err), err);
    CHECK_OK(file_writer_close(&w, false, &err), err);
    CHECK_OK(file_writer_append(&w, path, 4, &err), err);
    CHECK_OK(file_writer_put(&w, "2\n", 2, &err), err);
    CHECK_OK(file_writer_flush(&w, &err), err); // readable before it is closed
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    CHECK_STR(text, "one\n2\n");
    free(text);
    CHECK_OK(file_writer_close(&w, false, &err), err);
    CHECK(file_writer_append(&w, path, 100, &err) != 0);
    CHECK_CONTAINS(err.text, "shorter than the 100 bytes");
}
