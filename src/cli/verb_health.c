// weft health: is this machine fit to compute?
#include "base/file.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "operate/health.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "usage: weft health [options]\n"
    "       weft health --serve [ADDRESS:]PORT --key FILE\n"
    "\n"
    "Checks whether this machine is fit to compute, in a few seconds: products in fp32 and bf16\n"
    "(every result equal to the first, a sample of it compared with plain sums), memory patterns,\n"
    "the machine's own error counters; with --folder the disk, with --peers the links to other\n"
    "hosts. weft launch does the same on hosts that it suspects.\n"
    "\n"
    "  --folder DIR     a file of --disk MB is written, synced, read back from the disk, compared\n"
    "  --peers LIST     HOST:PORT,HOST:PORT: latency, rate and damaged bytes in both directions\n"
    "  --key FILE       key that both ends of a link have; --serve makes it where there is none\n"
    "  --serve PORT     is a peer for others until it is interrupted; ADDRESS (or a name of this "
    "host)\n"
    "                   is where other hosts reach it, 127.0.0.1 unless it is said\n"
    "  --seconds S      of products, per type (1)\n"
    "  --memory MB      (256)      --disk MB   (64)      --link MB   in each direction (64)\n"
    "  --threads N      (all cores that the process may use)\n"
    "  --against FILE   what --json said at a better time: rates below --share of it fail\n"
    "  --share S        (0.5)\n"
    "  --break CHECK    damages the data of this check (\"gemm bf16\", \"memory\", \"disk\", "
    "\"link\", \"counters\"),\n"
    "                   to see what follows\n"
    "  --json           as JSON, rates in FLOP/s and bytes/s\n"
    "\n"
    "exit status: 0 fit, 76 not, with one line that says why\n";

enum { MOST_PEERS = 24 };

struct settings {
    struct health_options health;
    const char *peers, *key, *serve, *against;
    int memory_mb, disk_mb, link_mb;
    bool json;
    char peer_text[8192];
    const char *peer_list[MOST_PEERS];
    struct wire_key wire_key;
};

static int split_peers(struct settings *s, struct err *err) {
    if (strlen(s->peers) >= sizeof s->peer_text)
        return err_set(err, ERR_USAGE, "health: --peers is longer than %zu bytes",
                       sizeof s->peer_text - 1);
    snprintf(s->peer_text, sizeof s->peer_text, "%s", s->peers);
    char *rest = s->peer_text;
    for (char *one; (one = strtok_r(rest, ",", &rest));) {
        if (s->health.peer_count == MOST_PEERS)
            return err_set(err, ERR_USAGE, "health: more than %d peers", MOST_PEERS);
        s->peer_list[s->health.peer_count++] = one;
    }
    s->health.peers = s->peer_list;
    return 0;
}

static int make_key(const char *path, struct wire_key *key, struct err *err) {
    char text[WIRE_KEY_TEXT + 1];
    if (wire_key_make(key, err) != 0) return -1;
    wire_key_text(key, text);
    strcat(text, "\n");
    mode_t before = umask(077); // nobody else reads it
    int result = file_replace(path, text, strlen(text), err);
    umask(before);
    return result;
}

static int read_key(const char *path, bool make, struct wire_key *key, struct err *err) {
    char *text;
    size_t size;
    if (!path)
        return err_set(err, ERR_USAGE,
                       "health: links need --key FILE, the same for both ends; weft health --serve "
                       "PORT --key FILE makes one");
    if (make && !file_exists(path)) return make_key(path, key, err);
    if (file_read(path, 4096, &text, &size, err) != 0) return -1;
    text[strcspn(text, "\r\n")] = 0;
    int result = wire_key_parse(text, key);
    free(text);
    if (result == 0) return 0;
    return err_set(err, ERR_DATA, "%s: expected a key of 64 hexadecimal digits", path);
}

// ---- the other end

static volatile bool stop;

