// Finding files and cutting them into records, see input.h.
#include "data/input.h"
#include "base/file.h"
#include "data/input_stream.h"
#include <stdlib.h>
#include <string.h>

enum { DEEPEST_FOLDER = 64 };

struct input {
    char **files;
    size_t file_count;
    enum input_kind kind;
    char *separator;
    uint64_t total_bytes, closed_bytes;
    // the file being read
    size_t file; // next to open
    struct input_stream *stream;
    bool json;
    uint64_t line;
    struct text carry; // beginning of a record that did not end in the block before
};

// ---- the list of files -------------------------------------------------------------------------

static int add_file(struct input *in, const char *path, struct err *err) {
    char **grown = realloc(in->files, (in->file_count + 1) * sizeof *grown);
    if (grown) in->files = grown;
    char *copy = grown ? strdup(path) : NULL;
    if (!copy) return err_set(err, ERR_MEMORY, "%s: no memory for the list of files", path);
    in->files[in->file_count++] = copy;
    uint64_t bytes = 0;
    if (file_size(path, &bytes, err) != 0) return -1;
    in->total_bytes += bytes;
    return 0;
}

static int add_path(struct input *in, const char *path, int depth, struct err *err) {
    if (!file_exists(path)) return err_set(err, ERR_IO, "%s: no such file or folder", path);
    if (!file_is_folder(path)) return add_file(in, path, err);
    if (depth == DEEPEST_FOLDER)
        return err_set(err, ERR_DATA,
                       "%s: folders nested deeper than %d levels; is there a loop of links?", path,
                       DEEPEST_FOLDER);
    char **names;
    size_t count;
    if (file_list(path, &names, &count, err) != 0) return -1;
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        char inner[4096];
        if (names[i][0] == '.') continue;
        result = file_join(inner, sizeof inner, path, names[i], err);
        if (result == 0) result = add_path(in, inner, depth + 1, err);
    }
    file_list_free(names, count);
    return result;
}

struct input *input_open(const struct input_options *options, struct err *err) {
    struct input *in = calloc(1, sizeof *in);
    if (!in) {
        err_set(err, ERR_MEMORY, "no memory for reading text");
        return NULL;
    }
    in->kind = options->kind;
    int result = 0;
    if (options->separator) {
        in->separator = strdup(options->separator);
        if (!in->separator || !*in->separator)
            result = err_set(err, ERR_USAGE, "the separator of documents is empty");
    }
    for (size_t i = 0; i < options->path_count && result == 0; i++)
        result = add_path(in, options->paths[i], 0, err);
    if (result == 0 && in->file_count == 0)
        result = err_set(err, ERR_DATA, "%s: no files in it to read text from",
                         options->path_count ? options->paths[0] : "input");
    if (result == 0) return in;
    input_close(in);
    return NULL;
}

void input_close(struct input *in) {
    if (!in) return;
    input_stream_close(in->stream);
    for (size_t i = 0; i < in->file_count; i++) free(in->files[i]);
    free(in->files);
    free(in->separator);
    text_free(&in->carry);
    free(in);
}

void input_block_free(struct input_block *block) {
    text_free(&block->text);
    free(block->records);
    *block = (struct input_block){.count = 0};
}

const char *input_name(const struct input *in, uint32_t file) {
    return in->files[file];
}

size_t input_files(const struct input *in) {
    return in->file_count;
}

uint64_t input_total_bytes(const struct input *in) {
    return in->total_bytes;
}

uint64_t input_done_bytes(const struct input *in) {
    return in->closed_bytes + (in->stream ? input_stream_raw_bytes(in->stream) : 0);
}

// ---- records -----------------------------------------------------------------------------------

static bool has_json_name(const char *path) {
    size_t length = strlen(path);
    static const char *const wrappers[] = {".gz", ".zst"}, *const ends[] = {".jsonl", ".ndjson",
                                                                            ".json"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(wrappers[i]);
        if (length > n && memcmp(path + length - n, wrappers[i], n) == 0) {
            length -= n;
            break;
        }
    }
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(ends[i]);
        if (length >= n && memcmp(path + length - n, ends[i], n) == 0) return true;
    }
    return false;
}

static int add_record(struct input *in, struct input_block *block, size_t begin, size_t end,
                      struct err *err) {
    if (block->count == block->capacity) {
        size_t capacity = 2 * block->capacity + 256;
        struct input_record *grown = realloc(block->records, capacity * sizeof *grown);
        if (!grown) return err_set(err, ERR_MEMORY, "no memory for the list of documents");
        block->records = grown;
        block->capacity = capacity;
    }
    block->records[block->count++] = (struct input_record){.offset = begin,
                                                           .size = end - begin,
                                                           .file = (uint32_t)in->file - 1,
                                                           .line = in->json ? in->line : 0,
                                                           .json = in->json};
    return 0;
}

struct cut { // where a record ends and the next begins
    size_t end, next;
};

