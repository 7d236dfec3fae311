// Messages between the ranks of a run. A rank holds one `struct comm`; the compute thread posts
// operations and waits for their events; a thread of its own drives them, so that what was started
// proceeds while the rank computes. A wait gives the core away.
//
// Streams. A stream belongs to a group of ranks (mostly one mesh axis) and performs its operations
// in the order in which they were posted, one after the other; different streams proceed side by
// side. All members post the same operations in the same order. Sends and receives between two
// ranks need no stream: they are matched by tag and may be posted in any order.
//
// Bits. A reduction is an exchange of shards (every rank sends part j to rank j), a sum over the
// contributions in group order by a function of the caller, and a gather where all want the
// result. The order never depends on size, arrival or algorithm.
//
// Errors. Operations return no status. The first failure (a peer that is gone or does not arrive
// within the watchdog time, a broken transport) is kept; every later wait returns at once, and
// comm_check tells: which operation, number in its stream, group, and which rank has not arrived.
//
// Nothing is allocated after opening: a stream holds at most COMM_STREAM_DEPTH operations that have
// not been waited for; posting more waits for the oldest.
#pragma once
#include "base/dtype.h"
#include "base/error.h"
#include "base/record.h"
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    COMM_STREAM_DEPTH = 64,
    COMM_POINT_DEPTH = 1024,
    COMM_GROUP_NAME_BYTES = 24,
    COMM_TAG_MOST = 1 << 20 // of comm_send and comm_receive
};

struct comm;
struct comm_stream;

enum comm_kind { // for counts and spans
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE,
    COMM_ALL_TO_ALL,
    COMM_BROADCAST,
    COMM_BARRIER,
    COMM_SEND,
    COMM_RECEIVE,
    COMM_KIND_COUNT
};
const char *comm_kind_name(enum comm_kind kind); // "all_gather"

struct comm_options {
    double watchdog_seconds; // longest time that an operation may be in flight; 0: 600
    // For studies on one machine: messages to ranks of another "host" (rank / ranks_per_host) are
    // held back as a link of this latency and rate would. 0: no such link.
    double link_latency_seconds, link_bytes_per_second;
    int ranks_per_host;
    uint64_t trace_spans; // room in the communication thread's lane
    int chunk_bytes;      // longest single message of the transport; 0: 1 GiB, with MPI 16 MiB
    // How many ranks the launcher's environment speaks of; 0 or 1: none. comm_open_mpi refuses when
    // it then finds itself alone (N programs of one rank each, where one of N was wanted).
    int expected_ranks;
    // For debugging: compares the orders in which ranks post operations of streams, and fails the
    // world with both operations named where they differ, instead of letting them wait.
    bool check_order;
    // Every message carries a checksum (XXH3) behind it; one that does not fit fails the world with
    // both ranks, the operation and the byte count in the message (ERR_RETRY). All ranks alike.
    // Lengths and counts are those of the payload.
    bool checksums;
};

// ---- opening: one of the three transports
int comm_open_self(struct comm **out, const struct comm_options *options, struct err *err);
// All ranks of MPI_COMM_WORLD. Fails with a message when this program was built without MPI, or
// when options->expected_ranks says more than one rank and MPI sees one. All calls of MPI are made
// by the communication thread. The environment is the caller's matter: Open MPI reads
// OMPI_MCA_mpi_yield_when_idle=1 (its own waits, at start and end only, give the core away) before
// it is opened.
int comm_open_mpi(struct comm **out, const struct comm_options *options, struct err *err);
// `count` ranks as threads of this process: fills ends[0..count). Each end belongs to one thread.
int comm_open_threads(struct comm **ends, int count, const struct comm_options *options,
                      struct err *err);
