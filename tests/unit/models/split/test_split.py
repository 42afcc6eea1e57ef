"""A divided model computes what the whole one does, and what cannot be divided is refused by name."""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from serve_app.engine.batch import build_batch
from serve_app.engine.ranks.groups import RankGroups
from serve_app.engine.sequence import Chunk
from serve_app.models.errors import ModelLoadError
from serve_app.models.loader import load_model
from serve_app.models.split.cut import Cut
from serve_app.models.split.sizes import indivisible
from serve_app.models.split.split import Split
from serve_app.models.stored import stored_tensors
from serve_app.models.streamed import read_tensor
from serve_app.replica.accuracy import load_runner
from tests.support.packers import fp8, gptq
from tests.support.quantised import Packer, checkpoint
from tests.support.ranks import Divided, divided_config, runners, save
from tests.support.tiny_models import make_model, make_sequence, tiny_config, tiny_model
from tests.support.tiny_states import KIN, KINDS, tiny_stateful

IDS = [5, 9, 17, 33, 2, 64, 90, 12, 7]
CPU = torch.device("cpu")
BOTH = {"self_attn", "mlp"}
# Families, and the parts of a layer that their ranks share. All else is repeated.
STATES = {"linear_attn", *BOTH}
FAMILIES = {
    "llama": BOTH,
    "qwen2": BOTH,
    "qwen3": BOTH,
    "phi3": BOTH,  # linears side by side
    "gemma2": BOTH,
    "cohere2": BOTH,
    "qwen3_moe": BOTH,
    "mixtral": BOTH,
    "olmo2": BOTH,  # a norm over all heads
    "minimax_m2": BOTH,  # the same, in layers of transformers' own
    "deepseek_v3": BOTH,  # latents
    "stablelm": BOTH,
    "phi": BOTH,  # attention and MLP beside each other
    "gpt2": {"attn", "mlp"},  # matrices with inputs first
    "gemma4_text": BOTH,
    "gpt_oss": BOTH,  # experts with gates and ups in turn, and biases
    # Layers with a state.
    "bamba": {"mamba", "self_attn", "feed_forward"},
    "falcon_h1": {"mamba", "self_attn", "feed_forward"},
    "falcon_mamba": {"mixer", "mixer.x_proj"},
    "granitemoehybrid": {"mamba", "self_attn", "block_sparse_moe", "shared_mlp"},
    "jamba": {"mamba", "mamba.x_proj", "self_attn", "feed_forward"},
    "kimi_linear": BOTH,
    "lfm2": {"conv", "self_attn", "feed_forward"},
    "minimax": BOTH,
    "nemotron_h": {"mixer"},
    "olmo_hybrid": STATES,
    "qwen3_5_moe_text": STATES,
    "qwen3_5_text": STATES,
    "qwen3_next": STATES,
    "zamba2": {"mamba"},  # a block that layers share is no sum
}
STATEFUL = (*KINDS, *KIN)
# Layers that pass on more than hidden states, or that transformers looks for in every model.
NO_STAGES = {"gemma4_text", "bamba", "falcon_h1"}


def model_of(family: str) -> PreTrainedModel:
    model = tiny_stateful(family) if family in STATEFUL else tiny_model(family)
    model.set_attn_implementation("eager")  # other tests run the same model with attention of ours
    return model


# One of each kind. With four ranks there are fewer key-value heads, heads of keys or groups than ranks.
QUICK = {(family, 4) for family in ("llama", "olmo2", "qwen3_5_text", "bamba")} | {
    *((family, 2) for family in ("deepseek_v3", "falcon_mamba", "gemma4_text", "gpt2", "gpt_oss")),
    *((family, 2) for family in ("kimi_linear", "lfm2", "minimax_m2", "mixtral", "olmo_hybrid", "phi3")),
    *((family, 2) for family in ("minimax", "qwen3_5_moe_text", "qwen3_next")),
}


