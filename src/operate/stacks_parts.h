// Reading the stacks of one process, with libdw. Called in a process of its own (stacks.c).
#pragma once
#include "base/text.h"

void stacks_of(int pid, struct text *out);
