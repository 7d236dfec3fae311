// Several traces as one, see trace.h. A trace of a long run has millions of lines, so a file is
// read line by line, twice: once for the ends of its collectives, once to copy its spans.
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/numbers.h"
#include "base/text.h"
#include "observe/trace.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct end { // of a collective on one rank
    uint64_t key;
    double wall_seconds;
};

struct source {
    const char *path;
    struct file_map map;
    int rank, ranks;
    char host[256];
    double wall_at_0;     // by this rank's own clock
    double first_seconds; // earliest span, on its own timeline
    struct end *ends;     // ascending keys
    size_t end_count, end_capacity;
    uint64_t spans, dropped;
    double ahead_seconds;
    uint64_t shared;
    bool aligned;
};

// ---- reading

struct line {
    const char *text;
    size_t bytes;
    long number;
};

// The next line without its end; false behind the last.
static bool next_line(const struct file_map *map, size_t *at, struct line *line) {
    if (*at >= map->size) return false;
    const char *begin = (const char *)map->data + *at;
    const char *end = memchr(begin, '\n', map->size - *at);
    line->text = begin;
    line->bytes = end ? (size_t)(end - begin) : map->size - *at;
    line->number++;
    *at += line->bytes + 1;
    return true;
}

static int not_ours(const char *path, const struct line *line, struct err *err) {
    return err_set(err, ERR_DATA,
                   "%s: line %ld: not what weft writes as the trace of a rank (train.trace of a "
                   "run of several ranks, FILE.rankN)",
                   path, line->number);
}

struct event {
    json_t *tree;
    char kind; // 'X' a span, 'M' the name of a row
    const char *name, *category;
    int64_t row, index; // index -1: none
    double begin_us, length_us;
};

static int parse_event(const struct source *s, const struct line *line, struct event *e,
                       struct err *err) {
    size_t bytes = line->bytes;
    if (bytes > 0 && line->text[bytes - 1] == ',') bytes--;
    *e = (struct event){.index = -1};
    e->tree = json_parse(line->text, bytes, s->path, NULL);
    const char *phase = json_string_value(json_object_get(e->tree, "ph"));
    json_t *args = json_object_get(e->tree, "args"), *row = json_object_get(e->tree, "tid");
    json_t *begin = json_object_get(e->tree, "ts"), *length = json_object_get(e->tree, "dur");
    json_t *index = json_object_get(args, "index");
    e->name = json_string_value(json_object_get(e->tree, "name"));
    e->category = json_string_value(json_object_get(e->tree, "cat"));
    if (phase && strcmp(phase, "M") == 0) { // the name of a row
        e->kind = 'M';
        e->name = json_string_value(json_object_get(args, "name"));
    } else if (phase && strcmp(phase, "X") == 0 && e->category && json_is_number(begin) &&
               json_is_number(length)) {
        e->kind = 'X';
    }
    if (!e->kind || !e->name || !json_is_integer(row)) {
        json_decref(e->tree);
        return not_ours(s->path, line, err);
    }
    e->row = json_integer_value(row);
    e->begin_us = json_number_value(begin);
    e->length_us = json_number_value(length);
    if (json_is_integer(index)) e->index = json_integer_value(index);
    return 0;
}

// Kinds that no rank leaves before the last has come.
static bool ends_together(const struct event *e) {
    static const char *const kinds[] = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                        "barrier"};
    if (e->kind != 'X' || e->index < 0 || strcmp(e->category, record_kind_name(RECORD_COMM)) != 0)
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(e->name, kinds[i], strlen(kinds[i])) == 0) return true;
    return false;
}

static int add_end(struct source *s, const struct event *e, struct err *err) {
    if (s->end_count == s->end_capacity) {
        size_t capacity = s->end_capacity ? 2 * s->end_capacity : 1024;
        struct end *ends = realloc(s->ends, sizeof *ends * capacity);
        if (!ends) return err_set(err, ERR_MEMORY, "%s: no memory for its collectives", s->path);
        s->ends = ends;
        s->end_capacity = capacity;
    }
    uint64_t parts[2] = {hash_string(e->name), (uint64_t)e->index};
    s->ends[s->end_count++] =
        (struct end){hash_bytes(parts, sizeof parts), (e->begin_us + e->length_us) / 1e6};
    return 0;
}

static int read_end_of_file(struct source *s, const struct line *line, struct err *err) {
    static const char begin[] = "],\"otherData\":";
    const size_t skip = sizeof begin - 1;
    if (line->bytes < skip + 1 || memcmp(line->text, begin, skip) != 0)
        return not_ours(s->path, line, err);
    json_t *data = json_parse(line->text + skip, line->bytes - skip - 1, s->path, NULL);
    json_t *rank = json_object_get(data, "rank"), *ranks = json_object_get(data, "ranks");
    json_t *wall = json_object_get(data, "wall_seconds_at_0");
    const char *host = json_string_value(json_object_get(data, "host"));
    int result = 0;
    if (json_is_integer(rank) && json_is_integer(ranks) && json_is_real(wall) && host) {
        s->rank = (int)json_integer_value(rank);
        s->ranks = (int)json_integer_value(ranks);
        s->wall_at_0 = json_real_value(wall);
        s->dropped = (uint64_t)json_integer_value(json_object_get(data, "spans_dropped"));
        snprintf(s->host, sizeof s->host, "%s", host);
    } else {
        result = err_set(err, ERR_DATA,
                         "%s: does not say which rank wrote it; traces of single processes cannot "
                         "be merged",
                         s->path);
    }
    json_decref(data);
    return result;
}

