// See launch_report.h.
#include "operate/launch_report.h"
#include "base/hash.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_MARK = 0x1e, MOST_SAID_BYTES = 16 << 10 };

// ---- the keeper's side

static int put_piece(struct text *records, int rank, char kind, const char *bytes, size_t size) {
    if (text_printf(records, "%c%d%c", RECORD_MARK, rank, kind) != 0) return -1;
    for (size_t i = 0; i < size; i++) // a mark inside a line would open a record
        if (text_put(records, bytes[i] == RECORD_MARK ? "?" : bytes + i, 1) != 0) return -1;
    return text_puts(records, "\n");
}

static int put_line(struct text *records, int rank, const char *bytes, size_t size, char kind) {
    for (; size > REPORT_PIECE_BYTES; bytes += REPORT_PIECE_BYTES, size -= REPORT_PIECE_BYTES)
        if (put_piece(records, rank, '+', bytes, REPORT_PIECE_BYTES) != 0) return -1;
    return put_piece(records, rank, kind, bytes, size);
}

int report_lines(struct text *records, struct text *rest, int rank, const char *bytes, size_t size,
                 bool flush) {
    if (text_put(rest, bytes, size) != 0) return -1;
    size_t begin = 0;
    for (char *end; begin < rest->size &&
                    (end = memchr(rest->data + begin, '\n', rest->size - begin)) != NULL;) {
        size_t length = (size_t)(end - rest->data) - begin;
        if (put_line(records, rank, rest->data + begin, length, ':') != 0) return -1;
        begin += length + 1;
    }
    if (flush && begin < rest->size) {
        if (put_line(records, rank, rest->data + begin, rest->size - begin, '+') != 0) return -1;
        begin = rest->size;
    }
    if (begin > 0) memmove(rest->data, rest->data + begin, rest->size - begin);
    rest->size -= begin;
    return 0;
}

int report_end(struct text *records, int rank, int status, int signal, const char *host,
               double time, int64_t step) {
    return text_printf(records, "%c%d!%c %d %s %.3f %lld\n", RECORD_MARK, rank, signal ? 'S' : 'E',
                       signal ? signal : status, host, time, (long long)step);
}

// ---- the launcher's side

int report_open(struct report_reader *reader, int ranks, bool verbose, struct err *err) {
    *reader = (struct report_reader){.ranks = ranks, .first_rank = -1, .verbose = verbose};
    reader->rank = calloc((size_t)ranks, sizeof *reader->rank);
    return reader->rank ? 0 : err_set(err, ERR_MEMORY, "no memory for %d ranks", ranks);
}

void report_close(struct report_reader *reader) {
    for (int i = 0; reader->rank && i < reader->ranks; i++) free(reader->rank[i].message);
    free(reader->rank);
    text_free(&reader->line);
    text_free(&reader->said);
    *reader = (struct report_reader){0};
}

// Whether another rank said the same a short while ago; if not, it counts as shown.
static bool was_said(struct report_reader *r, int rank, const char *line) {
    uint64_t digest = hash_string(line);
    uint64_t count = r->shown < REPORT_RECENT ? r->shown : REPORT_RECENT;
    for (uint64_t i = 0; i < count; i++)
        if (r->recent[i] == digest && r->recent_rank[i] != rank) return true;
    r->recent[r->shown % REPORT_RECENT] = digest;
    r->recent_rank[r->shown++ % REPORT_RECENT] = rank;
    return false;
}

static bool is_known(struct report_known *known, const char *line) {
    uint64_t digest = hash_string(line);
    for (int i = 0; i < known->count; i++)
        if (known->digest[i] == digest) return !known->learning;
    if (known->learning && known->count < REPORT_KNOWN) known->digest[known->count++] = digest;
    return false;
}

// What the library of messages says when a peer is gone; the keeper of the peer has said it better.
static bool is_noise(const char *line) {
    int host = 0, words = 0;
    long got, wanted;
    sscanf(line, "[%*[^]]]%n", &host);
    return host > 0 &&
           sscanf(line + host, " Read %ld, expected %ld, errno =%n", &got, &wanted, &words) == 2 &&
           words > 0;
}

