"""The trial itself: the kernels compared with plain torch on the same numbers. Runs in a separate process.

A kernel that is wrong on a device may compute wrong numbers, fail, or end the process. In the first two
cases, the fault is returned as a sentence; the parent process notices the third.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Final

import torch
import transformers
from transformers import PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention import CACHED, AttentionBackend, LayerSpec
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.adapters.slots import StackedTable
from serve_app.engine.cuda.capture import CudaGraphs, Record
from serve_app.engine.cuda.experts.grouped import MANY, Pairs
from serve_app.engine.cuda.fused import accelerate_cuda
from serve_app.engine.cuda.graphs import graph_steps
from serve_app.engine.cuda.trial.products import products_fault
from serve_app.engine.cuda.trial.question import AttentionUse, ExpertsUse, Question
from serve_app.engine.cuda.trial.states import states_fault
from serve_app.engine.cuda.trial.steps import ADAPTERS, PIECE, Prompts, steps_of
from serve_app.engine.experts.gate import interleaved
from serve_app.engine.model.adapter_table import Adapters, MakeAdapters
from serve_app.engine.model.lora import LowRank
from serve_app.engine.model.packed_adapters import PackedTable
from serve_app.engine.model.runner import ModelRunner

# Of outputs of attention over random numbers, which are below 4; and of the largest logit of the small model.
# Rounding alone, in another order, changes logits of bfloat16 by 0.02 to 0.06 of the largest one, by model,
# seed and version of torch.
ATTENTION: Final = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 8e-3}
LOGITS: Final = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 2e-2}
CODES: Final = 1e-2  # the least of these limits in a cache of codes: a rounding may choose the next code
EXPERTS: Final = 8  # of a layer
ROWS: Final = (1, 40, 8 * MANY)  # with experts: single ones, and tiles of few pairs and of many
SOME: Final = ("k_proj", "v_proj", "up_proj", "down_proj")  # modules that not only the first adapter changes


def find_fault(question: Question, record: Record | None = None) -> str | None:
    """The fault of the kernels, in a sentence; None if there is none. `record`: as for `graph_steps`."""
    torch.backends.cuda.matmul.allow_tf32 = False
    device, dtype = torch.device(question.device), getattr(torch, question.dtype)
    torch.manual_seed(0)
    for use in question.uses:
        if (fault := attention_fault(use, question, dtype, device, TritonAttention())) is not None:
            return fault
    for kind in question.experts:
        if (fault := experts_fault(kind, dtype, device)) is not None:
            return fault
    if question.states and (fault := states_fault(dtype, device)) is not None:
        return fault
    quantized = question.quantization != "none"
    if quantized and (fault := products_fault(question.quantization, dtype, device)) is not None:
        return fault
    if question.model is None or question.config is None:
        return None
    return model_fault(_small_model(question.model, question.config, dtype, device), question, record)


def attention_fault(
    use: AttentionUse, question: Question, dtype: torch.dtype, device: torch.device, tried: AttentionBackend
) -> str | None:
    """As `find_fault`, for one use of attention by the backend `tried`."""
    limit = ATTENTION[dtype]
    spec = LayerSpec(use.kv_heads, use.key_dim, use.value_dim, latent=use.latent)
    prompts = Prompts.of(question.longest, question.block_size)
    backends: tuple[AttentionBackend, ...] = ReferenceAttention(), tried
    for backend in backends:
        backend.allocate(
            (spec,), prompts.num_blocks, prompts.block_size, dtype, device, codes=CACHED[question.codes]
        )
    options: dict[str, Any] = {
        "scale": use.scale,
        "window": use.window,
        "softcap": use.softcap,
        "latent": use.latent,
    }
    if use.sinks:
        options["sinks"] = torch.randn(use.heads, device=device, dtype=dtype)
    for batch in steps_of(prompts, 2, device):
        tokens = len(batch.input_ids)
        sizes = (use.heads, use.key_dim), (use.kv_heads, use.key_dim), (use.kv_heads, use.value_dim)
        query, key, value = (torch.randn(tokens, *size, device=device).to(dtype) for size in sizes)
        value = key[..., : use.value_dim] if use.latent else value
        want, got = (
            each.forward(0, query, key, value, batch.context, **options).float() for each in backends
        )
        difference = float((got - want).abs().max())
        if not difference <= limit * max(1.0, float(want.abs().max())):  # NaN is a fault too
            lengths = list(batch.context.query_lens)
            return f"attention of {use} differs by {difference:.3g} in a step of {lengths} tokens"
    return None


def experts_fault(use: ExpertsUse, dtype: torch.dtype, device: torch.device) -> str | None:
    """As `find_fault`, for one kind of experts, but with fewer experts: their weights take memory."""
    experts, chosen = min(use.experts, EXPERTS), min(use.chosen, EXPERTS)
    columns = use.inner * (2 if use.has_gate else 1)

    def weights(inputs: int, outputs: int) -> torch.Tensor:
        sizes = (inputs, outputs) if use.transposed else (outputs, inputs)
        return torch.randn(experts, *sizes, device=device).div(inputs**0.5).to(dtype)

    up, down = weights(use.width, columns), weights(use.inner, use.width)
    biases = [
        torch.randn(experts, n, device=device).to(dtype) if use.biased else None for n in (columns, use.width)
    ]
    for rows in ROWS:
        x = torch.randn(rows, use.width, device=device).to(dtype)
        numbers = torch.rand(rows, experts, device=device).argsort(1)[:, :chosen].contiguous()
        factors = torch.rand(rows, chosen, device=device).to(dtype)
        pairs = Pairs(numbers.view(-1), experts)
        options: dict[str, Any] = {"transposed": use.transposed}
        made = pairs.multiply(x, up, biases[0], share=chosen, gate=use.gate, in_turn=use.in_turn, **options)
        inner = made if use.gate or not use.has_gate else made[:, : use.inner].contiguous()
        got = pairs.add(pairs.multiply(inner, down, biases[1], scale=factors.view(-1), **options), rows)
        want = torch.zeros(rows, use.width, device=device)
        for expert in range(experts):
            row, place = (numbers == expert).nonzero(as_tuple=True)
            matrices = [each[expert].float() for each in (up, down)]
            first, second = matrices if use.transposed else [each.T for each in matrices]
            step = x[row].float() @ first + (0 if biases[0] is None else biases[0][expert].float())
            if use.gate is not None:
                turned = step[:, interleaved(columns).to(device)] if use.in_turn else step
                step = use.gate(turned)
            step = step[:, : use.inner] @ second + (0 if biases[1] is None else biases[1][expert].float())
            want.index_add_(0, row, step * factors[row, place, None].float())
        difference, largest = float((got.float() - want).abs().max()), float(want.abs().max())
        if not difference <= LOGITS[dtype] * largest:  # NaN is a fault too
            return f"experts of {use} differ by {difference:.3g} of {largest:.3g} for {rows} rows"
    return None


def model_fault(model: PreTrainedModel, question: Question, record: Record | None) -> str | None:
    """As `find_fault`, for a fused model, with and without graphs of its steps."""
    prompts = Prompts.of(question.longest, question.block_size)
    limit, backend = LOGITS[model.dtype], TritonAttention()
    if CACHED[question.codes] is not None:
        limit = max(limit, CODES)
    plain = _runner(copy.deepcopy(model), ReferenceAttention(), question, prompts, PackedTable)
    want = list(_logits(plain, prompts))
    fused = _runner(accelerate_cuda(model, model.dtype), backend, question, prompts, StackedTable)
    if (fault := _difference("fused layers", want, _logits(fused, prompts), limit)) is not None:
        return fault
    sequences, adapters = len(prompts.lengths), fused.adapters
    module, plan = fused.module, fused.plan
    if record is None and fused.device.type == "cuda":
        record = CudaGraphs()  # of all sizes: which of them gain depends on the moment
    if graph_steps(module, backend, plan, sequences, lambda _: None, record, adapters, tokens=PIECE):
        return _difference("graphs of steps", want, _logits(fused, prompts), limit)
    return None  # a model whose graphs cannot be recorded is served without


def _small_model(name: str, config: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A random model; its weights are large enough for errors to show."""
    kind: Any = getattr(transformers, name)
    with device:
        # As a loaded model is: parameters of the type, buffers as the class wants them.
        made = kind._from_config(kind.config_class.from_dict(json.loads(config)), dtype=dtype)
        model: PreTrainedModel = made.eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, parameter.shape[1] ** -0.5)
                else:
                    parameter += torch.randn_like(parameter) * 0.1
    return model


