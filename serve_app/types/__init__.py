"""The contract: the data that crosses process boundaries, defined in one place.

Only plain frozen data, so that every layer can import this module and `msgspec` can carry it as bytes. The
types are standard dataclasses; for objects created per token, they are `msgspec` structs, which are ten times
faster to create. `msgspec.structs.replace` changes structs. Nothing here depends on torch, pydantic or HTTP.

    HTTP body --dialect.parse--> GenerateRequest --replica--> EngineRequest
    EngineOutput --replica--> TokenDelta --dialect.render--> bytes

A `GenerateRequest` is one *sequence group*: one prompt and its `n` choices. An
HTTP body with several prompts becomes several requests with one `parent_id`.
"""

from __future__ import annotations

from serve_app.types.account import Budget, Caller, Draw, MonthlyBudget, Scope, UsageRecord, Verdict
from serve_app.types.adapter import Adapter
from serve_app.types.engine import EngineOutput, EngineRequest, EngineStats
from serve_app.types.inputs import Draft, PromptTable
from serve_app.types.model import ModelInfo
from serve_app.types.numeral import Numeral
from serve_app.types.question import (
    DetectRequest,
    Detokenized,
    DetokenizeRequest,
    Embeddings,
    EmbedRequest,
    Question,
    TokenizeRequest,
    Tokens,
    WatermarkScore,
)
from serve_app.types.request import GenerateRequest, Overflow, Prompt, Templating, ToolChoice, ToolMode
from serve_app.types.result import (
    ErrorInfo,
    FinishReason,
    Perf,
    PositionLogprobs,
    StepTiming,
    Tensor,
    TextLogprob,
    Timing,
    TokenDelta,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from serve_app.types.resume import ChoiceSoFar, Resume
from serve_app.types.sampling import (
    LEFT_TO_MODEL,
    Beam,
    EarlyStopping,
    Grammar,
    GrammarKind,
    LoopRule,
    MarkerRule,
    ProcessorCall,
    SamplingDefaults,
    SamplingParams,
)