static int take_own(struct report_reader *r, const char *line, struct text *show);

static void keep_message(struct report_rank *rank, const char *line) {
    enum { MOST_BYTES = 600 };
    if (strncmp(line, "weft: ", 6) != 0) return;
    free(rank->message);
    rank->message = strndup(line + 6, MOST_BYTES);
}

const char *report_message(const struct report_reader *r, int rank) {
    if (rank >= 0 && r->rank[rank].message) return r->rank[rank].message;
    for (int i = 0; i < r->ranks; i++)
        if (r->rank[i].message) return r->rank[i].message;
    return "";
}

static int show_line(struct report_reader *r, int rank, const char *line, bool whole,
                     struct text *show) {
    bool begins = !r->open_line;
    if (begins && !line[0] && rank > 0) return 0;
    if (whole && begins) keep_message(&r->rank[rank], line);
    if (whole && begins && is_noise(line)) return take_own(r, line, show);
    if (whole && begins && rank == 0 && r->known && is_known(r->known, line)) return 0;
    if (whole && begins && line[0] && was_said(r, rank, line)) return 0;
    r->open_line = !whole;
    if (begins && rank > 0 && text_printf(show, "rank %d: ", rank) != 0) return -1;
    return text_printf(show, "%s%s", line, whole ? "\n" : "");
}

static void take_end(struct report_reader *r, int rank, const char *text) {
    char kind, host[sizeof r->rank->host];
    int number;
    double time = 0;
    long long step = -1;
    if (sscanf(text, "%c %d %63s %lf %lld", &kind, &number, host, &time, &step) < 3) return;
    struct report_rank *end = &r->rank[rank];
    char *message = end->message;
    *end = (struct report_rank){.message = message,
                                .ended = true,
                                .time = time,
                                .step = step,
                                .status = kind == 'E' ? number : 0,
                                .signal = kind == 'S' ? number : 0};
    memcpy(end->host, host, sizeof host);
    if (!end->status && !end->signal) return;
    r->failed++;
    if (r->first_rank < 0) r->first_rank = rank;
}

// What another rank said, as comm passes it on: "rank 3 (node4) reports: ...".
static bool is_repeated(const char *message) {
    return strstr(message, ") reports: ") != NULL;
}

// 0: it ended well; 1: it passes on what another said; 2: it says nothing; 3: it says what
// happened; 4: so does its end.
static int weight_of(const struct report_rank *rank) {
    if (!rank->ended || (!rank->status && !rank->signal)) return 0;
    if (rank->signal) return 4;
    if (!rank->message) return 2;
    return is_repeated(rank->message) ? 1 : 3;
}

int report_culprit(const struct report_reader *r, bool *sure) {
    int found = r->first_rank;
    *sure = false;
    if (found < 0) return -1;
    if (weight_of(&r->rank[found]) < 3)
        for (int i = 0; i < r->ranks; i++)
            if (weight_of(&r->rank[i]) > weight_of(&r->rank[found])) found = i;
    // One that ended alone, and in silence, did so by itself.
    *sure = weight_of(&r->rank[found]) > (r->failed == 1 ? 1 : 2);
    return found;
}

static int take_record(struct report_reader *r, const char *record, struct text *show) {
    char *at;
    long rank = strtol(record, &at, 10);
    if (at == record || rank < 0 || rank >= r->ranks || !strchr(":+!", *at)) return 0;
    if (*at == '!') {
        take_end(r, (int)rank, at + 1);
        return 0;
    }
    return show_line(r, (int)rank, at + 1, *at == ':', show);
}

// mpirun frames its pages with lines of signs; those say nothing.
static bool says_something(const char *line) {
    for (; *line; line++)
        if (isalnum((unsigned char)*line)) return true;
    return false;
}

static int take_own(struct report_reader *r, const char *line, struct text *show) {
    if (r->verbose) return text_printf(show, "%s\n", line);
    if (!says_something(line) || r->said.size > MOST_SAID_BYTES) return 0;
    return text_printf(&r->said, "%s\n", line);
}

