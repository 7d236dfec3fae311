// Named model shapes: what a configuration starts from, and the defaults of a family.
#pragma once
#include "base/error.h"
#include "model/model.h"
#include <stddef.h>

// Kind, constants and biases of a family; sizes are left 0 (layers ... context) for the caller.
void model_family_defaults(enum model_family family, struct model_config *out);

// A public shape by name ("gpt2-124m", "llama3-8b", ...). An unknown name is refused with the
// nearest one.
int model_preset(const char *name, struct model_config *out, struct err *err);
// Names of all presets; the list ends with NULL, `count` may be NULL.
const char *const *model_preset_names(size_t *count);
