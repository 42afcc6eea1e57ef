"""What docs/protocols.md must say: the fields, ranges and errors that the code knows, each with its tests.

Each check takes rows of tables and finds problems, in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from serve_app import errors
from serve_app.api.dialects.anthropic.body import MessageBody
from serve_app.api.dialects.databricks import chat as databricks_chat
from serve_app.api.dialects.databricks import completions as databricks_completions
from serve_app.api.dialects.databricks import embeddings as databricks_embeddings
from serve_app.api.dialects.mindie import chat as mindie_chat
from serve_app.api.dialects.mindie import errors as mindie_errors
from serve_app.api.dialects.mindie import generate as mindie_generate
from serve_app.api.dialects.mindie.stop import StopBody
from serve_app.api.dialects.mindie.tgi_body import ContinueBody, ContinueParameters
from serve_app.api.dialects.openai import chat as openai_chat
from serve_app.api.dialects.openai import completions as openai_completions
from serve_app.api.dialects.openai import embeddings as openai_embeddings
from serve_app.api.dialects.ovms import chat as ovms_chat
from serve_app.api.dialects.ovms import completions as ovms_completions
from serve_app.api.dialects.ovms import embeddings as ovms_embeddings
from serve_app.api.dialects.ovms import rerank as ovms_rerank
from serve_app.api.dialects.ovms import tokenize as ovms_tokenize
from serve_app.api.dialects.ovms.responses import body as ovms_responses
from serve_app.api.dialects.responses.body import ResponseBody
from serve_app.api.dialects.triton.answer.output_table import OUTPUTS
from serve_app.api.dialects.triton.errors import GRPC_STATUS
from serve_app.api.dialects.triton.request.inputs import ALIASES, INPUTS, RENAMED, TEXTS, Input, Rank
from serve_app.api.dialects.triton.request.row import BatchRow as TensorRow
from serve_app.api.edge.body import WireModel, wire_model_in
from serve_app.api.error_renderers import RENDERERS
from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.family import Family
from serve_app.errors import InvalidField, ServeError
from serve_app.types import ErrorInfo, Tensor
from tests.support.named_tests import NoSuchTest, find, mentions
from tests.support.protocol_tables import Row

# Protocol -> what the heading of a table says -> the bodies whose fields it lists, each below a path.
BODIES: Final[Mapping[str, Mapping[str, Mapping[str, type[WireModel]]]]] = {
    "OpenAI": {
        "chat": {"": openai_chat.ChatBody},
        "completions": {"": openai_completions.CompletionBody},
        "embeddings": {"": openai_embeddings.EmbeddingBody},
        "responses": {"": ResponseBody},
    },
    "Anthropic": {"messages": {"": MessageBody}},
    "Databricks": {
        "chat": {"": databricks_chat.ChatBody},
        "completions": {"": databricks_completions.CompletionBody},
        "embeddings": {"": databricks_embeddings.EmbeddingBody},
    },
    "MindIE chat": {"chat": {"": mindie_chat.ChatBody}},
    "MindIE generate": {
        "generate_stream": {"": mindie_generate.TextBody, "parameters.": mindie_generate.Parameters},
        "name no model": {"": ContinueBody, "parameters.": ContinueParameters},
        "stopinfer": {"": StopBody},
    },
    "OpenVINO Model Server": {
        "chat": {"": ovms_chat.ChatBody},
        "completions": {"": ovms_completions.CompletionBody},
        "responses": {"": ovms_responses.ResponseBody},
        "embeddings": {"": ovms_embeddings.EmbeddingBody},
        "rerank": {"": ovms_rerank.RerankBody},
        "tokenize": {"": ovms_tokenize.OvmsTokenizeBody},
    },
}

ERRORS: Final[Mapping[str, Callable[[ServeError], ErrorReply]]] = {
    "OpenAI": RENDERERS[Family.OPENAI],
    "Anthropic": RENDERERS[Family.ANTHROPIC],
    "Databricks": RENDERERS[Family.DATABRICKS],
    "MindIE chat": mindie_errors.render_body_error,
    "MindIE generate": mindie_errors.render_error,
    "OpenVINO Model Server": RENDERERS[Family.OVMS],
    "Triton": RENDERERS[Family.TRITON],
}
WORDS_BESIDE: Final[Mapping[str, Mapping[str, str]]] = {
    "Triton": {str(condition): word for condition, word in GRPC_STATUS.items()}
}
CONDITIONS: Final = {kind.condition: kind for kind in reversed(errors.KINDS.values())}
NUMBERED: Final = {condition for condition in CONDITIONS if condition[1:].isdecimal()}
_MANAGED: Final = {"E16", "E17"}  # of the management API, which is Databricks'
# Rows of conditions that a protocol cannot meet.
NOT_THERE: Final = {
    **{protocol: _MANAGED for protocol in ERRORS if protocol != "Databricks"},
    "OpenAI": {"E4", *_MANAGED},
    "Anthropic": {"E4", *_MANAGED},
    "MindIE chat": {"E4", *_MANAGED},
}


# --- the checks --------------------------------------------------------------------------------


def missing_tests(table: Iterable[Row]) -> list[str]:
    problems = []
    for row in table:
        problems += [f"{row.place}: nothing is called {name}" for name in row.unknown]
        if not row.tests:
            problems.append(f"{row.place}: names no test")
        for test in row.tests:
            try:
                find(test)
            except NoSuchTest as error:
                problems.append(f"{row.place}: {error}")
    return problems


def unrelated_tests(table: Iterable[Row]) -> list[str]:
    """A test of a field has its name among its words; a test of a row of errors the number of the row."""
    problems = []
    for row in table:
        if row.kind not in ("field", "tensor", "row", "in an answer"):
            continue
        for test, name in product(row.tests, row.names):
            last = name.rpartition(".")[2]
            if not mentions(test, last) and not (row.kind == "row" and mentions(test, last.lower())):
                problems.append(f"{row.place}: {test} does not mention {name}")
    return problems


def fields_that_do_not_match(table: Iterable[Row]) -> list[str]:
    listed = [row for row in table if row.kind == "field"]
    problems = []
    for protocol, routes in BODIES.items():
        for route, bodies in routes.items():
            own = [r for r in listed if r.protocol == protocol and route in r.heading.lower()]
            told = {name for row in own for name in row.names}
            known = set(known_fields(protocol, route, bodies))
            problems += [f"{protocol}, {route}: no row for {name}" for name in sorted(known - told)]
            problems += [
                f"{protocol}, {route}: no body has {name}"
                for name in sorted(told - known)
                if not is_free_form(name, bodies)
            ]
    problems += [
        f"{row.place}: of no route"
        for row in listed
        if not any(route in row.heading.lower() for route in BODIES.get(row.protocol, ()))
    ]
    return problems


def _error_of(kind: type[errors.ServeError]) -> errors.ServeError:
    return errors.from_info(ErrorInfo(kind=kind.__name__, reason="x"))


def errors_that_differ(table: Iterable[Row]) -> list[str]:
    listed = [row for row in table if row.kind == "row"]
    problems = []
    for protocol, render in ERRORS.items():
        own = {row.names[0]: row for row in listed if row.protocol == protocol}
        wanted = NUMBERED - NOT_THERE.get(protocol, set())
        problems += [f"{protocol}: no row {name}" for name in sorted(wanted - own.keys())]
        problems += [f"{protocol}: there is no condition {name}" for name in sorted(own.keys() - wanted)]
        for name in sorted(wanted & own.keys()):
            words, cell = words_of_error(render(_error_of(CONDITIONS[name]))), own[name].cells[1]
            words += [WORDS_BESIDE[protocol][name]] if protocol in WORDS_BESIDE else []
            problems += [
                f"{own[name].place}: {word!r} is not in {cell!r}" for word in words if word not in cell
            ]
    return problems


def tensors_that_differ(table: Iterable[Row]) -> list[str]:
    """Inputs with datatype and range, the keys of text beside them, and outputs."""
    told = {row.names[0]: row.cells[0] for row in table if row.kind == "tensor"}
    answered = {name for row in table if row.protocol == "Triton" for name in row.names}
    known = {*INPUTS, *ALIASES, *RENAMED, *TEXTS}
    problems = [f"Triton: no row for {name}" for name in sorted(known - told.keys())]
    problems += [f"Triton: there is no tensor {name}" for name in sorted(told.keys() - known)]
    problems += [f"Triton: no row for the output {name}" for name in OUTPUTS if name not in answered]
    for name in sorted(INPUTS.keys() & told.keys()):
        if not told[name].startswith(words := told_tensor(INPUTS[name])):
            problems.append(f"Triton, {name}: the server says {words!r}, not {told[name]!r}")
    return problems


# --- what the server says ----------------------------------------------------------------------


def known_fields(protocol: str, route: str, bodies: Mapping[str, type[WireModel]]) -> dict[str, str]:
    """Every field's path -> the range that a refusal tells; "" where the type alone tells none."""
    found: dict[str, str] = {}
    for prefix, body in bodies.items():
        found |= {prefix + name: "" for name in body.fields_beside}
        for name in body.model_fields:
            found[prefix + name] = told_range(body, name)
            if (nested := wire_model_in(body.model_fields[name].annotation)) is not None:
                found |= {
                    f"{prefix}{name}.{member}": told_range(nested, member) for member in nested.model_fields
                }
    return found


