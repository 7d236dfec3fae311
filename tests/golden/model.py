#!/usr/bin/env python3
"""Makes tests/golden/checkpoints/* and rope.json with PyTorch and transformers, an independent implementation.

Each folder is a tiny model with random weights in Hugging Face layout and expected.json:
  tokens        one sequence
  positions     of that sequence, for which `logits` [positions][vocab] are given
  loss          mean cross-entropy of predicting tokens[1:], FP32
  prompt, greedy  the greedy continuation (no stop token), recomputed whole at each step
  gradients     (some folders) batch [rows][tokens], loss (mean over all targets) and for each tensor the Euclidean
                norm of its gradient and some values by flat index, in the stored layout

Run with a Python that has torch, transformers and safetensors:  python tests/golden/model.py
"""
import json
import math
import os
import shutil
import sys

import torch
from transformers import (GPT2Config, LlamaConfig, MistralConfig, MixtralConfig, Olmo2Config, Qwen2Config,
                          Qwen3Config, Qwen3MoeConfig, AutoModelForCausalLM)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = 80
torch.set_num_threads(1)

SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
             tie_word_embeddings=False)


def rope(kind, theta=10000.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


CASES = {
    # name: (config, stored type, gradients?, options)
    "gpt2": (GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1,
                        eos_token_id=2), torch.bfloat16, True, {}),
    "llama": (LlamaConfig(**SMALL, rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0,
                          high_freq_factor=4.0, original_max_position_embeddings=16)), torch.bfloat16, True, {}),
    "mistral": (MistralConfig(**SMALL, sliding_window=6), torch.bfloat16, False, {}),
    "qwen2": (Qwen2Config(**SMALL), torch.float16, False, dict(shard="20KB")),
    "qwen3": (Qwen3Config(**SMALL, head_dim=16), torch.bfloat16, True, {}),
    "olmo2": (Olmo2Config(**SMALL), torch.bfloat16, True, {}),
    "smollm2": (LlamaConfig(**{**SMALL, "tie_word_embeddings": True, "num_attention_heads": 8}), torch.float32, False,
                {}),
    "llama-bias": (LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True), torch.bfloat16, True, {}),
    "llama-linear": (LlamaConfig(**SMALL, rope_parameters=rope("linear", factor=4.0)), torch.bfloat16, False,
                     dict(old=True)),
    "llama-dynamic": (LlamaConfig(**{**SMALL, "max_position_embeddings": 16}, rope_parameters=rope("dynamic",
                      factor=4.0)), torch.bfloat16, False, dict(prompt=6, new=10)),
    "llama-yarn": (LlamaConfig(**SMALL, rope_parameters=rope("yarn", theta=100.0, factor=4.0, beta_fast=4.0,
                   beta_slow=0.25, original_max_position_embeddings=16)), torch.bfloat16, False, {}),
    "qwen2-window": (Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=5, max_window_layers=1),
                     torch.bfloat16, True, {}),
    "mixtral": (MixtralConfig(**{**SMALL, "intermediate_size": 24}, num_local_experts=4, num_experts_per_tok=2),
                torch.bfloat16, True, {}),
    "qwen3-moe": (Qwen3MoeConfig(**{**SMALL, "num_hidden_layers": 3}, head_dim=16, num_experts=5,
                  num_experts_per_tok=3, moe_intermediate_size=8, norm_topk_prob=False, mlp_only_layers=[1],
                  decoder_sparse_step=1), torch.bfloat16, True, {}),
    "qwen3-moe-norm": (Qwen3MoeConfig(**SMALL, head_dim=16, num_experts=4, num_experts_per_tok=2,
                       moe_intermediate_size=8, norm_topk_prob=True, decoder_sparse_step=2), torch.bfloat16, False,
                       {}),
}


def randomise(model, generator, stored):
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name or "ln_" in name:
                value = (1.0 if name.endswith("weight") else 0.0) + 0.2 * noise
            elif name.endswith("bias"):
                value = 0.3 * noise
            elif "embed" in name or "wte" in name or "wpe" in name:
                value = 0.5 * noise
            else:
                value = noise * 1.2 / math.sqrt(32)
            p.copy_(value.to(stored).float())


def loss_of(model, tokens):
    logits = model(tokens, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))


def stored_parts(name, tensor, mixtral):
    """The tensors of the file that a parameter of the library stands for: experts lie there one by one."""
    if mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    if ".experts." not in name:
        return [(name, tensor)]
    base = name.rsplit(".", 1)[0]
    parts = []
    for expert, values in enumerate(tensor):
        if name.endswith("gate_up_proj"):
            half = values.shape[0] // 2
            parts += [(f"{base}.{expert}.{gate}.weight", values[:half]), (f"{base}.{expert}.{up}.weight", values[half:])]
        else:
            parts.append((f"{base}.{expert}.{down}.weight", values))
    return parts


def decisive_routes(model, tokens):
    """Whether no token stands between two experts."""
    config = model.config
    if not getattr(config, "num_experts_per_tok", None):
        return True
    with torch.no_grad():
        routers = model(tokens, use_cache=False, output_router_logits=True).router_logits
    k = config.num_experts_per_tok
    for scores in routers:
        best = scores.sort(dim=-1, descending=True).values
        if (best[:, k - 1] - best[:, k]).min() < 2e-3:
            return False
    return True


