// Writes TensorBoard event files: a few protocol-buffer fields by hand (Event: 1 wall_time double,
// 2 step int64, 3 file_version string, 5 summary, 7 session_log; Summary: 1 repeated value; Value:
// 1 tag string, 2 simple_value float), which is less than a code generator would bring along.
#include "observe/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

uint32_t tensorboard_crc32c(const void *data, size_t bytes) {
    const unsigned char *p = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    return ~crc;
}

uint32_t tensorboard_masked_crc32c(const void *data, size_t bytes) {
    uint32_t crc = tensorboard_crc32c(data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

static int put_varint(struct text *out, uint64_t value) {
    unsigned char bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) bytes[n++] = (unsigned char)(value | 0x80);
    bytes[n++] = (unsigned char)value;
    return text_put(out, bytes, n);
}

static int put_key(struct text *out, unsigned field, enum wire wire) {
    return put_varint(out, field << 3 | wire);
}

static int put_double(struct text *out, unsigned field, double value) {
    return put_key(out, field, WIRE_FIXED64) | text_put(out, &value, sizeof value);
}

static int put_bytes(struct text *out, unsigned field, const void *bytes, size_t count) {
    return put_key(out, field, WIRE_BYTES) | put_varint(out, count) | text_put(out, bytes, count);
}

static int put_value(struct tensorboard *board, const struct tensorboard_scalar *scalar) {
    struct text *value = &board->value;
    float number = (float)scalar->value;
    value->size = 0;
    int failed = put_bytes(value, 1, scalar->tag, strlen(scalar->tag)) |
                 put_key(value, 2, WIRE_FIXED32) | text_put(value, &number, sizeof number);
    return failed ? failed : put_bytes(&board->summary, 1, value->data, value->size);
}

// Frames board->event and appends it in one write, so that a reader never sees half a record of a
// running process.
static int write_record(struct tensorboard *board, struct err *err) {
    const struct text *event = &board->event;
    struct text *record = &board->record;
    record->size = 0;
    uint64_t length = event->size;
    uint32_t length_crc = tensorboard_masked_crc32c(&length, sizeof length);
    uint32_t event_crc = tensorboard_masked_crc32c(event->data, event->size);
    int result = 0;
    if (text_put(record, &length, sizeof length) |
        text_put(record, &length_crc, sizeof length_crc) |
        text_put(record, event->data, event->size) |
        text_put(record, &event_crc, sizeof event_crc)) {
        result = err_set(err, ERR_MEMORY, "%s: no memory for an event", board->path);
    } else {
        ssize_t written = write(board->fd, record->data, record->size);
        if (written < 0)
            result = err_set_errno(err, "%s: cannot write an event", board->path);
        else if ((size_t)written != record->size)
            result = err_set(err, ERR_IO, "%s: the disk took %zd of %zu bytes of an event",
                             board->path, written, record->size);
    }
    return result;
}

static struct text *begin_event(struct tensorboard *board) {
    board->event.size = 0;
    return &board->event;
}

int tensorboard_open(struct tensorboard *board, const char *folder, double wall_seconds,
                     struct err *err) {
    char host[64] = "localhost";
    gethostname(host, sizeof host - 1);
    *board = (struct tensorboard){.fd = -1};
    int n = snprintf(board->path, sizeof board->path, "%s/events.out.tfevents.%.6f.%s.%ld", folder,
                     wall_seconds, host, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof board->path)
        return err_set(err, ERR_IO, "%s: the path is too long", folder);
    board->fd = open(board->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (board->fd < 0)
        return err_set_errno(err, "%s: cannot create it for TensorBoard events", board->path);
    struct text *event = begin_event(board);
    static const char version[] = "brain.Event:2";
    int result =
        put_double(event, 1, wall_seconds) | put_bytes(event, 3, version, sizeof version - 1)
            ? err_set(err, ERR_MEMORY, "%s: no memory for an event", board->path)
            : write_record(board, err);
    if (result != 0) tensorboard_close(board);
    return result;
}

int tensorboard_resume(struct tensorboard *board, double wall_seconds, int64_t step,
                       struct err *err) {
    static const char start[] = "\x08\x01"; // SessionLog: 1 status, START
    struct text *event = begin_event(board);
    int failed = put_double(event, 1, wall_seconds) | put_key(event, 2, WIRE_VARINT) |
                 put_varint(event, (uint64_t)step) | put_bytes(event, 7, start, 2);
    int result = failed ? err_set(err, ERR_MEMORY, "%s: no memory for an event", board->path)
                        : write_record(board, err);
    return result;
}

int tensorboard_put(struct tensorboard *board, double wall_seconds, int64_t step,
                    const struct tensorboard_scalar *scalars, size_t count, struct err *err) {
    struct text *event = begin_event(board);
    board->summary.size = 0;
    int failed = 0;
    for (size_t i = 0; i < count; i++) failed |= put_value(board, &scalars[i]);
    failed |= put_double(event, 1, wall_seconds) | put_key(event, 2, WIRE_VARINT) |
              put_varint(event, (uint64_t)step) |
              put_bytes(event, 5, board->summary.data, board->summary.size);
    int result = failed ? err_set(err, ERR_MEMORY, "%s: no memory for an event", board->path)
                        : write_record(board, err);
    return result;
}

void tensorboard_close(struct tensorboard *board) {
    if (board->fd >= 0) close(board->fd);
    board->fd = -1;
    text_free(&board->value);
    text_free(&board->summary);
    text_free(&board->event);
    text_free(&board->record);
}
