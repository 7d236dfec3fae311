// The house keeps its shape: rooms include only what stands below them, nothing below cli/ exits,
// prints to standard output or reads the environment, and no file grows beyond what a reader holds
// in mind.
#include "base/file.h"
#include "base/text.h"
#include "test.h"
#include <ctype.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A room sees all rooms of lower floors, and of its own floor those named beside it.
static const struct room {
    const char *name;
    int floor;
    const char *neighbours;
} rooms[] = {
    {"base", 0, ""},
    {"model", 1, ""},
    {"layout", 1, "model"},
    {"schedule", 1, "model layout"},
    {"memory", 1, "model layout schedule"},
    {"hardware", 1, ""},
    {"device", 2, ""},
    {"comm", 2, ""},
    {"data", 2, ""},
    {"engine", 3, ""},
    {"generate", 3, ""},
    {"checkpoint", 3, ""},
    {"guard", 3, ""},
    {"observe", 3, ""},
    {"cost", 3, ""},
    {"simulate", 3, ""},
    {"train", 4, ""},
    {"operate", 4, ""},
    {"plan", 4, ""},
    {"cli", 5, ""},
};
enum { LONGEST_FILE_LINES = 700 };

static const struct room *room_of(const char *path) { // path below src/
    const char *slash = strchr(path, '/');
    for (size_t i = 0; slash && i < sizeof rooms / sizeof rooms[0]; i++)
        if (strlen(rooms[i].name) == (size_t)(slash - path) &&
            strncmp(rooms[i].name, path, (size_t)(slash - path)) == 0)
            return &rooms[i];
    return NULL;
}

static bool may_include(const struct room *from, const struct room *to) {
    return to == from || to->floor < from->floor ||
           (to->floor == from->floor && strstr(from->neighbours, to->name) != NULL);
}

// What is wrong with one file's text, as lines behind `faults`. Kept apart from reading, so that it
// can be tried on faulty texts.
static void check_includes(const char *path, const char *text, struct text *faults) {
    const struct room *from = room_of(path);
    if (!from) {
        text_printf(faults, "%s: not in a known room\n", path);
        return;
    }
    int line = 1;
    for (const char *at = text; *at; line++) {
        const char *end = strchrnul(at, '\n');
        char name[300];
        if (sscanf(at, " # include \"%299[^\"\n]\"", name) == 1 &&
            strcspn(at, "#") < (size_t)(end - at)) {
            const struct room *to = room_of(name);
            if (!to)
                text_printf(faults, "%s:%d: \"%s\" names no room; write \"room/file.h\"\n", path,
                            line, name);
            else if (!may_include(from, to))
                text_printf(faults, "%s:%d: %s/ must not see %s/ (%s)\n", path, line, from->name,
                            to->name, name);
        }
        at = *end ? end + 1 : end;
    }
    if (line - 1 > LONGEST_FILE_LINES)
        text_printf(faults, "%s: %d lines, at most %d\n", path, line - 1, LONGEST_FILE_LINES);
}

// Blanks comments, strings and character constants, so that only code is searched.
static void blank_what_is_no_code(char *text) {
    char inside = 0; // '/': line comment, '*': block comment, quote: literal
    for (char *p = text; *p; p++) {
        if (!inside) {
            if (p[0] == '/' && (p[1] == '/' || p[1] == '*')) {
                inside = p[1] == '/' ? '/' : '*';
                p[0] = ' ';
                *++p = ' '; // "/*/" does not end here
            } else if (p[0] == '"' || p[0] == '\'') {
                inside = *p;
            }
            continue;
        }
        if (*p == '\n') {
            if (inside != '*') inside = 0;
        } else if (inside == '*') {
            if (p[0] == '*' && p[1] == '/') inside = 0, p[1] = ' ';
            *p = ' ';
        } else if (inside != '/' && *p == '\\' && p[1]) {
            p[0] = ' ';
            if (p[1] != '\n') *++p = ' ';
        } else if (*p == inside && inside != '/') {
            inside = 0;
        } else {
            *p = ' ';
        }
    }
}

static const char *const forbidden[] = {
    "exit", "_exit",   "_Exit",  "quick_exit", "abort",         "printf",  "vprintf",
    "puts", "putchar", "stdout", "getenv",     "secure_getenv", "environ", "setenv"};

// Where a world of ranks has failed, the MPI library is asked to end the process, and some do not.
// A process that leaves on purpose is one of the faults that can be injected. Processes that
// `operate` forks end in it, and the environment of the ranks is made in their starter alone.
static bool may_use(const char *path, const char *word) {
    static const char *const leave[] = {"comm/transport_mpi.c",     "guard/fault.c",
                                        "operate/program.c",        "operate/stacks.c",
                                        "operate/agent.c",          "operate/agent_jobs.c",
                                        "operate/agents_process.c", "operate/supervise_attempt.c"};
    for (size_t i = 0; i < sizeof leave / sizeof *leave; i++)
        if (strcmp(path, leave[i]) == 0 && strcmp(word, "_exit") == 0) return true;
    return strcmp(path, "operate/supervise_attempt.c") == 0 && strcmp(word, "setenv") == 0;
}

