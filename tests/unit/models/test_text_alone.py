"""Of a model that reads more than text, what text needs is served, and nothing else is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from serve_app.models.errors import ModelLoadError
from serve_app.models.guards import auto_class
from serve_app.models.text_alone import language_model
from tests.support.families import small_config
from tests.support.tiny_models import enlarge
from tests.unit.models.test_loader import load


def whole(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = small_config(family)
    model: PreTrainedModel = auto_class(config).from_config(config).float().eval()
    enlarge(model)
    return model


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.arange(3, 20)[None], use_cache=False).logits
        return found


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("mistral3", "MistralForCausalLM"),
        ("gemma3", "Gemma3ForCausalLM"),
        ("kimi_k25", "DeepseekV3ForCausalLM"),
        # Transformers has no causal language model of their text, or one that scales logits.
        ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
        ("cohere2_vision", "Cohere2VisionForConditionalGeneration"),
    ],
)
def test_parts_that_text_does_not_need_are_gone(family: str, kind: str) -> None:
    model = whole(family)
    want, before = logits(model), sum(each.numel() for each in model.parameters())
    with torch.device("meta"):
        sketch = language_model(auto_class(model.config).from_config(small_config(family)))
    assert type(sketch).__name__ in (kind, "Cohere2ForCausalLM")  # which scales logits
    alone = language_model(model)
    assert type(alone).__name__ == kind
    assert torch.equal(logits(alone), want)
    decoder = alone.get_decoder()
    text = sum(each.numel() for each in {*decoder.parameters(), *alone.lm_head.parameters()})
    for each in (alone, sketch):
        assert sum(parameter.numel() for parameter in each.parameters()) == text < before
    alone.set_attn_implementation("eager")
    assert decoder.config._attn_implementation == "eager"


def test_parts_through_which_text_passes_stay() -> None:
    model: Any = whole("llava")

    class Through(type(model)):  # type: ignore[misc]
        """A model whose text passes through a part for images."""

        def forward(self, input_ids: torch.Tensor, **more: Any) -> Any:
            found = super().forward(input_ids, **more)
            found.logits = found.logits * self.model.multi_modal_projector.linear_1.weight[0, 0]
            return found

    model.__class__ = Through
    want = logits(model)
    assert language_model(model) is model
    assert torch.equal(logits(model), want)


def test_a_model_that_needs_an_image_is_refused(tmp_path: Path) -> None:
    whole("instructblip").save_pretrained(tmp_path)
    with pytest.raises(
        ModelLoadError, match=r"Instruct.* cannot be served: it computes nothing for text alone"
    ):
        load(tmp_path)
