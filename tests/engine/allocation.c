// From the third step on the compute thread allocates nothing: the program's own calls of the
// allocator are counted. Calls from inside shared libraries are theirs.
#include "fixture.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef WEFT_SANITIZED
TEST(no_allocation_from_the_third_step_on) {
    SKIP("the sanitizer has its own allocator");
}
#else
extern char __executable_start, etext;
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
static int64_t calls;

static void count_call(const void *caller) {
    const char *at = caller;
    if (at >= &__executable_start && at < &etext) __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t bytes) {
    count_call(__builtin_return_address(0));
    return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes) {
    count_call(__builtin_return_address(0));
    return __libc_calloc(count, bytes);
}
void *realloc(void *memory, size_t bytes) {
    count_call(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

TEST(no_allocation_from_the_third_step_on) {
    static const char *const kinds[] = {"gpt2", "qwen3", "olmo2", "experts"};
    for (int k = 0; k < 4; k++) {
        struct model_config c = fixture_config(kinds[k]);
        struct engine_options o = {.compute = DTYPE_BF16,
                                   .recompute = RECOMPUTE_SELECTIVE_MLP,
                                   .rows = 12,
                                   .context = 50,
                                   .micro_batches = 2,
                                   .train = true};
        struct fixture f;
        int64_t before = calls;
        fixture_open(&f, &c, o, 1, DEVICE_ISA_BEST);
        CHECK(calls > before); // the counter counts
        struct batch b[2] = {fixture_batch(12, 50, c.vocab, 1), fixture_batch(12, 50, c.vocab, 2)};
        fixture_step(&f, b, 2, true);
        fixture_step(&f, b, 2, true);
        before = calls;
        for (int i = 0; i < 3; i++) fixture_step(&f, b, 2, true);
        CHECK_EQ_INT(calls - before, 0);
        fixture_free(&b[0]);
        fixture_free(&b[1]);
        fixture_close(&f);
    }
}
#endif
