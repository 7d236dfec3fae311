// Notes between communication threads, with a checksum of their own: one that was damaged on its
// way counts as lost, which notes may be.
#include "base/hash.h"
#include "base/log.h"
#include "comm/internal.h"
#include <stddef.h>

static uint64_t note_checksum(const struct transport_note *note) {
    return hash_bytes(note, offsetof(struct transport_note, checksum));
}

void note_send(struct comm *comm, int peer, struct transport_note *note) {
    if (inject_holds(comm, peer)) return;
    note->checksum = note_checksum(note);
    comm->transport->calls->note_send(comm->transport, peer, note);
}

bool note_receive(struct comm *comm, struct transport_note *note) {
    while (comm->transport->calls->note_receive(comm->transport, note)) {
        int size = comm->transport->size;
        if (note->checksum == note_checksum(note) && note->from >= 0 && note->from < size) {
            note->text[sizeof note->text - 1] = 0;
            return true;
        }
        log_line(LOG_WARN, "rank %d: a note of another rank was damaged on its way and is dropped",
                 comm->transport->rank);
    }
    return false;
}
