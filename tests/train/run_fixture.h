// A tiny run for the tests of this folder: random tokens in plain u16 files, two layers.
#pragma once
#include "train/run.h"

// Makes FOLDER/train.bin, FOLDER/validation.bin and loads a configuration with the words
// "key=value" (NULL ends them); train.folder is FOLDER/NAME.
void fixture_config(struct train_config *config, const char *folder, const char *name,
                    const char *const *words);
// Values of a member in all lines of the run's steps, as one string with blanks between; stands for
// the next 63 calls.
const char *fixture_column(const struct train_config *config, const char *member);
// Hash of all tensors of the checkpoint at `step`.
uint64_t fixture_checkpoint_hash(const struct train_config *config, int64_t step);
