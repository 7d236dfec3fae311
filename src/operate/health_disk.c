// A file that is written, synced, read back from the disk and compared.
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "operate/health_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int write_file(const char *path, const unsigned char *block, uint64_t pieces, bool damage,
                      struct err *err) {
    struct file_writer w;
    if (file_writer_open(&w, path, err) != 0) return -1;
    for (uint64_t i = 0; i < pieces; i++)
        if (file_writer_put(&w, health_piece(block, i), HEALTH_BLOCK_BYTES, err) != 0) {
            file_writer_abandon(&w);
            return -1;
        }
    if (damage && file_writer_rewrite(&w, HEALTH_BLOCK_BYTES / 2, "damaged", 7, err) != 0) {
        file_writer_abandon(&w);
        return -1;
    }
    return file_writer_close(&w, true, err);
}

static int compare_file(const char *path, const unsigned char *block, uint64_t pieces,
                        uint64_t *wrong, struct err *err) {
    unsigned char *found = malloc(HEALTH_BLOCK_BYTES);
    if (!found) return err_set(err, ERR_MEMORY, "health: no memory to read a file");
    int file = open(path, O_RDONLY | O_CLOEXEC), result = 0;
    if (file < 0) result = err_set_errno(err, "%s", path);
    if (file >= 0) posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED); // from the disk, not the cache
    *wrong = 0;
    for (uint64_t i = 0; i < pieces && result == 0; i++) {
        size_t have = 0;
        while (have < HEALTH_BLOCK_BYTES) {
            ssize_t n = read(file, found + have, HEALTH_BLOCK_BYTES - have);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) result = err_set_errno(err, "%s", path);
            if (n == 0) result = err_set(err, ERR_IO, "%s ends too early", path);
            if (n <= 0) break;
            have += (size_t)n;
        }
        if (result == 0)
            *wrong += health_differing(found, health_piece(block, i), HEALTH_BLOCK_BYTES);
    }
    if (file >= 0) close(file);
    free(found);
    return result;
}

int health_disk(const struct health_options *o, struct health *out, struct err *err) {
    char path[4200], size[32];
    struct err why = {0};
    if (!o->folder) return 0;
    uint64_t bytes = o->disk_bytes ? o->disk_bytes : 64 << 20, wrong = 0;
    uint64_t pieces = (bytes + HEALTH_BLOCK_BYTES - 1) / HEALTH_BLOCK_BYTES;
    struct health_check *check = health_add(out, err, "disk %s", o->folder);
    unsigned char *block = check ? health_block(err) : NULL;
    if (!block) return -1;
    snprintf(path, sizeof path, "%.4000s/.weft-health-%d", o->folder, (int)getpid());
    double begin = clock_seconds();
    int failed = write_file(path, block, pieces, health_breaks(o, check->name), &why);
    double written = clock_seconds();
    if (!failed) failed = compare_file(path, block, pieces, &wrong, &why);
    double read = clock_seconds();
    if (file_exists(path)) file_remove(path, NULL);
    free(block);
    check->passed = !failed && wrong == 0;
    check->unanswered = failed;
    if (failed) {
        snprintf(check->found, sizeof check->found, "%.250s", why.text);
        return 0;
    }
    double total = (double)pieces * HEALTH_BLOCK_BYTES;
    snprintf(check->found, sizeof check->found,
             "%s written and synced at %.0f MB/s, read at %.0f MB/s, %llu bytes are wrong",
             text_bytes((uint64_t)total, size), total / (written - begin) / 1e6,
             total / (read - written) / 1e6, (unsigned long long)wrong);
    return 0;
}
