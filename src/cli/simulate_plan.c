// See simulate_plan.h.
#include "cli/simulate_plan.h"
#include "base/json.h"
#include <limits.h>
#include <string.h>

// Of the cluster that was planned for.
static int read_cluster(json_t *root, struct runs *runs, struct err *err) {
    struct json_at at = {json_object_get(root, "cluster"), "cluster"};
    int64_t nodes, per_node;
    if (json_get_int(at, "nodes", true, 0, &nodes, err) != 0 ||
        json_get_int(at, "per_node", true, 0, &per_node, err) != 0 ||
        json_get_double(at, "price_per_hour", false, runs->price_per_hour, &runs->price_per_hour,
                        err) != 0 ||
        json_get_double(at, "failures_per_node_day", false, runs->failures_per_node_day,
                        &runs->failures_per_node_day, err) != 0)
        return -1;
    if (nodes < 1 || nodes > INT_MAX || per_node < 1 || per_node > INT_MAX)
        return err_set(err, ERR_DATA, "cluster: %lld nodes of %lld: expected 1 at least",
                       (long long)nodes, (long long)per_node);
    runs->nodes = (int)nodes;
    runs->per_node = (int)per_node;
    return 0;
}

static int read_best(json_t *root, struct runs *runs, struct err *err) {
    json_t *best = json_array_get(json_object_get(root, "plans"), 0);
    struct json_at at = {best, "plans[0]"};
    if (!best)
        return err_set(err, ERR_DATA, "expected a plan in \"plans\", as weft plan --json prints");
    return json_get_double(at, "step_seconds", true, 0, &runs->step_seconds, err) != 0 ||
                   json_get_double(at, "tokens_per_step", false, runs->tokens_per_step,
                                   &runs->tokens_per_step, err) != 0 ||
                   json_get_int(at, "steps", false, runs->steps, &runs->steps, err) != 0
               ? -1
               : 0;
}

int simulate_plan_read(const char *path, struct runs *runs, double *params, struct err *err) {
    json_t *root = json_parse_file(path, err);
    if (!root) return -1;
    struct json_at model = {json_object_get(root, "model"), "model"};
    int result = read_cluster(root, runs, err) != 0 || read_best(root, runs, err) != 0 ? -1 : 0;
    if (result == 0 && model.value)
        result = json_get_double(model, "parameters", false, 0, params, err);
    if (result != 0) err_context(err, "%s", path);
    json_decref(root);
    return result;
}
