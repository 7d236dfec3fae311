// The report for programs; docs/planning.md lists the names. See report.h.
#include "hardware/show.h"
#include "plan/report.h"
#include <string.h>

static void set(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}

static void set_number(json_t *object, const char *key, double value) {
    set(object, key, json_real(value));
}

static void set_count(json_t *object, const char *key, int64_t value) {
    set(object, key, json_integer(value));
}

static json_t *choice_json(const struct search_choice *choice, int micro_batches) {
    json_t *out = json_object();
    char word[24];
    for (int key = 0; key < SEARCH_KEYS; key++) {
        int value = choice->value[key];
        bool is_switch = key == SEARCH_SEQUENCE || key == SEARCH_ENDS;
        bool is_word = key == SEARCH_PRECISION || key == SEARCH_RECOMPUTE || key == SEARCH_SCHEDULE;
        set(out, search_key_name((enum search_key)key),
            is_switch ? json_boolean(value)
            : is_word ? json_string(search_value_text((enum search_key)key, value, word))
                      : json_integer(value));
    }
    if (micro_batches > 0) set_count(out, "micro_batches", micro_batches);
    return out;
}

static json_t *memory_json(const struct report_plan *plan) {
    json_t *out = json_array();
    for (int i = 0; i < plan->estimate.memory_ranks; i++) {
        const struct plan_memory *m = &plan->estimate.memory[i];
        json_t *rank = json_object(), *items = json_object();
        set_count(rank, "pipeline_rank", m->pipeline_rank);
        set_count(rank, "in_flight", m->in_flight);
        set_number(rank, "total_bytes", m->total);
        set_number(rank, "allocated_bytes", m->allocated);
        for (int k = 0; k < PLAN_ITEMS; k++)
            set_number(items, plan_memory_item_name((enum plan_memory_item)k), m->bytes[k]);
        set(rank, "items", items);
        json_array_append_new(out, rank);
    }
    return out;
}

static json_t *stages_json(const struct report_plan *plan) {
    json_t *out = json_array();
    const struct layout *l = &plan->job.layout;
    for (int i = 0; i < plan->estimate.stage_count; i++) {
        const struct estimate_stage *s = &plan->estimate.stages[i];
        json_t *stage = json_object();
        set_count(stage, "pipeline_rank", plan->estimate.pipeline.stage_rank[i]);
        set_count(stage, "layer_first", l->layer_first[i]);
        set_count(stage, "layers", l->layer_first[i + 1] - l->layer_first[i]);
        set_number(stage, "forward_seconds", s->forward);
        set_number(stage, "backward_seconds", s->backward);
        set_number(stage, "recompute_seconds", s->pass[COST_RECOMPUTE].device);
        json_array_append_new(out, stage);
    }
    return out;
}

static json_t *waterfall_json(const struct estimate *e) {
    json_t *out = json_array();
    for (int i = 0; i < e->waterfall_lines; i++) {
        json_t *line = json_object();
        set(line, "name", json_string(e->waterfall[i].name));
        set_number(line, "share", e->waterfall[i].share);
        set_number(line, "seconds", e->waterfall[i].share * e->step_seconds);
        json_array_append_new(out, line);
    }
    return out;
}

static json_t *exposed_json(const struct estimate *e) {
    json_t *out = json_object();
    set_number(out, "reduce_seconds", e->exposed_reduce);
    set_number(out, "gather_seconds", e->exposed_gather);
    set_number(out, "pipeline_seconds", e->exposed_pipeline);
    set_number(out, "tensor_seconds", e->exposed_tensor);
    set_number(out, "context_seconds", e->exposed_context);
    set_number(out, "expert_seconds", e->exposed_expert);
    return out;
}

static void set_times(json_t *out, const struct estimate *e) {
    set_number(out, "step_seconds", e->step_seconds);
    set_number(out, "tokens_per_second", e->tokens_per_second);
    set_number(out, "tokens_per_second_per_accelerator", e->tokens_per_second_per_accelerator);
    set_number(out, "mfu_full", e->mfu_full);
    set_number(out, "mfu_causal", e->mfu_causal);
    set_number(out, "hfu", e->hfu);
    set_number(out, "bubble", e->bubble);
    set_number(out, "bubble_without_messages", e->bubble_without_messages);
    set_number(out, "bubble_formula", e->bubble_formula);
    set_number(out, "forward_seconds", e->forward_seconds);
    set_number(out, "backward_seconds", e->backward_seconds);
    set_number(out, "message_seconds", e->message_seconds);
    set_number(out, "update_seconds", e->update_seconds);
    set_number(out, "overlap_formula_seconds", e->overlap_formula_seconds);
    set(out, "assumed", json_boolean(e->assumed));
}

static json_t *failures_json(const struct report_run *run) {
    json_t *out = json_object();
    set_number(out, "effective", run->effective);
    set_number(out, "wall_seconds", run->wall_seconds);
    set_number(out, "expected", run->failures);
    set_number(out, "mtbf_seconds", run->mtbf_seconds);
    set_number(out, "checkpoint_seconds", run->checkpoint_seconds);
    set_count(out, "checkpoint_steps", run->checkpoint_steps);
    set_count(out, "spare_nodes", run->spares);
    return out;
}

