// One region handed out in aligned pieces.
#include "base/arena.h"
#include "test.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static long resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long size = 0, resident = 0;
    CHECK(file && fscanf(file, "%ld %ld", &size, &resident) == 2);
    fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

TEST(arena_pieces_are_aligned_and_apart) {
    struct err err = {0};
    struct arena arena;
    CHECK_OK(arena_open(&arena, 64 * 10 + 7, 0, &err), err);
    unsigned char *before = NULL;
    for (int i = 0; i < 10; i++) {
        unsigned char *piece = arena_take(&arena, 1 + (size_t)i * 7); // up to 64: one unit each
        CHECK(piece && (uintptr_t)piece % ARENA_ALIGN == 0);
        if (before) CHECK_EQ_INT(piece - before, 64);
        for (int j = 0; j <= i * 7; j++) CHECK_EQ_INT(piece[j], 0);
        memset(piece, 0xff, 1 + (size_t)i * 7);
        before = piece;
    }
    CHECK(arena_take(&arena, 1) == NULL); // 7 bytes are left, a piece takes 64
    CHECK(arena_take(&arena, 0) != NULL);
    CHECK(arena_take(&arena, SIZE_MAX) == NULL);
    CHECK(arena_take(&arena, SIZE_MAX - 63) == NULL);
    arena_close(&arena);
    CHECK(arena.base == NULL);
    arena_close(&arena); // closing twice is harmless
}

TEST(arena_round_up) {
    CHECK_EQ_INT(arena_round(0), 0);
    CHECK_EQ_INT(arena_round(1), 64);
    CHECK_EQ_INT(arena_round(64), 64);
    CHECK_EQ_INT(arena_round(65), 128);
}

TEST(arena_touch_makes_pages_resident) {
    enum { BYTES = 48 << 20 };
    struct err err = {0};
    struct arena arena;
    long before = resident_bytes();
    CHECK_OK(arena_open(&arena, BYTES, 1, &err), err);
    long after = resident_bytes();
    CHECK(after - before > BYTES * 95L / 100);
    CHECK(after - before <
          BYTES + (8L << 20)); // and hardly more; the threads of the team cost a little
    for (size_t i = 0; i < BYTES; i += 4096) CHECK_EQ_INT(arena.base[i], 0);
    arena_close(&arena);
    CHECK(resident_bytes() < after - BYTES / 2);

    before = resident_bytes();
    CHECK_OK(arena_open(&arena, BYTES, 0, &err), err);
    CHECK(resident_bytes() - before < BYTES / 2);
    arena_close(&arena);
}

TEST(arena_too_large_is_refused) {
    struct err err = {0};
    struct arena arena;
    CHECK_EQ_INT(arena_open(&arena, (size_t)1 << 50, 1, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_MEMORY);
    CHECK_CONTAINS(err.text, "1.13 PB");
    struct err second = {0};
    CHECK_EQ_INT(arena_open(&arena, SIZE_MAX - 100, 0, &second), -1);
    CHECK_EQ_INT(second.kind, ERR_MEMORY);
}

TEST(arena_empty) {
    struct err err = {0};
    struct arena arena;
    CHECK_OK(arena_open(&arena, 0, 1, &err), err);
    CHECK(arena_take(&arena, 1) == NULL);
    arena_close(&arena);
}
