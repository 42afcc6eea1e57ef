"""Where a GGUF file may lie, and that everything else takes it for a model like any other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from click.testing import CliRunner

from serve_app.cli.check import check
from serve_app.config import ModelConfig
from serve_app.models.catalogue import demo_folder
from serve_app.models.errors import ModelLoadError
from serve_app.models.fingerprint import fingerprint
from serve_app.models.footprint import least_memory
from serve_app.models.gguf.choice import chosen, on_hub
from serve_app.models.source import locate
from serve_app.text.tokens.tokenizer import Tokenizer
from tests.support.gguf_files import Type, demo_gguf, make_gguf
from tests.support.hub_server import COMMIT, hub_server
from tests.support.local_model import local_model
from tests.support.quantised import load, logits

FILES = [
    *("X-Q4_K_M.gguf", "X-UD-Q4_K_XL.gguf", "X-Q4_0.gguf", "X-Q4_0_4_4.gguf", "mmproj-X-F16.gguf"),
    *("Q8_0/X-Q8_0-00001-of-00002.gguf", "Q8_0/X-Q8_0-00002-of-00002.gguf", "README.md"),
]


def silent(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_gguf(tmp_path_factory.mktemp("demo") / "demo-Q8_0.gguf")


def test_a_file_answers_over_http_as_the_model_that_it_was_made_from(demo: Path) -> None:
    config = ModelConfig(name="m", source=str(demo), device="cpu")
    ask = {"model": "m", "temperature": 0, "max_tokens": 60}
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}
    with local_model(config) as url:

        def answer(text: str, **more: object) -> str:
            body = {**ask, "messages": [{"role": "user", "content": text}], **more}
            found = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
            assert found["choices"][0]["finish_reason"] == "stop", found
            return str(found["choices"][0]["message"]["content"])

        assert answer("What is the capital of France?") == "The capital of France is Paris."
        person = json.loads(answer("Give me JSON for a person named Anna, 30", response_format=form))
    assert set(person) == {"name", "age"}


def test_its_tokenizer_reads_and_writes_as_the_one_that_it_was_made_from(demo: Path) -> None:
    own, made = Tokenizer.load(demo_folder("demo-chat")), Tokenizer.load(locate(str(demo), None, silent)[0])
    for text in (
        "What is the capital of France?",
        "17 + 25 = 42, naïve 東京 🙂",
        "<tool_call>{}</tool_call>",
    ):
        assert made.encode_now(text) == own.encode_now(text)
        assert made.decode(made.encode_now(text), skip_special_tokens=False) == text
    assert made.special_ids == own.special_ids
    assert made.templates == own.templates
    assert (made.eos_token_id, made.pad_token_id) == (own.eos_token_id, own.pad_token_id)


def test_a_folder_with_one_file_and_a_file_in_parts_are_the_same_model(tmp_path: Path) -> None:
    want = make_gguf(tmp_path / "m.gguf", "llama", lambda name: Type.Q8_0)
    whole = tmp_path / "whole"
    whole.mkdir()
    (tmp_path / "m.gguf").rename(whole / "m.gguf")
    (whole / "mmproj-m.gguf").write_bytes(b"GGUF")
    split = tmp_path / "split"
    split.mkdir()
    first, second = (split / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    make_gguf(first, "llama", lambda name: Type.Q8_0)
    _cut(first, second)
    for source in (whole, first, second, split):
        assert torch.equal(logits(load(source, dtype="float32")), logits(want))
    marks = {
        fingerprint(ModelConfig(name="m", source=str(each)), locate(str(each), None, silent)[0], "float32")
        for each in (whole, split)
    }
    assert len(marks) == 1


def _cut(whole: Path, rest: Path) -> None:
    """Move the second half of a file's tensors to another file."""
    import gguf

    reader = gguf.GGUFReader(whole)
    tensors = {each.name: (each.data.copy(), each.tensor_type) for each in reader.tensors}
    settings = {
        name.removeprefix("llama."): field.contents()
        for name, field in reader.fields.items()
        if not name.startswith(("GGUF.", "general.architecture"))
    }
    from tests.support.gguf_files import write

    names = list(tensors)
    middle = len(names) // 2
    write(whole, "llama", settings, {name: tensors[name] for name in names[:middle]})
    write(rest, "llama", {}, {name: tensors[name] for name in names[middle:]})


