// The words of `weft plan`, each in a file plan_<word>.c. argv[0] is "plan WORD"; each returns the
// exit status. A new one is a line here and a line in the table of verb_plan.c.
#pragma once

int plan_explain(int argc, char **argv);
int plan_machine(int argc, char **argv); // --this-machine
int plan_search(int argc, char **argv);  // MODEL CLUSTER
int plan_size(int argc, char **argv);
int plan_validate(int argc, char **argv);
