// Every key of a configuration: the one place where it is named. See config_table.h.
#include "train/config_table.h"
#include <string.h>

#define AT(field) offsetof(struct train_config, field), sizeof(((struct train_config *)0)->field)
#define INT_MOST 2147483647.0
#define LONG_MOST 9007199254740992.0
#define ANY_REAL 1e300

const struct option config_options[] = {
    // clang-format off
    // ---- model
    {"model.preset", OPTION_TEXT, AT(preset), "", 0, 0, NULL, NULL,
     "a named shape to start from (gpt2-124m, llama-15m, ...); the other model keys change single values of it"},
    {"model.from", OPTION_TEXT, AT(from), "", 0, 0, NULL, NULL,
     "a Hugging Face model folder whose shape and weights the run starts from"},
    {"model.family", OPTION_CHOICE, AT(model.family), NULL, 0, 0, "gpt2|llama", NULL,
     "gpt2: LayerNorm, learned positions, GELU, biases, tied head; llama: RMSNorm, rotary positions, SwiGLU. Needed without preset and from"},
    {"model.variant", OPTION_TEXT, AT(model.variant), NULL, 0, 0, NULL, NULL,
     "model_type on export (gpt2, llama, mistral, qwen2, qwen3, olmo2, mixtral, qwen3_moe); follows from the family"},
    {"model.layers", OPTION_INT, AT(model.layers), NULL, 1, MODEL_MAX_LAYERS, NULL, "layers", "transformer blocks"},
    {"model.hidden", OPTION_INT, AT(model.hidden), NULL, 1, 1 << 20, NULL, "features", "width of the residual stream"},
    {"model.heads", OPTION_INT, AT(model.heads), NULL, 1, 1 << 16, NULL, "heads", "query heads"},
    {"model.kv_heads", OPTION_INT, AT(model.kv_heads), NULL, 1, 1 << 16, NULL, "heads",
     "key and value heads; as many as heads unless given, and heads must be a multiple of them"},
    {"model.head_dim", OPTION_INT, AT(model.head_dim), NULL, 1, 1 << 12, NULL, "features",
     "width of a head; hidden / heads unless given"},
    {"model.ffn", OPTION_INT, AT(model.ffn), NULL, 1, 1 << 20, NULL, "features",
     "inner width of the MLP; unless given 4 hidden (gpt2), or 8/3 hidden rounded up to 64 (llama)"},
    {"model.vocab", OPTION_INT, AT(model.vocab), NULL, 1, 1 << 24, NULL, "ids",
     "vocabulary; that of data.tokenizer unless given"},
    {"model.context", OPTION_INT, AT(model.context), NULL, 1, 1 << 26, NULL, "tokens", "longest sequence of the model"},
    {"model.norm_place", OPTION_CHOICE, AT(model.norm_place), NULL, 0, 0, "before|after", NULL,
     "norms before attention and MLP, or on their output (OLMo-2)"},
    {"model.norm_eps", OPTION_REAL, AT(model.norm_eps), NULL, 1e-12, 0.1, NULL, NULL, "epsilon of all norms; 1e-5 unless given"},
    {"model.qk_norm", OPTION_CHOICE, AT(model.qk_norm), NULL, 0, 0, "none|head|full", NULL,
     "norm of queries and keys: per head (Qwen 3) or over all heads (OLMo-2)"},
    {"model.qkv_bias", OPTION_BOOL, AT(model.qkv_bias), NULL, 0, 0, NULL, NULL, "biases of query, key and value projections"},
    {"model.out_bias", OPTION_BOOL, AT(model.out_bias), NULL, 0, 0, NULL, NULL, "bias of the attention's output projection"},
    {"model.mlp_bias", OPTION_BOOL, AT(model.mlp_bias), NULL, 0, 0, NULL, NULL, "biases of the MLP"},
    {"model.kv_lora_rank", OPTION_INT, AT(model.kv_lora_rank), NULL, 0, 1 << 20, NULL, "features",
     "latent attention (DeepSeek): width of the latent that keys and values come from; head_dim is then that of a query. "
     "Planned, not trained. 0: none"},
    {"model.q_lora_rank", OPTION_INT, AT(model.q_lora_rank), NULL, 0, 1 << 20, NULL, "features",
     "latent attention: width of the latent of queries; 0: none"},
    {"model.qk_rope_head_dim", OPTION_INT, AT(model.qk_rope_head_dim), NULL, 0, 1 << 12, NULL, "features",
     "latent attention: rotated part of head_dim"},
    {"model.v_head_dim", OPTION_INT, AT(model.v_head_dim), NULL, 0, 1 << 12, NULL, "features", "latent attention: width of a value"},
    {"model.experts", OPTION_INT, AT(model.experts), NULL, 0, 1 << 16, NULL, "experts",
     "experts of a layer (llama): the MLP becomes a router and so many MLPs. 0: a dense model"},
    {"model.top_k", OPTION_INT, AT(model.top_k), NULL, 0, 64, NULL, "experts", "experts that a token visits; 2 unless given"},
    {"model.expert_ffn", OPTION_INT, AT(model.expert_ffn), NULL, 0, 1 << 20, NULL, "features",
     "inner width of an expert; model.ffn unless given"},
    {"model.shared_ffn", OPTION_INT, AT(model.shared_ffn), NULL, 0, 1 << 20, NULL, "features",
     "inner width of an expert that every token visits; 0: none"},
    {"model.norm_top_k", OPTION_BOOL, AT(model.norm_top_k), NULL, 0, 0, NULL, NULL,
     "weights of the chosen experts are divided by their sum; true unless given"},
    {"model.dense_layers", OPTION_NUMBERS, AT(dense_layers), NULL, 0, MODEL_MAX_LAYERS - 1, NULL, "layers",
     "layers of a model with experts, from 0, that have a dense MLP of width model.ffn"},
    {"model.tied_head", OPTION_BOOL, AT(model.tied_head), NULL, 0, 0, NULL, NULL, "the output head is the embedding table"},
    {"model.init_std", OPTION_REAL, AT(model.init_std), NULL, 0, 1, NULL, NULL,
     "deviation of initial matrices; output projections of a block divide it by sqrt(2 layers); 0.02 unless given"},
    {"model.window", OPTION_NUMBERS, AT(windows), NULL, 0, 1 << 26, NULL, "keys",
     "sliding window: keys that a query sees, itself included; 0 means all. A list is repeated over the layers"},
    {"model.bos", OPTION_INT, AT(model.bos_id), NULL, -1, 1 << 24, NULL, "id", "id that begins a text, -1: none; that of data.tokenizer unless given"},
    {"model.eos", OPTION_INT, AT(model.eos_id), NULL, -1, 1 << 24, NULL, "id", "id that ends a text, -1: none; that of data.tokenizer unless given"},
    {"model.stops", OPTION_NUMBERS, AT(stops), NULL, 0, 1 << 24, NULL, "ids", "further ids that end a text"},
    {"model.rope.scaling", OPTION_CHOICE, AT(model.rope.scaling), NULL, 0, 0, "none|linear|dynamic|llama3|yarn", NULL,
     "how rotary frequencies are stretched beyond the original context (llama)"},
    {"model.rope.theta", OPTION_REAL, AT(model.rope.theta), NULL, 1e-3, 1e12, NULL, NULL, "base of rotary frequencies; 10000 unless given"},
    {"model.rope.factor", OPTION_REAL, AT(model.rope.factor), NULL, 0, 1e6, NULL, NULL, "stretching factor"},
    {"model.rope.low_freq_factor", OPTION_REAL, AT(model.rope.low_freq_factor), NULL, 0, 1e6, NULL, NULL, "llama3 scaling"},
    {"model.rope.high_freq_factor", OPTION_REAL, AT(model.rope.high_freq_factor), NULL, 0, 1e6, NULL, NULL, "llama3 scaling"},
    {"model.rope.beta_fast", OPTION_REAL, AT(model.rope.beta_fast), NULL, 0, 1e6, NULL, NULL, "yarn scaling"},
    {"model.rope.beta_slow", OPTION_REAL, AT(model.rope.beta_slow), NULL, 0, 1e6, NULL, NULL, "yarn scaling"},
    {"model.rope.attention_factor", OPTION_REAL, AT(model.rope.attention_factor), NULL, 0, 1e6, NULL, NULL,
     "yarn: multiplies sine and cosine; 0: follows from the factor"},
    {"model.rope.truncate", OPTION_BOOL, AT(model.rope.truncate), NULL, 0, 0, NULL, NULL, "yarn: round the correction range"},
    {"model.rope.original_context", OPTION_INT, AT(model.rope.original_context), NULL, 0, 1 << 26, NULL, "tokens",
     "context before stretching"},
    // ---- data
    {"data.train", OPTION_LIST, AT(train_sets), "", 0, 0, NULL, NULL,
     "prepared shards, folders of them, Megatron prefixes, llm.c or nanoGPT .bin files; one or a list of sets"},
    {"data.weights", OPTION_NUMBERS, AT(weights), "", 0, ANY_REAL, NULL, NULL,
     "share of drawn training samples of each set, in any scale; equal shares unless given"},
    {"data.validation", OPTION_LIST, AT(validation_sets), "", 0, 0, NULL, NULL, "sets for evaluation; none: no evaluation"},
    {"data.tokenizer", OPTION_TEXT, AT(tokenizer), "", 0, 0, NULL, NULL,
     "tokenizer file or folder; its vocabulary is checked against model and data, and it is copied into the run folder"},
    {"data.context", OPTION_INT, AT(context), NULL, 1, 1 << 26, NULL, "tokens", "length of a training sequence; model.context unless given"},
    {"data.mode", OPTION_CHOICE, AT(mode), "chunk", 0, 0, "chunk|pack", NULL,
     "chunk: documents are joined and cut; pack: whole documents, best fit"},
    {"data.document_mask", OPTION_CHOICE, AT(document_mask), "auto", 0, 0, "auto|true|false", NULL,
     "attention stays inside a document; auto: true when packing"},
    {"data.reset_positions", OPTION_CHOICE, AT(reset_positions), "auto", 0, 0, "auto|true|false", NULL,
     "positions start again with each document; auto: true when packing"},
    {"data.shuffle", OPTION_CHOICE, AT(shuffle), "sample", 0, 0, "sample|shard|none", NULL,
     "sample: a permutation of all samples; shard: permuted shards, samples within a window; none: file order"},
    {"data.shuffle_window", OPTION_LONG, AT(shuffle_window), "16384", 1, LONG_MOST, NULL, "samples", "window of shuffle = shard"},
    {"data.readers", OPTION_INT, AT(readers), "1", 1, 256, NULL, "threads", "reader threads"},
    {"data.steps_ahead", OPTION_INT, AT(steps_ahead), "2", 1, 1024, NULL, "steps", "steps whose batches are prepared in advance"},
    {"data.cache", OPTION_TEXT, AT(cache_folder), "", 0, 0, NULL, NULL, "local folder for copies of shards on slow storage; empty: none"},
    {"data.cache_size", OPTION_SIZE, AT(cache_bytes), "20 GB", 1e6, 1e18, NULL, "bytes", "bound of that folder"},
    // ---- train
    {"train.folder", OPTION_TEXT, AT(folder), NULL, 0, 0, NULL, NULL,
     "run folder: configuration, metrics, events, checkpoints; runs/NAME of the configuration file unless given"},
    {"train.steps", OPTION_LONG, AT(steps), "1000", 1, 1e12, NULL, "steps", "optimizer steps of the whole run"},
    {"train.stop_at", OPTION_LONG, AT(stop_at), "0", 0, 1e12, NULL, "step",
     "stop after this step, saving; schedules still count to train.steps. 0: at the end"},
    {"train.batch", OPTION_INT, AT(batch), "8", 1, 1 << 24, NULL, "sequences", "global batch: sequences of one optimizer step"},
    {"train.micro_batch", OPTION_INT, AT(micro_batch), NULL, 1, 1 << 20, NULL, "sequences",
     "sequences processed at once; unless given the largest divisor of the batch with at most 8,192 tokens"},
    {"train.batch_ramp", OPTION_LIST, AT(batch_ramp), "", 0, 0, NULL, "sequences",
     "smaller batches at first: [8@160, 16@480] is batch 8 until 160 sequences are consumed, then 16 until 480"},
    {"train.seed", OPTION_LONG, AT(seed), "1", 0, LONG_MOST, NULL, NULL, "initial weights and order of samples follow from it"},
    {"train.precision", OPTION_CHOICE, AT(precision), "bf16", 0, 0, "bf16|fp32", NULL,
     "of weights and activations; masters, gradients and moments are FP32 always"},
    {"train.recompute", OPTION_CHOICE, AT(recompute), "none", 0, 0, "none|selective|selective_mlp|full", NULL,
     "what backward computes again instead of keeping: less memory, more operations, the same bits"},
    {"train.dropout", OPTION_REAL, AT(dropout), "0", 0, 0.999, NULL, NULL,
     "share of elements of the embedding and of each block's output that are zeroed while training; the same ones whatever the layout"},
    {"train.resume", OPTION_BOOL, AT(resume), "true", 0, 0, NULL, NULL,
     "go on from the newest valid checkpoint of the run folder; false: refuse a folder that holds one"},
    {"train.log_every", OPTION_INT, AT(log_every), "10", 1, INT_MOST, NULL, "steps", "steps between progress lines (metrics.jsonl has every step)"},
    {"train.max_bad_steps", OPTION_INT, AT(max_bad_steps), "10", 1, INT_MOST, NULL, "steps",
     "stop after so many skipped steps in a row (loss or gradient not finite, or a spike); such a step changes nothing"},
    {"train.skip_steps", OPTION_NUMBERS, AT(skip_steps), "", 1, 1e12, NULL, "steps",
     "steps whose samples are passed over without an update"},
    {"train.tensorboard", OPTION_BOOL, AT(tensorboard), "true", 0, 0, NULL, NULL, "write TensorBoard events"},
    {"train.trace", OPTION_TEXT, AT(trace), "", 0, 0, NULL, NULL, "write a Chrome/Perfetto trace to this file"},
    {"train.gemm_seconds", OPTION_REAL, AT(gemm_seconds), "0.5", 0, 60, NULL, "seconds",
     "measure the best GEMM rate for so long per shape, after the first step; MFU is a share of it. 0: no MFU"},
    // ---- device
    {"device.threads", OPTION_INT, AT(threads), "0", 0, 4096, NULL, "threads", "compute threads; 0: all that the process may use. Never changes a bit"},
    {"device.isa", OPTION_CHOICE, AT(isa), "best", 0, 0, "best|portable|avx2|avx512", NULL, "highest instruction set to use"},
    // ---- parallel
    {"parallel.tp", OPTION_INT, AT(tp), "1", 1, 1 << 16, NULL, "ranks", "tensor parallelism: parts of each matrix"},
    {"parallel.pp", OPTION_INT, AT(pp), "1", 1, LAYOUT_MAX_STAGES, NULL, "ranks", "pipeline parallelism: ranks over which the layers are spread"},
    {"parallel.cp", OPTION_INT, AT(cp), "1", 1, 1 << 16, NULL, "ranks", "context parallelism: parts of each sequence"},
    {"parallel.dp", OPTION_INT, AT(dp), "0", 0, 1 << 20, NULL, "ranks", "data parallelism: replicas with other sequences; 0: what the world leaves over"},
    {"parallel.ep", OPTION_INT, AT(ep), "1", 1, 1 << 16, NULL, "ranks",
     "expert parallelism: ranks of dp x cp over which the experts of a layer are spread"},
    {"parallel.order", OPTION_LIST, AT(order), "pp,dp,cp,tp", 0, 0, NULL, NULL,
     "axes from the outermost to the innermost; ranks that differ in the last are neighbours, mostly on one host"},
    {"parallel.sequence", OPTION_CHOICE, AT(sequence_parallel), "auto", 0, 0, "auto|true|false", NULL,
     "sequence parallelism: outside of the matrices the tokens are cut over tp; auto: true when tp is above 1"},
    {"parallel.zero", OPTION_INT, AT(zero), "0", 0, 3, NULL, NULL,
     "what is cut over data ranks: 1 optimizer state, 2 and gradients, 3 and weights; 0: nothing"},
    // ---- pipeline
    {"pipeline.schedule", OPTION_CHOICE, AT(pipeline), "1f1b", 0, 0, "gpipe|1f1b|interleaved|zb-h1|zb-v|file", NULL,
     "order of forward and backward over stages; file: a list of the user's own"},
    {"pipeline.chunks", OPTION_INT, AT(chunks), "0", 0, LAYOUT_MAX_CHUNKS, NULL, "stages",
     "stages of each rank; 0: the schedule's own (interleaved and zb-v 2, else 1)"},
    {"pipeline.placement", OPTION_CHOICE, AT(placement), "auto", 0, 0, "auto|loop|v", NULL,
     "loop: stage s on rank s mod pp; v: rank r holds stages r and 2 pp - 1 - r; auto: v for zb-v, else loop"},
    {"pipeline.file", OPTION_TEXT, AT(pipeline_file), "", 0, 0, NULL, NULL, "CSV file of schedule = file, as weft schedule --csv writes it"},
    {"pipeline.layers", OPTION_NUMBERS, AT(pipeline_layers), "", 1, MODEL_MAX_LAYERS, NULL, "layers",
     "layers of each stage; as even as possible unless given, longer stages first"},
    {"pipeline.count_ends", OPTION_BOOL, AT(count_ends), "false", 0, 0, NULL, NULL,
     "embedding and head weigh as much as a layer each when layers are spread"},
    // ---- zero
    {"zero.bucket_size", OPTION_SIZE, AT(bucket_bytes), "32 MB", 4096, 1e12, NULL, "bytes",
     "FP32 gradients that are reduced together; stages 2 and 3 reduce layer by layer. Never changes a bit"},
    {"zero.reduce", OPTION_CHOICE, AT(reduce), "per_step", 0, 0, "per_step|per_micro_batch", NULL,
     "stages 0 and 1: gradients are summed over ranks once a step, or after each micro-batch, as stages 2 and 3 always do"},
    {"zero.shard", OPTION_INT, AT(shard), "0", 0, 1 << 20, NULL, "ranks",
     "data ranks that share one copy of what is cut (hybrid sharding); 0: all of dp x cp"},
    {"zero.gather_precision", OPTION_CHOICE, AT(gather_precision), "auto", 0, 0, "auto|bf16|fp32", NULL,
     "of weights on the wire; auto: train.precision"},
    {"zero.reduce_precision", OPTION_CHOICE, AT(reduce_precision), "fp32", 0, 0, "bf16|fp32", NULL,
     "of gradients on the wire; they are added in FP32"},
    {"zero.accumulate_precision", OPTION_CHOICE, AT(accumulate_precision), "fp32", 0, 0, "bf16|fp32", NULL,
     "of gradients in memory, over micro-batches"},
    {"zero.prefetch", OPTION_INT, AT(prefetch), "1", 0, MODEL_MAX_LAYERS, NULL, "layers", "stage 3: layers gathered ahead of the one that computes"},
    {"zero.gathers_in_flight", OPTION_INT, AT(gathers_in_flight), "2", 1, 64, NULL, "gathers", "stage 3: most gathers at a time"},
    // ---- cp
    {"cp.kind", OPTION_CHOICE, AT(cp_kind), "ring", 0, 0, "ring|gather", NULL,
     "ring: keys and values go round behind compute; gather: every rank gets all of them at once"},
    {"cp.balance", OPTION_CHOICE, AT(cp_balance), "sequence", 0, 0, "sequence|document", NULL,
     "each rank takes an early and a late part of the packed sequence, or of each document"},
    // ---- moe
    {"moe.aux", OPTION_REAL, AT(model.aux_coefficient), NULL, 0, 100, NULL, NULL,
     "coefficient of the load-balancing loss; that of the model's kind, or 0.01, unless given"},
    {"moe.aux_scope", OPTION_CHOICE, AT(aux_scope), "sequence", 0, 0, "sequence|global", NULL,
     "tokens whose loads are balanced: of each sequence, or of the whole step"},
    {"moe.z", OPTION_REAL, AT(z_coefficient), "0", 0, 100, NULL, NULL, "coefficient of the loss that keeps router logits small"},
    {"moe.capacity", OPTION_REAL, AT(capacity), "0", 0, 1e6, NULL, NULL,
     "most tokens of an expert, per sequence, as a multiple of an even load; what is above is dropped and counted. 0: nothing is dropped"},
    {"moe.bias_rate", OPTION_REAL, AT(bias_rate), "0", 0, 1, NULL, NULL,
     "balance by a bias on the choice of experts that moves by so much a step; 0: none"},
    {"moe.wave", OPTION_LONG, AT(wave), "0", 0, 1e9, NULL, "tokens",
     "rows that a rank's experts process at a time, which bounds their memory; 0: planned from the model"},
    // ---- comm
    {"comm.watchdog", OPTION_REAL, AT(watchdog_seconds), "600", 0.1, 1e6, NULL, "seconds",
     "a rank that does not arrive for so long ends the run, by name"},
    {"comm.check_order", OPTION_BOOL, AT(check_order), "false", 0, 0, NULL, NULL,
     "compare the order of operations over ranks, to find a rank that takes another branch"},
    {"comm.checksums", OPTION_BOOL, AT(checksums), "true", 0, 0, NULL, NULL,
     "messages carry a checksum; a damaged one ends the run, to be started again from its newest state"},
    {"comm.link_latency", OPTION_REAL, AT(link_latency_seconds), "0", 0, 10, NULL, "seconds",
     "for studies: delay of messages between hosts"},
    {"comm.link_rate", OPTION_REAL, AT(link_bytes_per_second), "0", 0, 1e15, NULL, "bytes/s",
     "for studies: rate of a link between hosts, one way; 0: as it is"},
    {"comm.ranks_per_host", OPTION_INT, AT(ranks_per_host), "0", 0, 1 << 20, NULL, "ranks",
     "for studies: ranks that count as one host; 0: the hosts that there are"},
    // ---- guard
    {"guard.loss_factor", OPTION_REAL, AT(loss_factor), "3", 0, 1e6, NULL, NULL,
     "a step whose loss is above so many times its moving average is skipped; 0: never"},
    {"guard.loss_deviations", OPTION_REAL, AT(loss_deviations), "0", 0, 1e6, NULL, NULL,
     "or above its mean of the last 128 steps by so many standard deviations; 0: never"},
    {"guard.norm_deviations", OPTION_REAL, AT(norm_deviations), "500", 0, 1e6, NULL, NULL,
     "the same of the gradient norm"},
    {"guard.warmup", OPTION_INT, AT(spike_warm_up), "20", 1, INT_MOST, NULL, "steps", "accepted steps before these rules judge"},
    {"guard.most_spikes", OPTION_INT, AT(most_spikes), "3", 0, 100, NULL, "steps",
     "skipped steps of the last hundred that are borne; with one more the run goes back to an older state"},
    {"guard.optimizer", OPTION_BOOL, AT(guard_optimizer), "true", 0, 0, NULL, NULL,
     "checksums of master weights and moments, taken by each update and verified by the next"},
    {"guard.gradients", OPTION_BOOL, AT(guard_gradients), "true", 0, 0, NULL, NULL,
     "checksums of accumulated gradients, compared before they are added to or used; a rank's digest for replays follows from them"},
    {"guard.weights_every", OPTION_INT, AT(weights_every), "10", 0, INT_MOST, NULL, "steps",
     "above 0: every step compares working weights with their masters (or, those of other ranks' shards, with what came), and packed copies are compared with what was packed, a part of them each step, all within so many; 0: none of it"},
    {"guard.products_every", OPTION_INT, AT(products_every), "10", 0, INT_MOST, NULL, "steps",
     "steps between checks of a matrix product: rows of its result are computed again in double precision; 0: never"},
    {"guard.replicas_every", OPTION_INT, AT(replicas_every), "10", 0, INT_MOST, NULL, "steps",
     "steps within which ranks compare digests of all that they hold alike; 0: never"},
    {"guard.replay", OPTION_BOOL, AT(guard_replay), "true", 0, 0, NULL, NULL,
     "compute a suspect step again, on the same and on other ranks, to tell a passing fault from a broken machine and from software"},
    {"guard.most_faults", OPTION_INT, AT(most_faults), "3", 0, INT_MOST, NULL, NULL,
     "passing faults of one rank within a thousand steps that are borne; with one more its host is given up; damaged messages of one host that are borne before it is checked"},
    {"guard.on_corruption", OPTION_CHOICE, AT(on_corruption), "roll_back", 0, 0, "roll_back|leave", NULL,
     "when weights or optimizer state are not what they were: go back to an older state and on from there, or leave with exit status 76"},
    {"guard.counters", OPTION_BOOL, AT(guard_counters), "true", 0, 0, NULL, NULL,
     "watch the machine's own counters of memory and accelerator errors"},
    {"guard.counters_seconds", OPTION_REAL, AT(counters_seconds), "30", 0.01, 1e6, NULL, "seconds", "time between two looks at them"},
    {"guard.counters_folder", OPTION_TEXT, AT(counters_folder), "", 0, 0, NULL, NULL,
     "where the kernel counts memory errors (EDAC), for containers that see the host's /sys elsewhere; empty: /sys/devices/system/edac/mc"},
    // ---- optimizer
    {"optimizer.learning_rate", OPTION_REAL, AT(learning_rate), "0.001", 0, 1000, NULL, NULL, "peak learning rate of AdamW"},
    {"optimizer.beta1", OPTION_REAL, AT(beta1), "0.9", 0, 0.999999, NULL, NULL, "decay of the first moment"},
    {"optimizer.beta2", OPTION_REAL, AT(beta2), "0.95", 0, 0.9999999, NULL, NULL, "decay of the second moment"},
    {"optimizer.eps", OPTION_REAL, AT(eps), "1e-8", 0, 1, NULL, NULL, "added to the root of the second moment"},
    {"optimizer.weight_decay", OPTION_REAL, AT(weight_decay), "0.1", 0, 100, NULL, NULL,
     "decoupled decay of matrices and tables; norms and biases have none"},
    {"optimizer.clip", OPTION_REAL, AT(clip), "1", 0, 1e18, NULL, NULL, "largest global gradient norm; 0: no clipping"},
    // ---- schedule
    {"schedule.kind", OPTION_CHOICE, AT(schedule), "cosine", 0, 0, "cosine|linear|wsd|constant", NULL,
     "learning rate after warm-up; wsd: constant, then decay at the end"},
    {"schedule.unit", OPTION_CHOICE, AT(unit), "steps", 0, 0, "steps|samples|tokens", NULL, "unit of warmup and decay"},
    {"schedule.warmup", OPTION_LONG, AT(warmup), "0", 0, LONG_MOST, NULL, "schedule.unit", "linear rise from 0; the peak is reached at its end"},
    {"schedule.decay", OPTION_LONG, AT(decay), "0", 0, LONG_MOST, NULL, "schedule.unit", "wsd: length of the fall at the end"},
    {"schedule.min_ratio", OPTION_REAL, AT(min_ratio), "0.1", 0, 1, NULL, NULL, "rate of the last step as a share of the peak"},
    {"schedule.decay_shape", OPTION_CHOICE, AT(decay_shape), "linear", 0, 0, "linear|sqrt", NULL, "wsd: 1 - x or 1 - sqrt(x)"},
    // ---- eval
    {"eval.every", OPTION_LONG, AT(eval_every), "0", 0, 1e12, NULL, "steps", "steps between evaluations; 0: none between"},
    {"eval.batches", OPTION_LONG, AT(eval_batches), "0", 0, 1e12, NULL, "micro-batches", "micro-batches of one evaluation; 0: the whole set"},
    {"eval.at_end", OPTION_BOOL, AT(eval_at_end), "true", 0, 0, NULL, NULL, "evaluate after the last step"},
    // ---- checkpoint
    {"checkpoint.folder", OPTION_TEXT, AT(checkpoint_folder), NULL, 0, 0, NULL, NULL, "folder of checkpoints; RUN/checkpoints unless given"},
    {"checkpoint.every", OPTION_LONG, AT(checkpoint_every), "0", 0, 1e12, NULL, "steps", "steps between checkpoints; 0: none between"},
    {"checkpoint.at_end", OPTION_BOOL, AT(checkpoint_at_end), "true", 0, 0, NULL, NULL, "save after the last step"},
    {"checkpoint.keep_last", OPTION_INT, AT(keep_last), "2", 1, INT_MOST, NULL, "checkpoints", "newest checkpoints that stay"},
    {"checkpoint.keep_every", OPTION_LONG, AT(keep_every), "0", 0, 1e12, NULL, "steps", "checkpoints of steps divisible by this stay too; 0: none"},
    {"checkpoint.keep_steps", OPTION_NUMBERS, AT(keep_steps), "", 0, 1e12, NULL, "steps", "checkpoints of these steps, once saved, are never removed"},
    {"checkpoint.interval", OPTION_CHOICE, AT(checkpoint_interval), "steps", 0, 0, "steps|auto", NULL,
     "auto: max(sqrt(2 x blocking x time between failures), time to write), as measured; checkpoint.every is the first interval"},
    {"checkpoint.mtbf", OPTION_REAL, AT(mtbf_seconds), "0", 0, 1e9, NULL, "seconds",
     "mean time between failures; 0: measured by weft launch, a day until there were some"},
    {"checkpoint.snapshot", OPTION_CHOICE, AT(snapshot), "auto", 0, 0, "auto|true|false", NULL,
     "copy the state into memory that outlives the process and write it to disk behind the run; auto: true when saving between steps"},
    {"checkpoint.snapshot_folder", OPTION_TEXT, AT(snapshot_folder), "/dev/shm", 0, 0, NULL, NULL, "memory file system for snapshots"},
    {"checkpoint.second_folder", OPTION_TEXT, AT(second_folder), "", 0, 0, NULL, NULL,
     "another, perhaps slower folder that checkpoints are copied to once they are complete; empty: none"},
    {"checkpoint.back", OPTION_INT, AT(states_back), "0", 0, 1000, NULL, "states", "resume from so many states before the newest"},
    {"checkpoint.part_size", OPTION_SIZE, AT(part_bytes), "512 MB", 1e3, 1e15, NULL, "bytes", "largest file of a checkpoint"},
    // ---- fault
    {"fault.kind", OPTION_LIST, AT(fault_kind), "", 0, 0, NULL, NULL,
     "faults to inject, for trials: exit, abort, kill, stop, hang, slow, nan, spike, flip_weight, flip_gradient, flip_optimizer, "
     "flip_message, flip_product, disk_fail, disk_full, link_drop, link_flap, leak; the other keys of fault have as many values, or one for all"},
    {"fault.rank", OPTION_NUMBERS, AT(fault_rank), "0", -1, 1 << 24, NULL, "rank", "where; -1: on all ranks"},
    {"fault.step", OPTION_NUMBERS, AT(fault_step), "1", 1, 1e12, NULL, "step", "when; some kinds last from this step on"},
    {"fault.steps", OPTION_NUMBERS, AT(fault_steps), "0", 0, 1e12, NULL, "steps",
     "how long slow, leak, link_* and disk_* last, 0: to the end; above 0 nan, spike, flip_gradient and flip_product last too, in replays as well"},
    {"fault.attempt", OPTION_NUMBERS, AT(fault_attempt), "0", -1, 1e6, NULL, NULL,
     "in which launch of the run, 0 the first; -1: in every one"},
    {"fault.when", OPTION_LIST, AT(fault_when), "step", 0, 0, NULL, NULL, "step: as the step begins; save: in the next save behind it"},
    {"fault.factor", OPTION_NUMBERS, AT(fault_factor), "0", 0, 1e9, NULL, NULL, "how much slower (2), how large a spike (1000), seconds of each stall of a link that flaps (1), MB that leak a step (64); 0: these"},
    {"fault.peer", OPTION_NUMBERS, AT(fault_peer), "-1", -1, 1 << 24, NULL, "rank", "other end of a link; -1: all"},
    {"fault.bit", OPTION_NUMBERS, AT(fault_bit), "-1", -1, 31, NULL, NULL,
     "bit that flips, 0 the lowest; -1: one of sign, exponent and the upper 7 of the mantissa"},
    {"fault.seed", OPTION_LONG, AT(fault_seed), "1", 0, LONG_MOST, NULL, NULL, "which element and bit"},
    // clang-format on
};
const int config_option_count = sizeof config_options / sizeof config_options[0];
_Static_assert(sizeof config_options / sizeof config_options[0] <= CONFIG_MAX_OPTIONS,
               "more options than places for their origins");

