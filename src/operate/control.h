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
    const char *host;      // of a rank or agent
    const json_t *message; // the hello, or what was said; valid until the call returns
};
typedef void control_handler(void *context, const struct control_event *event);

struct control;
// `address`: of the interface to listen on: 127.0.0.1 unless ranks run on other hosts.
int control_open(struct control **out, const char *address, int port, const struct wire_key *key,
                 struct err *err);
void control_close(struct control *c);
int control_port(const struct control *c);
void control_attempt(struct control *c, int attempt); // ranks of others are turned away from now on

// Waits at most `seconds` for messages, or for `others` (their revents are set), and handles what
// came.
int control_wait(struct control *c, struct pollfd *others, int count, double seconds,
                 control_handler *handler, void *context, struct err *err);
int control_send(struct control *c, int connection, const json_t *message); // -1: it is gone
void control_send_ranks(struct control *c, const json_t *message);
// Dropped since opening: forged or malformed frames, and the reason and peer of the last one.
uint64_t control_dropped(const struct control *c, const char **why);
