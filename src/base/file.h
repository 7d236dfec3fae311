// Files and folders: whole reads, read-only maps, durable writes. Every message names the path.
// All writes of the program go through `struct file_writer`, so that a test can make the n-th write
// fail (full disk, torn write) without touching the code under test.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Whole file as bytes with one NUL behind them (not counted); free() it. `limit_bytes` 0: no limit.
int file_read(const char *path, size_t limit_bytes, char **data, size_t *size, struct err *err);

struct file_map {
    const unsigned char *data;
    size_t size;
};
int file_map_open(struct file_map *map, const char *path,
                  struct err *err); // an empty file maps to size 0
void file_map_close(struct file_map *map);

// A file of memory that is shared: mapped for reading and writing, all of it taken from the file
// system and touched. Of one that is there the content stays, and it is never cut.
struct file_shared {
    char *data;
    uint64_t bytes;
};
int file_shared_open(struct file_shared *f, const char *path, uint64_t bytes, struct err *err);
void file_shared_close(struct file_shared *f);
int file_cut(const char *path, uint64_t bytes, struct err *err); // what lies behind them goes

struct file_writer {
    int fd;
    char path[4096];
    uint64_t offset_bytes;
    unsigned char *buffer;
    size_t fill, capacity;
    bool direct; // past the system's cache
};
int file_writer_open(struct file_writer *w, const char *path,
                     struct err *err); // creates or truncates
// Goes on behind the first `keep_bytes` of a file, made when absent; what lies behind them is cut.
int file_writer_append(struct file_writer *w, const char *path, uint64_t keep_bytes,
                       struct err *err);
int file_writer_flush(struct file_writer *w, struct err *err); // hands all to the system
int file_writer_put(struct file_writer *w, const void *data, size_t bytes, struct err *err);
// Replaces bytes that were put before (a header whose numbers are known only at the end).
int file_writer_rewrite(struct file_writer *w, uint64_t offset_bytes, const void *data,
                        size_t bytes, struct err *err);
// Flushes, optionally fsyncs, closes. Always releases the descriptor, also on failure.
int file_writer_close(struct file_writer *w, bool durable, struct err *err);
void file_writer_abandon(struct file_writer *w);

// Writes to "path.tmp", fsyncs, renames over `path`, fsyncs the folder.
int file_replace(const char *path, const void *data, size_t bytes, struct err *err);
int file_rename(const char *from, const char *to,
                struct err *err); // and fsync of the folder of `to`
int file_sync_folder(const char *path, struct err *err);

// One name for another that is there, and back, in one atomic call. ERR_INTERNAL: the file system
// cannot do that.
int file_exchange(const char *one, const char *other, struct err *err);
int file_make_folder(const char *path, struct err *err); // one, which must not exist
int file_remove(const char *path, struct err *err);      // a file
// Large pieces that are put from now on go past the system's cache, where it can do that; they must
// lie at page borders in memory and file. The end of the file is no such piece. What was put before
// is handed to the system first.
int file_writer_direct(struct file_writer *w, bool direct, struct err *err);

bool file_exists(const char *path);
bool file_is_folder(const char *path);
int file_size(const char *path, uint64_t *bytes, struct err *err);
int file_make_folders(const char *path, struct err *err); // mkdir -p; what is made is durable
int file_remove_tree(const char *path,
                     struct err *err); // a file or a folder with all in it; does not follow links
// Names in a folder, without "." and "..", sorted bytewise; release with file_list_free.
int file_list(const char *path, char ***names, size_t *count, struct err *err);
void file_list_free(char **names, size_t count);
// "folder/name" into `out`; an overlong result is an error.
int file_join(char *out, size_t out_bytes, const char *folder, const char *name, struct err *err);

// Test hook: after `bytes` further bytes all writes fail with `error_number` (ENOSPC...); 0 turns
// it off.
void file_fail_after(uint64_t bytes, int error_number);
// Test hook: called before every system call that changes the file system ("open", "write",
// "fsync", "rename", "mkdir", "unlink", "rmdir", "ftruncate"), by whatever thread makes it, by
// several at a time. Not 0: the call is not made and fails with this errno. It may take its time,
// which holds up that thread alone. NULL turns it off, as soon as no thread is in it any more.
typedef int file_hook(void *context, const char *call, const char *path);
void file_hook_calls(file_hook *hook, void *context);
