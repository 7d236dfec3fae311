// Storage of a folder: a large file written and read, and many small ones. See measure.h.
#include "base/clock.h"
#include "base/file.h"
#include "plan/measure.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 22, BLOCKS = 32, QUICK_BLOCKS = 8, FILES = 200, QUICK_FILES = 50 };

static struct figure measured(double value) {
    return (struct figure){value, FIGURE_MEASURED, "weft bench hardware"};
}

// Until the system says that it is kept.
static int write_file(const char *path, const char *block, int blocks, double *rate,
                      struct err *err) {
    struct file_writer w;
    double begin = clock_seconds();
    if (file_writer_open(&w, path, err) != 0) return -1;
    for (int i = 0; i < blocks; i++)
        if (file_writer_put(&w, block, BLOCK_BYTES, err) != 0) {
            file_writer_abandon(&w);
            return -1;
        }
    if (file_writer_close(&w, true, err) != 0) return -1;
    *rate = (double)blocks * BLOCK_BYTES / (clock_seconds() - begin);
    return 0;
}

// The system is asked to forget the file first, so that it comes from where it lies.
static int read_file(const char *path, char *block, double *rate, struct err *err) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return err_set_errno(err, "%s cannot be read", path);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    double begin = clock_seconds(), bytes = 0;
    ssize_t got;
    while ((got = read(file, block, BLOCK_BYTES)) > 0) bytes += (double)got;
    *rate = bytes / (clock_seconds() - begin);
    close(file);
    return got < 0 ? err_set_errno(err, "%s cannot be read", path) : 0;
}

// Made, closed and removed: three operations on a folder per file.
static int make_files(const char *folder, int count, double *per_second, struct err *err) {
    double begin = clock_seconds();
    for (int i = 0; i < count; i++) {
        char path[4096], name[32];
        struct file_writer w;
        snprintf(name, sizeof name, "small-%d", i);
        if (file_join(path, sizeof path, folder, name, err) != 0 ||
            file_writer_open(&w, path, err) != 0 || file_writer_close(&w, false, err) != 0)
            return -1;
        unlink(path);
    }
    *per_second = 3.0 * count / (clock_seconds() - begin);
    return 0;
}

int measure_storage(const char *folder, const struct measure_options *options, struct storage *out,
                    struct err *err) {
    char own[4096], path[4096], name[64];
    double write_rate, read_rate, metadata;
    snprintf(name, sizeof name, "weft-bench-hardware-%d", (int)getpid());
    if (file_join(own, sizeof own, folder, name, err) != 0 ||
        file_join(path, sizeof path, own, "large", err) != 0 || file_make_folders(own, err) != 0)
        return -1;
    char *block = malloc(BLOCK_BYTES);
    int status = block ? 0 : err_set(err, ERR_MEMORY, "no memory for a block of a file");
    if (block) // what a file system that compresses would not see through
        for (size_t i = 0; i < BLOCK_BYTES; i++) block[i] = (char)((i * 2654435761u) >> 13);
    if (status == 0)
        status = write_file(path, block, options->quick ? QUICK_BLOCKS : BLOCKS, &write_rate, err);
    if (status == 0) status = read_file(path, block, &read_rate, err);
    if (status == 0) status = make_files(own, options->quick ? QUICK_FILES : FILES, &metadata, err);
    free(block);
    struct err ignored = {0};
    file_remove_tree(own, status == 0 ? err : &ignored);
    if (status != 0) return -1;
    out->given = true;
    out->write = measured(write_rate);
    out->read = measured(read_rate);
    out->metadata_per_second = measured(metadata);
    return 0;
}
