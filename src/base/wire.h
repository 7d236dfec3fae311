// Authenticated messages over TCP: what the supervisor of a run, its agents and its ranks say to
// each other. A message is a JSON object.
//
// Both ends send 4 bytes "wft1" and a nonce of 16 bytes, afterwards frames:
//
//   u32 length of the text, little endian, at most WIRE_MOST_BYTES (the first frame: 64 KiB)
//   text      one JSON object
//   tag       32 bytes: HMAC (libsodium's crypto_auth) over both nonces (first that of the
//             connecting end), direction ("c": from the connecting end, "s"), u64 number of the
//             frame in its direction, and text
//
// so that nobody without the run's key can forge a frame, nor send one twice, in another order or
// on another connection. Text is not encrypted: nothing in it is secret, and the key never travels.
// A frame that does not fit ends the connection; the reason says why, for the counts.
#pragma once
#include "base/error.h"
#include "base/json.h"
#include <stdbool.h>
#include <stddef.h>

enum { WIRE_MOST_BYTES = 4 << 20, WIRE_KEY_BYTES = 32, WIRE_KEY_TEXT = 65 };

struct wire_key {
    unsigned char bytes[WIRE_KEY_BYTES];
};
int wire_key_make(struct wire_key *key, struct err *err);
void wire_key_text(const struct wire_key *key, char text[WIRE_KEY_TEXT]); // 64 hex digits
int wire_key_parse(const char *text, struct wire_key *key);               // 0 or -1

// `address`: a numeric address or a name; `port` 0: any. A port in use is an error that names it.
// All descriptors of this file are non-blocking and closed on exec.
int wire_listen(const char *address, int port, int *listener, int *bound_port, struct err *err);

struct wire;
// NULL with err: nobody there (kind ERR_RETRY), or the system refused.
struct wire *wire_accept(int listener, const struct wire_key *key, struct err *err);
// Waits at most `seconds` for the connection and the other end's nonce.
struct wire *wire_connect(const char *address, int port, const struct wire_key *key, double seconds,
                          struct err *err);
void wire_close(struct wire *w);             // NULL is allowed
const char *wire_peer(const struct wire *w); // "10.0.0.2:4711"

// For poll(): the descriptor, and the events that it waits for now.
int wire_descriptor(const struct wire *w);
short wire_events(const struct wire *w);
// Moves what can be moved without waiting. -1: the connection has ended (err: how; ERR_DATA: the
// other end speaks something else); what came before can still be taken.
int wire_work(struct wire *w, struct err *err);
// Takes a reference of none: `message` stays the caller's. -1: too long, or memory is short.
int wire_put(struct wire *w, const json_t *message, struct err *err);
// 1: *message is the next one, which the caller releases; 0: none yet; -1: what came is no frame of
// this key (ERR_DATA: "forged or damaged", "not JSON", "longer than ..."); close the connection.
int wire_take(struct wire *w, json_t **message, struct err *err);
bool wire_pending(const struct wire *w); // something waits to be sent
// For simple clients: sends, and waits for one message. NULL: err.
json_t *wire_call(struct wire *w, const json_t *message, double seconds, struct err *err);
