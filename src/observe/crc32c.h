// CRC-32C (Castagnoli), and the masked form that TFRecord files store beside lengths and data.
#pragma once
#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *data, size_t bytes);
uint32_t crc32c_masked(const void *data, size_t bytes); // rotated right by 15, plus 0xa282ead8
