// weft launch --agent: this process as the agent of a host (operate/agent.h), started by a
// supervisor. The run's key comes on standard input, one line of 64 hex digits.
#pragma once
#define LAUNCH_AGENT "--agent"

// argv[0] is "--agent". Returns the exit status.
int launch_agent(int argc, char **argv);