def gradients_of(model, generator):
    batch = torch.randint(3, VOCAB, (3, 20), generator=generator)
    while not decisive_routes(model, batch):
        batch = torch.randint(3, VOCAB, (3, 20), generator=generator)
    model.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    tensors = {}
    mixtral = model.config.model_type == "mixtral"
    for name, gradient in [part for n, p in model.named_parameters() for part in stored_parts(n, p.grad, mixtral)]:
        flat = gradient.reshape(-1)
        step = max(1, flat.numel() // 7)
        picks = [i * step + i for i in range(8) if i * step + i < flat.numel()]
        tensors[name] = dict(norm=flat.double().norm().item(), index=picks, value=[flat[i].item() for i in picks])
    return dict(batch=batch.tolist(), loss=loss.item(), tensors=tensors)


def greedy(model, prompt, new, name):
    tokens = list(prompt)
    least = 1e9
    for _ in range(new):
        with torch.no_grad():
            top = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
        least = min(least, (top.values[0] - top.values[1]).item())
        tokens.append(top.indices[0].item())
    assert least > 2e-3, (name, "the best two tokens are too close for a test", least)
    return tokens[len(prompt):]


def old_form(folder):
    """The key names that version 4 of the library wrote."""
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = dict(type=parameters.pop("rope_type"), **parameters)
    config["torch_dtype"] = config.pop("dtype")
    json.dump(config, open(path, "w"), indent=2, sort_keys=True)


def make(name):
    config, stored, with_gradients, options = CASES[name]
    folder = os.path.join(HERE, "checkpoints", name)
    shutil.rmtree(folder, ignore_errors=True)
    for attempt in range(50):
        generator = torch.Generator().manual_seed(1000 * attempt + sum(map(ord, name)))
        config._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config).float().eval()
        randomise(model, generator, stored)
        tokens = torch.randint(3, VOCAB, (1, 24), generator=generator)
        positions = [0, 1, 11, 23]
        with torch.no_grad():
            loss = loss_of(model, tokens).item()
            logits = model(tokens, use_cache=False).logits[0]
        prompt = tokens[0, :options.get("prompt", 8)].tolist()
        # a fresh copy: dynamic scaling remembers the longest sequence
        again = AutoModelForCausalLM.from_config(config).float().eval()
        again.load_state_dict(model.state_dict())
        try:
            continuation = greedy(again, prompt, options.get("new", 20), name)
        except AssertionError as error:
            print(error)
            continue
        if len(set(continuation)) < 5:
            continue
        if not decisive_routes(model, torch.cat([tokens, torch.tensor([prompt + continuation])[:, :24]])):
            print(name, "a token stands between two experts")
            continue
        break
    else:
        sys.exit(f"{name}: no seed gives a decisive continuation")
    expected = dict(tokens=tokens[0].tolist(), positions=positions, logits=[logits[p].tolist() for p in positions],
                    loss=loss, prompt=prompt, greedy=continuation)
    if with_gradients:
        expected["gradients"] = gradients_of(model, generator)
    model.to(stored).save_pretrained(folder, max_shard_size=options.get("shard", "5GB"))
    generation = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    if options.get("old"):
        old_form(folder)
    with open(os.path.join(folder, "expected.json"), "w") as out:
        text = json.dumps(expected, default=float)
        out.write(json.dumps(json.loads(text, parse_float=lambda x: float(f"{float(x):.8g}")), indent=None) + "\n")
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name}: loss {loss:.4f}, {size} bytes, greedy {continuation}")


def rope_tables():
    """Inverse frequencies and attention factors of transformers' own functions."""
    cases = []

    def add(head_dim, context, length, **parameters):
        config = LlamaConfig(hidden_size=head_dim * 2, num_attention_heads=2, max_position_embeddings=context,
                             rope_parameters=dict(parameters))
        kind = parameters["rope_type"]
        if kind == "default":
            frequencies = 1.0 / parameters["rope_theta"] ** (torch.arange(0, head_dim, 2).double() / head_dim)
            factor = 1.0
        else:
            frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
        cases.append(dict(head_dim=head_dim, context=context, length=length, parameters=parameters, factor=factor,
                          frequencies=[float(f"{x:.9g}") for x in frequencies.tolist()]))

    add(64, 2048, 2048, rope_type="default", rope_theta=10000.0)
    add(128, 8192, 8192, rope_type="default", rope_theta=500000.0)
    add(64, 2048, 2048, rope_type="linear", rope_theta=10000.0, factor=4.0)
    add(64, 2048, 1024, rope_type="dynamic", rope_theta=10000.0, factor=2.0)
    add(64, 2048, 8000, rope_type="dynamic", rope_theta=10000.0, factor=2.0)
    add(32, 512, 1000, rope_type="dynamic", rope_theta=500000.0, factor=8.0)
    add(128, 131072, 131072, rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=8192)
    add(64, 131072, 131072, rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=8192)
    add(128, 131072, 131072, rope_type="yarn", rope_theta=1000000.0, factor=4.0,
        original_max_position_embeddings=32768)
    add(64, 16384, 16384, rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=2048,
        beta_fast=16.0, beta_slow=2.0, truncate=False)
    add(64, 16384, 16384, rope_type="yarn", rope_theta=10000.0, factor=40.0, original_max_position_embeddings=4096,
        mscale=1.0, mscale_all_dim=0.8)
    add(64, 16384, 16384, rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=4096,
        attention_factor=1.25)
    with open(os.path.join(HERE, "rope.json"), "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
    if len(sys.argv) == 1:
        rope_tables()
