// Processes of an attempt that do not end, though they were killed: they stand in the kernel, in a
// write to a disk or a server that does not answer. They may still hold the lock of the run folder,
// or write into it, so that no ranks start beside them. See supervise_hosts_parts.h.
#include "base/clock.h"
#include "base/log.h"
#include "operate/marks.h"
#include "operate/supervise_hosts_parts.h"
#include <stdio.h>

static const double LEFT_SECONDS = 120; // until a host that cannot end them is given up
static const double AGAIN_SECONDS = 2;
static const double ORDER_SECONDS = 3;

static void note(struct supervisor *s, int host, int left) {
    struct one_host *one = &s->hosts->list[host];
    double now = clock_seconds();
    if (left > 0 && one->left == 0) {
        one->left_since = now;
        one->left_told = false;
    }
    one->left = left;
    one->left_tried = now;
}

void hosts_left_here(struct supervisor *s, int left) {
    for (int i = 0; i < s->hosts->count; i++)
        if (hosts_view(s, i)->here) note(s, i, left);
}

void hosts_killed(struct supervisor *s, int host, const json_t *reply) {
    const json_t *left = json_object_get(reply, "left");
    if (json_is_integer(left)) note(s, host, (int)json_integer_value(left));
}

static void on_tried(void *context, int host, const json_t *reply, const char *error) {
    struct supervisor *s = context;
    (void)error;
    s->hosts->list[host].left_asked = false;
    hosts_killed(s, host, reply);
}

void hosts_kill_left(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    int left;
    if (hosts_view(s, host)->here) {
        marks_kill(s->state.run, 0, false, 0, &left);
        hosts_left_here(s, left);
        return;
    }
    one->left_tried = clock_seconds();
    one->left_asked = true;
    agents_order(s->hosts->agents, host, "kill", json_pack("{s:f}", "seconds", 1.0), ORDER_SECONDS,
                 on_tried, s);
}

int hosts_look_for_left(struct supervisor *s, int host, char *why, size_t bytes) {
    struct one_host *one = &s->hosts->list[host];
    double now = clock_seconds(), waited = now - one->left_since;
    if (one->left == 0) return 1;
    if (!one->left_asked && now > one->left_tried + AGAIN_SECONDS) hosts_kill_left(s, host);
    if (one->left == 0) {
        log_line(LOG_INFO, "host %s: they have ended after %.0f s", hosts_placed(s, host)->name,
                 waited);
        return 1;
    }
    snprintf(why, bytes,
             "%d process%s of the last attempt on %.200s %s not end, after %.0f s: a disk or a "
             "server of files may not answer",
             one->left, one->left == 1 ? "" : "es", hosts_placed(s, host)->name,
             one->left == 1 ? "does" : "do", waited);
    if (waited > LEFT_SECONDS) {
        one->left = 0; // it is out; when it is back, they are ended first
        return -1;
    }
    if (!one->left_told) log_line(LOG_WARN, "%s; ranks start when they are gone", why);
    one->left_told = true;
    return 0;
}
