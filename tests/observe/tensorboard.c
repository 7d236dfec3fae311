// Event files: checksums against published vectors, and the bytes of a whole record.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "observe/tensorboard.h"
#include "test.h"

TEST(crc32c_known_vectors) { // RFC 3720, appendix B.4
    unsigned char bytes[32];
    memset(bytes, 0, sizeof bytes);
    CHECK_EQ_INT(tensorboard_crc32c(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    CHECK_EQ_INT(tensorboard_crc32c(bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    CHECK_EQ_INT(tensorboard_crc32c(bytes, 32), 0x46dd794e);
    CHECK_EQ_INT(tensorboard_crc32c("123456789", 9), 0xe3069283);
    uint32_t crc = 0xe3069283;
    CHECK_EQ_INT(tensorboard_masked_crc32c("123456789", 9),
                 (uint32_t)(((crc >> 15) | (crc << 17)) + 0xa282ead8u));
}

// Walks the frames of a file; returns the number of sound records.
static int count_records(const char *data, size_t size) {
    size_t at = 0;
    int records = 0;
    while (at < size) {
        uint64_t length;
        uint32_t crc;
        CHECK(size - at >= 12);
        memcpy(&length, data + at, 8);
        memcpy(&crc, data + at + 8, 4);
        CHECK_EQ_INT(crc, tensorboard_masked_crc32c(data + at, 8));
        CHECK(size - at >= 16 + length);
        memcpy(&crc, data + at + 12 + length, 4);
        CHECK_EQ_INT(crc, tensorboard_masked_crc32c(data + at + 12, length));
        at += 16 + length;
        records++;
    }
    return records;
}

TEST(an_event_file_holds_version_and_scalars) {
    struct err err = {0};
    struct tensorboard board;
    CHECK_OK(tensorboard_open(&board, test_temp_dir(), 1.5, &err), err);
    struct tensorboard_scalar scalars[] = {{"train/loss", 2.5}, {"train/lr", 1e-3}};
    CHECK_OK(tensorboard_put(&board, 2.5, 300, scalars, 2, &err), err);
    CHECK_OK(tensorboard_put(&board, 3.5, 301, scalars, 1, &err), err);
    tensorboard_close(&board);
    char *data;
    size_t size;
    CHECK_OK(file_read(board.path, 0, &data, &size, &err), err);
    CHECK_EQ_INT(count_records(data, size), 3);
    CHECK(memmem(data, size,
                 "\x1a\x0d"
                 "brain.Event:2",
                 15) != NULL);
    // step 300 as a varint; tag, then the float 2.5 (0x40200000) as fixed32
    CHECK(memmem(data, size, "\x10\xac\x02", 3) != NULL);
    CHECK(memmem(data, size, "\x0a\x0atrain/loss\x15\x00\x00\x20\x40", 17) != NULL);
    free(data);
}

TEST(a_folder_that_is_not_there_is_one_message) {
    struct err err = {0};
    struct tensorboard board;
    CHECK(tensorboard_open(&board, "/nowhere/at/all", 0, &err) != 0);
    CHECK_CONTAINS(err.text, "/nowhere/at/all");
    CHECK_EQ_INT(err.kind, ERR_IO);
}

TEST(an_event_file_of_a_resumed_run_says_where_it_goes_on) {
    struct err err = {0};
    struct tensorboard board;
    CHECK_OK(tensorboard_open(&board, test_temp_dir(), 1.5, &err), err);
    CHECK_OK(tensorboard_resume(&board, 2.5, 21, &err), err);
    tensorboard_close(&board);
    char *data;
    size_t size;
    CHECK_OK(file_read(board.path, 0, &data, &size, &err), err);
    CHECK_EQ_INT(count_records(data, size), 2);
    // step 21, then session_log { status: START }
    CHECK(memmem(data, size, "\x10\x15\x3a\x02\x08\x01", 6) != NULL);
    free(data);
}
