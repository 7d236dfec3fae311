// Actions as text.
#include "schedule/schedule.h"
#include "test.h"

TEST(actions_as_text) {
    struct action actions[ACTION_KIND_COUNT];
    for (int k = 0; k < ACTION_KIND_COUNT; k++) {
        bool whole = k == ACTION_STEP || k == ACTION_GATHER || k == ACTION_REDUCE;
        actions[k] = (struct action){(enum action_kind)k, k + 1, whole ? -1 : 12, 0, 0, -1};
    }
    struct schedule list = {actions, ACTION_KIND_COUNT, ACTION_KIND_COUNT};
    struct text text = {0};
    CHECK_EQ_INT(schedule_print(&list, &text), 0);
    CHECK_STR(text.data, "1F12 2B12 3I12 4W12 5S 6>12 7<12 8}12 9{12 10G 11R\n");
    text_free(&text);
}
