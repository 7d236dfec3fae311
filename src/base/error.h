// One message for one failure. The function that first decides that something is wrong fills the
// `struct err`; callers hand it up unchanged or put a context in front; only `cli/` prints it.
//
// Convention of the whole program: a function that can fail returns 0 or -1 (or a pointer or NULL)
// and takes `struct err *err` as its last argument; outputs are set only on success.
// A text says what was expected, what was found, where (file, line, key, rank) and what to do.
#pragma once

enum err_kind {
    ERR_NONE = 0,
    ERR_USAGE,     // the user's words: command line, configuration           exit 2
    ERR_DATA,      // a file that is not what it should be                     exit 3
    ERR_IO,        // the system refused: open, write, full disk               exit 4
    ERR_MEMORY,    // more memory than there is                                exit 5
    ERR_INTERRUPT, // the user stopped it; the state is saved                  exit 130
    ERR_RETRY,     // nothing wrong with run or machine: start it again        exit 75
    ERR_BAD_HOST,  // this machine cannot be trusted: start it elsewhere       exit 76
    ERR_INTERNAL,  // a promise of the program itself is broken                exit 70
};

struct err {
    enum err_kind kind;
    char text[1024];
};

// Stores the message (the first one wins) and returns -1, so that a caller can write
// `return err_set(err, ERR_DATA, "%s: ...", path);`. A NULL `err` is allowed.
int err_set(struct err *err, enum err_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// As err_set with ": " and the text of errno behind the message; the kind is ERR_IO.
int err_set_errno(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Puts "context: " in front of the message that stands there. Returns -1.
int err_context(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The exit status documented beside the kinds above.
int err_exit_status(const struct err *err);

// The three always return -1. Saying so where they are called lets compilers and checkers see that
// outputs are set whenever a function returns 0.
static inline int err_failed(int minus_one) {
    (void)minus_one;
    return -1;
}
#define err_set(...) err_failed(err_set(__VA_ARGS__))
#define err_set_errno(...) err_failed(err_set_errno(__VA_ARGS__))
#define err_context(...) err_failed(err_context(__VA_ARGS__))
