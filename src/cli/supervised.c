// See supervised.h.
#include "cli/supervised.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static int read_number(const char *name, long least, long most, long fallback, long *out,
                       struct err *err) {
    const char *text = getenv(name);
    char *end;
    *out = fallback;
    if (!text || !text[0]) return 0;
    *out = strtol(text, &end, 10);
    if (*end || *out < least || *out > most)
        return err_set(err, ERR_USAGE, "%s=%.100s: expected a number from %ld to %ld", name, text,
                       least, most);
    return 0;
}

// "10.0.0.1:4711", "[fd00::1]:4711", "node1:4711"
static int read_address(const char *text, struct heartbeat_options *o, struct err *err) {
    const char *colon = strrchr(text, ':');
    const char *from = text[0] == '[' ? text + 1 : text;
    size_t bytes = colon ? (size_t)(colon - from) : 0;
    if (bytes > 0 && text[0] == '[' && from[bytes - 1] == ']') bytes--;
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (bytes == 0 || bytes >= sizeof o->address || !end || *end || port < 1 || port > 65535)
        return err_set(err, ERR_USAGE, "WEFT_CONTROL=%.200s: expected host:port", text);
    snprintf(o->address, sizeof o->address, "%.*s", (int)bytes, from);
    o->port = (int)port;
    return 0;
}

// The keeper of this rank reads it when the rank has died. Without it less is known then.
static _Atomic int64_t *map_step(int descriptor) {
    if (descriptor < 0) return NULL;
    void *memory = mmap(NULL, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

int cli_supervised(const struct launch_environment *launched, struct heartbeat **out, int *attempt,
                   struct err *err) {
    struct heartbeat_options options = {.rank = launched->rank > 0 ? launched->rank : 0,
                                        .host = launched->host};
    const char *where = getenv("WEFT_CONTROL"), *key = getenv("WEFT_CONTROL_KEY");
    long number, step;
    *out = NULL;
    if (read_number("WEFT_ATTEMPT", 0, 1 << 30, 0, &number, err) != 0 ||
        read_number("WEFT_STEP_FD", -1, 1 << 20, -1, &step, err) != 0)
        return -1;
    *attempt = options.attempt = (int)number;
    if (!where || !where[0]) return 0;
    if (read_address(where, &options, err) != 0) return -1;
    if (!key || wire_key_parse(key, &options.key) != 0)
        return err_set(err, ERR_USAGE,
                       "WEFT_CONTROL is set and WEFT_CONTROL_KEY holds no key of %d hex digits",
                       WIRE_KEY_TEXT - 1);
    options.step = map_step((int)step);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    return heartbeat_open(out, &options, err);
}
