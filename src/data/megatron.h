// The Megatron pair of files: PREFIX.bin holds ids without a header, PREFIX.idx how they are
// divided.
//     .idx, little-endian, not aligned: "MMIDIDX\0\0", u64 version 1, u8 type code, u64 sequences,
//     u64 document borders, i32 size of each sequence in tokens, i64 its byte offset in .bin, i64
//     first sequence of each document and one more.
#pragma once

#define MEGATRON_MAGIC "MMIDIDX\0\0"
enum { MEGATRON_HEADER_BYTES = 34, MEGATRON_U16 = 8, MEGATRON_I32 = 4 };
