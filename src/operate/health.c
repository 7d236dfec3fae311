// The list of checks, their common parts, and the verdict.
#include "operate/health.h"
#include "base/clock.h"
#include "base/random.h"
#include "operate/health_parts.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned char *health_block(struct err *err) {
    unsigned char *block = malloc(2 * (size_t)HEALTH_BLOCK_BYTES);
    if (!block) {
        err_set(err, ERR_MEMORY, "health: no memory for %d bytes", 2 * HEALTH_BLOCK_BYTES);
        return NULL;
    }
    for (uint64_t i = 0; i < 2 * HEALTH_BLOCK_BYTES / 16; i++) {
        uint32_t words[4];
        random_words(20260301, i, words);
        memcpy(block + 16 * i, words, 16);
    }
    return block;
}

const unsigned char *health_piece(const unsigned char *block, uint64_t number) {
    return block + number * 4099 % HEALTH_BLOCK_BYTES;
}

uint64_t health_differing(const unsigned char *found, const unsigned char *expected, size_t bytes) {
    uint64_t count = 0;
    if (memcmp(found, expected, bytes) == 0) return 0;
    for (size_t i = 0; i < bytes; i++) count += found[i] != expected[i];
    return count;
}

bool health_breaks(const struct health_options *options, const char *check) {
    const char *wanted = options->break_check;
    return wanted && wanted[0] && strncmp(check, wanted, strlen(wanted)) == 0;
}

struct health_check *health_add(struct health *health, struct err *err, const char *format, ...) {
    if (health->count == HEALTH_CHECKS_MOST) {
        err_set(err, ERR_USAGE, "health: more than %d checks", HEALTH_CHECKS_MOST);
        return NULL;
    }
    struct health_check *check = &health->checks[health->count++];
    *check = (struct health_check){.passed = true};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check->name, sizeof check->name, format, arguments);
    va_end(arguments);
    return check;
}

// ---- counters

static int check_counters(const struct health_options *o, struct health *out, struct err *err) {
    struct counters none = {.has_edac = true, .has_gpu = true, .has_log = true}, now;
    struct err why = {0};
    char text[300] = "";
    struct health_check *check = health_add(out, err, "counters");
    if (!check) return -1;
    none.last_xid_at = none.serious_xid_at = -1;
    if (counters_read(o->counters, &now, &why) != 0) {
        snprintf(check->found, sizeof check->found, "cannot be read: %.200s", why.text);
        return 0; // says nothing about the machine's fitness
    }
    check->passed = counters_compare(&none, &now, text) < 2 && !health_breaks(o, "counters");
    if (text[0])
        snprintf(check->found, sizeof check->found, "%.250s", text);
    else
        snprintf(check->found, sizeof check->found, "%s%s%s%s",
                 now.has_edac ? "no memory errors" : "memory errors are not counted here",
                 now.has_gpu         ? ", no errors of GPUs"
                 : now.gpu_unread[0] ? ", GPUs cannot be read"
                                     : "",
                 now.has_log         ? ", none in the kernel log"
                 : now.log_unread[0] ? ", the kernel log cannot be read"
                                     : "",
                 check->passed ? "" : " (broken on purpose)");
    return 0;
}

// ---- against a better time

static double rate_then(const json_t *against, const char *name) {
    const json_t *list = json_object_get(against, "checks"), *one;
    size_t i;
    json_array_foreach(list, i, one) {
        const char *text = json_string_value(json_object_get(one, "name"));
        if (text && strcmp(text, name) == 0) return json_number_value(json_object_get(one, "rate"));
    }
    return 0;
}

static void compare(const struct health_options *o, struct health *out) {
    double share = o->least_share > 0 ? o->least_share : 0.5;
    for (int i = 0; i < out->count; i++) {
        struct health_check *check = &out->checks[i];
        double then = rate_then(o->against, check->name);
        if (!(then > 0) || !(check->rate > 0) || check->rate >= share * then) continue;
        size_t used = strlen(check->found);
        check->passed = false;
        snprintf(check->found + used, sizeof check->found - used,
                 ", %.0f %% of what it was (wanted: %.0f %%)", 100 * check->rate / then,
                 100 * share);
    }
}

// ---- all

int health_run(const struct health_options *options, struct health *out, struct err *err) {
    double begin = clock_seconds();
    *out = (struct health){0};
    if (check_counters(options, out, err) != 0 || health_gemm(options, out, err) != 0 ||
        health_memory(options, out, err) != 0 || health_disk(options, out, err) != 0 ||
        health_links(options, out, err) != 0)
        return -1;
    if (options->against) compare(options, out);
    out->passed = true;
    for (int i = 0; i < out->count; i++) out->passed = out->passed && out->checks[i].passed;
    out->seconds = clock_seconds() - begin;
    return 0;
}

json_t *health_json(const struct health *health) {
    json_t *list = json_array();
    for (int i = 0; i < health->count; i++) {
        const struct health_check *c = &health->checks[i];
        json_t *one =
            json_pack("{s:s, s:b, s:s}", "name", c->name, "passed", c->passed, "found", c->found);
        if (c->unanswered) json_object_set_new(one, "unanswered", json_true());
        if (c->rate > 0) json_object_set_new(one, "rate", json_real(c->rate));
        if (c->seconds > 0) json_object_set_new(one, "seconds", json_real(c->seconds));
        json_array_append_new(list, one);
    }
    return json_pack("{s:b, s:f, s:o}", "passed", health->passed, "seconds", health->seconds,
                     "checks", list);
}

int health_verdict(const struct health *health, const char *host, struct err *err) {
    char text[800] = "";
    if (health->passed) return 0;
    for (int i = 0; i < health->count; i++) {
        const struct health_check *c = &health->checks[i];
        size_t used = strlen(text);
        if (!c->passed)
            snprintf(text + used, sizeof text - used, "%s%s: %s", used ? "; " : "", c->name,
                     c->found);
    }
    return err_set(err, ERR_BAD_HOST, "host %.100s is not fit: %s", host, text);
}
