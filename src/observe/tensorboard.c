// Event files, see tensorboard.h. Messages and field numbers
// (tensorboard/compat/proto/event.proto):
//   Event   { 1 double wall_time; 2 int64 step; 3 string file_version; 5 Summary; 7 SessionLog }
//   Summary { 1 repeated Value { 1 string tag; 2 float simple_value } }
//   SessionLog { 1 enum status, 1 is START }
#include "observe/tensorboard.h"
#include "base/clock.h"
#include "observe/crc32c.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_MESSAGE_BYTES = 4096,
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2,
    WIRE_FIXED32 = 5
};

struct message {
    unsigned char data[MOST_MESSAGE_BYTES];
    size_t size;
};

static void put_bytes(struct message *m, const void *bytes, size_t count) {
    if (count > sizeof m->data - m->size) return; // callers keep far below
    memcpy(m->data + m->size, bytes, count);
    m->size += count;
}

static void put_varint(struct message *m, uint64_t value) {
    unsigned char bytes[10];
    size_t count = 0;
    do {
        bytes[count++] = (unsigned char)((value & 127u) | (value > 127u ? 128u : 0u));
        value >>= 7;
    } while (value);
    put_bytes(m, bytes, count);
}

static void put_key(struct message *m, int field, int wire) {
    put_varint(m, (uint64_t)(field << 3 | wire));
}

static void put_inner(struct message *m, int field, const void *bytes, size_t count) {
    put_key(m, field, WIRE_BYTES);
    put_varint(m, count);
    put_bytes(m, bytes, count);
}

static void begin_event(struct message *m, int64_t step) {
    double now = clock_wall_seconds();
    m->size = 0;
    put_key(m, 1, WIRE_FIXED64);
    put_bytes(m, &now, sizeof now);
    put_key(m, 2, WIRE_VARINT);
    put_varint(m, (uint64_t)step);
}

static int put_record(struct tensorboard *t, const struct message *m, struct err *err) {
    uint64_t length = m->size;
    uint32_t length_crc = crc32c_masked(&length, sizeof length);
    uint32_t data_crc = crc32c_masked(m->data, m->size);
    unsigned char record[MOST_MESSAGE_BYTES + 16];
    memcpy(record, &length, 8);
    memcpy(record + 8, &length_crc, 4);
    memcpy(record + 12, m->data, m->size);
    memcpy(record + 12 + m->size, &data_crc, 4);
    return file_writer_put(&t->file, record, m->size + 16, err);
}

int tensorboard_open(struct tensorboard *t, const char *folder, int64_t step, struct err *err) {
    char name[128], path[4096];
    // the time makes the name sort behind earlier files; the process number keeps two runs apart
    snprintf(name, sizeof name, "events.out.tfevents.%.6f.weft.%d", clock_wall_seconds(),
             (int)getpid());
    if (file_join(path, sizeof path, folder, name, err) != 0 ||
        file_writer_open(&t->file, path, err) != 0)
        return -1;
    struct message m;
    begin_event(&m, 0);
    put_inner(&m, 3, "brain.Event:2", 13);
    int result = put_record(t, &m, err);
    if (result == 0 && step > 1) {
        begin_event(&m, step);
        put_inner(&m, 7, "\x08\x01", 2);
        result = put_record(t, &m, err);
    }
    if (result == 0) result = file_writer_flush(&t->file, err);
    if (result != 0) file_writer_abandon(&t->file);
    return result;
}

int tensorboard_scalars(struct tensorboard *t, int64_t step, const char *const *tags,
                        const double *values, int count, struct err *err) {
    struct message event, summary = {.size = 0};
    for (int i = 0; i < count; i++) {
        struct message value = {.size = 0};
        float single = (float)values[i];
        put_inner(&value, 1, tags[i], strlen(tags[i]));
        put_key(&value, 2, WIRE_FIXED32);
        put_bytes(&value, &single, sizeof single);
        put_inner(&summary, 1, value.data, value.size);
    }
    begin_event(&event, step);
    put_inner(&event, 5, summary.data, summary.size);
    if (put_record(t, &event, err) != 0) return -1;
    return file_writer_flush(&t->file, err);
}

int tensorboard_close(struct tensorboard *t, struct err *err) {
    return file_writer_close(&t->file, false, err);
}