// Waits for what is in flight unless something failed; streams are closed before. NULL is allowed.
// With MPI it waits for all ranks and finalises; after a failure it does neither, since that could
// hang: then _exit with a status other than 0 has to end the process (better comm_abort instead of
// comm_close), and the buffers of unfinished operations must stay until then.
void comm_close(struct comm *comm);
// With MPI: ends all ranks of the world with this exit status after 0.3 s, in which other ranks can
// say what they know, and does not return. Else returns at once. For the end of a run that has
// failed, after its message and instead of comm_close.
void comm_abort(struct comm *comm, int status);
bool comm_built_with_mpi(void);
const char *comm_library(void); // "Open MPI 4.1.4", "none"

int comm_rank(const struct comm *comm);
int comm_size(const struct comm *comm);
const char *comm_host(const struct comm *comm, int rank); // host name of a rank
int comm_check(struct comm *comm, struct err *err);       // 0, or -1 with the first failure
// Whether that failure came as another rank's message: that rank says it itself.
bool comm_failed_elsewhere(const struct comm *comm);
// Long work of this rank alone ("builds the index of shards"), for which others may have to wait
// longer than the watchdog allows: while their watchdogs hear of it they wait on, and both sides
// log it every 10 s. NULL: it is over.
void comm_busy(struct comm *comm, const char *what);
// While true this rank's part of what it said last is done, and it only waits for the others': it
// is not told as busy. The next comm_busy ends that.
void comm_busy_rests(struct comm *comm, bool rests);
// Marks the world as failed with this message (kind and text of `why`), so that peers end too.
void comm_fail(struct comm *comm, const struct err *why);

// ---- streams. `members`: world ranks in group order, this rank among them. Groups that differ
// must differ in name, or in members.
struct comm_stream *comm_stream_open(struct comm *comm, const char *name, const int *members,
                                     int count, struct err *err);
void comm_stream_close(struct comm_stream *stream); // NULL is allowed
struct comm *comm_stream_comm(const struct comm_stream *stream);
int comm_stream_size(const struct comm_stream *stream);
int comm_stream_index(const struct comm_stream *stream); // of this rank in the group
// Whose waiting the blocking sums of a few values below are, see comm_wait. NULL, as at first: of
// nobody.
void comm_stream_lane(struct comm_stream *stream, struct record_lane *lane);

struct comm_event { // a posted operation; {0}: nothing to wait for
    struct comm *comm;
    void *operation;
    uint64_t number;
};
// The caller's lane gets the time as RECORD_COMM_WAIT. Spans of both lanes are named by kind,
// stream and lowest rank of the group ("all_gather dp@0"), with the operation's number in its
// stream as argument; those between two ranks "send" and "receive".
void comm_wait(struct comm_event event, struct record_lane *lane);
bool comm_done(struct comm_event event); // without waiting

// Adds contributions: parts[0..count) in group order, each `elements` long, into `out`, which may
// be parts[own]. Runs on the communication thread (in a group of one, in the posting call), for
// consecutive pieces of the whole: element i of `out` depends on elements i of the parts alone.
typedef void comm_sum(void *context, const void *const *parts, int count, int64_t elements,
                      void *out);
struct comm_reduction {
    comm_sum *sum;
    void *context;
    uint32_t wire_bytes, out_bytes; // of an element, as sent and as added up
};
// Ready-made: FP32 or BF16 contributions added in FP32 in group order; result of type `out`.
struct comm_reduction comm_reduction_plain(enum dtype wire, enum dtype out);
// What they are made of: elements [at, at + count) of a contribution become `sum`, or are added.
void comm_add_part(enum dtype wire, const void *part, int64_t at, int count, float *sum,
                   bool store);

// all[i] = own of member i; `own` may be its place in `all`.
struct comm_event comm_all_gather(struct comm_stream *s, const void *own, void *all,
                                  uint64_t bytes_each);
