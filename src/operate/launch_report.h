// What the ranks of `weft launch` say, and how they end.
//
// mpirun mixes the errors of all ranks with its own, says how a rank ended in a page of text that
// differs from version to version, and (MPICH) returns a mixture of the ranks' statuses. So each
// rank runs under a keeper, a process of this program that mpirun starts in its place: it sends
// every line of the rank's standard error as a record with the rank's number, and at the end one
// record that says how the rank ended. `weft launch` reads the records; what is no record comes
// from mpirun itself.
//
//   RS 3:text       a line of rank 3          RS is the byte 0x1e, each record ends with a newline
//   RS 3+text       a piece of a line
//   RS 3!E 2 host T N   rank 3 left with status 2, at T (Unix seconds), in step N (-1: none)
//   RS 3!S 9 host T N   rank 3 was ended by signal 9
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>

enum { REPORT_PIECE_BYTES = 1000 }; // of a line in one record: short writes to a pipe stay whole

// Records for `bytes` of a rank's output. What stands behind the last newline is kept in `rest`
// until more comes; `flush` sends it as it is. -1 when memory is short.
int report_lines(struct text *records, struct text *rest, int rank, const char *bytes, size_t size,
                 bool flush);
// `signal` 0: left with `status`.
// `time`: wall clock; `step`: that it was in, -1: none.
int report_end(struct text *records, int rank, int status, int signal, const char *host,
               double time, int64_t step);

// Lines that rank 0 says whenever it starts: told at the first start, left out at later ones.
enum { REPORT_KNOWN = 128 };
struct report_known {
    uint64_t digest[REPORT_KNOWN];
    int count;
    bool learning;
};

enum { REPORT_RECENT = 64 };
struct report_rank {
    bool ended;
    int status, signal;
    double time;   // when, by the clock of its host; 0: not said
    int64_t step;  // that it was in; -1: none, or not said
    char host[64]; // where
    char *message; // its last error ("weft: ...", without that); NULL: none
};
struct report_reader {
    int ranks;
    struct report_rank *rank;       // [ranks]
    int first_rank;                 // that failed; -1: none
    int failed;                     // ranks that ended with a fault
    struct text line;               // not complete yet
    bool verbose;                   // show what mpirun says as it comes
    struct text said;               // what mpirun said, its first lines
    uint64_t recent[REPORT_RECENT]; // digests of lines that were shown, and who said them
    int recent_rank[REPORT_RECENT];
    uint64_t shown;
    struct report_known *known; // NULL: all is shown
    bool open_line;             // the last thing shown was a piece of a line
};
int report_open(struct report_reader *reader, int ranks, bool verbose, struct err *err);
void report_close(struct report_reader *reader);

// Takes what came and adds to `show` what the user should see: lines of rank 0 as they are, those
// of others with "rank N: " in front, a line that several ranks say once.
int report_put(struct report_reader *reader, const char *bytes, size_t size, struct text *show);

// What rank `rank` said of its failure, or another one where it was silent; "" where all were.
const char *report_message(const struct report_reader *reader, int rank);
// The rank whose failure the others followed: one that was ended by a signal, or has a message of
// its own; that of the first record where it has one, or nobody has. Ranks that were told of a
// failure end with its status, too, in silence or with "rank 3 (node4) reports: ...", and may be
// seen to end first. *sure: false where all that ended only followed. -1: none failed.
int report_culprit(const struct report_reader *reader, bool *sure);
// "rank 3 on node2 ended by signal 9 (killed)", or "ranks 0-3 ended with status 2".
void report_failed(const struct report_reader *reader, int rank, struct text *out);

// At the end: one line about what went wrong, if anything did, behind `show`. Returns the status
// to leave with: that of the rank that failed first (128 + signal), or mpirun's own.
int report_finish(struct report_reader *reader, int starter_status, struct text *show);
