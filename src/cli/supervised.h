// This process as a rank of a supervised run ("weft launch"): what the environment says of it.
//
//   WEFT_CONTROL=host:port   of the supervisor's control plane
//   WEFT_CONTROL_KEY         its key, 64 hex digits
//   WEFT_ATTEMPT             how often the run was started before
//   WEFT_STEP_FD             a descriptor of 8 bytes in which the step in work is to stand
#pragma once
#include "base/launch.h"
#include "guard/heartbeat.h"

// *out: NULL where nobody supervises. Ranks of a supervised run may be looked at by debuggers of
// the same user, as the agent of their host is one when it prints their stacks.
int cli_supervised(const struct launch_environment *launched, struct heartbeat **out, int *attempt,
                   struct err *err);
