// Byte-wise CRC-32C over a table that is made at first use; see crc32c.h.
#include "observe/crc32c.h"
#include <pthread.h>

static uint32_t table[256];

static void make_table(void) {
    const uint32_t reversed_polynomial = 0x82f63b78u;
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1u) ? reversed_polynomial : 0u);
        table[byte] = crc;
    }
}

uint32_t crc32c(const void *data, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_table);
    const unsigned char *at = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) crc = table[(crc ^ at[i]) & 255u] ^ (crc >> 8);
    return ~crc;
}

uint32_t crc32c_masked(const void *data, size_t bytes) {
    uint32_t crc = crc32c(data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}
