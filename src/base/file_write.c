// The only writes of the program: buffered files, atomic replacement, durable renames; see file.h.
// Every byte passes write_all, where a test can make the system refuse.
#include "base/file.h"
#include "base/file_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t fault_left_bytes;
static int fault_error; // 0: none planned

void file_fail_after(uint64_t bytes, int error_number) {
    pthread_mutex_lock(&fault_lock);
    fault_left_bytes = bytes;
    fault_error = error_number;
    pthread_mutex_unlock(&fault_lock);
}

static pthread_rwlock_t hook_lock = PTHREAD_RWLOCK_INITIALIZER; // for reading: one is being called
static file_hook *hook;
static void *hook_context;

void file_hook_calls(file_hook *new_hook, void *context) {
    pthread_rwlock_wrlock(&hook_lock);
    hook = new_hook;
    hook_context = context;
    pthread_rwlock_unlock(&hook_lock);
}

int file_may(const char *call, const char *path) {
    pthread_rwlock_rdlock(&hook_lock);
    int number = hook ? hook(hook_context, call, path) : 0;
    pthread_rwlock_unlock(&hook_lock);
    errno = number;
    return number == 0 ? 0 : -1;
}

// How many of `bytes` may still be written; *number is the errno that follows them, or 0.
static size_t allowed_bytes(size_t bytes, int *number) {
    pthread_mutex_lock(&fault_lock);
    *number = 0;
    if (fault_error != 0) {
        if (bytes > fault_left_bytes) {
            bytes = (size_t)fault_left_bytes;
            *number = fault_error;
        }
        fault_left_bytes -= bytes;
    }
    pthread_mutex_unlock(&fault_lock);
    return bytes;
}

// Memory file systems have no cache to go past and refuse the flag; so be it.
static void set_direct(struct file_writer *w, bool direct) {
    int flags = fcntl(w->fd, F_GETFL);
    w->direct = flags >= 0 &&
                fcntl(w->fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 && direct;
}

static int write_all(struct file_writer *w, const unsigned char *data, size_t bytes,
                     struct err *err) {
    int number;
    size_t allowed = allowed_bytes(bytes, &number), done = 0;
    while (done < allowed) {
        ssize_t wrote =
            file_may("write", w->path) == 0 ? write(w->fd, data + done, allowed - done) : -1;
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0 && errno == EINVAL && w->direct) { // it wants wider borders than pages
            set_direct(w, false);
            continue;
        }
        if (wrote < 0) {
            number = errno;
            break;
        }
        done += (size_t)wrote;
    }
    if (number == 0) return 0;
    errno = number;
    return err_set_errno(err, "%s: write failed at byte %llu", w->path,
                         (unsigned long long)w->offset_bytes - w->fill + done);
}

static int open_for_writing(struct file_writer *w, const char *path, int flags, struct err *err) {
    *w = (struct file_writer){.fd = -1};
    if (strlen(path) >= sizeof w->path)
        return err_set(err, ERR_IO, "path too long (%zu bytes): %.100s...", strlen(path), path);
    strcpy(w->path, path);
    w->buffer = malloc(BUFFER_BYTES);
    if (!w->buffer) return err_set(err, ERR_MEMORY, "%s: no memory for a write buffer", path);
    w->capacity = BUFFER_BYTES;
    if (file_may("open", path) == 0)
        w->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    if (w->fd < 0) {
        err_set_errno(err, "%s: cannot open for writing", path);
        file_writer_abandon(w);
        return -1;
    }
    return 0;
}

int file_writer_open(struct file_writer *w, const char *path, struct err *err) {
    return open_for_writing(w, path, O_TRUNC, err);
}

int file_writer_append(struct file_writer *w, const char *path, uint64_t keep_bytes,
                       struct err *err) {
    if (open_for_writing(w, path, 0, err) != 0) return -1;
    struct stat now;
    if (fstat(w->fd, &now) != 0 || (uint64_t)now.st_size < keep_bytes) {
        err_set(err, ERR_IO, "%s: shorter than the %llu bytes that were in it", path,
                (unsigned long long)keep_bytes);
    } else if (file_may("ftruncate", path) != 0 || ftruncate(w->fd, (off_t)keep_bytes) != 0 ||
               lseek(w->fd, (off_t)keep_bytes, SEEK_SET) < 0) {
        err_set_errno(err, "%s: cannot be cut to %llu bytes", path, (unsigned long long)keep_bytes);
    } else {
        w->offset_bytes = keep_bytes;
        return 0;
    }
    file_writer_abandon(w);
    return -1;
}

static int flush(struct file_writer *w, struct err *err) {
    // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): file_writer_abandon releases the buffer
    int result = w->fill ? write_all(w, w->buffer, w->fill, err) : 0;
    w->fill = 0;
    return result;
}

int file_writer_flush(struct file_writer *w, struct err *err) {
    return flush(w, err);
}

