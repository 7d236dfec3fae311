// Actions as text, see schedule.h.
#include "schedule/schedule.h"
#include <stdio.h>

void schedule_action_text(struct action action, char out[32]) {
    static const char letters[] = "FBIWS><}{GR"; // enum action_kind
    if (action.micro_batch < 0)
        snprintf(out, 32, "%d%c", action.stage, letters[action.kind]);
    else
        snprintf(out, 32, "%d%c%d", action.stage, letters[action.kind], action.micro_batch);
}

int schedule_print(const struct schedule *schedule, struct text *out) {
    char name[32];
    for (int i = 0; i < schedule->count; i++) {
        schedule_action_text(schedule->actions[i], name);
        if (text_printf(out, "%s%s", i ? " " : "", name) != 0) return -1;
    }
    return text_puts(out, "\n");
}
