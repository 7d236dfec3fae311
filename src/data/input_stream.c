// Plain, gzip and zstd files as streams, see input_stream.h.
#include "data/input_stream.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { RAW_BYTES = 1 << 18 };

enum stream_kind { STREAM_PLAIN, STREAM_GZIP, STREAM_ZSTD };

struct input_stream {
    char path[4096];
    int fd;
    enum stream_kind kind;
    unsigned char raw[RAW_BYTES];
    size_t raw_at, raw_fill;
    uint64_t raw_bytes;
    bool raw_end, inside; // inside: a compressed part has begun and not ended
    z_stream gzip;
    ZSTD_DStream *zstd;
};

// More raw bytes when all are used up; at the end raw_end is set.
static int refill(struct input_stream *s, struct err *err) {
    while (s->raw_at == s->raw_fill && !s->raw_end) {
        ssize_t got = read(s->fd, s->raw, RAW_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return err_set_errno(err, "%s: read failed at byte %llu", s->path,
                                 (unsigned long long)s->raw_bytes);
        s->raw_at = 0;
        s->raw_fill = (size_t)got;
        s->raw_bytes += (uint64_t)got;
        s->raw_end = got == 0;
    }
    return 0;
}

static int begin(struct input_stream *s, struct err *err) {
    static const unsigned char gzip[2] = {0x1f, 0x8b}, zstd[4] = {0x28, 0xb5, 0x2f, 0xfd};
    if (refill(s, err) != 0) return -1;
    if (s->raw_fill >= 2 && memcmp(s->raw, gzip, 2) == 0) s->kind = STREAM_GZIP;
    if (s->raw_fill >= 4 && memcmp(s->raw, zstd, 4) == 0) s->kind = STREAM_ZSTD;
    if (s->kind == STREAM_GZIP && inflateInit2(&s->gzip, 15 + 16) != Z_OK)
        return err_set(err, ERR_MEMORY, "%s: no memory to decompress", s->path);
    if (s->kind == STREAM_ZSTD && (s->zstd = ZSTD_createDStream()) == NULL)
        return err_set(err, ERR_MEMORY, "%s: no memory to decompress", s->path);
    return 0;
}

struct input_stream *input_stream_open(const char *path, struct err *err) {
    struct input_stream *s = calloc(1, sizeof *s);
    if (!s) {
        err_set(err, ERR_MEMORY, "%s: no memory to read it", path);
        return NULL;
    }
    snprintf(s->path, sizeof s->path, "%s", path);
    struct stat status;
    s->fd = open(path, O_RDONLY | O_CLOEXEC);
    int result = 0;
    if (s->fd < 0)
        result = err_set_errno(err, "%s: cannot open for reading", path);
    else if (fstat(s->fd, &status) == 0 && S_ISDIR(status.st_mode))
        result = err_set(err, ERR_IO, "%s: expected a file, found a folder", path);
    if (result == 0) result = begin(s, err);
    if (result == 0) return s;
    input_stream_close(s);
    return NULL;
}

void input_stream_close(struct input_stream *s) {
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    if (s->kind == STREAM_GZIP) inflateEnd(&s->gzip);
    ZSTD_freeDStream(s->zstd);
    free(s);
}

static int damaged(const struct input_stream *s, const char *why, struct err *err) {
    return err_set(err, ERR_DATA, "%s: damaged or cut %s file near byte %llu: %s", s->path,
                   s->kind == STREAM_GZIP ? "gzip" : "zstd",
                   (unsigned long long)(s->raw_bytes - (s->raw_fill - s->raw_at)), why);
}

static int64_t read_gzip(struct input_stream *s, void *out, size_t room, struct err *err) {
    s->gzip.next_out = out;
    s->gzip.avail_out = (uInt)room;
    while (s->gzip.avail_out == room) {
        if (refill(s, err) != 0) return -1;
        if (s->raw_end) {
            if (s->inside) return damaged(s, "it ends in the middle", err);
            return 0;
        }
        s->inside = true;
        s->gzip.next_in = s->raw + s->raw_at;
        s->gzip.avail_in = (uInt)(s->raw_fill - s->raw_at);
        int code = inflate(&s->gzip, Z_NO_FLUSH);
        s->raw_at = s->raw_fill - s->gzip.avail_in;
        if (code == Z_STREAM_END) { // another member may follow
            s->inside = false;
            inflateReset(&s->gzip);
        } else if (code != Z_OK && code != Z_BUF_ERROR) {
            return damaged(s, s->gzip.msg ? s->gzip.msg : "cannot be decompressed", err);
        }
    }
    return (int64_t)(room - s->gzip.avail_out);
}

static int64_t read_zstd(struct input_stream *s, void *out, size_t room, struct err *err) {
    ZSTD_outBuffer target = {out, room, 0};
    while (target.pos == 0) {
        // The decoder may still hold bytes when the file is at its end: it is asked once more
        // without input.
        if (refill(s, err) != 0) return -1;
        ZSTD_inBuffer source = {s->raw, s->raw_fill, s->raw_at};
        if (s->raw_end && !s->inside) return 0;
        size_t code = ZSTD_decompressStream(s->zstd, &target, &source);
        if (ZSTD_isError(code)) return damaged(s, ZSTD_getErrorName(code), err);
        bool moved = source.pos != s->raw_at || target.pos;
        s->raw_at = source.pos;
        s->inside = code != 0;
        if (s->raw_end && !moved && s->inside) return damaged(s, "it ends in the middle", err);
    }
    return (int64_t)target.pos;
}

int64_t input_stream_read(struct input_stream *s, void *out, size_t room, struct err *err) {
    if (room > RAW_BYTES) room = RAW_BYTES;
    if (s->kind == STREAM_GZIP) return read_gzip(s, out, room, err);
    if (s->kind == STREAM_ZSTD) return read_zstd(s, out, room, err);
    if (refill(s, err) != 0) return -1;
    size_t count = s->raw_fill - s->raw_at < room ? s->raw_fill - s->raw_at : room;
    memcpy(out, s->raw + s->raw_at, count);
    s->raw_at += count;
    return (int64_t)count;
}

uint64_t input_stream_raw_bytes(const struct input_stream *s) {
    return s->raw_bytes;
}
