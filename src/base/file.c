// Reading files, names, folders; see file.h. Writing is in file_write.c.
#include "base/file.h"
#include "base/file_parts.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// A file that can be read as bytes; folders open fine and fail only later, with a message that
// nobody understands.
static int open_for_reading(const char *path, struct stat *status, struct err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_set_errno(err, "%s: cannot open for reading", path);
    if (fstat(fd, status) != 0) {
        err_set_errno(err, "%s: cannot look at the file", path);
        close(fd);
        return -1;
    }
    if (S_ISDIR(status->st_mode)) {
        close(fd);
        return err_set(err, ERR_IO, "%s: expected a file, found a folder", path);
    }
    return fd;
}

int file_read(const char *path, size_t limit_bytes, char **data, size_t *size, struct err *err) {
    struct stat status;
    int fd = open_for_reading(path, &status, err);
    if (fd < 0) return -1;
    // The size is a hint only: pipes and /proc files have none.
    size_t capacity = (size_t)status.st_size + 4096, used = 0;
    char *buffer = NULL;
    if (limit_bytes && (uint64_t)status.st_size > limit_bytes) goto too_long;
    buffer = malloc(capacity);
    for (;;) {
        if (!buffer) {
            err_set(err, ERR_MEMORY, "%s: no memory for %zu bytes", path, capacity);
            goto failed;
        }
        ssize_t got = read(fd, buffer + used, capacity - 1 - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            err_set_errno(err, "%s: read failed at byte %zu", path, used);
            goto failed;
        }
        if (got == 0) break;
        used += (size_t)got;
        if (limit_bytes && used > limit_bytes) goto too_long;
        if (used + 1 == capacity) {
            capacity *= 2;
            char *grown = realloc(buffer, capacity);
            if (!grown) free(buffer);
            buffer = grown;
        }
    }
    close(fd);
    buffer[used] = 0;
    *data = buffer;
    *size = used;
    return 0;
too_long:
    err_set(err, ERR_DATA, "%s: longer than the %zu bytes that such a file may have", path,
            limit_bytes);
failed:
    free(buffer);
    close(fd);
    return -1;
}

int file_map_open(struct file_map *map, const char *path, struct err *err) {
    struct stat status;
    int fd = open_for_reading(path, &status, err);
    if (fd < 0) return -1;
    if (!S_ISREG(status.st_mode)) {
        close(fd);
        return err_set(err, ERR_IO, "%s: expected a regular file, which can be mapped", path);
    }
    struct file_map made = {NULL, (size_t)status.st_size};
    if (made.size) {
        void *data = mmap(NULL, made.size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            err_set_errno(err, "%s: cannot map %zu bytes", path, made.size);
            close(fd);
            return -1;
        }
        made.data = data;
    }
    close(fd);
    *map = made;
    return 0;
}

void file_map_close(struct file_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (struct file_map){NULL, 0};
}

bool file_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0;
}

bool file_is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

int file_size(const char *path, uint64_t *bytes, struct err *err) {
    struct stat status;
    if (stat(path, &status) != 0) return err_set_errno(err, "%s: cannot look at the file", path);
    *bytes = (uint64_t)status.st_size;
    return 0;
}

int file_join(char *out, size_t out_bytes, const char *folder, const char *name, struct err *err) {
    size_t a = strlen(folder), b = strlen(name);
    size_t slash = a > 0 && folder[a - 1] != '/';
    if (a + slash + b + 1 > out_bytes)
        return err_set(err, ERR_IO, "path too long (%zu bytes, at most %zu): %.100s.../%.100s",
                       a + slash + b, out_bytes - 1, folder, name);
    memmove(out, folder, a); // `out` may be `folder`
    if (slash) out[a] = '/';
    memcpy(out + a + slash, name, b + 1);
    return 0;
}

int file_make_folder(const char *path, struct err *err) {
    if (file_may("mkdir", path) == 0 && mkdir(path, 0777) == 0) return 0;
    return err_set_errno(err, "%s: cannot make the folder", path);
}

// A folder that is there is left alone, so that only what changes something is counted.
static int make_if_absent(const char *path, struct err *err) {
    if (file_is_folder(path)) return 0;
    if (file_may("mkdir", path) == 0 && mkdir(path, 0777) == 0)
        return file_sync_folder_of(path, err);
    int number = errno; // a folder that stands there now is fine, whatever mkdir said
    if (file_is_folder(path)) return 0;
    errno = number == EEXIST ? ENOTDIR : number;
    return err_set_errno(err, "%s: cannot make the folder", path);
}

int file_make_folders(const char *path, struct err *err) {
    char part[4096];
    size_t length = strlen(path);
    if (length == 0) return err_set(err, ERR_IO, "cannot make a folder without a name");
    if (length >= sizeof part)
        return err_set(err, ERR_IO, "path too long (%zu bytes): %.100s...", length, path);
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != 0) continue;
        char end = part[i];
        part[i] = 0;
        if (make_if_absent(part, err) != 0) return -1;
        part[i] = end;
    }
    return 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void file_list_free(char **names, size_t count) {
    for (size_t i = 0; i < count; i++) free(names[i]);
    free(names);
}

int file_list(const char *path, char ***names, size_t *count, struct err *err) {
    DIR *folder = opendir(path);
    if (!folder) return err_set_errno(err, "%s: cannot read the folder", path);
    char **list = NULL;
    size_t used = 0, capacity = 0;
    struct dirent *entry;
    while ((errno = 0, entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (used == capacity) {
            capacity = capacity ? 2 * capacity : 16;
            char **grown = realloc(list, capacity * sizeof *list);
            if (!grown) goto short_of_memory;
            list = grown;
        }
        list[used] = strdup(entry->d_name);
        if (!list[used]) goto short_of_memory;
        used++;
    }
    if (errno != 0) {
        err_set_errno(err, "%s: reading the folder failed", path);
        goto failed;
    }
    closedir(folder);
    if (used) qsort(list, used, sizeof *list, compare_names);
    *names = list;
    *count = used;
    return 0;
short_of_memory:
    err_set(err, ERR_MEMORY, "%s: no memory for the names in the folder", path);
failed:
    closedir(folder);
    file_list_free(list, used);
    return -1;
}

int file_remove(const char *path, struct err *err) {
    if (file_may("unlink", path) == 0 && unlink(path) == 0) return 0;
    return err_set_errno(err, "%s: cannot remove", path);
}

int file_remove_tree(const char *path, struct err *err) {
    struct stat status;
    if (lstat(path, &status) != 0) return err_set_errno(err, "%s: cannot remove", path);
    if (!S_ISDIR(status.st_mode)) return file_remove(path, err);
    char **names;
    size_t count;
    if (file_list(path, &names, &count, err) != 0) return -1;
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        char inner[4096];
        result = file_join(inner, sizeof inner, path, names[i], err);
        if (result == 0) result = file_remove_tree(inner, err);
    }
    file_list_free(names, count);
    if (result == 0 && (file_may("rmdir", path) != 0 || rmdir(path) != 0))
        result = err_set_errno(err, "%s: cannot remove the folder", path);
    return result;
}