// The first cut at or after `from`, false when the bytes at hand hold none.
static bool find_cut(const struct input *in, const struct text *t, size_t from, struct cut *cut) {
    const char *at;
    size_t left = t->size - from;
    if (in->json || (in->separator && strcmp(in->separator, INPUT_LINE) == 0)) {
        if ((at = memchr(t->data + from, '\n', left)) == NULL) return false;
        cut->end = (size_t)(at - t->data);
        cut->next = cut->end + 1;
        return true;
    }
    if (!in->separator) return false;
    if (strcmp(in->separator, INPUT_BLANK_LINE) == 0) {
        for (size_t i = from; (at = memchr(t->data + i, '\n', t->size - i)) != NULL; i++) {
            i = (size_t)(at - t->data);
            size_t second = i + 1 + (i + 1 < t->size && t->data[i + 1] == '\r');
            if (second < t->size && t->data[second] == '\n') {
                *cut = (struct cut){i, second + 1};
                return true;
            }
        }
        return false;
    }
    size_t length = strlen(in->separator);
    if ((at = memmem(t->data + from, left, in->separator, length)) == NULL) return false;
    cut->end = (size_t)(at - t->data);
    cut->next = cut->end + length;
    return true;
}

// Bytes at the end of the text that may be the beginning of a separator.
static size_t overlap(const struct input *in) {
    if (in->json || !in->separator) return 0;
    return strcmp(in->separator, INPUT_BLANK_LINE) == 0 ? 2 : strlen(in->separator) - 1;
}

static int end_record(struct input *in, struct input_block *block, size_t begin, size_t end,
                      struct err *err) {
    const char *data = block->text.data;
    bool lines = in->json || (in->separator && strcmp(in->separator, INPUT_LINE) == 0);
    if (lines) in->line++;
    if (lines && end > begin && data[end - 1] == '\r') end--;
    if (in->json) { // blank lines between JSON lines are nothing
        size_t i = begin;
        while (i < end && strchr(" \t\r", data[i])) i++;
        if (i == end) return 0;
    }
    if (in->separator && strcmp(in->separator, INPUT_BLANK_LINE) == 0) {
        while (begin < end && (data[begin] == '\n' || data[begin] == '\r')) begin++;
        while (end > begin && (data[end - 1] == '\n' || data[end - 1] == '\r')) end--;
        if (begin == end) return 0;
    }
    return add_record(in, block, begin, end, err);
}

static int open_next(struct input *in, struct err *err) {
    const char *path = in->files[in->file];
    in->stream = input_stream_open(path, err);
    if (!in->stream) return -1;
    in->file++;
    in->line = 0;
    in->json = in->kind == INPUT_JSONL || (in->kind == INPUT_BY_NAME && has_json_name(path));
    return 0;
}

static void close_current(struct input *in) {
    in->closed_bytes += input_stream_raw_bytes(in->stream);
    input_stream_close(in->stream);
    in->stream = NULL;
}

// Appends the next bytes of the file: their number, 0 at its end, -1.
static int64_t append(struct input *in, struct text *t, struct err *err) {
    char piece[1 << 16];
    int64_t got = input_stream_read(in->stream, piece, sizeof piece, err);
    if (got > 0 && text_put(t, piece, (size_t)got) != 0)
        return err_set(err, ERR_MEMORY,
                       "%s: no memory for a document of more than %zu bytes; cut it with "
                       "--split-documents",
                       in->files[in->file - 1], t->size);
    return got;
}

// What is left at the end of a file is a record too, unless a separator stood right in front of the
// end.
static int end_file(struct input *in, struct input_block *block, size_t begin, struct err *err) {
    bool whole = !in->json && !in->separator;
    int result = 0;
    if (whole || block->text.size > begin)
        result = end_record(in, block, begin, block->text.size, err);
    close_current(in);
    return result;
}

int input_read(struct input *in, struct input_block *block, size_t bytes, struct err *err) {
    block->count = 0;
    block->text.size = 0;
    if (in->carry.size && text_put(&block->text, in->carry.data, in->carry.size) != 0)
        return err_set(err, ERR_MEMORY, "no memory for a block of text");
    in->carry.size = 0;
    size_t begin = 0, scanned = 0; // of the open record; bytes without a cut
    while (block->count == 0 || begin < bytes) {
        if (!in->stream) {
            if (in->file == in->file_count) break;
            if (open_next(in, err) != 0) return -1;
            begin = scanned = block->text.size;
        }
        int64_t got = append(in, &block->text, err);
        if (got < 0) return -1;
        struct cut cut;
        while (find_cut(in, &block->text, scanned, &cut)) {
            if (end_record(in, block, begin, cut.end, err) != 0) return -1;
            begin = scanned = cut.next;
        }
        size_t keep = overlap(in);
        if (block->text.size > begin + keep) scanned = block->text.size - keep;
        if (got == 0) {
            if (end_file(in, block, begin, err) != 0) return -1;
            begin = scanned = block->text.size;
        }
    }
    size_t left = block->text.size - begin;
    if (in->stream && left && text_put(&in->carry, block->text.data + begin, left) != 0)
        return err_set(err, ERR_MEMORY, "no memory for a block of text");
    return block->count > 0;
}
