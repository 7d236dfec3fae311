// The hosts of a run and their agents, as the supervisor sees them. See supervise_parts.h.
#include "operate/supervise_parts.h"

void hosts_event(struct supervisor *s, const struct control_event *event) {
    (void)s, (void)event;
}

void hosts_kill(struct supervisor *s) {
    (void)s;
}

void hosts_stacks(struct supervisor *s) {
    (void)s;
}
