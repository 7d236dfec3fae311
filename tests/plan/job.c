// What follows from a job alone, against the parts that ranks really hold.
#include "plan/job.h"
#include "plan/jobs.h"

static const struct {
    struct test_layout layout;
    int ep;
} cases[] = {
    {{"gpt2-124m", "h100-sxm:1", "weft", 1, 1, 1, 1, 0, 1, 1024, 1, PIPELINE_1F1B}, 1},
    {{"gpt2-124m", "h100-sxm:8", "weft", 4, 2, 1, 1, 0, 1, 1024, 4, PIPELINE_1F1B}, 1},
    {{"llama3-8b", "h100-sxm:8", "weft", 2, 4, 1, 2, 0, 1, 4096, 8, PIPELINE_INTERLEAVED}, 1},
    {{"llama3-70b", "h100-sxm:64", "weft", 8, 4, 1, 1, 1, 1, 4096, 8, PIPELINE_ZB_V}, 1},
    {{"qwen3-8b", "h100-sxm:16", "weft", 4, 2, 1, 1, 1, 1, 4096, 8, PIPELINE_1F1B}, 1},
    {{"mixtral-8x7b", "h100-sxm:32", "weft", 2, 2, 1, 1, 1, 1, 4096, 8, PIPELINE_1F1B}, 4},
    {{"deepseek-v3", "h800-ib:512", "weft", 1, 8, 1, 1, 1, 1, 4096, 64, PIPELINE_1F1B}, 64},
};
enum { CASES = sizeof cases / sizeof cases[0] };

// The first rank of a pipeline rank: every tensor rank that comes later holds as much or less.
static void count(const struct job *job, const struct model *whole, int stage, double out[3]) {
    const struct layout *l = &job->layout;
    int at[MESH_AXES] = {[MESH_PP] = layout_stage_rank(l, stage)};
    struct local_model local;
    struct err err = {0};
    CHECK_OK(layout_local(&local, whole, l, mesh_rank(&l->mesh, at), &err), err);
    out[0] = out[1] = out[2] = 0;
    for (int i = 0; i < local.model.param_count; i++) {
        const struct param *p = &local.model.params[i];
        out[!param_is_matrix(p) ? 2 : p->expert >= 0 ? 1 : 0] += (double)param_elements_padded(p);
    }
    local_model_free(&local);
}

TEST(elements_are_those_that_ranks_hold) {
    for (int k = 0; k < CASES; k++) {
        struct job job;
        struct model whole;
        struct err err = {0};
        test_job(&cases[k].layout, &job);
        job.layout.mesh.ep = cases[k].ep;
        CHECK_OK(model_describe(&whole, &job.model, &err), err);
        for (int rank = 0; rank < job.layout.mesh.size[MESH_PP]; rank++) {
            struct job_elements sum = {0};
            double held[3];
            int stage = 0;
            for (int s = 0; s < layout_stages(&job.layout); s++) {
                if (layout_stage_rank(&job.layout, s) != rank) continue;
                struct job_elements e = job_stage_elements(&job, s);
                sum.dense += e.dense;
                sum.expert += e.expert;
                sum.vectors += e.vectors;
                stage = s;
            }
            count(&job, &whole, stage, held);
            const double ours[3] = {sum.dense, sum.expert, sum.vectors};
            for (int i = 0; i < 3; i++)
                if (ours[i] != held[i])
                    test_fail(__FILE__, __LINE__, "%s, pipeline rank %d, kind %d: %.0f, held %.0f",
                              cases[k].layout.model, rank, i, ours[i], held[i]);
        }
        model_free(&whole);
    }
}

TEST(defaults_are_one_of_each) {
    struct job job;
    job_defaults(&job);
    CHECK_EQ_INT(mesh_ranks(&job.layout.mesh), 1);
    CHECK_EQ_INT(job.micro_batches * job.rows, 1);
    CHECK_EQ_INT(job_sequences(&job), 1);
    CHECK_EQ_INT(job.schedule, PIPELINE_1F1B);
    CHECK_EQ_INT(job.recompute, RECOMPUTE_NONE);
    CHECK_CLOSE(job.imbalance, 1, 0);
}

TEST(without_overlap_the_stack_hides_nothing) {
    struct job job;
    test_job(&cases[3].layout, &job);
    struct stack room;
    struct cost_shape shape;
    job_cost_shape(&job, &room, &shape);
    CHECK(shape.stack->overlap_reduce && !shape.no_overlap);
    job.no_overlap = true;
    job_cost_shape(&job, &room, &shape);
    CHECK(shape.no_overlap && !shape.stack->overlap_reduce && !shape.stack->overlap_gather &&
          !shape.stack->overlap_tensor && !shape.stack->overlap_pipeline &&
          !shape.stack->overlap_experts);
    CHECK(job.stack->overlap_reduce); // the stack itself stays
}