int config_find(const char *key) {
    for (int i = 0; i < config_option_count; i++)
        if (strcmp(config_options[i].key, key) == 0) return i;
    return -1;
}

int config_find_field(size_t offset) {
    for (int i = 0; i < config_option_count; i++)
        if (config_options[i].offset == offset) return i;
    return -1;
}

bool config_needs_experts(const struct option *o) {
    static const char *const keys[] = {"model.top_k", "model.expert_ffn", "model.shared_ffn",
                                       "model.norm_top_k", "model.dense_layers"};
    if (strncmp(o->key, "moe.", 4) == 0) return true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(o->key, keys[i]) == 0) return true;
    return false;
}

static const char *last_word(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

// The whole key first, then its last word alone: who writes "learning_rat" or "train.lr_decay" has
// forgotten or mixed up the group.
const char *config_nearest(const char *key) {
    const char *names[CONFIG_MAX_OPTIONS];
    for (int i = 0; i < config_option_count; i++) names[i] = config_options[i].key;
    const char *word = last_word(key);
    for (int i = 0; i < config_option_count; i++)
        if (strcmp(last_word(names[i]), word) == 0) return names[i];
    const char *whole = text_nearest(key, names, (size_t)config_option_count);
    if (whole) return whole;
    for (int i = 0; i < config_option_count; i++) names[i] = last_word(config_options[i].key);
    const char *near = text_nearest(word, names, (size_t)config_option_count);
    for (int i = 0; near && i < config_option_count; i++)
        if (names[i] == near) return config_options[i].key;
    return NULL;
}

int config_choice_count(const struct option *o) {
    int count = 1;
    for (const char *c = o->choices; *c; c++) count += *c == '|';
    return count;
}

const char *config_choice(const struct option *o, int place, char out[64]) {
    const char *from = o->choices;
    for (; place > 0 && from; place--) from = strchr(from, '|') ? strchr(from, '|') + 1 : NULL;
    size_t length = from ? strcspn(from, "|") : 0;
    if (length > 63) length = 63;
    if (from) memcpy(out, from, length);
    out[length] = 0;
    return out;
}