@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        pytest.param(family, ranks, marks=[] if (family, ranks) in QUICK else pytest.mark.full)
        for family in FAMILIES
        for ranks in (2, 4)
    ],
)
def test_ranks_compute_what_the_model_computes(family: str, ranks: int, tmp_path: Path) -> None:
    model = model_of(family)
    parts = runners(published(model, tmp_path), ranks, max_adapters=0)
    divided = FAMILIES[family]
    if (family, ranks) == ("qwen3_next", 4):  # its two heads of keys stand in the midst of a matrix
        divided = BOTH
    assert {path.split(".", 2)[2] for part in parts for path in part.split.summed} == divided
    check_equal(parts, model)


@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        ("qwen3_moe", 4),
        ("gpt_oss", 2),  # with biases
        ("granitemoehybrid", 2),  # stored as one tensor
        pytest.param("deepseek_v3", 2, marks=pytest.mark.full),  # beside experts that every token has
        pytest.param("jamba", 2, marks=pytest.mark.full),
        pytest.param("mixtral", 4, marks=pytest.mark.full),
    ],
)
def test_ranks_with_whole_experts_compute_what_the_model_computes(
    family: str, ranks: int, tmp_path: Path
) -> None:
    model = model_of(family)
    parts = runners(save(model, tmp_path), ranks, expert_parallel=True, max_adapters=0)
    assert {count for part in parts for count in part.split.experts.values()} == {4 // ranks}
    check_equal(parts, model)


# Of each kind one: dense, embedding and head the same matrix, mixture, latents, layers with states.
STAGED = ("llama", "gemma2", "qwen3_moe", "deepseek_v3", "qwen3_5_text", "nemotron_h")


@pytest.mark.parametrize("family", STAGED)
def test_stages_compute_the_same_bits_as_the_whole(family: str, tmp_path: Path) -> None:
    folder = save(model_of(family), tmp_path)
    chunk = Chunk(make_sequence("a", list(IDS), [0]), 0, len(IDS), 0)
    whole = load_runner(divided_config(folder, 1, max_adapters=0), lambda _: None)
    parts = runners(folder, 1, stages=3, max_adapters=0)
    assert torch.equal(computed(parts)[0], whole.run(build_batch([chunk], 16, CPU)))
    assert [list(each.split.stage.layers) for each in parts if each.split.stage] == [[3], [2], [0, 1]]


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[] if family == "qwen3_next" else pytest.mark.full)
        for family in FAMILIES
        if family not in NO_STAGES
    ],
)
def test_stages_of_several_ranks_compute_what_the_model_computes(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    logits = computed(runners(published(model, tmp_path), 2, stages=2, max_adapters=0))
    check_close(logits[:2], model)  # the last stage


@pytest.mark.parametrize(
    ("family", "stages", "reason"),
    [
        ("llama", 5, "it has 4 layers"),
        ("gemma4_text", 2, "pass on is not known"),  # rows of embeddings of their own
        ("bamba", 2, "pass on is not known"),
    ],
)
def test_layers_that_cannot_be_stages_are_refused_by_name(family: str, stages: int, reason: str) -> None:
    model = model_of(family).to("meta")
    name = type(model).__name__
    with pytest.raises(
        ModelLoadError, match=f"{name} cannot be divided for pipeline_parallel {stages}.*{reason}"
    ):
        Split.of(model, 0, 1, stages=stages)


def test_a_stage_reads_and_keeps_its_layers_alone(tmp_path: Path) -> None:
    folder = save(make_model(tiny_config("llama", hidden_size=128, intermediate_size=512)), tmp_path)
    config = divided_config(folder, 1, stages=4)
    load_model(config, lambda _: None)  # reads what is imported late
    layer = sum(each.num_bytes for each in stored_tensors(folder) if ".layers.1." in each.name)
    before = _bytes_read()
    module = load_model(config, lambda _: None, rank=1).module
    assert _bytes_read() - before < layer + 2**16
    assert sum(each.nbytes for each in module.parameters()) == layer + 4 * 128  # the last norm


def test_experts_that_are_no_such_tensors_cannot_be_counted(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="it has no experts that can be divided by number"):
        Split.of(tiny_model("llama"), 0, 2, whole_experts=True)


def published(model: PreTrainedModel, folder: Path) -> Path:
    """Save a model as its authors did."""
    save(model, folder)
    if model.config.model_type == "olmo_hybrid":  # whose convolutions transformers divides evenly
        file = folder / "model.safetensors"
        tensors = load_file(file)
        for name in [name for name in tensors if "q_conv1d" in name]:
            places = [name.replace("q_conv1d", each) for each in ("q_conv1d", "k_conv1d", "v_conv1d")]
            rows = [tensors[each.replace("conv1d", "proj")].shape[0] for each in places]
            parts = torch.cat([tensors[each] for each in places]).split(rows)
            tensors |= {each: part.clone() for each, part in zip(places, parts, strict=True)}
        save_file(tensors, file, {"format": "pt"})
    return folder


# Groups in another order of columns, and blocks that a rank's part cuts through.
CODES: dict[str, tuple[Packer, dict[str, Any]]] = {
    "act-order": (
        partial(gptq, act_order=True),
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True},
    ),
    "blocks": (
        partial(fp8, block=(24, 20), ending="weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [24, 20], "activation_scheme": "dynamic"},
    ),
}


@pytest.mark.parametrize("form", CODES)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_ranks_have_the_numbers_of_a_quantised_checkpoint(family: str, form: str, tmp_path: Path) -> None:
    model = checkpoint(tmp_path, family, *CODES[form])
    check_equal(runners(tmp_path, 2, max_adapters=0), model)


def check_equal(parts: list[Divided], model: PreTrainedModel) -> None:
    """Every rank has the same logits, and they are those of transformers."""
    check_close(computed(parts), model)


def computed(parts: list[Divided]) -> list[torch.Tensor]:
    """The logits of each rank."""

    def logits(groups: RankGroups) -> torch.Tensor:
        chunk = Chunk(make_sequence("a", list(IDS), [0]), 0, len(IDS), 0)
        return parts[groups.every.rank].runner.run(build_batch([chunk], 16, CPU))

    return parts[0].threads.run(logits)


def check_close(every: list[torch.Tensor], model: PreTrainedModel) -> None:
    with torch.inference_mode():
        wanted = model(torch.tensor([IDS]), use_cache=False).logits[0]
    torch.testing.assert_close(every[0], wanted, rtol=0, atol=1e-4)
    assert all(torch.equal(each, every[0]) for each in every)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_rank_reads_and_keeps_its_share_alone(family: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "moe_intermediate_size": 128, "head_dim": 32}
    folder = save(make_model(tiny_config(family, vocab_size=512, **sizes)), tmp_path)
    stored = stored_tensors(folder)
    whole = sum(each.num_bytes for each in stored)

    def share(ranks: int) -> tuple[int, int]:
        """The bytes that a rank reads, by the kernel's count, and those of its weights."""
        before = _bytes_read()
        model = load_model(divided_config(folder, ranks), lambda _: None, rank=ranks - 1)
        return _bytes_read() - before, sum(each.nbytes for each in model.module.parameters())

    share(4)  # reads what is imported late
    for ranks in (2, 4):
        read, kept = share(ranks)
        assert kept < 1.1 * whole / ranks
        assert read < 1.1 * whole / ranks + 2**18  # headers, configuration, modules


def _bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_a_file_is_that_part_of_its_tensor(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 3)))
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.int8])
    tensors = {"before": torch.ones(3), "x": (torch.randn(shape) * 50).to(dtype)}
    save_file(tensors, tmp_path / "model.safetensors")
    dim = rng.randrange(len(shape))
    places = sorted(rng.choices(range(shape[dim] + 1), k=4))
    ranges = (places[0], places[1]), (places[2], places[3])
    size = sum(end - start for start, end in ranges) + rng.randint(0, 2)
    cut = Cut(dim, ranges, size)
    stored = next(each for each in stored_tensors(tmp_path) if each.name == "x")
    assert torch.equal(read_tensor(stored.part(cut)), cut.of(tensors["x"]))
    rows = [slice(None)] * dim
    taken = torch.cat([tensors["x"][*rows, slice(*each)] for each in ranges], dim)
    got = cut.of(tensors["x"])
    assert torch.equal(got[*rows, slice(0, taken.shape[dim])], taken)
    assert not got[*rows, slice(taken.shape[dim], None)].any()


