// What the files of this room share. A compute thread writes an operation into a free slot and
// publishes it; from then until `finished` reaches its number the slot belongs to the communication
// thread. `comm->lock` guards what both sides change; it is never held while data moves.
#pragma once
#include "comm/comm.h"
#include "comm/transport.h"

// Here the functions themselves are meant, not the macros that note the caller's place.
#undef comm_all_gather
#undef comm_reduce_scatter
#undef comm_all_reduce
#undef comm_all_to_all
#undef comm_broadcast
#undef comm_barrier
#undef comm_sum_integers
#undef comm_max_integers
#undef comm_sum_doubles
#undef comm_send
#undef comm_receive

enum {
    STREAM_LIMIT = 256,     // open streams of a rank
    JOURNAL_ENTRIES = 1024, // posted operations that a check of orders can lag behind
    SMALL_VALUES = 64,
    SMALL_MESSAGE_BYTES = 256 // up to this a message and its checksum travel as one
};

// ---- one message of any length, cut into pieces that the transport takes
enum transfer_state { TRANSFER_IDLE, TRANSFER_HELD, TRANSFER_MOVING, TRANSFER_DONE };
struct transfer {
    struct transport_request request; // of the piece under way
    struct transport_request tail;    // of its checksum, where that is a message of its own
    unsigned char *data;
    uint64_t bytes, done_bytes, piece_bytes;
    uint64_t hashed_bytes, checksum; // of the piece, so far
    uint64_t tail_value;
    unsigned char small[SMALL_MESSAGE_BYTES + sizeof(uint64_t)];
    int peer, tag;
    bool sends, on_link;
    bool arrived, tail_begun, tail_done; // of the piece: its bytes, its checksum
    enum transfer_state state;
    uint64_t link_left_bytes; // of the piece, not yet through the simulated link
    int64_t link_ns;          // when what went through is out of it
};
// Starts it; nothing moves for no bytes.
void transfer_begin(struct comm *comm, struct transfer *x, bool sends, int peer, int tag,
                    void *data, uint64_t bytes);
// 1: done, 0: not yet, -1: broken. Sets *moved when anything happened.
int transfer_poll(struct comm *comm, struct transfer *x, bool *moved, struct err *err);

// ---- operations
enum comm_way { WAY_EXCHANGE, WAY_RING, WAY_TREE, WAY_WHOLE }; // WAY_WHOLE: everything to everybody

struct operation {
    _Atomic uint64_t finished; // number of the last operation of this slot that has ended
    enum comm_kind kind;       // from here on written anew by each post
    enum comm_way way;
    uint64_t number;
    const char *name; // of its spans
    const char *site; // where it was posted, or NULL
    struct comm_counts *counts;
    double posted_seconds;
    _Atomic double begun_seconds; // 0: not yet
    uint64_t sent_bytes;
    // arguments
    const unsigned char *from;
    unsigned char *to, *scratch;
    uint64_t bytes; // of a member's piece
    const uint64_t *from_offset, *from_bytes, *to_offset, *to_bytes;
    int64_t elements; // of a sum
    struct comm_reduction reduction;
    int root;               // of a message between two ranks: the other one
    unsigned char token[2]; // of a barrier: what is sent, what comes
    uint64_t agreed_bytes;  // the same for all members, for messages and the check of orders
    // how far it is
    int round;
    int64_t summed;
    double watched_seconds, patience_seconds; // the watchdog's: from when, for how long
    double asked_seconds, said_seconds;       // others about it, the operator of it; 0: not yet
};

enum { BUSY_BYTES = COMM_BUSY_BYTES, LAST_BYTES = 160 };
struct answer {           // what a rank said about the operation in question
    double heard_seconds; // when; 0: it did not
    uint64_t posted;
    char busy[BUSY_BYTES]; // long work of its own, or nothing
    char last[LAST_BYTES]; // what it has posted last, of any stream
};

struct point {
    struct operation op;
    struct transfer transfer;
    struct answer answer;
    struct point *next;
};

struct comm_stream {
    struct comm *comm;
    char name[COMM_GROUP_NAME_BYTES];
    int *members, count, index;
    int hosts; // on how many hosts the members are
    int tag;
    const char *span_names[COMM_KIND_COUNT];
    struct record_lane *lane; // of the thread that asks for small sums
    struct comm_counts counts[COMM_KIND_COUNT];
    struct operation slots[COMM_STREAM_DEPTH];
    _Atomic uint64_t posted; // number of the last operation posted; the first is 1
    _Atomic uint64_t completed;
    // communication thread
    struct operation *current;
    bool summing;               // its current round is a sum
    struct transfer *transfers; // of the current round, 2 x count
    int transfer_count;
    const void **parts; // of the current sum, and those of the piece in work
    uint64_t *small;    // SMALL_VALUES per member and as many of the own (small.c)
    struct answer *answers;
};

