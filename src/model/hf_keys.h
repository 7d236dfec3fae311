// Which keys a config.json may have; inside the room only.
#pragma once
#include "base/error.h"
#include "base/json.h"
#include <stdbool.h>

// Refuses every key of the object that is neither in `used` (NULL-terminated) nor known to have no
// effect on the function that the model computes. `where` is the file and path for messages.
int hf_keys_check(json_t *object, const char *where, const char *const *used, struct err *err);
