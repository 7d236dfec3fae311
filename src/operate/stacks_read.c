// Unwinding with libdw: it stops one thread at a time by ptrace, reads its stack, and lets it go as
// it was, a stopped one stopped.
#include "operate/stacks_parts.h"
#include <elfutils/libdwfl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FRAMES = 64, MOST_GROUPS = 256 };

struct group { // threads with the same stack
    struct text threads, stack;
    char name[32], waits[64];
    int count;
};
struct reader {
    int pid;
    int frames;
    struct text stack; // of the thread at hand
    struct group groups[MOST_GROUPS];
    int group_count, thread_count;
};

// First line of a small file of /proc; "" when it cannot be read.
static void proc_line(char *out, size_t bytes, const char *format, int pid, int thread) {
    char path[96];
    if (thread > 0)
        snprintf(path, sizeof path, "/proc/%d/task/%d/%s", pid, thread, format);
    else
        snprintf(path, sizeof path, "/proc/%d/%s", pid, format);
    FILE *file = fopen(path, "re");
    out[0] = 0;
    if (!file) return;
    if (fgets(out, (int)bytes, file)) out[strcspn(out, "\n")] = 0;
    fclose(file);
}

// "T (stopped)"
static void proc_state(int pid, char out[48]) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    snprintf(out, 48, "state not known");
    if (!file) return;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "State:", 6) == 0)
            snprintf(out, 48, "%.*s", (int)strcspn(line + 7, "\n"), line + 7);
    fclose(file);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// From "src/" on, where the program was built elsewhere.
static const char *short_path(const char *path) {
    const char *at = strstr(path, "/src/");
    return at ? at + 1 : path;
}

static int take_frame(Dwfl_Frame *frame, void *context) {
    struct reader *r = context;
    Dwarf_Addr pc;
    bool is_activation;
    if (!dwfl_frame_pc(frame, &pc, &is_activation)) return DWARF_CB_ABORT;
    // A return address may stand behind the end of its function.
    Dwarf_Addr at = pc - (is_activation ? 0 : 1);
    Dwfl_Module *module = dwfl_addrmodule(dwfl_thread_dwfl(dwfl_frame_thread(frame)), at);
    text_printf(&r->stack, "  #%-2d 0x%012llx", r->frames, (unsigned long long)pc);
    if (module) {
        GElf_Off offset;
        GElf_Sym symbol;
        const char *name = dwfl_module_addrinfo(module, at, &offset, &symbol, NULL, NULL, NULL);
        if (name)
            text_printf(&r->stack, " %s+0x%llx", name, (unsigned long long)(offset + (pc - at)));
        Dwfl_Line *line = dwfl_module_getsrc(module, at);
        int number = 0;
        const char *file = line ? dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
        const char *path = dwfl_module_info(module, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
        if (file)
            text_printf(&r->stack, " at %s:%d", short_path(file), number);
        else if (path)
            text_printf(&r->stack, " (%s)", base_name(path));
    }
    text_puts(&r->stack, "\n");
    return ++r->frames < MOST_FRAMES ? DWARF_CB_OK : DWARF_CB_ABORT;
}

static struct group *group_of(struct reader *r, const char *name, const char *waits) {
    for (int i = 0; i < r->group_count; i++) {
        struct group *g = &r->groups[i];
        if (g->stack.size == r->stack.size && strcmp(g->name, name) == 0 &&
            memcmp(g->stack.data, r->stack.data, r->stack.size) == 0)
            return g;
    }
    if (r->group_count == MOST_GROUPS) return NULL;
    struct group *g = &r->groups[r->group_count++];
    snprintf(g->name, sizeof g->name, "%s", name);
    snprintf(g->waits, sizeof g->waits, "%s", waits);
    text_put(&g->stack, r->stack.data, r->stack.size);
    return g;
}

static int take_thread(Dwfl_Thread *thread, void *context) {
    struct reader *r = context;
    char name[32], waits[64];
    int number = (int)dwfl_thread_tid(thread);
    proc_line(name, sizeof name, "comm", r->pid, number);
    proc_line(waits, sizeof waits, "wchan", r->pid, number);
    r->frames = 0;
    r->stack.size = 0;
    r->thread_count++;
    if (dwfl_thread_getframes(thread, take_frame, r) < 0 || r->frames == 0)
        text_printf(&r->stack, "  %s: %s\n",
                    r->frames == 0 ? "cannot be seen" : "goes on where nothing is known",
                    dwfl_errmsg(-1));
    struct group *g = group_of(r, name, waits);
    if (!g) return DWARF_CB_ABORT;
    text_printf(&g->threads, "%s%d", g->count++ ? ", " : "", number);
    return DWARF_CB_OK;
}

static void say(const struct reader *r, const char *fault, struct text *out) {
    char name[32], state[48];
    proc_line(name, sizeof name, "comm", r->pid, 0);
    proc_state(r->pid, state);
    text_printf(out, "process %d (%s), %s", r->pid, name, state);
    if (fault) text_printf(out, ": %s", fault);
    if (r->thread_count > 0)
        text_printf(out, ", %d thread%s", r->thread_count, r->thread_count > 1 ? "s" : "");
    text_puts(out, "\n");
    for (int i = 0; i < r->group_count; i++) {
        const struct group *g = &r->groups[i];
        text_printf(out, "thread%s %s (%s)", g->count > 1 ? "s" : "", g->threads.data, g->name);
        if (g->waits[0] && strcmp(g->waits, "0") != 0) text_printf(out, ", waits in %s", g->waits);
        text_puts(out, "\n");
        text_put(out, g->stack.data, g->stack.size);
    }
}

void stacks_of(int pid, struct text *out) {
    static const Dwfl_Callbacks callbacks = {.find_elf = dwfl_linux_proc_find_elf,
                                             .find_debuginfo = dwfl_standard_find_debuginfo};
    struct reader *r = calloc(1, sizeof *r);
    if (!r) {
        text_printf(out, "process %d: no memory to look at it\n", pid);
        return;
    }
    r->pid = pid;
    unsetenv("DEBUGINFOD_URLS"); // libdw would ask servers of the network for what it lacks
    Dwfl *dwfl = dwfl_begin(&callbacks);
    const char *fault = NULL;
    int error = dwfl ? dwfl_linux_proc_report(dwfl, pid) : -1;
    if (error > 0)
        fault = strerror(error);
    else if (error < 0 || dwfl_report_end(dwfl, NULL, NULL) != 0)
        fault = dwfl_errmsg(-1);
    if (!fault && (error = dwfl_linux_proc_attach(dwfl, pid, false)) != 0)
        fault = error > 0 ? strerror(error) : dwfl_errmsg(-1);
    if (!fault && dwfl_getthreads(dwfl, take_thread, r) < 0 && r->thread_count == 0)
        fault = dwfl_errmsg(-1);
    say(r, fault, out);
    if (dwfl) dwfl_end(dwfl);
    for (int i = 0; i < r->group_count; i++) {
        text_free(&r->groups[i].threads);
        text_free(&r->groups[i].stack);
    }
    text_free(&r->stack);
    free(r);
}
