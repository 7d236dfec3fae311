// Processes that carry a mark in their environment, and kill -9 of them.
#pragma once
#include <stdint.h>

#define PROCESSES_MARK "WEFT_KILLS_MARK"

enum processes_victim {
    PROCESSES_ONE_RANK,
    PROCESSES_RANKS,
    PROCESSES_ALL // launchers, agents and keepers too, until none is left
};
// Sends SIGKILL to those with this value of the mark; which rank follows from `draw`. Returns how
// many were hit.
int processes_kill(const char *mark, enum processes_victim victim, uint64_t draw);
