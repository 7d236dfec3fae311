// The model and the cluster of a plan, from what the user wrote.
#pragma once
#include "plan/job.h"

// `text`: a preset's name ("llama3-70b"), a Hugging Face config.json or its folder. The message
// for anything else names the nearest preset.
int plan_read_model(const char *text, struct model_config *out, struct err *err);