def test_a_file_that_ends_early_is_not_padded(tmp_path: Path) -> None:
    save_file({"x": torch.ones(8, 8)}, tmp_path / "model.safetensors")
    stored = stored_tensors(tmp_path)[0]
    file = stored.path
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(OSError, match="ends within x"):
        read_tensor(stored.part(Cut(1, ((4, 8),), 4)))


@pytest.mark.parametrize(
    ("family", "ranks", "reason"),
    [
        (
            "llama",
            3,
            "its num_attention_heads of 4 cannot be divided among 3 ranks; tensor_parallel can be 1, 2, 4",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(
    family: str, ranks: int, reason: str, tmp_path: Path
) -> None:
    folder = save(tiny_model(family), tmp_path)
    with pytest.raises(ModelLoadError, match=f"cannot be divided for tensor_parallel {ranks}: .*{reason}"):
        load_model(divided_config(folder, ranks), lambda _: None)


def test_a_part_with_a_tensor_of_no_known_kind_is_repeated() -> None:
    """Every rank would have it whole, and its products would be added several times."""
    model = make_model(tiny_config("qwen3_moe"))
    model.model.layers[1].mlp.extra = torch.nn.Linear(32, 32)
    split = Split.of(model, 0, 2)
    assert split.repeated == {
        "mlp (Qwen3MoeSparseMoeBlock)": "mlp.extra.weight is not divided, and what is beside it is"
    }
    assert {path.split(".")[3] for path in split.shares} == {"self_attn"}


@pytest.mark.parametrize(
    ("shape", "ranks", "reason"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 64}, 4, None),
        (
            {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 64},
            16,
            "num_attention_heads of 8",
        ),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 3, "intermediate_size": 64},
            2,
            "num_key_value_heads of 3",
        ),
        ({"num_attention_heads": 8, "intermediate_size": 65}, 2, "intermediate_size of 65"),
        ({"num_attention_heads": 8, "moe_intermediate_size": 6}, 4, "moe_intermediate_size of 6"),
        ({"num_attention_heads": 5, "kv_lora_rank": 4}, 2, "num_attention_heads of 5"),
        ({"num_attention_heads": 8, "linear_num_value_heads": 6}, 4, "linear_num_value_heads of 6"),
        ({"num_attention_heads": 8, "mamba_n_heads": 6}, 4, "tensor_parallel can be 1, 2$"),
        ({"num_attention_heads": 8, "num_local_experts": 6, "moe_intermediate_size": 8}, 4, None),
    ],
)
def test_sizes_are_checked_before_anything_is_loaded(
    shape: dict[str, int], ranks: int, reason: str | None
) -> None:
    found = indivisible(shape, ranks)
    assert found is None if reason is None else re.search(reason, str(found))


