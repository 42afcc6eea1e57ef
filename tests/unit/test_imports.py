"""The arrows between the layers, walked over the source: any other edge fails."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import serve_app

ROOT = Path(serve_app.__file__).parent

BASE = {"types", "errors", "limits"}
# layer -> what of ours it may import, besides itself
ARROWS: dict[str, set[str]] = {
    "types": set(),
    "limits": set(),
    "errors": {"types"},
    "config": BASE,
    "telemetry": BASE | {"config"},
    "channel": BASE | {"config"},
    "engine": BASE | {"config"},
    "models": BASE | {"config"},
    "json_schema": set(),
    "text": BASE | {"json_schema"},
    "endpoints": BASE | {"config"},
    "accounts": BASE | {"config"},
    "api": BASE | {"config", "telemetry", "endpoints", "json_schema"},
    "rpc": BASE | {"config", "telemetry", "endpoints", "api"},
    "replica": BASE | {"config", "telemetry", "engine", "models", "text"},
    "deployments": BASE
    | {"config", "telemetry", "channel", "endpoints", "accounts", "api", "rpc", "models", "replica"},
    "cli": BASE | {"config", "endpoints", "accounts", "models", "replica", "deployments"},
}
# third-party package -> the only layers that may import it
OWNERS: dict[str, set[str]] = {
    "ray": {"deployments"},
    "fastapi": {"api"},
    "starlette": {"api", "rpc"},  # there its types of requests only
    "grpc": {"rpc"},
    "google": {"rpc"},  # protobuf
    "uvicorn": set(),
    "torch": {"engine", "models"},
    "transformers": {"engine", "models", "text"},
    "safetensors": {"models", "engine"},
    "tokenizers": {"text", "models"},
    "jinja2": {"text"},
    "huggingface_hub": {"models"},
    "prometheus_client": {"telemetry"},
    "sqlalchemy": {"accounts"},
    "click": {"cli"},
    "httpx": {"cli", "models"},
    "httpx_sse": {"cli"},
}
FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def layer(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "serve_app":
                yield from (f"serve_app.{alias.name}" for alias in node.names)
            else:
                yield node.module


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_import_follows_an_arrow(path: Path) -> None:
    own = layer(path)
    if own == "__init__":
        return
    assert own in ARROWS, f"{own} is a new layer: give it its arrows here"
    for name in imported(parse(path)):
        top = name.split(".")[0]
        if top == "serve_app":
            target = name.split(".")[1]
            assert target == own or target in ARROWS[own], f"{own} must not import {target}"
        elif top in OWNERS:
            assert own in OWNERS[top], f"{top} is imported only in {sorted(OWNERS[top])}, not in {own}"
        assert top not in FORBIDDEN_IMPORTS, f"{top} deserialises code"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_runs_or_trusts_foreign_code(path: Path) -> None:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Assert):
            pytest.fail(f"line {node.lineno}: assert vanishes under -O; raise an error")
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            trusted = isinstance(node.value, ast.Constant) and node.value.value is False
            assert trusted, f"line {node.lineno}: remote code is never trusted"
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in {"eval", "exec", "torch.load"}, f"line {node.lineno}: {called}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is_and_stays_small(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert source.count("\n") <= 400, "a file is one noun; past 400 lines it is two"
    if path.name != "__init__.py" or source.strip():
        assert ast.get_docstring(parse(path)), "a module docstring is missing"
