"""KServe's metadata below /v2: server and models, their readiness, their tensors and their configuration.

A version is a served entity of the endpoint. An entity without a version counts as version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from serve_app.api.context import context_of
from serve_app.api.dialects.triton import answers
from serve_app.api.dialects.triton.aliases import meaning
from serve_app.api.dialects.triton.answer.output_table import ENSEMBLE_OUTPUTS, OUTPUTS, Output
from serve_app.api.dialects.triton.ensemble import postprocessing as post
from serve_app.api.dialects.triton.ensemble import preprocessing as pre
from serve_app.api.dialects.triton.errors import NOT_READY, probe_error
from serve_app.api.dialects.triton.request.inputs import INPUTS, RENAMED, TEXTS, Input
from serve_app.api.dialects.triton.role import Role
from serve_app.api.edge.connection import reply_json
from serve_app.api.edge.version import VERSION
from serve_app.api.exchange.dispatch import of_version, version_of
from serve_app.api.pages.condition import condition
from serve_app.api.services import Services
from serve_app.config import TrtllmConfig
from serve_app.endpoints.endpoint import Endpoint, ServedEntity, Task
from serve_app.errors import ModelNotFound, Unavailable
from serve_app.limits import MAX_MODEL_NAME_CHARS, MAX_PROMPTS
from serve_app.types import ModelInfo

EXTENSIONS: Final = (
    "binary_tensor_data",
    "parameters",
    "generate",
    "model_configuration",
    "model_repository",
    "statistics",
)
PLATFORM: Final = "torch_transformers"

# Inputs of token ids, or about token ids. An ensemble has texts instead.
_OF_TOKENS: Final = frozenset(
    {"input_ids", "input_lengths", "bad_words_list", "stop_words_list", "embedding_bias"}
    | {"decoder_input_ids", "decoder_input_lengths", "prompt_table_extra_ids", *RENAMED.values()}
)
_ENSEMBLE_INPUTS: Final = {
    **TEXTS,
    **{name: INPUTS[own] for name, own in RENAMED.items()},
    **{name: each for name, each in INPUTS.items() if name not in _OF_TOKENS},
}
Tensors = tuple[Mapping[str, Input], Mapping[str, Output]]
# The tensors of each role of a name, which are the same for every model.
TENSORS: Final[Mapping[Role, Tensors]] = MappingProxyType(
    {
        Role.TENSORS: (INPUTS, OUTPUTS),
        Role.ENSEMBLE: (_ENSEMBLE_INPUTS, ENSEMBLE_OUTPUTS),
        Role.PREPROCESSING: (pre.INPUTS, pre.OUTPUTS),
        Role.POSTPROCESSING: (post.INPUTS, post.OUTPUTS),
    }
)


class Found(NamedTuple):
    """The model that a path names."""

    name: str  # as the client wrote it
    role: Role  # what the name means
    endpoint: Endpoint
    entities: tuple[ServedEntity, ...]  # those of the version, if the path names one

    @property
    def tensors(self) -> Tensors:
        """Inputs and outputs. A model that embeds has no tensors."""
        return ({}, {}) if self.endpoint.task is Task.EMBEDDINGS else TENSORS[self.role]


def find(services: Services, scope: Scope, names: Mapping[str, str]) -> Found:
    """The model. Raises VersionNotFound, or ModelNotFound (also for a model without tensors)."""
    name, wanted = names["model"], names.get("version")
    if len(name) > MAX_MODEL_NAME_CHARS:
        raise ModelNotFound("model", "no such model")
    meant = meaning(services, scope, name)
    endpoint = services.endpoints(scope).find_known(meant.endpoint, services.backend)
    entities = endpoint.served_entities if wanted is None else of_version(endpoint, wanted)
    return Found(name, meant.role, endpoint, entities)


def is_ready(services: Services, found: Found) -> bool:
    """Whether the model can answer a request."""
    return any(services.backend.is_ready(entity.app) for entity in found.entities)


class ServerReady:
    """GET /v2/health/ready: 200 when every endpoint can answer, else 400."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = condition(self._services)
        ready: answers.Ready = {"ready": True}
        error: answers.NotReady = {"ready": False, "error": "; ".join(found.reasons)[:1_000]}
        await (reply_json(send, ready) if found.is_ready else reply_json(send, error, NOT_READY))


def model_ready(services: Services, scope: Scope) -> answers.ModelReady:
    """GET .../ready: 200 if the model can answer a request, else 400.

    Raises ModelNotFound, VersionNotFound or Unavailable.
    """
    context_of(scope).render_error = probe_error
    found = find(services, scope, scope["path_params"])
    if not is_ready(services, found):
        raise Unavailable("the model is not ready; try again", retry_after_s=2.0)
    return {"name": found.name, "ready": True}


def server_metadata(v1_dialect: str) -> answers.ServerPage:
    """The body of GET /v2."""
    return {"name": "serve-app", "version": VERSION, "extensions": [*EXTENSIONS, f"v1_dialect={v1_dialect}"]}


def model_metadata(found: Found) -> answers.ModelPage:
    """The body of GET for a model or one of its versions, with the model's tensors."""
    inputs, outputs = found.tensors
    return {
        "name": found.name,
        "versions": sorted({version_of(entity) for entity in found.endpoint.served_entities}, key=int),
        "platform": PLATFORM,
        "inputs": [_metadata(name, each.datatype, (-1, *each.shape)) for name, each in inputs.items()],
        "outputs": [_metadata(name, each.datatype, each.shape) for name, each in outputs.items()],
    }


def _metadata(name: str, datatype: str, shape: tuple[int, ...]) -> answers.TensorMetadata:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def model_config(services: Services, found: Found) -> answers.ModelConfig:
    """The body of GET .../config: the model's tensors in Triton's own form, and its limits, if known."""
    inputs, outputs = found.tensors
    parameters = _parameters(_info(services, found), services.config.trtllm)
    return {
        "name": found.name,
        "platform": PLATFORM,
        "backend": "serve-app",
        "max_batch_size": MAX_PROMPTS,
        "input": [
            {**_config(name, each.datatype, each.shape), "optional": not each.required}
            for name, each in inputs.items()
        ],
        "output": [_config(name, each.datatype, each.shape[1:]) for name, each in outputs.items()],
        "model_transaction_policy": {"decoupled": found.role.generates},  # any number of responses
        "parameters": {key: {"string_value": str(value)} for key, value in parameters.items()},
    }


def _config(name: str, datatype: str, dims: tuple[int, ...]) -> answers.OutputConfig:
    """`dims`: the dimensions without the batch."""
    word = {"BYTES": "STRING"}.get(datatype, datatype)
    return {"name": name, "data_type": f"TYPE_{word}", "dims": list(dims)}


def _parameters(info: ModelInfo | None, config: TrtllmConfig) -> dict[str, object]:
    """The parameters of a configuration. Most are missing until facts about the model are available."""
    own: dict[str, object] = {"exclude_input_in_output": str(config.exclude_input_in_output).lower()}
    if info is None:
        return own
    return own | {
        "max_seq_len": info.context_window,
        "max_output_len": info.max_output_tokens or info.context_window,
        "vocab_size": info.vocab_size,
        "eos_token_ids": ",".join(map(str, info.eos_token_ids)),
        "pad_token_id": "" if info.pad_token_id is None else info.pad_token_id,
    }


def _info(services: Services, found: Found) -> ModelInfo | None:
    known = (services.backend.info(entity.app) for entity in found.entities)
    return next((info for info in known if info is not None), None)
