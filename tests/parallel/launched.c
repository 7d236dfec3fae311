// The program as users start it: weft launch, ranks as processes under the MPI that this build
// links. What stays the same is compared through metrics.jsonl and the exported model; what must be
// refused is refused once.
#include "base/file.h"
#include "base/random.h"
#include "comm/comm.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_inputs(const char *model) {
    struct err err = {0};
    char text[2048];
    uint16_t ids[8000];
    for (int i = 0; i < 8000; i++) ids[i] = (uint16_t)(100 * random_uniform(5, (uint64_t)i));
    CHECK_OK(file_replace(test_path("train.bin"), ids, sizeof ids, &err), err);
    snprintf(text, sizeof text,
             "model: {%s, layers: 4, hidden: 32, heads: 4, vocab: 100, context: 32}\n"
             "data.train: %s\n"
             "data.validation: %s\n"
             "train: {steps: 6, batch: 8, micro_batch: 1, gemm_seconds: 0, precision: fp32, "
             "tensorboard: false}\n"
             "device.threads: 1\n",
             model, test_path("train.bin"), test_path("train.bin"));
    CHECK_OK(file_replace(test_path("c.yaml"), text, strlen(text), &err), err);
}

static char output[1 << 16];

// Runs with `ranks` processes (1: without a launcher), in a folder of that name.
static int run(int ranks, const char *folder, const char *words) {
    char front[64] = "";
    if (ranks > 1) snprintf(front, sizeof front, "launch -n %d --accept-changes ", ranks);
    return test_shell(output, sizeof output, "%s %strain %s train.folder=%s %s", test_weft(), front,
                      test_path("c.yaml"), test_path(folder), words);
}

static void must_run(int ranks, const char *folder, const char *words) {
    if (run(ranks, folder, words) != 0) test_fail(__FILE__, __LINE__, "%s: %s", words, output);
}

// Every loss and gradient norm of a run, in hexadecimal.
static char *figures(const char *folder) {
    static char text[4][1 << 14];
    static int turn;
    char *out = text[turn = (turn + 1) % 4];
    test_shell(out, sizeof text[0],
               "grep -o '\"\\(loss_hex\\|grad_norm_hex\\)\":\"[^\"]*\"' %s/metrics.jsonl",
               test_path(folder));
    CHECK(strlen(out) > 100);
    return out;
}

static void need_mpi(void) {
    if (!comm_built_with_mpi()) SKIP("built without MPI");
}

static char *exported(const char *folder) { // hash of the model in Hugging Face layout
    static char text[4][256];
    static int turn;
    char *out = text[turn = (turn + 1) % 4];
    if (test_shell(output, sizeof output, "%s convert %s %s-hf", test_weft(), test_path(folder),
                   test_path(folder)) != 0)
        test_fail(__FILE__, __LINE__, "%s", output);
    CHECK_EQ_INT(
        test_shell(out, sizeof text[0], "cd %s-hf && sha256sum *.safetensors", test_path(folder)),
        0);
    return out;
}

TEST_LIMIT(launched_pipelines_keep_the_bits, 300) {
    need_mpi();
    write_inputs("family: llama, kv_heads: 2, tied_head: true");
    must_run(1, "one", "");
    must_run(2, "pp", "parallel.pp=2");
    CHECK_STR(figures("pp"), figures("one"));
    must_run(2, "zbv", "parallel.pp=2 pipeline.schedule=zb-v");
    CHECK_STR(figures("zbv"), figures("one"));
    CHECK_STR(exported("zbv"), exported("one"));
}

TEST_LIMIT(launched_layout_goes_on_under_another, 300) {
    need_mpi();
    write_inputs("family: gpt2");
    must_run(4, "whole", "parallel.dp=2 parallel.pp=2 parallel.zero=1");
    must_run(2, "half", "parallel.dp=2 parallel.zero=0 train.stop_at=3");
    must_run(4, "half", "parallel.dp=2 parallel.pp=2 parallel.zero=1 zero.bucket_size=1e6");
    CHECK_STR(figures("half"), figures("whole"));
    CHECK_STR(exported("half"), exported("whole"));
}