struct order_check; // order.c
struct history;     // status.c

struct comm {
    struct transport *transport;
    struct comm_options options;
    int (*open)(struct transport **out, const struct comm_options *options, struct err *err);
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; // an operation has ended, the world failed, the streams were taken over
    struct doorbell *bell;
    // under the lock
    struct err failure;
    bool opened, ready, stopping, peers_know, aborting;
    bool messages_failed; // the failure is one of messages: journals are written
    int abort_status;
    char busy[BUSY_BYTES]; // see comm_busy
    double busy_seconds;   // since when
    bool busy_rests;       // see comm_busy_rests
    struct comm_stream *streams[STREAM_LIMIT];
    int stream_count;
    uint64_t streams_version, streams_taken;
    struct point *points, *free_points, *new_points, **new_points_end;
    uint64_t point_number;
    int points_open; // posted and not ended
    struct comm_counts point_counts[COMM_KIND_COUNT];
    struct order_check *order;      // NULL: not wanted
    struct history *history;        // has its own rules, see status.c
    struct comm_fault fault_wanted; // see comm_inject
    // either side
    atomic_bool fault_changed; // what is wanted is not taken over yet
    atomic_bool failed;        // a failure is known
    atomic_bool settled;       // and nothing moves any more: waits return
    _Atomic uint64_t flipped;  // see comm_injected
    // communication thread
    struct comm_stream *active[STREAM_LIMIT];
    int active_count;
    struct point *moving, **moving_end;
    int64_t next_ns;    // when a held message may go on
    bool long_messages; // some are under way
    struct comm_fault fault;
    double next_watch_seconds, busy_said_seconds;
    struct record_lane lane;
};

// progress.c
void *comm_thread(void *comm);
void comm_fail_locked(struct comm *comm, const struct err *why, bool peers_know);
// collective.c: what an operation does next. Messages of a round may be in any order.
enum round { ROUND_MESSAGES, ROUND_SUM, ROUND_END };
enum comm_way collective_way(const struct comm_stream *s, enum comm_kind kind, uint64_t bytes);
enum round collective_round(struct comm_stream *s, struct operation *op);
void collective_alone(struct operation *op);                 // a group of one
bool sum_piece(struct comm_stream *s, struct operation *op); // true: the sum is complete
// watchdog.c
void watchdog_begin(const struct comm *comm, struct operation *op);
void watchdog_look(struct comm *comm, double now);
void watchdog_note(struct comm *comm, const struct transport_note *note);
// status.c. Posts and waits are noted under the lock; `s` NULL: a message between two ranks.
int history_open(struct comm *comm, struct err *err);
void history_close(struct comm *comm);
void history_post(struct comm *comm, const struct comm_stream *s, const struct operation *op);
void history_wait(struct comm *comm, int more);
void history_describe_last(struct comm *comm, char *text, size_t bytes);
const char *history_mark(const struct comm *comm);      // of now, under the lock
const char *history_notes(const struct comm *comm);     // where journals go, "" when nowhere
void history_text(struct comm *comm, struct text *out); // the journal, where one is wanted
void history_write(struct comm *comm, const struct text *journal); // into its file, unless empty
void stalls_look(struct comm *comm, bool busy);
void stalls_note(struct comm *comm, const struct transport_note *note);
enum { WHAT_BYTES = 240 };
void describe_stream(const struct comm_stream *s, char *text, size_t bytes); // its operation
void describe_point(const struct point *p, char *text, size_t bytes);
// notes.c: all notes pass here
void note_send(struct comm *comm, int peer, struct transport_note *note);
bool note_receive(struct comm *comm, struct transport_note *note);
// inject.c
void inject_take_over(struct comm *comm);
bool inject_holds(struct comm *comm, int peer);          // a message to it must not leave now
void inject_flip(struct comm *comm, struct transfer *x); // perhaps a bit of the piece that came
// link.c: true when the piece is through
bool link_passed(struct comm *comm, struct transfer *x);
void link_enter(struct comm *comm, struct transfer *x, uint64_t bytes);
bool link_between(const struct comm *comm, int a, int b);
// order.c
int order_open(struct comm *comm, struct err *err);
void order_close(struct comm *comm);
void order_post(struct comm *comm, const struct comm_stream *s, const struct operation *op);
int order_poll(struct comm *comm, bool *moved, struct err *err);
bool order_full(const struct comm *comm);
