// Is this machine fit to compute? Each check says what it measured; none needs a run.
//
// - gemm: products in fp32 and bf16 on all cores, again and again; every result must equal the
//   first one bit by bit, and a sample of the first the sum taken in double
// - memory: patterns written and read
// - disk: a file written, synced, dropped from the cache, read, compared
// - link: to each peer, latency, rate and damaged bytes in both directions
// - counters: memory errors and XIDs that the machine itself has counted (guard/counters.h)
//
// Rates are judged against those of a better time (`against`: what health_json gave then).
#pragma once
#include "base/error.h"
#include "base/json.h"
#include "base/wire.h"
#include "guard/counters.h"
#include <stdbool.h>
#include <stdint.h>

enum { HEALTH_CHECKS_MOST = 32 };
struct health_options {
    int threads;              // 0: all that the process may use
    double gemm_seconds;      // per type; 0: 1 s
    uint64_t memory_bytes;    // 0: 256 MB; less where the machine has less to give
    const char *folder;       // for the disk; NULL: no disk
    uint64_t disk_bytes;      // 0: 64 MB
    const char *const *peers; // "host:port" of agents, or of health_listen
    int peer_count;
    const struct wire_key *key;             // of the peers
    uint64_t link_bytes;                    // in each direction; 0: 64 MB
    const json_t *against;                  // NULL: rates are only told
    double least_share;                     // of a rate in `against`; 0: 0.5
    const struct counters_places *counters; // NULL: the machine's own
    // For trials of what a failed check sets off: the name of a check (or its first letters) whose
    // data are damaged on purpose. NULL: none.
    const char *break_check;
};
struct health_check {
    char name[64]; // "gemm fp32", "memory", "disk /x", "link node3:4100", "counters"
    bool passed;
    bool unanswered; // not passed, for want of an answer: of a peer, or of the disk
    double rate;     // FLOP/s, bytes/s; 0: none
    double seconds;  // of a link: latency of a message and its answer
    char found[256]; // "312 GFLOP/s, 64 results equal"
};
struct health {
    struct health_check checks[HEALTH_CHECKS_MOST];
    int count;
    bool passed;
    double seconds;
};
// -1: a check could not be made at all (no memory, more than HEALTH_CHECKS_MOST).
int health_run(const struct health_options *options, struct health *out, struct err *err);
// {"passed":true,"seconds":3.1,"checks":[{"name":...,"passed":...,"found":...,"rate":...}, ...]}
// and "unanswered":true beside "passed":false.
json_t *health_json(const struct health *health);
// ERR_BAD_HOST with what failed, in one line; 0 when all passed.
int health_verdict(const struct health *health, const char *host, struct err *err);

// The other end of a link check, after the hello {"type":"hello","role":"link"} was taken from the
// connection; until the peer has done.
int health_serve(struct wire *w, struct err *err);
// For peers that are no agents: serves everyone who has the key, one after the other, for ever or
// until `stop` is set.
int health_listen(int listener, const struct wire_key *key, const volatile bool *stop,
                  struct err *err);