TEST_LIMIT(launched_layouts_of_every_axis_start, 300) {
    need_mpi();
    write_inputs("family: llama, kv_heads: 2");
    must_run(8, "all", "parallel.tp=2 parallel.cp=2 parallel.dp=2 parallel.zero=3 train.steps=2");
    CHECK_CONTAINS(output, "pp 1 x dp 2 x cp 2 x tp 2");
    must_run(1, "one", "train.steps=2");
    double all, one;
    CHECK(sscanf(strstr(figures("all"), "loss_hex\":\"") + 11, "%la", &all) == 1);
    CHECK(sscanf(strstr(figures("one"), "loss_hex\":\"") + 11, "%la", &one) == 1);
    CHECK_CLOSE(all, one, 1e-5);
}

// The last field of that name in an evaluation's line of a run's journal.
static double evaluated(const char *folder, const char *field) {
    char text[256];
    CHECK_EQ_INT(test_shell(text, sizeof text,
                            "grep '\"event\":\"evaluation\"' %s/metrics.jsonl | grep -o "
                            "'\"%s\":[^,}]*' | cut -d: -f2",
                            test_path(folder), field),
                 0);
    return strtod(text, NULL);
}

// 249 samples of 32 targets: they divide neither over data ranks nor into micro-batches.
TEST_LIMIT(launched_evaluation_counts_every_sample_once, 300) {
    need_mpi();
    write_inputs("family: llama, kv_heads: 2");
    const char *still = "train.steps=1 optimizer.learning_rate=0";
    char words[200];
    must_run(1, "one", still);
    CHECK(evaluated("one", "targets") == 249 * 32);
    static const struct {
        const char *folder, *words;
        int ranks, samples;
    } runs[] = {{"rows", "train.micro_batch=4", 1, 249},
                {"some", "eval.batches=5", 1, 5},
                {"dp", "parallel.dp=2 train.micro_batch=4", 2, 249},
                {"dp_some", "parallel.dp=4 eval.batches=5", 4, 5},
                {"zero", "parallel.dp=2 parallel.pp=2 parallel.zero=3", 4, 249}};
    double some = 0;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        snprintf(words, sizeof words, "%s %s", still, runs[i].words);
        must_run(runs[i].ranks, runs[i].folder, words);
        CHECK(evaluated(runs[i].folder, "targets") == runs[i].samples * 32);
        double loss = evaluated(runs[i].folder, "loss");
        if (runs[i].samples == 5 && some == 0) some = loss;
        CHECK_CLOSE(loss, runs[i].samples == 5 ? some : evaluated("one", "loss"), 1e-6);
    }
}

// ---- the same bits behind a resume, and checkpoints between layouts
// --------------------------------

// Requirement 60: 20 steps, and 10 and 10 behind a resume; dropout is on.
static void resume_in_the_middle(int ranks, const char *model, const char *layout) {
    char words[400];
    const char *folders[2] = {"through", "halves"};
    need_mpi();
    write_inputs(model);
    for (int i = 0; i < 3; i++) {
        snprintf(words, sizeof words, "%s train.steps=20 train.dropout=0.1 data.validation= %s",
                 layout, i == 1 ? "train.stop_at=10" : "");
        must_run(ranks, folders[i > 0], words);
    }
    CHECK_CONTAINS(output, "step 10,"); // resumed there
    CHECK_STR(figures("halves"), figures("through"));
    snprintf(words, sizeof words, // the bytes of all ranks' parts, moments too
             "cd %s/through/checkpoints/step_00000020 && for f in *.safetensors; do cmp $f "
             "../../../halves/checkpoints/step_00000020/$f || exit 1; done",
             test_temp_dir());
    CHECK_EQ_INT(test_shell(output, sizeof output, "%s", words), 0);
}

TEST_LIMIT(launched_resume_keeps_the_bits_over_tensor_pipeline_and_data, 300) {
    resume_in_the_middle(8, "family: gpt2",
                         "parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.zero=1");
}

TEST_LIMIT(launched_resume_keeps_the_bits_over_experts, 300) {
    resume_in_the_middle(2, "family: llama, kv_heads: 2, experts: 4, expert_ffn: 24",
                         "parallel.dp=2 parallel.ep=2 moe.aux_scope=global moe.bias_rate=0.01");
}

