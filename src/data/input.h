// Documents from files: text or JSON lines, plain, gzip or zstd, single files or whole folders.
//
// Compression is recognised by content, JSON lines by the name (.jsonl, .ndjson, .json, with or
// without .gz or .zst) unless said otherwise. Folders are walked recursively in the order of names;
// names that begin with a dot are left out. Documents come in the order of files and of bytes in
// them. One document is held in memory as a whole; besides it, a block of a few megabytes.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum input_kind { INPUT_BY_NAME, INPUT_TEXT, INPUT_JSONL };

struct input_options {
    const char *const *paths;
    size_t path_count;
    enum input_kind kind;
    // Where a text file is cut into documents: NULL nowhere, INPUT_BLANK_LINE at empty lines,
    // INPUT_LINE at every line end, any other text at its occurrences. The separator belongs to no
    // document.
    const char *separator;
};
#define INPUT_BLANK_LINE "blank-line"
#define INPUT_LINE "line"

struct input_record {
    size_t offset, size; // in the block's text
    uint32_t file;       // for input_name
    uint64_t line;       // JSON lines: from 1; else 0
    bool json;
};
struct input_block {
    struct text text;
    struct input_record *records;
    size_t count, capacity;
};
void input_block_free(struct input_block *block);

struct input;
// Finds the files; missing ones and an empty list are errors.
struct input *input_open(const struct input_options *options, struct err *err);
void input_close(struct input *input);
// Replaces the block by the next records, about `bytes` of them or one larger. 1, 0 at the end, -1.
int input_read(struct input *input, struct input_block *block, size_t bytes, struct err *err);
const char *input_name(const struct input *input, uint32_t file);
size_t input_files(const struct input *input);
uint64_t input_total_bytes(const struct input *input); // on disk
uint64_t input_done_bytes(const struct input *input);
