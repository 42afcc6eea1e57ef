"""Small random models of every supported architecture, and the check that the engine equals them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention import AttentionBackend
from serve_app.engine.batch import build_batch
from serve_app.engine.cache.slots import SlotPool
from serve_app.engine.cache.state_tables import StateTables
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams

BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 6}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "cohere": {},
    "cohere2": WINDOW,
    "deepseek_v3": {
        **MLA,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
    },
    "ernie4_5": {},
    "exaone4": {**WINDOW, "sliding_window_pattern": 2},
    "gemma": {"head_dim": 8},
    "gemma2": {**WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {**WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma4_text": {**WINDOW, "head_dim": 8, "vocab_size_per_layer_input": 96},
    "glm4": {"head_dim": 8},
    "gpt2": GPT,
    "gpt_neox": {},
    "gpt_oss": {**WINDOW, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {},
    "llama": {},
    "minicpm3": MLA,
    "mistral": WINDOW,
    "mixtral": {"num_local_experts": 4},
    "olmo2": {},
    "olmo3": WINDOW,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
}
BLOCK = 4
TABLES = ([7, 2, 11, 5, 13], [3, 1, 9, 0, 14], [12, 4, 8, 6, 10])  # scattered on purpose


def tiny_config(architecture: str, **overrides: Any) -> PreTrainedConfig:
    settings = {**BASE, **ARCHITECTURES.get(architecture, {}), **overrides}
    return AutoConfig.for_model(architecture, **settings)


def make_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A random float32 model with eager attention, its weights large enough for errors to show."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    enlarge(model)
    return model


def enlarge(model: PreTrainedModel) -> None:
    """Draw the matrices anew, in place, large enough for errors to show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)


def tiny_model(architecture: str) -> PreTrainedModel:
    return make_model(tiny_config(architecture))


def make_sequence(name: str, token_ids: list[int], table: list[int]) -> Sequence:
    return Sequence(
        request_id=name,
        index=0,
        prompt_len=len(token_ids),
        token_ids=token_ids,
        sampling=SamplingParams(),
        seed=0,
        block_table=table,
    )


def check_parity(
    model: PreTrainedModel,
    backend: AttentionBackend,
    *,
    tolerance: float = 2e-5,
    prepare: Callable[[PreTrainedModel], PreTrainedModel] = lambda model: model,
) -> None:
    """Mixed prefills, chunks and decodes of three sequences: logits and greedy tokens as in transformers.

    `model` still has eager attention; `tolerance` is relative to the largest logit, or absolute below 1.
    `prepare` changes the model once transformers' own answers are known.
    """
    device = model.device
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 96, (n,), generator=generator).tolist() for n in (14, 9, 5)]
    with torch.inference_mode():  # transformers' own: whole sequences, one at a time
        texts = []
        for prompt in prompts:
            text = list(prompt)
            for _ in range(3):
                logits = model(torch.tensor([text], device=device), use_cache=False).logits
                text.append(int(logits[0, -1].argmax()))
            texts.append(text)
        wanted = [model(torch.tensor([text], device=device), use_cache=False).logits[0] for text in texts]

    runner = ModelRunner(
        prepare(model),
        backend=backend,
        dtype=torch.float32,
        device=device,
        config=EngineConfig(block_size=BLOCK, num_blocks=16),
    )
    a, b, c = (make_sequence(str(i), list(p), TABLES[i]) for i, p in enumerate(prompts))
    states = StateTables(SlotPool(runner.num_slots or 6), BLOCK, prefix_cache=False)
    checked = 0

    def step(*chunks: Chunk) -> None:
        """Run the chunks, compare every row of logits, append a greedy token where a chunk samples."""
        nonlocal checked
        if runner.num_slots:
            states.assign(chunks)
        rows = runner.run(build_batch(chunks, BLOCK, device)).split([chunk.num_logits for chunk in chunks])
        for chunk, got in zip(chunks, rows, strict=True):
            want = wanted[int(chunk.sequence.request_id)]
            limit = tolerance * max(1.0, want.abs().max().item())
            torch.testing.assert_close(got, want[chunk.first_logit : chunk.end], rtol=0, atol=limit)
            checked += chunk.num_logits
            if runner.num_slots:
                states.advance(chunk.sequence, chunk, chunk.end)
                states.settle(chunk)
            if chunk.samples:
                chunk.sequence.token_ids.append(int(got[-1].argmax()))

    step(Chunk(a, 0, 6, 6), Chunk(c, 0, 2, 2))  # no logits at all
    step(Chunk(a, 6, 7, 13), Chunk(b, 0, 9, 3), Chunk(c, 2, 3, 4))  # chunks; six rows of b, one of c
    step(Chunk(b, 9, 1, 9), Chunk(c, 5, 1, 5), Chunk(a, 13, 1, 13))  # decodes, one ends a prompt
    step(Chunk(c, 6, 1, 6), Chunk(b, 10, 1, 10), Chunk(a, 14, 1, 14))
    step(Chunk(a, 15, 1, 15))
    assert checked == 14
    assert [sequence.token_ids for sequence in (a, b, c)] == texts