static void check_words(const char *path, char *code, struct text *faults) {
    blank_what_is_no_code(code);
    int line = 1;
    for (char *p = code; *p;) {
        if (!isalpha((unsigned char)*p) && *p != '_') {
            line += *p++ == '\n';
            continue;
        }
        char *end = p;
        while (isalnum((unsigned char)*end) || *end == '_') end++;
        bool attribute = p > code && p[-1] == '(' && p > code + 1 &&
                         p[-2] == '('; // ... ((format(printf, 1, 2)))
        char *before = p;
        while (before > code && (before[-1] == '(' || before[-1] == ' ')) before--;
        attribute = attribute || (before >= code + 6 && strncmp(before - 6, "format", 6) == 0);
        bool member = p > code && (p[-1] == '.' || (p > code + 1 && p[-1] == '>' && p[-2] == '-'));
        for (size_t i = 0; i < sizeof forbidden / sizeof forbidden[0] && !attribute && !member; i++)
            if (strlen(forbidden[i]) == (size_t)(end - p) &&
                strncmp(forbidden[i], p, (size_t)(end - p)) == 0 && !may_use(path, forbidden[i]))
                text_printf(faults, "%s:%d: %s is for cli/ only\n", path, line, forbidden[i]);
        p = end;
    }
}

static struct text faults;
static int files_seen;

static int check_file(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)place;
    size_t length = strlen(path);
    if (kind != FTW_F || length < 2 ||
        (strcmp(path + length - 2, ".c") && strcmp(path + length - 2, ".h")))
        return 0;
    const char *inner = path + strlen(WEFT_SOURCE_DIR "/src/");
    struct err err = {0};
    char *text;
    size_t size;
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    files_seen++;
    check_includes(inner, text, &faults);
    if (strncmp(inner, "cli/", 4) != 0) check_words(inner, text, &faults);
    free(text);
    return 0;
}

TEST(layers_of_the_sources) {
    CHECK_EQ_INT(nftw(WEFT_SOURCE_DIR "/src", check_file, 16, FTW_PHYS), 0);
    CHECK(files_seen > 20);
    if (faults.size) test_fail(__FILE__, __LINE__, "\n%s", faults.data);
}

static void check_fault(const char *path, const char *text, const char *expected) {
    struct text found = {0};
    char *copy = strdup(text);
    check_includes(path, text, &found);
    check_words(path, copy, &found);
    CHECK_STR(found.data ? found.data : "", expected);
    text_free(&found);
    free(copy);
}

// The test itself must see what it is there for.
TEST(layers_faults_are_seen) {
    check_fault("data/a.c", "#include \"base/text.h\"\n#include <stdio.h>\n", "");
    check_fault("base/a.c", "\n#include \"data/b.h\"\n",
                "base/a.c:2: base/ must not see data/ (data/b.h)\n");
    check_fault("data/a.c", "#  include \"device/b.h\"\n",
                "data/a.c:1: data/ must not see device/ (device/b.h)\n");
    check_fault("memory/a.c", "#include \"schedule/b.h\"\n", "");
    check_fault("model/a.c", "#include \"memory/b.h\"\n",
                "model/a.c:1: model/ must not see memory/ (memory/b.h)\n");
    check_fault("train/a.c", "#include \"b.h\"\n",
                "train/a.c:1: \"b.h\" names no room; write \"room/file.h\"\n");
    check_fault("cellar/a.c", "", "cellar/a.c: not in a known room\n");
    check_fault("base/a.c", "int x;\n  exit(1);\n", "base/a.c:2: exit is for cli/ only\n");
    check_fault("base/a.c", "fprintf(stdout, \"%d\");", "base/a.c:1: stdout is for cli/ only\n");
    check_fault(
        "base/a.c",
        "printf(\"x\"); // printf(\n/* getenv */ s = \"exit\\\" exit\"; c = '\"'; getenv(a);",
        "base/a.c:1: printf is for cli/ only\nbase/a.c:2: getenv is for cli/ only\n");
    check_fault(
        "base/a.h",
        "void f(int) __attribute__((format(printf, 1, 2)));\nint on_exit_of(void); x.exit = 1;",
        "");
    struct text many = {0}, found = {0};
    for (int i = 0; i < 701; i++) text_puts(&many, "\n");
    check_includes("base/a.c", many.data, &found);
    CHECK_STR(found.data, "base/a.c: 701 lines, at most 700\n");
    text_free(&many);
    text_free(&found);
}
