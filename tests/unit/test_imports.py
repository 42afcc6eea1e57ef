"""The arrows between the layers and inside them, walked over the source: any other edge fails.

Circles fail too. Every import counts, also one of types alone and one inside a function.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import serve_app

ROOT = Path(serve_app.__file__).parent

BASE = {"types", "errors", "limits"}
# layer -> what of ours it may import, besides itself
ARROWS: dict[str, set[str]] = {
    "types": set(),
    "limits": set(),
    "heap": set(),
    "openmp": set(),
    "loopback": set(),
    "errors": {"types"},
    "codes": set(),
    "config": BASE,
    "live": BASE,
    "telemetry": BASE | {"config", "live"},
    "channel": BASE | {"config"},
    "engine": BASE | {"codes", "config"},
    "models": BASE | {"codes", "config"},
    "json_schema": {"types"},
    "text": BASE | {"json_schema", "heap"},
    "endpoints": BASE | {"config"},
    "accounts": BASE | {"config", "loopback"},
    "guardrails": BASE,
    "control": BASE | {"config", "endpoints", "accounts", "live"},
    "console": {"types", "errors", "config", "endpoints", "loopback"},
    "api": BASE
    | {"config", "console", "telemetry", "endpoints", "json_schema", "guardrails", "live"}
    | {"loopback"},
    "rpc": BASE | {"config", "telemetry", "endpoints", "api"},
    "replica": BASE | {"config", "telemetry", "engine", "models", "text"},
    "deployments": BASE
    | {"config", "telemetry", "heap", "loopback", "channel", "endpoints", "accounts", "api"}
    | {"rpc", "models", "replica", "control"},
    "cli": BASE | {"config", "loopback", "endpoints", "accounts", "models", "replica", "deployments"},
}

_LOW = {"backend", "context", "edge", "protocol"}  # of the API: contracts, and what every request passes
# What the routes of a protocol stand on.
_ROUTES = _LOW | {"admission", "exchange", "openapi.operation", "route", "services"}
_PROTOCOLS = {
    f"dialects.{name}" for name in ("anthropic", "openai", "databricks", "mindie", "ovms", "triton")
}
# layer -> its parts, folders or modules -> the other parts of the layer that each may import.
# A module belongs to the longest part that its path begins with; every module of the layer has one.
INSIDE: dict[str, dict[str, set[str]]] = {
    "api": {
        "backend": set(),
        "protocol": set(),  # what every dialect is
        "dialects": set(),  # the protocols are parts of their own
        "context": {"protocol"},
        "directory": {"backend"},
        "edge": {"backend", "context", "protocol"},
        "openapi.operation": {"protocol"},
        "route": {"context", "protocol", "edge", "openapi.operation"},
        "openapi": {"protocol", "edge", "openapi.operation", "route"},
        "kserve": {"protocol", "edge"},
        "admission": _LOW,
        "guard": {"protocol"},
        "response_store": {"backend"},
        "live": {"admission", "backend"},
        "services": {"admission", "backend", "context", "directory", "guard", "response_store", "live"},
        "recording": _LOW | {"guard", "services"},
        "exchange": _LOW | {"admission", "guard", "recording", "services"},
        "pages": _LOW
        | {"admission", "dialects.anthropic", "directory", "openapi.operation", "route", "services"},
        "dialects.chat": {"protocol", "edge"},  # what the protocols of chats share
        "dialects.responses": {
            "backend",
            "protocol",
            "dialects.chat",
            "edge",
            "openapi.operation",
        },  # likewise
        "dialects.responses.kept_routes": _ROUTES | {"dialects.responses"},  # of OpenAI and Databricks
        "dialects.anthropic": _ROUTES | {"dialects.chat"},
        "dialects.openai": _ROUTES
        | {"dialects.chat", "dialects.responses", "dialects.responses.kept_routes"},
        "dialects.databricks": _ROUTES
        | {"dialects.chat", "dialects.responses", "dialects.responses.kept_routes"},
        "dialects.ovms": _ROUTES | {"dialects.chat", "dialects.responses"},
        "dialects.extensions": _ROUTES | {"dialects.chat"},
        "dialects.mindie": _ROUTES | {"dialects.chat", "kserve", "pages"},
        "dialects.triton": _ROUTES | {"dialects.chat", "kserve", "pages"},
        "dialects.mindie.shared_with_openai": _ROUTES
        | {"dialects.chat", "dialects.mindie", "dialects.openai"},  # as v2
        "dialects.mindie.shared_with_triton": _ROUTES
        | {"dialects.mindie", "dialects.triton", "kserve"},  # decides between the two
        "management": _ROUTES | {"dialects.databricks", "directory", "openapi"},
        "error_renderers": {"protocol", *_PROTOCOLS},
        "describe": {
            *_PROTOCOLS,
            *(
                "protocol",
                "dialects.extensions",
                "management",
                "openapi",
                "openapi.operation",
                "pages",
                "route",
            ),
        },
        "ingress": {"edge", "route"},
        "app": {
            *_PROTOCOLS,
            *(
                "protocol",
                "dialects.extensions",
                "dialects.mindie.shared_with_openai",
                "dialects.mindie.shared_with_triton",
                "edge",
            ),
            *(
                "describe",
                "error_renderers",
                "ingress",
                "management",
                "openapi",
                "pages",
                "route",
                "services",
            ),
        },
    },
    "engine": {
        "block_memory": set(),
        "pace": set(),
        "shares": set(),
        "torch_cpu": set(),
        "transfer": set(),
        "forward_context": set(),
        "grammar": set(),
        "request": {"grammar"},
        "sequence": {"grammar", "request"},  # the state of a sequence; nothing that works on sequences
        "finish": {"sequence"},
        "grammar_queue": {"grammar", "sequence"},
        "cache": {"block_memory", "sequence"},
        "draft_gain": {"pace", "sequence"},
        "scheduler": {"cache", "draft_gain", "pace", "sequence", "shares"},
        "batch": {"forward_context", "sequence", "transfer"},
        "norm": set(),
        "exact": set(),
        "kernels": {"forward_context", "norm"},
        "state": {"exact", "kernels", "sequence", "transfer"},
        "attention": {"block_memory", "forward_context", "kernels", "transfer"},
        "weights": {"attention", "kernels"},
        "sampling": {
            *("batch", "grammar", "kernels"),
            *("request", "sequence", "torch_cpu", "transfer"),
        },
        "model": {
            *("attention", "batch", "block_memory", "cache", "exact", "forward_context", "weights"),
            *("sequence", "state", "torch_cpu", "transfer"),
        },
        "pipe": set(),
        "ranks": {"batch", "model", "pipe", "request", "sequence", "torch_cpu"},
        "device": {"attention", "model", "state", "weights"},
        "waiting": set(),
        "fused": {
            "attention",
            "exact",
            "torch_cpu",
            "forward_context",
            "model",
            "norm",
            "weights",
        },  # of any device
        "experts": {"kernels", "model", "weights"},
        "cpu": {
            *("attention", "device", "exact", "experts", "fused", "kernels"),
            *("model", "norm", "state", "waiting", "weights"),
        },
        "cuda.adapters": {"attention", "model", "transfer"},
        "cuda.experts": {"attention", "experts", "weights"},
        "cuda.states": {"attention", "state"},
        "cuda": {
            *(
                "attention",
                "cuda.adapters",
                "cuda.experts",
                "cuda.states",
                "device",
                "forward_context",
                "fused",
            ),
            *("model", "norm", "state", "weights"),
        },
        "cuda.trial": {
            *(
                "attention",
                "batch",
                "cuda",
                "cuda.adapters",
                "cuda.experts",
                "cuda.states",
                "experts",
                "state",
            ),
            *("forward_context", "fused", "model", "sequence", "weights"),
        },
        "embedding": {"attention", "model", "torch_cpu"},
        "counters": {"sampling", "scheduler", "sequence"},
        "group": {"finish", "request", "sampling", "sequence"},
        "launched": {"batch", "cache", "finish", "model", "sampling", "scheduler"},
        "flights": {"launched", "model", "scheduler", "sequence"},
        "engine": {
            *("flights", "launched"),
            *("cache", "counters", "finish", "grammar", "grammar_queue", "group"),
            *("model", "pace", "request", "sampling", "scheduler", "sequence"),
        },
        "loop": {"engine", "finish"},
        "machine": {"kernels", "model", "waiting"},
        "devices": {"attention", "cpu", "cuda", "cuda.trial", "device", "model", "waiting"},
        "accuracy": {"batch", "cache", "model", "sequence"},
        "assemble": {"devices", "engine", "grammar_queue", "model", "ranks", "weights"},
        "estimate": {"attention", "cpu", "fused", "kernels", "model", "weights"},
    },
    "deployments": {
        "adapter_affinity": set(),
        "client": set(),
        "defaults": set(),
        "http10": set(),
        "logs": set(),
        "memory": set(),
        "processes": set(),
        "replica_port": set(),
        "serve_details": set(),
        "lean_ray": {"processes"},
        "limiter": {"defaults", "logs", "memory", "replica_port"},
        "model": {"adapter_affinity", "defaults", "logs", "memory", "replica_port"},
        "proxy": {"http10"},
        "environment": {"proxy"},
        "rollout": {"model", "serve_details"},
        "control": {"logs", "memory", "model", "replica_port", "rollout", "serve_details"},
        "gateway": {
            *("adapter_affinity", "environment", "http10", "limiter"),
            *("logs", "memory", "replica_port", "serve_details"),
        },
        "build": {"control", "defaults", "gateway", "limiter", "model"},
        "deploy_file": {"build", "model"},
        "launcher": {"deploy_file", "environment", "gateway", "lean_ray", "processes", "rollout"},
    },
    "replica": {
        "context_window": set(),
        "grammar": set(),
        "prompt": set(),
        "questions": {"prompt"},
        "output": {"prompt"},
        "adapters": set(),
        "ranks": set(),
        "build": {"adapters", "grammar", "prompt", "questions", "ranks"},
        "server": {"adapters", "build", "context_window", "output", "prompt"},
        "embedding": {"build", "questions", "server"},
        "served_model": {"embedding", "server"},
        "throughput": {"server"},
        "accuracy": {"build"},
        "model_check": set(),
    },
}
# third-party package -> the only layers that may import it
OWNERS: dict[str, set[str]] = {
    "ray": {"deployments"},
    "fastapi": {"api"},
    "starlette": {"api", "console", "rpc", "deployments"},  # in the last two its types only
    "grpc": {"rpc"},
    "google": {"rpc"},  # protobuf
    "uvicorn": {"deployments"},  # what Serve runs, with fewer looks
    "torch": {"codes", "engine", "models"},
    "transformers": {"engine", "models", "text"},
    "safetensors": {"models", "engine"},
    "tokenizers": {"text", "models"},
    "jinja2": {"text", "console"},
    "markupsafe": {"console"},
    "cryptography": {"console"},
    "huggingface_hub": {"models"},
    "prometheus_client": {"telemetry"},
    "sqlalchemy": {"control"},
    "alembic": {"control"},
    "pyarrow": {"accounts"},
    "phonenumbers": {"guardrails"},
    "click": {"cli"},
    "httpx": {"cli", "models"},
    "httpx_sse": {"cli"},
    "rich": {"cli", "deployments"},
}
FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}


@cache
def modules() -> Mapping[str, Path]:
    """Every module by its name below `serve_app`, a package by the name of its folder; "" is the root."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
        for path in sorted(ROOT.rglob("*.py"))
    }


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(tree: ast.AST) -> Iterator[str]:
    """The full names of the modules that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name.removeprefix("serve_app.") in modules() else node.module


@cache
def ours(name: str) -> frozenset[str]:
    """The modules of ours that the module `name` imports."""
    found = {each for each in imported(parse(modules()[name])) if each.split(".")[0] == "serve_app"}
    return frozenset(each.partition(".")[2] for each in found) - {name}


def layer(name: str) -> str:
    return name.split(".")[0]


def part(name: str) -> str | None:
    """The part of its layer that a module belongs to; None: the table has none for it."""
    inner = name.partition(".")[2]
    fits = [each for each in INSIDE[layer(name)] if inner == each or inner.startswith(f"{each}.")]
    return max(fits, key=len, default=None)


def test_every_import_follows_an_arrow() -> None:
    wrong = []
    for name, path in modules().items():
        own = layer(name)
        if not own:
            continue
        assert own in ARROWS, f"{own} is a new layer: give it its arrows here"
        for target in map(layer, ours(name)):
            if target != own and target not in ARROWS[own]:
                wrong.append(f"{name}: {own} must not import {target or 'the package itself'}")
        for top in {each.split(".")[0] for each in imported(parse(path))}:
            if own not in OWNERS.get(top, {own}):
                wrong.append(f"{name}: {top} is imported only in {sorted(OWNERS[top])}")
            if top in FORBIDDEN_IMPORTS:
                wrong.append(f"{name}: {top} deserialises code")
    assert not wrong


@pytest.mark.parametrize("own", INSIDE)
def test_every_import_inside_a_layer_follows_an_arrow(own: str) -> None:
    wrong = []
    for name in modules():
        if layer(name) != own or name == own:
            continue
        here = part(name)
        assert here is not None, f"{name} is in no part of {own}: give it its arrows here"
        for target in ours(name):
            if layer(target) == own and (there := part(target)) not in INSIDE[own][here] | {here}:
                wrong.append(f"{name}: {here} must not import {there}, for {target}")
    assert not wrong


@pytest.mark.parametrize("own", INSIDE)
def test_the_parts_of_a_layer_stand_on_one_another(own: str) -> None:
    """The arrows themselves have no circle, and lead to parts that exist."""
    parts = INSIDE[own]
    assert {each for arrows in parts.values() for each in arrows} <= parts.keys()
    TopologicalSorter(parts).prepare()


def test_no_protocol_stands_on_another() -> None:
    """What protocols share lies below all of them, and what decides between two of them above."""
    for protocol in _PROTOCOLS:
        assert not INSIDE["api"][protocol] & (
            _PROTOCOLS | {"dialects.mindie.shared_with_openai", "dialects.mindie.shared_with_triton"}
        ), protocol


def test_no_modules_import_one_another_in_a_circle() -> None:
    graph = {name: ours(name) for name in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def test_no_module_runs_or_trusts_foreign_code() -> None:
    wrong = []
    for name, path in modules().items():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Assert):
                wrong.append(f"{name}:{node.lineno}: assert vanishes under -O; raise an error")
            if (
                isinstance(node, ast.keyword)
                and node.arg == "trust_remote_code"
                and not _is_false(node.value)
            ):
                wrong.append(f"{name}:{node.value.lineno}: remote code is never trusted")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"eval", "exec", "torch.load"}:
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node.func)}")
    assert not wrong


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def test_every_module_says_what_it_is_and_stays_small() -> None:
    wrong = []
    for name, path in modules().items():
        source = path.read_text(encoding="utf-8")
        if source.count("\n") > 400:
            wrong.append(f"{name}: a file is one noun; past 400 lines it is two")
        if source.strip() and not ast.get_docstring(parse(path)):
            wrong.append(f"{name}: a module docstring is missing")
    assert not wrong


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in modules().values()}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
