// What the two sources of the manifest share.
#pragma once
#include "checkpoint/manifest.h"

// "parts": names, sizes, hashes, ranks.
int manifest_read_parts(json_t *tree, const char *path, struct manifest *m, struct err *err);
