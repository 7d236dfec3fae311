// What the verbs share: their entry points and how a failure leaves the program. cli/ is the only
// place that prints to standard output, reads the environment and exits.
#pragma once
#include "base/error.h"

// Each verb gets its own name as argv[0] and returns the exit status.
int verb_config(int argc, char **argv);
int verb_bench(int argc, char **argv);
int verb_convert(int argc, char **argv);
int verb_data(int argc, char **argv);
int verb_eval(int argc, char **argv);
int verb_hardware(int argc, char **argv);
int verb_health(int argc, char **argv);
int verb_launch(int argc, char **argv);
int verb_layout(int argc, char **argv);
int verb_plan(int argc, char **argv);
int verb_plot(int argc, char **argv);
int verb_sample(int argc, char **argv);
int verb_schedule(int argc, char **argv);
int verb_simulate(int argc, char **argv);
int verb_tokenizer(int argc, char **argv);
int verb_trace(int argc, char **argv);
int verb_train(int argc, char **argv);

// Prints "weft: MESSAGE" to standard error; returns the exit status of the kind of failure.
int cli_fail(const struct err *err);
