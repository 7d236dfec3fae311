// What the files of operate/agents.h share.
#pragma once
#include "base/text.h"
#include "operate/agents.h"
#include "operate/launch.h"
#include <sys/types.h>

struct agents_host {
    struct agent_view view;
    pid_t starter;    // process that was started here: the agent, or the remote shell; 0: none
    int output;       // what it says; -1: closed
    struct text line; // not complete yet
    char said[256];   // its last line
    double due;       // when it is to be started (again)
    double left;      // when its connection ended
};

struct agents_order {
    int64_t id;
    int host;
    double deadline;
    agents_done *done;
    void *context;
    char error[160]; // decided; told by the next tick
};

struct agents {
    struct agents_options options;
    struct agents_host *hosts;
    int count;
    struct agents_order *orders;
    int order_count;
    int64_t next_id;
    bool leaving;
};

// ---- agents_process.c: the process that was started for a host
int agents_spawn(struct agents *a, struct agents_host *h, struct err *err);
// Reads what it says, and sees whether it has ended; true: it has, and `how` says how.
bool agents_look_after(struct agents_host *h, char *how, size_t how_bytes);
void agents_end_process(struct agents_host *h);