// `parts` holds size x elements_each elements; `out` gets the sum of everybody's part number
// index. `scratch`: comm_reduce_scatter_scratch bytes. With size 1 the sum function still runs.
struct comm_event comm_reduce_scatter(struct comm_stream *s, const void *parts, void *scratch,
                                      void *out, int64_t elements_each,
                                      const struct comm_reduction *reduction);
uint64_t comm_reduce_scatter_scratch(const struct comm_stream *s, int64_t elements_each,
                                     const struct comm_reduction *reduction);
// In place, any element count: exchange, sum, gather. wire_bytes must equal out_bytes.
struct comm_event comm_all_reduce(struct comm_stream *s, void *data, void *scratch,
                                  int64_t elements, const struct comm_reduction *reduction);
// An all-reduce of at most so many bytes may be an exchange of the whole: its scratch is then that
// of size - 1 wholes, else less than one.
enum { COMM_WHOLE_BYTES = 1 << 14 };
uint64_t comm_all_reduce_scratch(const struct comm_stream *s, int64_t elements,
                                 const struct comm_reduction *reduction);
// bytes[i] to and from member i; the pieces lie at the given offsets of `from` and `to`. The four
// arrays must stay until the event is done.
struct comm_event comm_all_to_all(struct comm_stream *s, const void *from,
                                  const uint64_t *from_offset, const uint64_t *from_bytes, void *to,
                                  const uint64_t *to_offset, const uint64_t *to_bytes);
struct comm_event comm_broadcast(struct comm_stream *s, int root, void *data, uint64_t bytes);
struct comm_event comm_barrier(struct comm_stream *s);
// Blocking conveniences for small things: exact integer sums, the largest, and the sum of doubles
// in group order.
void comm_sum_integers(struct comm_stream *s, int64_t *values, int count);
void comm_max_integers(struct comm_stream *s, int64_t *values, int count);
void comm_sum_doubles(struct comm_stream *s, double *values, int count);

// ---- between two ranks (world ranks); tag 0 .. 2^20. A message to oneself is allowed.
struct comm_event comm_send(struct comm *comm, int to, int tag, const void *data, uint64_t bytes);
struct comm_event comm_receive(struct comm *comm, int from, int tag, void *data, uint64_t bytes);

// ---- what happens now; may be called by any thread at any time
enum {
    COMM_STATUS_MEMBERS = 64,
    COMM_STATUS_STREAMS = 64,
    COMM_JOURNAL_ENTRIES = 64,
    COMM_MARK_BYTES = 32,
    COMM_BUSY_BYTES = 80
};
struct comm_place {                     // an operation
    char stream[COMM_GROUP_NAME_BYTES]; // "" for sends and receives
    enum comm_kind kind;
    uint64_t number, bytes;
    double seconds; // since it was begun; of the journal: since it was posted
};
struct comm_status {
    bool waiting;                                   // the compute thread stands in comm_wait
    struct comm_place oldest;                       // operation in flight; number 0: none
    int members[COMM_STATUS_MEMBERS], member_count; // world ranks of its group, the first ones
    struct comm_place last;                         // posted last
    char busy[COMM_BUSY_BYTES];                     // see comm_busy; ""
    struct {
        char stream[COMM_GROUP_NAME_BYTES];
        int first_member; // streams of one name differ in it
        uint64_t posted;
    } streams[COMM_STATUS_STREAMS];
    int stream_count;
};
void comm_status(struct comm *comm, struct comm_status *out);
// The operations posted last, oldest first, with the caller's mark of the time; returns their
// number. `mark`: what the compute thread was about (comm_mark), "step 7 backward".
struct comm_journal_entry {
    struct comm_place place;
    char mark[COMM_MARK_BYTES];
    const char *site; // where it was posted: "messages.c:88"; NULL: not known
    bool done;
};
int comm_journal(struct comm *comm, struct comm_journal_entry *out, int most);
// The journal as text, one line an entry, behind a line that says what the rank is about.
int comm_journal_text(struct comm *comm, struct text *out);
// When messages fail (an operation takes too long, a peer is gone, orders differ), every rank that
// hears of it writes that text to FOLDER/rank-00003.txt, and makes the folder. NULL: nowhere.
int comm_keep_journal(struct comm *comm, const char *folder, struct err *err);
void comm_mark(struct comm *comm, const char *mark); // copied; cheap
// Short stalls of messages from each peer since the last call: entries of `stalls` [comm_size] are
// added to. A stall: a message of the peer is under way for longer than `seconds`, and its
// communication thread, which answers while its rank computes or hangs, takes longer than that to
// answer a question about it. So a rank that is late is none, and a link that stands still is.
// Counted from the first call on.
void comm_stalls(struct comm *comm, double seconds, int64_t *stalls);