// Requirement 64: rows beyond the vocabulary belong to a layout, not to a checkpoint. Nothing
// learns, so every run must hand on the same rows.
TEST_LIMIT(launched_vocabulary_is_stored_without_padding, 300) {
    const char *still = "model.vocab=50257 model.heads=8 model.kv_heads=8 model.layers=1 "
                        "optimizer.learning_rate=0 data.validation=";
    char words[300];
    need_mpi();
    write_inputs("family: llama, kv_heads: 2");
    snprintf(words, sizeof words, "%s train.steps=1", still);
    must_run(1, "one", words);
    const char *one = exported("one");
    snprintf(words, sizeof words, "%s parallel.tp=8 train.steps=1", still);
    must_run(8, "moved", words);
    CHECK_STR(exported("moved"), one);
    for (int steps = 2; steps <= 3; steps++) { // at tp 1, and back
        snprintf(words, sizeof words, "%s train.steps=%d parallel.tp=%d", still, steps,
                 steps == 2 ? 1 : 8);
        must_run(steps == 2 ? 1 : 8, "moved", words);
        CHECK_CONTAINS(output, "resumed from");
        test_shell(output, sizeof output, "rm -r %s-hf", test_path("moved"));
        CHECK_STR(exported("moved"), one);
    }
}

// ---- what cannot be
// ------------------------------------------------------------------------------

// Two ranks, each in a folder of its own, with the same words.
static int apart(const char *words) {
    bool open_mpi = strncmp(comm_library(), "Open MPI", 8) == 0;
    return test_shell(
        output, sizeof output,
        "OMP_NUM_THREADS=1 %s -n 2 sh -c 'cd %s/rank${OMPI_COMM_WORLD_RANK-$PMI_RANK} "
        "&& exec %s train c.yaml parallel.dp=2 %s'",
        open_mpi ? "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none"
                 : "mpirun.mpich",
        test_temp_dir(), test_weft(), words);
}

static void refused_apart(const char *words, const char *part1, const char *part2) {
    CHECK(apart(words) != 0);
    CHECK_CONTAINS(output, part1);
    CHECK_CONTAINS(output, part2);
    CHECK(strstr(strstr(output, "weft: ") + 1, "weft: ") == NULL); // once
}

TEST_LIMIT(launched_ranks_with_other_files_are_refused, 300) {
    struct err err = {0};
    need_mpi();
    write_inputs("family: llama, kv_heads: 2");
    test_shell(output, sizeof output,
               "cd %s && mkdir rank0 rank1 && for r in rank0 rank1; do cp train.bin $r/same.bin && "
               "cp train.bin $r/short.bin && cp train.bin $r/other.bin && "
               "sed 's|: /.*/|: |; s|train.bin|same.bin|' c.yaml > $r/c.yaml; done && "
               "truncate -s 12000 rank1/short.bin && printf zz | dd of=rank1/other.bin bs=1 "
               "seek=5000 conv=notrunc && rm -f rank1/absent.bin",
               test_temp_dir());
    CHECK_OK(file_replace(test_path("rank0/absent.bin"), output, 4096, &err), err);
    refused_apart("data.train=short.bin", "rank 1", "data.train");
    refused_apart("data.train=other.bin", "reads other samples", "data.train");
    refused_apart("data.validation=short.bin", "reads other samples", "data.validation");
    refused_apart("data.train=absent.bin", "absent.bin", "no such data");
    refused_apart("", "rank 1 (", "all ranks need one folder");
    refused_apart("train.folder=/proc/none", "/proc/none", "cannot");
    refused_apart("train.seed=$OMPI_COMM_WORLD_RANK$PMI_RANK", "train.seed is", "rank 1 (");
}

static void refused(int ranks, const char *words, const char *part1, const char *part2) {
    CHECK_EQ_INT(run(ranks, "refused", words), 2);
    CHECK_CONTAINS(output, part1);
    CHECK_CONTAINS(output, part2);
    int said = 0; // by one rank, and the launcher's word on who ended
    for (const char *at = output; (at = strstr(at, "weft: ")) != NULL; at++) said++;
    CHECK(said == 1 || said == 2);
}

TEST_LIMIT(launched_layouts_that_cannot_be_are_refused_once, 300) {
    need_mpi();
    write_inputs("family: llama, kv_heads: 2");
    refused(3, "parallel.tp=2", "3", "tp");
    refused(4, "parallel.tp=4 model.kv_heads=3 model.heads=12 model.head_dim=8", "kv_heads", "3");
    refused(4, "parallel.pp=4 pipeline.chunks=2 pipeline.schedule=interleaved", "layers", "4");
    refused(2, "parallel.cp=2 data.context=30", "30", "cp");
    refused(3, "parallel.dp=3", "8", "3");
    refused(2, "parallel.pp=2 pipeline.layers=[3,2]", "layers", "5");
    refused(2, "parallel.pp=2 pipeline.schedule=zb-v train.recompute=full", "recompute", "none");
    refused(2, "parallel.ep=2 model.experts=3", "experts", "3");
}
