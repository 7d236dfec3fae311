// Time in seconds as double: monotonic for durations, wall for stamps.
#pragma once
double clock_seconds(void);             // monotonic
double clock_wall_seconds(void);        // since 1970
double clock_process_cpu_seconds(void); // user + system of all threads
double clock_since_exec_seconds(void);  // since this process was started