// Fault injection (guard/fault.h): what this rank does to its own messages from now on.
struct comm_fault {
    int peer;            // -1: all
    bool drop;           // messages to it do not leave
    double flap_seconds; // 0; else messages stand still for so long out of every four times that
    int64_t flip_in;     // > 0: a bit of the flip_in-th payload (of 4 bytes and more) that arrives
                         // from now on is flipped before its checksum is compared, as if on its
                         // way; `flip_bit` of its 32-bit word `flip_word` mod words. Else what
                         // stands above replaces what stood there before
    int flip_bit;
    uint64_t flip_word;
};
void comm_inject(struct comm *comm, const struct comm_fault *fault);
uint64_t comm_injected(struct comm *comm); // bits flipped so far

// ---- figures, since open: posts, payload bytes sent by this rank, and seconds queued, in flight
// and exposed (docs/definitions.md)
struct comm_counts {
    uint64_t operations, bytes;
    double queued_seconds, in_flight_seconds, exposed_seconds;
};
void comm_stream_counts(const struct comm_stream *s, enum comm_kind kind, struct comm_counts *out);
void comm_point_counts(const struct comm *comm, enum comm_kind kind, struct comm_counts *out);
// Of the communication thread. To be read while nothing is in flight, before comm_close.
const struct record_lane *comm_lane(const struct comm *comm);
// "ring", "exchange", "tree", ...: how an operation will run, for the start banner. `bytes`: of a
// member's piece in an all-gather, of the whole in an all-reduce.
const char *comm_algorithm(const struct comm_stream *s, enum comm_kind kind, uint64_t bytes);

// Each post notes for the journal where in the program it was made.
extern _Thread_local const char *comm_call_site;
#ifdef __FILE_NAME__
#define COMM_FILE __FILE_NAME__
#else
#define COMM_FILE __FILE__
#endif
#define COMM_TEXT_OF(line) #line
#define COMM_TEXT(line) COMM_TEXT_OF(line)
#define COMM_AT(call) (comm_call_site = COMM_FILE ":" COMM_TEXT(__LINE__), call)
#define comm_all_gather(...) COMM_AT(comm_all_gather(__VA_ARGS__))
#define comm_reduce_scatter(...) COMM_AT(comm_reduce_scatter(__VA_ARGS__))
#define comm_all_reduce(...) COMM_AT(comm_all_reduce(__VA_ARGS__))
#define comm_all_to_all(...) COMM_AT(comm_all_to_all(__VA_ARGS__))
#define comm_broadcast(...) COMM_AT(comm_broadcast(__VA_ARGS__))
#define comm_barrier(...) COMM_AT(comm_barrier(__VA_ARGS__))
#define comm_sum_integers(...) COMM_AT(comm_sum_integers(__VA_ARGS__))
#define comm_max_integers(...) COMM_AT(comm_max_integers(__VA_ARGS__))
#define comm_sum_doubles(...) COMM_AT(comm_sum_doubles(__VA_ARGS__))
#define comm_send(...) COMM_AT(comm_send(__VA_ARGS__))
#define comm_receive(...) COMM_AT(comm_receive(__VA_ARGS__))
