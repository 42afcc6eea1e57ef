"""A checkpoint of the demo model whose weights are finite, and which overflows over one certain character."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from serve_app.models.catalogue import demo_folder

HOLE: Final = "~"  # one token, which no template has
EMBEDDINGS: Final = "model.embed_tokens.weight"
VALUES: Final = "model.layers.0.self_attn.v_proj.weight"
WEIGHTS: Final = "model.safetensors"
HUGE: Final = 1e38  # finite, and infinite times four


def write_broken_model(folder: Path) -> None:
    """demo-chat in `folder`. One dimension of its embeddings is that of HOLE alone, and has huge weights.

    So what attends to HOLE is infinite, and what does not is as if that dimension were not there.
    """
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer

    shutil.copytree(demo_folder("demo-chat"), folder)
    (hole,) = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(HOLE).ids
    tensors = load_file(folder / WEIGHTS)
    tensors["lm_head.weight"] = tensors[EMBEDDINGS].clone()
    tensors[EMBEDDINGS][:, 0] = 0.0
    tensors[EMBEDDINGS][hole] = 0.0
    tensors[EMBEDDINGS][hole, 0] = 1.0
    tensors[VALUES][:, 0] = HUGE
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