def is_free_form(name: str, bodies: Mapping[str, type[WireModel]]) -> bool:
    """Whether a path leads into a field that has no model of its own."""
    head, dot, _ = name.partition(".")
    body = bodies[""]
    return bool(dot) and head in body.model_fields and body.model_fields[head].annotation is Any


@cache
def told_range(body: type[WireModel], name: str) -> str:
    """What the field's own refusal calls acceptable."""
    try:
        body.model_validate({name: object()})
    except ValidationError as error:
        message = next(each["msg"] for each in error.errors() if each["loc"][0] == name)
        if message.startswith("must "):
            return re.sub("^must (be )?", "", message.replace("must map", "a map of"))
    return ""


def told_tensor(spec: Input) -> str:
    """The datatype of an input, and what its own refusal of something else calls acceptable."""
    if spec.datatype in ("BOOL", "BYTES"):
        return spec.datatype
    is_float, is_scalar = spec.datatype == "FP32", spec.rank is Rank.SCALAR
    wrong = Tensor(dtype=spec.datatype, shape=(1,) * 5, data=bytes(8))
    if is_scalar:
        low = np.asarray([spec.low - 1], "<f8" if is_float else "<i8")
        wrong = Tensor(dtype="FP64" if is_float else "INT64", shape=(1,), data=low.tobytes())
    row = TensorRow({spec.name: wrong})
    read = row.table if not is_scalar else row.number if is_float else row.integer
    try:
        read(spec.name)
    except InvalidField as error:
        return f"{spec.datatype}, {re.sub('^.*?must (be|have the shape) ', '', error.message)}"
    return spec.datatype


def words_of_error(reply: ErrorReply) -> list[str]:
    """Its status, and the fixed strings of its body."""
    return [str(reply.status), *_fixed(json.loads(reply.body))]


def _fixed(body: Any) -> list[str]:
    if isinstance(body, dict):
        return [word for value in body.values() for word in _fixed(value)]
    if isinstance(body, str) and body.startswith("{"):  # a report inside of a message
        return [name for name in json.loads(body) if name != "usage"]
    fixed = body.removesuffix("x").removesuffix(": ") if isinstance(body, str) else ""  # before the reason
    return [fixed] if fixed else []


CHECKS: Final = (
    missing_tests,
    unrelated_tests,
    fields_that_do_not_match,
    tensors_that_differ,
    errors_that_differ,
)