static json_t *plan_json(const struct report *report, int index) {
    const struct report_plan *plan = &report->plans[index];
    const struct estimate *e = &plan->estimate;
    const struct report_run run = plan_report_run(report, plan);
    const struct search_request *r = &report->request->search;
    json_t *out = json_object();
    set_count(out, "rank", index + 1);
    set(out, "layout", choice_json(&plan->entry.choice, plan->job.micro_batches));
    set_times(out, e);
    set_number(out, "tokens_per_step", (double)r->batch * r->context);
    set_count(out, "steps", run.steps);
    set_number(out, "run_seconds", run.seconds);
    set_number(out, "accelerator_hours", run.accelerator_hours);
    if (run.cost > 0) set_number(out, "cost", run.cost);
    set(out, "failures", failures_json(&run));
    set_number(out, "memory_bytes", e->memory_peak);
    set_number(out, "memory_headroom_bytes", e->memory_headroom);
    if (index > 0) {
        double seconds;
        const char *name = trail_costliest(&report->plans[0].estimate, e, &seconds);
        set_number(out, "slower_by_seconds",
                   e->step_seconds - report->plans[0].estimate.step_seconds);
        if (name) {
            set(out, "costliest", json_string(name));
            set_number(out, "costliest_seconds", seconds);
        }
    }
    set(out, "memory", memory_json(plan));
    set(out, "stages", stages_json(plan));
    set(out, "waterfall", waterfall_json(e));
    set(out, "exposed", exposed_json(e));
    return out;
}

static json_t *search_json(const struct report *report) {
    const struct search_result *r = &report->result;
    json_t *out = json_object(), *rejected = json_array(), *tight = json_array();
    set_count(out, "meshes", r->meshes);
    set_count(out, "layouts", r->layouts);
    set_count(out, "planned", r->planned);
    set_count(out, "estimated", r->estimated);
    set_number(out, "seconds", r->seconds);
    for (int k = 0; k < SEARCH_REASONS; k++) {
        if (r->rejected_meshes[k] + r->rejected[k] == 0) continue;
        json_t *reason = json_object();
        set(reason, "reason", json_string(search_reason_text((enum search_reason)k)));
        set_count(reason, "meshes", r->rejected_meshes[k]);
        set_count(reason, "layouts", r->rejected[k]);
        set(reason, "example", choice_json(&r->example[k], 0));
        if (k == REASON_ENGINE) set(reason, "message", json_string(r->refusal.text));
        json_array_append_new(rejected, reason);
    }
    for (int i = 0; i < r->tight_count; i++) {
        json_t *entry = json_object();
        set(entry, "layout", choice_json(&r->tight[i].choice, 0));
        set_number(entry, "memory_bytes", r->tight[i].memory_bytes);
        set_number(entry, "step_seconds", r->tight[i].step_seconds);
        json_array_append_new(tight, entry);
    }
    set(out, "rejected", rejected);
    set(out, "do_not_fit", tight);
    return out;
}

static json_t *cluster_json(const struct report *report) {
    const struct cluster *c = report->request->search.cluster;
    json_t *out = json_object();
    set(out, "name", json_string(report->request->cluster_name));
    set(out, "accelerator", json_string(c->accelerator.name));
    set_count(out, "nodes", c->nodes);
    set_count(out, "per_node", c->per_node);
    set_count(out, "domain", c->domain);
    set_number(out, "memory_bytes", c->accelerator.memory_bytes.value);
    set_number(out, "memory_limit_bytes", search_capacity(&report->request->search));
    if (c->price_per_hour.origin != FIGURE_ABSENT)
        set_number(out, "price_per_hour", c->price_per_hour.value);
    if (c->failures_per_node_day.origin != FIGURE_ABSENT)
        set_number(out, "failures_per_node_day", c->failures_per_node_day.value);
    return out;
}

static json_t *inputs_json(const struct report *report) {
    struct report_input inputs[REPORT_MOST_INPUTS];
    json_t *out = json_array();
    int count = plan_report_inputs(report, inputs);
    for (int i = 0; i < count; i++) {
        json_t *input = json_object();
        set(input, "name", json_string(inputs[i].name));
        set_number(input, "value", inputs[i].figure.value);
        set(input, "unit", json_string(inputs[i].unit));
        set(input, "origin", json_string(figure_origin_name(inputs[i].figure.origin)));
        set(input, "source", json_string(inputs[i].figure.source));
        json_array_append_new(out, input);
    }
    return out;
}

static json_t *trail_json(const struct trail *trail) {
    json_t *out = json_array();
    for (int i = 0; i < trail->count; i++) {
        json_t *line = json_object();
        set(line, "kind", json_string(trail_kind_name(trail->lines[i].kind)));
        set(line, "name", json_string(trail->lines[i].name));
        set(line, "text", json_string(trail->lines[i].text));
        json_array_append_new(out, line);
    }
    return out;
}

static json_t *model_json(const struct report *report) {
    json_t *out = json_object();
    set(out, "name", json_string(report->request->model_name));
    set_count(out, "parameters", report->parameters);
    set_count(out, "active_parameters", report->active_parameters);
    return out;
}

json_t *plan_report_json(const struct report *report) {
    const struct report_request *r = report->request;
    json_t *out = json_object(), *plans = json_array(), *batch = json_object();
    set(out, "model", model_json(report));
    set(out, "cluster", cluster_json(report));
    set(out, "stack", json_string(r->search.stack->name));
    set_count(batch, "sequences", r->search.batch);
    set_count(batch, "context", r->search.context);
    set_number(batch, "tokens_per_step", (double)r->search.batch * r->search.context);
    set(batch, "sequences_given", json_boolean(r->batch_given));
    set(batch, "context_given", json_boolean(r->context_given));
    set_count(batch, "run_tokens", r->tokens);
    set(batch, "run_tokens_given", json_boolean(r->tokens_given));
    set(out, "batch", batch);
    for (int i = 0; i < report->count; i++) json_array_append_new(plans, plan_json(report, i));
    set(out, "plans", plans);
    set(out, "trail", trail_json(&report->trail));
    set(out, "search", search_json(report));
    set(out, "inputs", inputs_json(report));
    return out;
}