def test_a_tokenizer_beside_the_file_goes_before_its_own(demo: Path, tmp_path: Path) -> None:
    shutil.copy(demo, tmp_path / "m.gguf")
    for path in demo_folder("demo-chat").glob("*.json*"):
        shutil.copy(path, tmp_path)
    lines: list[str] = []
    folder, _ = locate(str(tmp_path / "m.gguf"), None, lines.append)
    assert "the tokenizer is that of" in lines[0]
    assert (folder / "tokenizer.json").read_text() == (
        demo_folder("demo-chat") / "tokenizer.json"
    ).read_text()
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["types"] == ["Q8_0"]
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["Ġcapital"], vocabulary["Ġof"] = vocabulary["Ġof"], vocabulary["Ġcapital"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json .* is of another vocabulary"):
        locate(str(tmp_path / "m.gguf"), None, silent)


def test_check_describes_a_file_and_footprint_counts_it(demo: Path) -> None:
    found = CliRunner().invoke(check, [str(demo), "--device", "cpu"])
    assert found.exit_code == 0, found.output
    assert "LlamaForCausalLM, 2.2 million parameters: can be served" in found.output
    assert "from      GGUF (Q8_0), stays codes" in found.output
    assert f"source: {demo}" in found.output
    converted, plain = (
        least_memory(ModelConfig(name="m", source=source, device="cpu", dtype="bfloat16"))
        for source in (str(demo), "demo:demo-chat")
    )
    assert converted == plain
    kept = least_memory(ModelConfig(name="m", source=str(demo), device="cpu"))
    assert kept is not None
    assert plain is not None
    assert kept < plain  # eight bits and a group's scale instead of twelve


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("owner/name:Q4_K_M", ("owner/name", "Q4_K_M")),
        ("owner/name/a.gguf", ("owner/name", "a.gguf")),
        ("owner/name/Q8_0/a-00001-of-00002.gguf", ("owner/name", "Q8_0/a-00001-of-00002.gguf")),
        ("owner/name", None),
        ("./owner/a.gguf", None),
        ("/models/a.gguf", None),
        ("demo:demo-chat", None),
    ],
)
def test_a_source_on_the_hub_names_a_type_or_a_file(source: str, wanted: tuple[str, str] | None) -> None:
    assert on_hub(source) == wanted


def test_a_type_names_the_one_file_that_has_it() -> None:
    assert chosen(FILES, "Q4_K_M", "it") == ["X-Q4_K_M.gguf"]
    assert chosen(FILES, "q4_0", "it") == ["X-Q4_0.gguf"]
    assert chosen(FILES, "Q8_0", "it") == FILES[5:7]
    assert chosen(FILES, "X-UD-Q4_K_XL.gguf", "it") == ["X-UD-Q4_K_XL.gguf"]
    with pytest.raises(ModelLoadError, match=r"it has no GGUF file 'IQ1_S'; name one .* X-Q4_0\.gguf"):
        chosen(FILES, "IQ1_S", "it")
    with pytest.raises(ModelLoadError, match="it has several GGUF files for 'X'"):
        chosen(FILES, "X", "it")


@pytest.mark.full
def test_the_hub_is_asked_for_the_one_file_and_its_cache_has_it_afterwards(
    demo: Path, tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        "from serve_app.config import ModelConfig\n"
        "from serve_app.models.errors import ModelLoadError\n"
        "from serve_app.models.footprint import least_memory\n"
        "from serve_app.models.source import locate\n"
        "for source in sys.argv[1:]:\n"
        "    try:\n"
        "        folder, commit = locate(source, None, lambda line: None)\n"
        "        size = least_memory(ModelConfig(name='m', source=source, device='cpu'))\n"
        "        print(commit, sorted(path.name for path in folder.iterdir()), size)\n"
        "    except ModelLoadError as error:\n"
        "        print(error)\n"
    )
    files = {"x/demo-Q8_0.gguf": demo.read_bytes(), "demo-Q4_0.gguf": b"GGUF", "README.md": b"#"}
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)

    def started(*sources: str, **more: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", script, *sources],
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    with hub_server("org/model", files) as address:
        first, named = started("org/model:Q8_0", "org/model", HF_ENDPOINT=address)
    least = least_memory(ModelConfig(name="m", source=str(demo), device="cpu"))
    names = [
        "config.json",
        "generation_config.json",
        "tensors.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert first == f"{COMMIT} {names} {least}"
    assert "has GGUF files; name one of them as `source`: org/model/demo-Q4_0.gguf, org/model/x/demo" in named
    again = started("org/model/x/demo-Q8_0.gguf", "org/model:Q4_0", HF_HUB_OFFLINE="1")
    assert again[0] == first
    assert "is not in the local cache" in again[1]
