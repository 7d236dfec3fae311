// The process that mpirun starts in the place of a rank of `weft launch`, see
// operate/launch_report.h. Runs this program with the given words as a child; returns its status.
#pragma once

int launch_keeper(char **words);
