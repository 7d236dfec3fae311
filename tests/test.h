// A small test harness: each TEST registers itself, runs in a process of its own under a time
// limit, and prints one line. A program ends with "NAME: N passed, N failed, N skipped" and exits
// non-zero when one failed.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct test_case {
    const char *name;
    void (*run)(void);
    int limit_seconds;
    struct test_case *next;
};
void test_register(struct test_case *test);

#define TEST_LIMIT(name_, seconds_)                                                                \
    static void test_run_##name_(void);                                                            \
    __attribute__((constructor)) static void test_add_##name_(void) {                              \
        static struct test_case one = {#name_, test_run_##name_, seconds_, NULL};                  \
        test_register(&one);                                                                       \
    }                                                                                              \
    static void test_run_##name_(void)
#define TEST(name_) TEST_LIMIT(name_, 120)

// A failed check prints file, line and both values, and ends the test.
void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void test_check_int(const char *file, int line, const char *text, long long found,
                    long long expected);
void test_check_str(const char *file, int line, const char *text, const char *found,
                    const char *expected);
void test_check_close(const char *file, int line, const char *text, double found, double expected,
                      double tolerance);
void test_check_bytes(const char *file, int line, const char *text, const void *found,
                      const void *expected, size_t bytes);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) test_fail(__FILE__, __LINE__, "not true: %s", #condition);               \
    } while (0)
#define CHECK_EQ_INT(found, expected)                                                              \
    test_check_int(__FILE__, __LINE__, #found, (long long)(found), (long long)(expected))
#define CHECK_STR(found, expected) test_check_str(__FILE__, __LINE__, #found, found, expected)
#define CHECK_CONTAINS(found, part)                                                                \
    do {                                                                                           \
        if (!strstr(found, part))                                                                  \
            test_fail(__FILE__, __LINE__, "\"%s\" does not contain \"%s\"", found, part);          \
    } while (0)
// |found - expected| <= tolerance * max(1, |expected|)
#define CHECK_CLOSE(found, expected, tolerance)                                                    \
    test_check_close(__FILE__, __LINE__, #found, (double)(found), (double)(expected), tolerance)
#define CHECK_BYTES(found, expected, bytes)                                                        \
    test_check_bytes(__FILE__, __LINE__, #found, found, expected, bytes)
#define CHECK_OK(call, err)                                                                        \
    do {                                                                                           \
        if ((call) != 0) test_fail(__FILE__, __LINE__, "%s: %s", #call, (err).text);               \
    } while (0)
#define SKIP(...) test_skip(__VA_ARGS__)

const char *test_data_dir(void);         // folder of external data, or NULL
const char *test_golden_dir(void);       // tests/golden of the source tree
const char *test_weft(void);             // the built program, for tests that run it
const char *test_temp_dir(void);         // a fresh folder of this test, removed at its end
const char *test_path(const char *name); // NAME in that folder; stands for four calls

// Runs a command line through the shell; returns the exit status (128 + signal when killed) and up
// to `bytes` - 1 bytes of its standard output and error together.
int test_shell(char *output, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
