// Files as shared memory, see file.h.
#include "base/file.h"
#include "base/file_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Takes the pages now: a page that the file system cannot give later would end the process.
static int take_room(int fd, const char *path, uint64_t bytes, struct err *err) {
    struct stat now;
    int number = 0;
    if (fstat(fd, &now) != 0) return err_set_errno(err, "%s: cannot look at the file", path);
    if (file_may("fallocate", path) != 0) number = errno;
    while (number == 0 && (number = posix_fallocate(fd, 0, (off_t)bytes)) == EINTR) number = 0;
    if (number == 0) return 0;
    // what was taken before it failed is given back
    if ((uint64_t)now.st_size < bytes && ftruncate(fd, now.st_size) != 0)
        return err_set_errno(err, "%s: cannot be cut to its old size", path);
    errno = number;
    return err_set_errno(err, "%s: no room for %llu bytes", path, (unsigned long long)bytes);
}

int file_shared_open(struct file_shared *f, const char *path, uint64_t bytes, struct err *err) {
    int fd = -1;
    if (file_may("open", path) == 0)
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return err_set_errno(err, "%s: cannot open for writing", path);
    int result = take_room(fd, path, bytes, err);
    void *data = MAP_FAILED;
    if (result == 0) {
        data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (data == MAP_FAILED)
            result =
                err_set_errno(err, "%s: cannot map %llu bytes", path, (unsigned long long)bytes);
    }
    close(fd);
    if (result != 0) return -1;
    *f = (struct file_shared){data, bytes};
    return 0;
}

void file_shared_close(struct file_shared *f) {
    if (f->data) munmap(f->data, f->bytes);
    *f = (struct file_shared){NULL, 0};
}

int file_cut(const char *path, uint64_t bytes, struct err *err) {
    if (file_may("ftruncate", path) == 0 && truncate(path, (off_t)bytes) == 0) return 0;
    return err_set_errno(err, "%s: cannot be cut to %llu bytes", path, (unsigned long long)bytes);
}
