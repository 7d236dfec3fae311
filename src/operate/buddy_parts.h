// What both ends of a copy share; see buddy.h.
#pragma once
#include "operate/buddy.h"

enum { BUDDY_SESSION_BYTES = 16, BUDDY_SESSION_TEXT = 33, BUDDY_TAG_BYTES = 32 };

struct buddy_pieces { // the run of pieces on a connection
    const struct wire_key *key;
    unsigned char sessions[2][BUDDY_SESSION_BYTES]; // of the sender, of the receiver
    uint64_t number;
};
void buddy_session_make(unsigned char session[BUDDY_SESSION_BYTES], char text[BUDDY_SESSION_TEXT]);
int buddy_session_parse(const json_t *message, unsigned char session[BUDDY_SESSION_BYTES]);
void buddy_tag(struct buddy_pieces *p, const void *piece, size_t bytes,
               unsigned char tag[BUDDY_TAG_BYTES]);

// Raw bytes between messages; both wait up to 20 s for the other end to move.
int buddy_write(struct wire *w, const void *data, size_t bytes, struct err *err);
int buddy_read(struct wire *w, void *data, size_t bytes, struct err *err);
int buddy_say(struct wire *w, json_t *message, struct err *err); // takes the reference, sends all
json_t *buddy_hear(struct wire *w, double seconds, struct err *err);
