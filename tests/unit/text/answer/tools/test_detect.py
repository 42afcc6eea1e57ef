"""The format of a model's tool calls: the operator's setting, or what its files show."""

from pathlib import Path

import pytest
import tokenizers

from serve_app.config import ModelConfig
from serve_app.models.catalogue import demo_folder
from serve_app.text.answer.reasoning import FORMATS as REASONING_FORMATS
from serve_app.text.answer.tools.detect import FORMATS, find_tool_format
from serve_app.text.tokens.tokenizer import Tokenizer

SHOWN = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"


@pytest.mark.parametrize(
    ("setting", "template", "expected"),
    [
        ("auto", SHOWN + "<tool_call>{{ call }}</tool_call>", "hermes"),
        ("auto", SHOWN + "{{ '<|python_tag|>' }}", "llama3"),
        ("auto", "[AVAILABLE_TOOLS]" + SHOWN + "[TOOL_CALLS]", "mistral"),
        ("auto", SHOWN, "json"),
        ("auto", SHOWN + "<tool_call>\n<function={{ name }}>", None),
        ("auto", SHOWN + "<tool_call>{{ name }}<arg_key>", None),
        ("auto", "{{ messages }}", None),
        ("none", SHOWN + "<tool_call>", None),
        ("mistral", SHOWN + "<tool_call>", "mistral"),
    ],
)
def test_the_format_of_a_template(folder: Path, setting: str, template: str, expected: str | None) -> None:
    found = find_tool_format(setting, Tokenizer.load(folder, chat_template=template))
    assert (found and found.name) == expected


def test_a_token_tells_where_the_template_does_not(folder: Path, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["<|python_tag|>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    found = find_tool_format("auto", Tokenizer.load(tmp_path, chat_template=SHOWN))
    assert found is FORMATS["llama3"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SHOWN + "[TOOL_CALLS] [", "[TOOL_CALLS] ["),
        (SHOWN + "[TOOL_CALLS]{{ name }}[ARGS]", "[TOOL_CALLS]"),
        (SHOWN, "[TOOL_CALLS]"),
    ],
)
def test_newer_models_of_mistral_name_the_tool_first(
    folder: Path, tmp_path: Path, template: str, expected: str
) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
    backend.save(str(tmp_path / "tokenizer.json"))
    found = find_tool_format("auto", Tokenizer.load(tmp_path, chat_template=template))
    assert found is not None
    assert (found.name, found.spelling.first) == ("mistral", expected)


def test_demo_chat_calls_as_hermes_does() -> None:
    assert find_tool_format("auto", Tokenizer.load(demo_folder("demo-chat"))) is FORMATS["hermes"]


@pytest.mark.parametrize(
    ("setting", "formats"), [("tool_format", FORMATS), ("reasoning_format", REASONING_FORMATS)]
)
def test_a_setting_takes_every_format_by_name(setting: str, formats: dict[str, object]) -> None:
    for name in ("auto", "none", *formats):
        assert getattr(ModelConfig(name="m", **{setting: name}), setting) == name
    with pytest.raises(ValueError, match=setting):
        ModelConfig(name="m", **{setting: "morse"})
