// The model of a plan, from what the user wrote. (Training configurations are read above: cli/
// hands their model over.)
#pragma once
#include "base/error.h"
#include "model/model.h"

// `text`: a preset's name ("llama3-70b"), a Hugging Face config.json, or a folder that holds one.
// The message for anything else names the nearest preset.
int plan_read_model(const char *text, struct model_config *out, struct err *err);
