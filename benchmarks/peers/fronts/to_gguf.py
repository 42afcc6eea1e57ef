"""llama.cpp's own converter, told which pre-tokenizer a tokenizer of `make_model.py` has.

    python to_gguf.py LLAMA_CPP MODEL --outfile FILE --outtype bf16|q8_0

llama.cpp knows pre-tokenizers by hashes of published vocabularies. The benchmark's own tokenizer is trained
on the spot and none of them. Prompts are token ids, so nothing but the text of answers depends on it.
"""

from __future__ import annotations

import sys
from pathlib import Path

root = Path(sys.argv.pop(1)).resolve()
sys.path[:0] = [str(root), str(root / "gguf-py")]

import convert_hf_to_gguf  # noqa: E402
from conversion.base import TextModel  # noqa: E402

TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
if "qwen3_5" in (Path(sys.argv[1]) / "config.json").read_text("utf-8"):
    sys.argv.append("--no-mtp")  # layers that draft, which models of `make_model.py` lack
convert_hf_to_gguf.main()