// A line of the stream: mpirun's own text up to the first mark, then records.
static int take_line(struct report_reader *r, char *line, struct text *show) {
    char *mark = strchr(line, RECORD_MARK);
    if (mark != line) {
        if (mark) *mark = 0;
        if (take_own(r, line, show) != 0) return -1;
    }
    while (mark) {
        char *record = mark + 1;
        mark = strchr(record, RECORD_MARK);
        if (mark) *mark = 0;
        if (take_record(r, record, show) != 0) return -1;
    }
    return 0;
}

int report_put(struct report_reader *r, const char *bytes, size_t size, struct text *show) {
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == 0) continue;
        if (bytes[i] != '\n') {
            if (text_put(&r->line, bytes + i, 1) != 0) return -1;
            continue;
        }
        if (r->line.size > 0 && take_line(r, r->line.data, show) != 0) return -1;
        r->line.size = 0;
        if (r->line.data) r->line.data[0] = 0;
    }
    return 0;
}

// "0-3,7": the ranks that ended as `rank` did.
static void list_alike(const struct report_reader *r, int rank, struct text *out) {
    const struct report_rank *like = &r->rank[rank];
    for (int i = 0; i < r->ranks; i++) {
        int last = i;
        while (last < r->ranks && r->rank[last].ended && r->rank[last].status == like->status &&
               r->rank[last].signal == like->signal)
            last++;
        if (last == i) continue;
        text_printf(out, "%s%d", out->size ? "," : "", i);
        if (last - 1 > i) text_printf(out, "-%d", last - 1);
        i = last;
    }
}

void report_failed(const struct report_reader *r, int rank, struct text *out) {
    const struct report_rank *end = &r->rank[rank];
    struct text alike = {0};
    list_alike(r, rank, &alike);
    if (alike.data && strpbrk(alike.data, "-,"))
        text_printf(out, "ranks %s ended", alike.data);
    else
        text_printf(out, "rank %d on %s ended", rank, end->host);
    if (end->signal) {
        const char *name = strsignal(end->signal);
        text_printf(out, " by signal %d (%c%s)", end->signal, tolower((unsigned char)name[0]),
                    name[0] ? name + 1 : "");
    } else {
        text_printf(out, " with status %d", end->status);
    }
    text_free(&alike);
}

static void say_first(const struct report_reader *r, struct text *show) {
    text_puts(show, "weft: ");
    report_failed(r, r->first_rank, show);
    text_puts(show, r->failed < r->ranks ? "; the others were stopped\n" : "\n");
}

// What mpirun had to say comes as a page; its first sentences, as one line.
static void say_starter(const struct report_reader *r, int status, struct text *show) {
    enum { MOST_BYTES = 300 };
    text_printf(show, "weft: mpirun ended with status %d before a rank said why", status);
    size_t count = 0;
    bool space = false;
    for (const char *p = r->said.data; p && *p && count < MOST_BYTES; p++) {
        if (isspace((unsigned char)*p)) {
            space = true;
            continue;
        }
        if (count == 0) text_puts(show, ": ");
        if (space && count > 0) text_puts(show, " ");
        space = false;
        text_put(show, p, 1);
        count++;
    }
    text_puts(show, count == MOST_BYTES ? " ... (--verbose shows all that it says)\n" : "\n");
}

int report_finish(struct report_reader *r, int starter_status, struct text *show) {
    enum { INTERRUPTED = 130 };
    if (r->line.size > 0) take_line(r, r->line.data, show);
    if (r->open_line) text_puts(show, "\n");
    if (r->first_rank >= 0) {
        const struct report_rank *first = &r->rank[r->first_rank];
        int status = first->signal ? 128 + first->signal : first->status;
        // Stopped by the user: each rank has said so, and there is no fault to name.
        if (status != INTERRUPTED || first->signal) say_first(r, show);
        return status;
    }
    if (starter_status != 0) say_starter(r, starter_status, show);
    return starter_status;
}
