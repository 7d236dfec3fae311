// What the two files of base/wire.h share: wire_open.c opens connections, wire.c moves frames.
#pragma once
#include "base/text.h"
#include "base/wire.h"
#include <stdint.h>

enum {
    WIRE_NONCE_BYTES = 16,
    WIRE_GREETING_BYTES = 4 + WIRE_NONCE_BYTES,
    WIRE_TAG_BYTES = 32,
    WIRE_PEER_BYTES = 64
};
extern const char wire_magic[4];

struct wire {
    int descriptor;
    bool accepted; // this is the accepting end
    bool greeted;  // the other end's nonce is here
    bool ended;
    struct wire_key key;
    unsigned char nonces[2][WIRE_NONCE_BYTES]; // of the connecting end, of the accepting end
    uint64_t sealed, opened;                   // frames so far, in both directions
    struct text in, out;
    size_t in_at, out_at; // up to where `in` has been taken, `out` sent
    size_t out_sealed;    // frames behind it wait for the other end's nonce
    char peer[WIRE_PEER_BYTES];
};
// Takes the descriptor over, in either case. NULL: err.
struct wire *wire_new(int descriptor, bool accepted, const struct wire_key *key, struct err *err);

// The process that listens on this port, on any address; 0: not to be seen.
int wire_port_holder(int port);
