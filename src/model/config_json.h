// A model_config as JSON with this program's own keys: lossless, for manifests. Foreign formats are
// in hf_config.h.
#pragma once
#include "base/error.h"
#include "base/json.h"
#include "model/model.h"

json_t *model_config_to_json(const struct model_config *config); // NULL when memory is short
// `where` names the file in messages. Every key is required and unknown ones are refused; the
// result was checked.
int model_config_from_json(json_t *value, const char *where, struct model_config *out,
                           struct err *err);