def test_experts_are_counted_where_ranks_have_whole_ones() -> None:
    shape = {"num_attention_heads": 8, "num_local_experts": 6, "moe_intermediate_size": 9}
    assert indivisible(shape, 2, whole_experts=True) is None
    assert "num_local_experts of 6" in str(indivisible(shape, 4, whole_experts=True))
    assert "moe_intermediate_size of 9" in str(indivisible(shape, 2))


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_parts_of_an_adapter_make_the_whole(ranks: int) -> None:
    model = tiny_model("llama")
    splits = [Split.of(model, rank, ranks) for rank in range(ranks)]
    for module, (outputs, inputs) in {"q_proj": (32, 32), "k_proj": (16, 32), "o_proj": (32, 32)}.items():
        a, b = torch.randn(3, inputs), torch.randn(outputs, 3)
        parts = [split.part(0, module, a, b) for split in splits]
        for split, (own_a, own_b) in zip(splits, parts, strict=True):
            assert split.whole(0, module, (own_b.shape[0], own_a.shape[1])) == (outputs, inputs)
        if module == "o_proj":
            assert torch.equal(torch.cat([own for own, _ in parts], 1), a)
        else:
            heads = torch.cat([own for _, own in parts]).view(-1, 8, 3)  # some of them several times
            assert torch.equal(heads.unique(dim=0), b.view(-1, 8, 3).unique(dim=0))
