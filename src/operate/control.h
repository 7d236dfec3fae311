// The supervisor's end of the control plane: a listener, its connections, and who they are. Runs in
// the supervisor's one thread.
//
// The first message of a connection is a hello: of a rank (guard/heartbeat.h), of a host's agent
// (operate/agent.h), or of a command of the operator ({"type":"hello","role":"command"}). What is
// forged, malformed, too long, or comes from a rank of another attempt is dropped, counted, and
// ends the connection.
#pragma once
#include "base/wire.h"
#include <poll.h>

enum control_role { CONTROL_RANK, CONTROL_AGENT, CONTROL_COMMAND };
struct control_event {
    enum { CONTROL_CAME, CONTROL_SAID, CONTROL_LEFT } what;
    enum control_role role;
    int connection;        // for control_send
    int rank;              // of a rank
    const char *host;      // of a rank or agent, else NULL
    const json_t *message; // the hello, or what was said; valid until the call returns
    // Of an agent: its wall clock minus that of this process, delay taken out, and the delay there
    // and back: the best of the latest answers to {"type":"order","order":"echo","id":-1}, which
    // this room asks at the hello and every 10 s. Not a number: not known yet.
    double clock_offset_seconds, delay_seconds;
};
typedef void control_handler(void *context, const struct control_event *event);

struct control;
// `address`: of the interface to listen on: 127.0.0.1 unless ranks run on other hosts.
int control_open(struct control **out, const char *address, int port, const struct wire_key *key,
                 struct err *err);
void control_close(struct control *c);
int control_port(const struct control *c);
// A new attempt: the connections of ranks end without an event, and ranks of other attempts are
// turned away from now on.
void control_attempt(struct control *c, int attempt);

// Waits at most `seconds` (and at most 1 s) for messages, or for `others` (64 at most; their
// revents are set), and handles what came. The handler may call everything here but this and
// control_close. A rank or agent that comes again takes the place of its older connection, which
// ends without an event.
int control_wait(struct control *c, struct pollfd *others, int count, double seconds,
                 control_handler *handler, void *context, struct err *err);
int control_send(struct control *c, int connection, const json_t *message); // -1: it is gone
void control_send_ranks(struct control *c, const json_t *message);
// What was said makes no sense (watch_beat refuses it): counts it as dropped, ends the connection.
void control_drop(struct control *c, int connection, const char *why);
// Ends a connection when what it was sent is out of this process's hands, without an event.
void control_end(struct control *c, int connection);
// Dropped since opening: forged or malformed frames, and the reason and peer of the last one.
uint64_t control_dropped(const struct control *c, const char **why);
