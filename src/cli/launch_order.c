// What the operator says to a supervised run: --status, --reload, --inject, as commands to its
// supervisor (operate/supervise.h).
#include "base/text.h"
#include "cli/cli.h"
#include "cli/launch.h"
#include "guard/fault.h"
#include "operate/supervise.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double ANSWER_SECONDS = 10;

// ---- --status

static double number_of(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void print_ranks(const json_t *list) {
    const json_t *one;
    size_t i;
    printf("\n%6s %5s  %-16s %8s  %-9s %10s %7s %7s  %s\n", "rank", "stage", "host", "pid", "phase",
           "step", "heard", "moved", "waits for");
    json_array_foreach(list, i, one) {
        char heard[16] = "-", moved[16] = "-", stage[16] = "-";
        if (!json_is_null(json_object_get(one, "stage")))
            snprintf(stage, sizeof stage, "%.0f", number_of(one, "stage"));
        if (!json_is_null(json_object_get(one, "heard_seconds_ago"))) {
            snprintf(heard, sizeof heard, "%.1f s", number_of(one, "heard_seconds_ago"));
            snprintf(moved, sizeof moved, "%.1f s", number_of(one, "moved_seconds_ago"));
        }
        printf("%6.0f %5s  %-16s %8.0f  %-9s %10.0f %7s %7s  %s\n", number_of(one, "rank"), stage,
               text_of(one, "host"), number_of(one, "pid"),
               json_is_true(json_object_get(one, "connected")) ? text_of(one, "phase") : "absent",
               number_of(one, "step"), heard, moved, text_of(one, "waits"));
    }
}

// Where the snapshots of a host lie besides.
static void copies_text(const json_t *copies, char out[600]) {
    const char *to = text_of(copies, "to"), *error = text_of(copies, "error");
    snprintf(out, 600, "-");
    if (to[0] && number_of(copies, "step") >= 0)
        snprintf(out, 600, "step %.0f on %.200s", number_of(copies, "step"), to);
    else if (to[0])
        snprintf(out, 600, "none on %.200s yet", to);
    size_t used = strlen(out);
    if (error[0]) snprintf(out + used, 600 - used, ", now failing: %.350s", error);
}

static void print_hosts(const json_t *list) {
    const json_t *one;
    size_t i;
    printf("\n%-24s %5s  %-8s %7s  %10s %12s  %s\n", "host", "slots", "state", "heard", "disk free",
           "memory free", "copies");
    json_array_foreach(list, i, one) {
        char heard[16] = "-", disk[32] = "-", memory[32] = "-", copies[600];
        if (!json_is_null(json_object_get(one, "heard_seconds_ago"))) {
            snprintf(heard, sizeof heard, "%.1f s", number_of(one, "heard_seconds_ago"));
            text_bytes((uint64_t)number_of(one, "disk_free_bytes"), disk);
            text_bytes((uint64_t)number_of(one, "memory_free_bytes"), memory);
        }
        copies_text(json_object_get(one, "copies"), copies);
        printf("%-24s %5.0f  %-8s %7s  %10s %12s  %s\n", text_of(one, "host"),
               number_of(one, "slots"), text_of(one, "state"), heard, disk, memory, copies);
    }
}

static void print_status(const json_t *answer) {
    char since[32], mtbf[32];
    text_duration(number_of(answer, "attempt_seconds"), since);
    text_duration(number_of(answer, "mtbf_seconds"), mtbf);
    printf("%s, step %.0f; launch %.0f of this run, %s ago; %.0f failures",
           text_of(answer, "state"), number_of(answer, "step"), number_of(answer, "launches"),
           since, number_of(answer, "failures"));
    if (number_of(answer, "failures") > 0) printf(", %s between them", mtbf);
    printf("\n");
    if (text_of(answer, "skip_steps")[0])
        printf("steps passed over: %s\n", text_of(answer, "skip_steps"));
    if (number_of(answer, "dropped_messages") > 0)
        printf("messages dropped: %.0f, the last: %s\n", number_of(answer, "dropped_messages"),
               text_of(answer, "dropped_why"));
    print_ranks(json_object_get(answer, "ranks"));
    print_hosts(json_object_get(answer, "hosts"));
}

static int status(const struct launch_options *o, struct err *err) {
    if (o->word_count > 0)
        return err_set(err, ERR_USAGE, "launch: --status RUN: unexpected \"%.100s\"", o->words[0]);
    json_t *command = json_pack("{s:s}", "command", "status");
    json_t *answer = supervise_call(o->run, command, ANSWER_SECONDS, err);
    json_decref(command);
    if (!answer) return -1;
    char *text = o->json ? json_dumps(answer, JSON_INDENT(2)) : NULL;
    if (text)
        puts(text);
    else
        print_status(answer);
    free(text);
    json_decref(answer);
    return 0;
}

// ---- --reload

static int reload(const struct launch_options *o, struct err *err) {
    char program[PATH_MAX];
    json_t *words = json_array(), *command = json_object();
    json_object_set_new(command, "command", json_string("reload"));
    for (int i = 0; i < o->word_count; i++) {
        if (strchr(o->words[i], '=')) {
            json_array_append_new(words, json_string(o->words[i]));
        } else if (i == 0 && realpath(o->words[i], program)) {
            json_object_set_new(command, "program", json_string(program));
        } else {
            json_decref(words);
            json_decref(command);
            return err_set(
                err, ERR_USAGE,
                "launch: --reload RUN [PROGRAM] [key=value ...]: \"%.200s\" is neither a "
                "program that is there nor key=value",
                o->words[i]);
        }
    }
    json_object_set_new(command, "words", words);
    json_t *answer = supervise_call(o->run, command, ANSWER_SECONDS, err);
    json_decref(command);
    if (!answer) return -1;
    const char *changes = text_of(answer, "changes");
    printf("%s%s", changes[0] ? changes : "nothing in the configuration changed\n",
           "the ranks save, leave and start again\n");
    json_decref(answer);
    return 0;
}

// ---- --inject

// "kind=kill": a member, a number where the text is one.
static int put_member(json_t *fault, const char *word, struct err *err) {
    const char *equals = strchr(word, '=');
    char key[64], *end;
    if (!equals || equals == word || (size_t)(equals - word) >= sizeof key)
        return err_set(err, ERR_USAGE, "launch: --inject: expected key=value, found \"%.200s\"",
                       word);
    snprintf(key, sizeof key, "%.*s", (int)(equals - word), word);
    long long whole = strtoll(equals + 1, &end, 10);
    if (equals[1] && *end == 0) {
        json_object_set_new(fault, key, json_integer(whole));
        return 0;
    }
    double real = strtod(equals + 1, &end);
    bool number = equals[1] && *end == 0 && isfinite(real); // "nan" is a kind
    json_t *value = number ? json_real(real) : json_string(equals + 1);
    if (!value || json_object_set_new(fault, key, value) != 0)
        return err_set(err, ERR_USAGE, "launch: --inject: \"%.200s\" is no text", word);
    return 0;
}

static int inject(const struct launch_options *o, struct err *err) {
    struct fault checked;
    json_t *fault = json_object();
    int result = o->word_count > 0 ? 0
                                   : err_set(err, ERR_USAGE,
                                             "launch: --inject RUN: a fault is needed, as in "
                                             "\"kind=kill rank=1\"");
    for (int i = 0; i < o->word_count && result == 0; i++)
        result = put_member(fault, o->words[i], err);
    if (result == 0) result = fault_read(&checked, fault, err);
    json_t *command = json_pack("{s:s,s:o}", "command", "inject", "fault", fault);
    json_t *answer = result == 0 ? supervise_call(o->run, command, ANSWER_SECONDS, err) : NULL;
    json_decref(command);
    if (!answer) return -1;
    printf("%s goes to %.0f rank%s\n", fault_kind_name(checked.kind), number_of(answer, "ranks"),
           number_of(answer, "ranks") == 1 ? "" : "s");
    json_decref(answer);
    return 0;
}

int launch_order(const struct launch_options *o, struct err *err) {
    int result;
    if (strcmp(o->order, "--status") == 0)
        result = status(o, err);
    else if (strcmp(o->order, "--reload") == 0)
        result = reload(o, err);
    else
        result = inject(o, err);
    return result == 0 ? 0 : cli_fail(err);
}