static void on_signal(int number) {
    (void)number;
    stop = true;
}

static int serve(const struct settings *s, struct err *err) {
    char address[256] = "127.0.0.1"; // who wants to be reached from outside says where
    struct wire_key key;
    int listener, bound;
    const char *colon = strrchr(s->serve, ':');
    const char *port_text = colon ? colon + 1 : s->serve;
    if (colon) snprintf(address, sizeof address, "%.*s", (int)(colon - s->serve), s->serve);
    char *end;
    long port = strtol(port_text, &end, 10);
    if (end == port_text || *end || port < 0 || port > 65535)
        return err_set(err, ERR_USAGE, "health: --serve \"%s\": expected [ADDRESS:]PORT", s->serve);
    if (read_key(s->key, true, &key, err) != 0 ||
        wire_listen(address, (int)port, &listener, &bound, err) != 0)
        return -1;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    printf("listening on %s:%d\n", address, bound);
    fflush(stdout);
    int result = health_listen(listener, &key, &stop, err);
    close(listener);
    return result;
}

// ---- checking

static void print_text(const struct health *health, const char *host) {
    for (int i = 0; i < health->count; i++)
        printf("%-6s %-12s %s\n", health->checks[i].passed ? "ok" : "FAILED",
               health->checks[i].name, health->checks[i].found);
    printf("%s is %s (%.1f s)\n", host, health->passed ? "fit" : "not fit", health->seconds);
}

static void print_json(const struct health *health, const char *host) {
    json_t *json = health_json(health);
    json_object_set_new(json, "host", json_string(host));
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    if (text) printf("%s\n", text);
    free(text);
    json_decref(json);
}

static int check(struct settings *s, struct err *err) {
    static struct health found;
    json_t *against = NULL;
    char host[256] = "this host";
    gethostname(host, sizeof host - 1);
    if (s->peers && (split_peers(s, err) != 0 || read_key(s->key, false, &s->wire_key, err) != 0))
        return -1;
    if (s->against && !(against = json_parse_file(s->against, err))) return -1;
    s->health.key = &s->wire_key;
    s->health.against = against;
    s->health.memory_bytes = (uint64_t)s->memory_mb * 1000000;
    s->health.disk_bytes = (uint64_t)s->disk_mb * 1000000;
    s->health.link_bytes = (uint64_t)s->link_mb * 1000000;
    int result = health_run(&s->health, &found, err);
    json_decref(against);
    if (result != 0) return -1;
    if (s->json)
        print_json(&found, host);
    else
        print_text(&found, host);
    fflush(stdout);
    return health_verdict(&found, host, err);
}

int verb_health(int argc, char **argv) {
    static struct settings s;
    struct err err = {0};
    struct option options[] = {
        {"--folder", OPTION_TEXT, &s.health.folder, 0},
        {"--peers", OPTION_TEXT, &s.peers, 0},
        {"--key", OPTION_TEXT, &s.key, 0},
        {"--serve", OPTION_TEXT, &s.serve, 0},
        {"--seconds", OPTION_NUMBER, &s.health.gemm_seconds, 0},
        {"--memory", OPTION_COUNT, &s.memory_mb, 1},
        {"--disk", OPTION_COUNT, &s.disk_mb, 1},
        {"--link", OPTION_COUNT, &s.link_mb, 1},
        {"--threads", OPTION_THREADS, &s.health.threads, 1},
        {"--against", OPTION_TEXT, &s.against, 0},
        {"--share", OPTION_NUMBER, &s.health.least_share, 0},
        {"--break", OPTION_TEXT, &s.health.break_check, 0},
        {"--json", OPTION_FLAG, &s.json, 0},
    };
    const char *words[1];
    int word_count;
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], words, 0,
                           &word_count, &err);
    if (got > 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (got == 0) got = s.serve ? serve(&s, &err) : check(&s, &err);
    return got == 0 ? 0 : cli_fail(&err);
}