int file_writer_put(struct file_writer *w, const void *data, size_t bytes, struct err *err) {
    if (w->fd < 0)
        return err_set(err, ERR_INTERNAL, "%s: write to a file that is not open", w->path);
    if (bytes > w->capacity - w->fill && flush(w, err) != 0) return -1;
    if (bytes >= w->capacity) { // large pieces need no second copy
        if (write_all(w, data, bytes, err) != 0) return -1;
    } else if (bytes) {
        memcpy(w->buffer + w->fill, data, bytes);
        w->fill += bytes;
    }
    w->offset_bytes += bytes;
    return 0;
}

int file_writer_direct(struct file_writer *w, bool direct, struct err *err) {
    if (flush(w, err) != 0) return -1;
    set_direct(w, direct);
    return 0;
}

int file_writer_rewrite(struct file_writer *w, uint64_t offset_bytes, const void *data,
                        size_t bytes, struct err *err) {
    if (w->fd < 0 || offset_bytes > w->offset_bytes || bytes > w->offset_bytes - offset_bytes)
        return err_set(err, ERR_INTERNAL, "%s: rewrite of bytes that were not written", w->path);
    if (flush(w, err) != 0) return -1;
    if (lseek(w->fd, (off_t)offset_bytes, SEEK_SET) < 0)
        return err_set_errno(err, "%s: cannot go back to byte %llu", w->path,
                             (unsigned long long)offset_bytes);
    if (write_all(w, data, bytes, err) != 0) return -1;
    if (lseek(w->fd, (off_t)w->offset_bytes, SEEK_SET) < 0)
        return err_set_errno(err, "%s: cannot go to its end", w->path);
    return 0;
}

int file_writer_close(struct file_writer *w, bool durable, struct err *err) {
    if (w->fd < 0)
        return err_set(err, ERR_INTERNAL, "%s: close of a file that is not open", w->path);
    int result = flush(w, err);
    if (result == 0 && durable && (file_may("fsync", w->path) != 0 || fsync(w->fd) != 0))
        result = err_set_errno(err, "%s: the system could not make the file durable", w->path);
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 && result == 0) result = err_set_errno(err, "%s: close failed", w->path);
    file_writer_abandon(w);
    return result;
}

void file_writer_abandon(struct file_writer *w) {
    if (w->fd >= 0) close(w->fd);
    free(w->buffer);
    w->fd = -1;
    w->buffer = NULL;
    w->fill = w->capacity = 0;
}

int file_sync_folder(const char *path, struct err *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return err_set_errno(err, "%s: cannot open the folder", path);
    int result = file_may("fsync", path) == 0 ? fsync(fd) : -1;
    int number = errno;
    close(fd);
    // Some network file systems cannot sync a folder and say so with EINVAL; they need none.
    if (result == 0 || number == EINVAL) return 0;
    errno = number;
    return err_set_errno(err, "%s: the system could not make the folder durable", path);
}

int file_sync_folder_of(const char *path, struct err *err) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (!slash) return file_sync_folder(".", err);
    if (length == 0) return file_sync_folder("/", err);
    if (length >= sizeof folder) return err_set(err, ERR_IO, "path too long: %.100s...", path);
    memcpy(folder, path, length);
    folder[length] = 0;
    return file_sync_folder(folder, err);
}

int file_rename(const char *from, const char *to, struct err *err) {
    if (file_may("rename", to) != 0 || rename(from, to) != 0)
        return err_set_errno(err, "%s: cannot rename to %s", from, to);
    return file_sync_folder_of(to, err);
}

int file_exchange(const char *one, const char *other, struct err *err) {
    if (file_may("rename", other) == 0 &&
        renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE) == 0)
        return file_sync_folder_of(other, err);
    if (errno != EINVAL && errno != ENOSYS)
        return err_set_errno(err, "%s: cannot take the place of %s", one, other);
    return err_set(err, ERR_INTERNAL, "%s: this file system exchanges no names", other);
}

// A device, a pipe, a link such as /dev/stdout: what is there already stays there.
static bool stays_in_place(const char *path) {
    struct stat now;
    return lstat(path, &now) == 0 && !S_ISREG(now.st_mode) && !S_ISDIR(now.st_mode);
}

static int write_whole(const char *path, const void *data, size_t bytes, bool durable,
                       struct err *err) {
    struct file_writer w;
    if (file_writer_open(&w, path, err) != 0) return -1;
    if (file_writer_put(&w, data, bytes, err) == 0) return file_writer_close(&w, durable, err);
    file_writer_abandon(&w);
    return -1;
}

int file_replace(const char *path, const void *data, size_t bytes, struct err *err) {
    if (stays_in_place(path)) return write_whole(path, data, bytes, false, err);
    char temporary[4096];
    int length = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    if (length < 0 || (size_t)length >= sizeof temporary)
        return err_set(err, ERR_IO, "path too long: %.100s...", path);
    int result = write_whole(temporary, data, bytes, true, err);
    if (result == 0) result = file_rename(temporary, path, err);
    if (result != 0) file_remove(temporary, NULL);
    return result;
}
