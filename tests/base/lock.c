// A lock that somebody else holds is waited for, as long as that is of use.
#include "base/lock.h"
#include "base/clock.h"
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int open_file(void) {
    int file = open(test_path("lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    return file;
}

struct holder {
    int file, asked; // lets go when it was asked so often
};

static bool let_go(const void *context) {
    struct holder *h = *(struct holder *const *)context;
    if (--h->asked == 0) close(h->file);
    return true;
}

static bool of_no_use(const void *context) {
    return *(const int *)context > 1;
}

TEST(lock_is_waited_for) {
    struct holder holder = {open_file(), 3}, *h = &holder;
    int file = open_file();
    CHECK_EQ_INT(lock_take(holder.file, 0, NULL, NULL), 1);
    CHECK_EQ_INT(lock_take(file, 0, NULL, NULL), 0);
    CHECK_EQ_INT(lock_take(file, 60, let_go, &h), 1);
    CHECK_EQ_INT(holder.asked, 0);
    close(file);
}

TEST(lock_is_not_waited_for_in_vain) {
    int holder = open_file(), file = open_file(), use = 1;
    CHECK_EQ_INT(lock_take(holder, 0, NULL, NULL), 1);
    double begin = clock_seconds();
    CHECK_EQ_INT(lock_take(file, 0.3, NULL, NULL), 0);
    CHECK(clock_seconds() >= begin + 0.3);
    CHECK_EQ_INT(lock_take(file, 1e9, of_no_use, &use), 0); // the test's limit counts
    close(file);
    CHECK_EQ_INT(lock_take(file, 60, NULL, NULL), -1);
    CHECK_EQ_INT(errno, EBADF);
    close(holder);
}