static int compare_ends(const void *a, const void *b) {
    const struct end *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

static int read_source(struct source *s, struct err *err) {
    static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    struct line line = {0};
    size_t at = 0;
    struct event event;
    if (file_map_open(&s->map, s->path, err) != 0) return -1;
    if (!next_line(&s->map, &at, &line) || line.bytes != sizeof head - 1 ||
        memcmp(line.text, head, line.bytes) != 0) {
        line.number = 1;
        return not_ours(s->path, &line, err);
    }
    bool ended = false;
    while (!ended && next_line(&s->map, &at, &line)) {
        if (line.bytes > 0 && line.text[0] == ']') {
            if (read_end_of_file(s, &line, err) != 0) return -1;
            ended = true;
            continue;
        }
        if (parse_event(s, &line, &event, err) != 0) return -1;
        if (event.kind == 'X' && s->spans++ == 0) s->first_seconds = event.begin_us / 1e6;
        if (event.kind == 'X' && event.begin_us / 1e6 < s->first_seconds)
            s->first_seconds = event.begin_us / 1e6;
        int result = ends_together(&event) ? add_end(s, &event, err) : 0;
        json_decref(event.tree);
        if (result != 0) return -1;
    }
    if (!ended)
        return err_set(err, ERR_DATA, "%s: ends in the middle; was the run killed while it wrote?",
                       s->path);
    for (size_t i = 0; i < s->end_count; i++) s->ends[i].wall_seconds += s->wall_at_0;
    if (s->end_count > 0) qsort(s->ends, s->end_count, sizeof *s->ends, compare_ends);
    return 0;
}

// ---- aligning

// Adds how far `s` is ahead of the aligned `other` by each collective that both took part in.
static size_t add_differences(const struct source *s, const struct source *other, double *out) {
    size_t count = 0, i = 0, j = 0;
    while (i < s->end_count && j < other->end_count) {
        if (s->ends[i].key == other->ends[j].key) {
            double there = other->ends[j++].wall_seconds - other->ahead_seconds;
            out[count++] = s->ends[i++].wall_seconds - there;
        } else if (s->ends[i].key < other->ends[j].key) {
            i++;
        } else {
            j++;
        }
    }
    return count;
}

// Against every rank that stands already; the median is not moved by the few ends that a rank saw
// late because it was not scheduled.
static int align_one(struct source *s, const struct source *all, int count, struct err *err) {
    size_t most = 0, found = 0;
    for (int i = 0; i < count; i++)
        if (all[i].aligned)
            most += all[i].end_count < s->end_count ? all[i].end_count : s->end_count;
    if (most == 0) return 0;
    double *differences = malloc(sizeof *differences * most);
    if (!differences) return err_set(err, ERR_MEMORY, "%s: no memory to align it", s->path);
    for (int i = 0; i < count; i++)
        if (all[i].aligned) found += add_differences(s, &all[i], differences + found);
    if (found > 0) {
        s->ahead_seconds = numbers_median(differences, found);
        s->shared = found;
        s->aligned = true;
    }
    free(differences);
    return 0;
}

// A rank may share collectives only with ranks that are aligned later, hence the rounds.
static int align(struct source *all, int count, struct err *err) {
    all[0].aligned = true;
    for (bool progress = true; progress;) {
        progress = false;
        for (int i = 0; i < count; i++) {
            if (all[i].aligned) continue;
            if (align_one(&all[i], all, count, err) != 0) return -1;
            progress = progress || all[i].aligned;
        }
    }
    return 0;
}

// ---- writing

static int put_text(struct text *out, const char *value) { // as a JSON string
    json_t *string = json_string(value);
    char *text = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    int failed = text ? text_puts(out, text) : -1;
    free(text);
    json_decref(string);
    return failed;
}

static int put_process(struct text *out, const struct source *s, bool first) {
    char name[300];
    snprintf(name, sizeof name, "rank %d (%s)", s->rank, s->host);
    int failed = text_printf(out,
                             "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{"
                             "\"name\":",
                             first ? "" : ",", s->rank);
    failed |= put_text(out, name);
    return failed | text_printf(out,
                                "}},\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,"
                                "\"args\":{\"sort_index\":%d}}",
                                s->rank, s->rank);
}

static int put_event(struct text *out, const struct source *s, const struct event *e,
                     double shift_us) {
    int failed = text_puts(out, ",\n{\"name\":");
    if (e->kind == 'M') {
        failed |= text_printf(
            out, "\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%" PRId64 ",\"args\":{\"name\":",
            s->rank, e->row);
        return failed | put_text(out, e->name) | text_puts(out, "}}");
    }
    failed |= put_text(out, e->name) | text_puts(out, ",\"cat\":") | put_text(out, e->category);
    failed |=
        text_printf(out, ",\"ph\":\"X\",\"pid\":%d,\"tid\":%" PRId64 ",\"ts\":%.3f,\"dur\":%.3f",
                    s->rank, e->row, e->begin_us + shift_us, e->length_us);
    if (e->index >= 0) failed |= text_printf(out, ",\"args\":{\"index\":%" PRId64 "}", e->index);
    return failed | text_puts(out, "}");
}

static int copy_source(struct file_writer *file, struct text *out, const struct source *s,
                       double origin, bool first, struct err *err) {
    struct line line = {0};
    struct event event;
    size_t at = 0;
    double shift_us = (s->wall_at_0 - s->ahead_seconds - origin) * 1e6;
    int failed = put_process(out, s, first);
    next_line(&s->map, &at, &line); // the head
    while (!failed && next_line(&s->map, &at, &line)) {
        if (line.bytes > 0 && line.text[0] == ']') break;
        if (parse_event(s, &line, &event, err) != 0) return -1;
        failed = put_event(out, s, &event, shift_us);
        json_decref(event.tree);
        if (out->size > 1 << 16) {
            if (file_writer_put(file, out->data, out->size, err) != 0) return -1;
            out->size = 0;
        }
    }
    return failed ? err_set(err, ERR_MEMORY, "%s: no memory to write the trace", file->path) : 0;
}

static int write_all(const char *path, const struct source *all, int count, struct err *err) {
    struct file_writer file;
    struct text out = {0};
    double origin = 0;
    uint64_t dropped = 0;
    bool found = false;
    for (int i = 0; i < count; i++) {
        double first = all[i].wall_at_0 - all[i].ahead_seconds + all[i].first_seconds;
        dropped += all[i].dropped;
        if (all[i].spans == 0 || (found && first >= origin)) continue;
        origin = first;
        found = true;
    }
    if (file_writer_open(&file, path, err) != 0) return -1;
    int result = text_puts(&out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int i = 0; i < count && result == 0; i++)
        result = copy_source(&file, &out, &all[i], origin, i == 0, err);
    if (result == 0)
        result = text_printf(&out, "\n],\"otherData\":{\"spans_dropped\":%" PRIu64 "}}\n", dropped);
    if (result == 0) result = file_writer_put(&file, out.data, out.size, err);
    text_free(&out);
    if (result == 0) return file_writer_close(&file, false, err);
    file_writer_abandon(&file);
    return err_set(err, ERR_MEMORY, "%s: no memory to write the trace", path);
}

// ---- all of it

static int compare_ranks(const void *a, const void *b) {
    const struct source *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int check_sources(const struct source *all, int count, struct err *err) {
    for (int i = 1; i < count; i++) {
        if (all[i].rank == all[i - 1].rank)
            return err_set(err, ERR_DATA, "%s and %s are both of rank %d", all[i - 1].path,
                           all[i].path, all[i].rank);
        if (all[i].ranks != all[0].ranks)
            return err_set(err, ERR_DATA, "%s is of a run of %d ranks, %s of %d: other runs",
                           all[0].path, all[0].ranks, all[i].path, all[i].ranks);
    }
    return 0;
}

static int merge(const char *out, struct source *all, int count, struct err *err) {
    for (int i = 0; i < count; i++)
        if (read_source(&all[i], err) != 0) return -1;
    qsort(all, (size_t)count, sizeof *all, compare_ranks);
    if (check_sources(all, count, err) != 0 || align(all, count, err) != 0) return -1;
    return write_all(out, all, count, err);
}

int trace_merge(const char *out, const char *const *paths, int count, struct trace_alignment *found,
                struct err *err) {
    if (count < 1) return err_set(err, ERR_USAGE, "no trace to merge");
    for (int i = 0; i < count; i++)
        if (strcmp(out, paths[i]) == 0)
            return err_set(err, ERR_USAGE, "%s: is an input; the merged trace needs another name",
                           out);
    struct source *all = calloc((size_t)count, sizeof *all);
    if (!all) return err_set(err, ERR_MEMORY, "no memory for %d traces", count);
    for (int i = 0; i < count; i++) all[i].path = paths[i];
    int result = merge(out, all, count, err);
    for (int i = 0; i < count; i++) {
        struct source *s = &all[i];
        if (result == 0) {
            found[i] = (struct trace_alignment){.rank = s->rank,
                                                .ahead_seconds = s->ahead_seconds,
                                                .shared = s->shared,
                                                .spans = s->spans};
            snprintf(found[i].host, sizeof found[i].host, "%s", s->host);
        }
        file_map_close(&s->map);
        free(s->ends);
    }
    free(all);
    return result;
}
