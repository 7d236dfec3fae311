// An arena is one private anonymous mapping. Huge pages are asked for before the first touch, and
// the touch itself is shared among the compute threads, because clearing several gigabytes is
// seconds of one core.
#include "base/arena.h"
#include "base/text.h"
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES ((size_t)4096)
#define HUGE_BYTES ((size_t)2 << 20)
#define TOUCH_BYTES ((size_t)16 << 20) // share of one thread at a time

size_t arena_round(size_t bytes) {
    return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

static size_t mapped_bytes(size_t bytes) {
    return bytes == 0 ? PAGE_BYTES : (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

// One number of a small system file: behind `key` at the start of a line, or the whole file for key
// "". UINT64_MAX when it cannot be had ("max" is none either).
static uint64_t system_number(const char *path, const char *key) {
    FILE *file = fopen(path, "r");
    if (!file) return UINT64_MAX;
    char line[256];
    unsigned long long number;
    uint64_t found = UINT64_MAX;
    size_t length = strlen(key);
    while (found == UINT64_MAX && fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%llu", &number) == 1)
            found = number;
    fclose(file);
    return found;
}

// Bytes that the system and the control group of this process can still give, caches counted as
// free.
static uint64_t memory_available_bytes(void) {
    uint64_t available = UINT64_MAX;
    uint64_t kilobytes = system_number("/proc/meminfo", "MemAvailable:");
    if (kilobytes != UINT64_MAX) available = kilobytes * 1024;
    uint64_t limit = system_number("/sys/fs/cgroup/memory.max", "");
    uint64_t used = system_number("/sys/fs/cgroup/memory.current", "");
    if (limit != UINT64_MAX && used != UINT64_MAX) {
        uint64_t cache = system_number("/sys/fs/cgroup/memory.stat", "file ");
        if (cache == UINT64_MAX) cache = 0;
        uint64_t held = used > cache ? used - cache : 0;
        uint64_t left = limit > held ? limit - held : 0;
        if (left < available) available = left;
    }
    return available;
}

static void touch_pages(unsigned char *base, size_t bytes) {
    int64_t shares = (int64_t)((bytes + TOUCH_BYTES - 1) / TOUCH_BYTES);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < shares; i++) {
        size_t from = (size_t)i * TOUCH_BYTES;
        size_t to = from + TOUCH_BYTES < bytes ? from + TOUCH_BYTES : bytes;
#ifdef MADV_POPULATE_WRITE
        if (madvise(base + from, to - from, MADV_POPULATE_WRITE) == 0) continue;
#endif
        for (size_t at = from; at < to; at += PAGE_BYTES)
            *(volatile unsigned char *)(base + at) = 0;
    }
}

int arena_open(struct arena *arena, size_t bytes, int touch, struct err *err) {
    char wanted[32], have[32];
    uint64_t available = touch ? memory_available_bytes() : UINT64_MAX;
    if (bytes > SIZE_MAX - 2 * HUGE_BYTES || bytes > available)
        return err_set(err, ERR_MEMORY,
                       "the plan needs %s of memory and this machine has %s left; choose a smaller "
                       "micro-batch, "
                       "recomputation, or a smaller model",
                       text_bytes(bytes, wanted), text_bytes(available, have));
    size_t size = mapped_bytes(bytes);
    unsigned char *raw = mmap(NULL, size + HUGE_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return err_set(err, ERR_MEMORY, "the system refused %s of memory: %s",
                       text_bytes(bytes, wanted), strerror(errno));
    // Keep the part that starts at a huge page, give the edges back.
    size_t lead = (HUGE_BYTES - (uintptr_t)raw % HUGE_BYTES) % HUGE_BYTES;
    if (lead) munmap(raw, lead);
    if (HUGE_BYTES - lead) munmap(raw + lead + size, HUGE_BYTES - lead);
    unsigned char *base = raw + lead;
    madvise(base, size, MADV_HUGEPAGE); // a wish: without huge pages everything works, slower
    if (touch) touch_pages(base, size);
    *arena = (struct arena){base, bytes, 0};
    return 0;
}

void arena_close(struct arena *arena) {
    if (arena->base) munmap(arena->base, mapped_bytes(arena->capacity_bytes));
    *arena = (struct arena){NULL, 0, 0};
}

void *arena_take(struct arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX - ARENA_ALIGN) return NULL;
    size_t size = arena_round(bytes);
    if (size > arena->capacity_bytes - arena->used_bytes) return NULL;
    void *piece = arena->base + arena->used_bytes;
    arena->used_bytes += size;
    return piece;
}