def _runner(
    model: PreTrainedModel,
    backend: AttentionBackend,
    question: Question,
    prompts: Prompts,
    make_adapters: MakeAdapters,
) -> ModelRunner:
    config = EngineConfig(
        block_size=prompts.block_size,
        num_blocks=prompts.num_blocks,
        max_adapters=len(set(ADAPTERS)) if question.rank else 0,
        max_adapter_rank=max(question.rank, 1),
        kv_cache_dtype=question.codes,
    )
    device = torch.device(question.device)
    runner = ModelRunner(
        model,
        backend=backend,
        dtype=model.dtype,
        device=device,
        config=config,
        context_window=prompts.blocks_each * prompts.block_size,
        make_adapters=make_adapters,
    )
    if runner.adapters is not None:
        for number, key in enumerate(dict.fromkeys(ADAPTERS)):
            updates = _random_updates(runner.adapters, number, question.rank)
            runner.adapters.put(key, runner.adapters.compile(updates))
    return runner


def _random_updates(table: Adapters, number: int, rank: int) -> list[LowRank]:
    """An adapter with numbers about as large as the weights. All adapters after the first have a lower rank,
    and change only SOME modules."""
    random, rank = torch.Generator().manual_seed(number), -(-rank // (1 + number))
    updates = []
    for (layer, module), (outputs, inputs) in table.shapes.items():
        a = torch.randn(rank, inputs, generator=random) * inputs**-0.5
        b = torch.randn(outputs, rank, generator=random) * rank**-0.5
        if not number or module in SOME:
            updates.append(LowRank(layer, module, a, b))
    return updates


def _logits(runner: ModelRunner, prompts: Prompts) -> Iterator[torch.Tensor]:
    adapted = runner.adapters is not None
    return (runner.run(batch) for batch in steps_of(prompts, runner.vocab_size, runner.device, adapted))


def _difference(
    what: str, want: list[torch.Tensor], found: Iterator[torch.Tensor], limit: float
) -> str | None:
    for step, (one, other) in enumerate(zip(want, found, strict=True)):
        difference, largest = float((other - one).abs().max()), float(one.abs().max())
        if not difference <= limit * largest:  # NaN is a fault too
            return f"{what} change logits of up to {largest:.3g} by {difference:.3g} in step {step}"
    return None
