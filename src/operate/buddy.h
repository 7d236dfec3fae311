// Copies of a host's snapshots on another host, so that a state survives the loss of its host.
//
// An agent's sender looks at the snapshots of its host (checkpoint/snapshot.h) and copies each
// complete image that is new to the agent of its buddy, where it lies under the name buddy-...: the
// data first, then, when the hashes of all its parts are right, the text that makes it count. What
// changes while it is copied is dropped there. One image is on its way at a time, in pieces of
// 1 MiB, so a copy takes no memory worth the name on either side.
//
// On the connection (base/wire.h, the run's key), from the sender:
//   {"type":"hello","role":"buddy","host":"node1","session":"<32 hex digits>"}
//   -> {"type":"welcome","session":"<32 hex digits>"}, or {"type":"no","why":...}
//   {"type":"image","generation":0,"rank":3,"text":"<content of the .json>"}
//   -> {"type":"no","why":...}      there is no room
//   -> {"type":"go"}                then the bytes that count in pieces, each followed by a tag of
//                                   32 bytes: the keyed hash (BLAKE2b) of both sessions, the
//                                   piece's number on this connection, and the piece
//   -> {"type":"stored"} or {"type":"dropped","why":...}
#pragma once
#include "base/wire.h"
#include <stdint.h>

enum { BUDDY_PIECE_BYTES = 1 << 20 };

struct buddy_target {
    const char *folder; // of this run's snapshots: /dev/shm/weft-0/<run>
    const char *own;    // this host's name
    const char *host, *address;
    int port;
    struct wire_key key;
};
// Copies what is new, every 0.2 s. An image that does not get there (no room, a flipped bit) is
// tried again after 1, 2, 4, ... 60 s and holds up no other. Writes a line of JSON to `report` for
// each image, and when something changes: {"host":...}, with "step", "bytes" and "seconds" of one
// that was kept just now, and "error" and "rank" of one that is not. Does not return; runs in a
// process of its own.
_Noreturn void buddy_send_all(const struct buddy_target *target, int report);

// The other end, behind the sender's hello: until it leaves. -1: err.
int buddy_receive(struct wire *w, const json_t *hello, const char *folder,
                  const struct wire_key *key, struct err *err);

// Copies all complete images that `known` does not list; *sent counts them. -1: the connection is
// of no more use. For tests, and a step of buddy_send_all. `known` begins as {0}; free with
// buddy_known_free.
struct buddy_image {
    char name[64]; // "gen-0/rank-00003"
    int rank;
    uint64_t digest;     // of its text
    char why[320];       // it was not kept; "": it was
    double again, pause; // when it is tried again; clock_seconds
};
struct buddy_known {
    struct buddy_image *list;
    int count;
};
// The first one that is not kept; NULL: all are.
const struct buddy_image *buddy_trouble(const struct buddy_known *known);
struct buddy_link;
struct buddy_link *buddy_connect(const struct buddy_target *target, struct err *err);
void buddy_disconnect(struct buddy_link *link);
int buddy_send_new(struct buddy_link *link, struct buddy_known *known, int report, int *sent,
                   struct err *err);
void buddy_known_free(struct buddy_known *known);
