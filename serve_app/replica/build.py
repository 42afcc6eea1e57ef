"""Settings -> a loaded model: weights, cache, engine, tokenizer, warmed up.

The only module that wires `models`, `text` and `engine` together for a model that generates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llguidance import LLTokenizer

from serve_app.config import ModelConfig
from serve_app.engine.assemble import assemble
from serve_app.engine.engine import Engine
from serve_app.engine.grammar.tokenizer import GrammarsUnavailable, grammar_tokenizer
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.engine.loop import OnOutputs
from serve_app.engine.machine import prepare
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.memory import CacheTooSmall
from serve_app.engine.ranks.followers import Followers
from serve_app.engine.ranks.launcher import Launcher
from serve_app.engine.ranks.meeting import RankRefused
from serve_app.models.errors import ModelLoadError
from serve_app.models.fingerprint import fingerprint
from serve_app.models.generation_defaults import generation_defaults
from serve_app.models.loader import LoadedModel, load_model
from serve_app.models.source import locate
from serve_app.replica.adapters.loader import AdaptingLoop, make_loader
from serve_app.replica.grammar.compiler import GrammarCompiler
from serve_app.replica.grammar.messages import SandboxSetup
from serve_app.replica.prompt import PromptEncoder
from serve_app.replica.questions import Questions
from serve_app.replica.ranks.part import part_of, start_followers
from serve_app.text.answer.answer_format import AnswerFormat
from serve_app.text.answer.grammar import reads_alike
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import Beam, ModelInfo

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoadedReplica:
    """One loaded model and everything that its server needs."""

    info: ModelInfo
    encoder: PromptEncoder
    grammars: GrammarCompiler
    questions: Questions
    max_adapters: int
    window: Callable[[Beam | None], int]  # the most tokens of a sequence, in a search or without one
    new_driver: Callable[[OnOutputs], AdaptingLoop]  # the argument gets the outputs of each step
    followers: Followers | None  # the other ranks of a model that is divided


def load(config: ModelConfig, progress: Progress, launcher: Launcher | None = None) -> LoadedReplica:
    """Load the model of `config`. `launcher`: of its other ranks; None: they are child processes.

    Raises ModelLoadError; its message says what to do next.
    """
    halves = load_halves(config, progress, launcher)
    try:
        return _put_together(config, progress, *halves)
    except BaseException:
        if halves[-1] is not None:
            halves[-1].close()
        raise


def _put_together(
    config: ModelConfig,
    progress: Progress,
    engine: Engine,
    model: LoadedModel,
    tokenizer: Tokenizer,
    followers: Followers | None,
) -> LoadedReplica:
    """Raises ModelLoadError."""
    new_driver = partial(AdaptingLoop, engine, make_loader(engine, config))
    folder = model.folder
    encoder = _prompt_encoder(config, tokenizer, folder)
    if encoder.template is None:
        progress(
            f"{config.name} has no chat template: chat requests are refused, completions answered; a file "
            "named in `chat_template` gives it one"
        )
    info = ModelInfo(
        name=config.name,
        version=config.version,
        weights=fingerprint(config, folder, str(model.dtype), codes=model.codes),
        created=int(time.time()),
        context_window=engine.max_model_len,
        vocab_size=engine.vocab_size,
        max_output_tokens=config.max_output_tokens,
        sampling_defaults=generation_defaults(folder, config),
        has_chat_template=encoder.template is not None,
        has_fim=encoder.fim is not None,
        limits_thoughts=encoder.answers.limits_thoughts(tokenizer),
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=config.quantization,
        device=str(model.device),
        pad_token_id=tokenizer.pad_token_id,
        end_token_id=tokenizer.eos_token_id,
        eos_token_ids=model.eos_token_ids,
        eos_tokens=tuple(map(tokenizer.token_text, model.eos_token_ids)),
        adapters=tuple(config.adapters),
        max_requests=config.engine.max_sequences + config.engine.max_waiting,
    )
    grammars = GrammarCompiler(
        SandboxSetup(
            tokenizer_json=tokenizer.to_json(),
            vocab_size=engine.vocab_size,
            own_vocab_size=tokenizer.vocab_size,
            eos_token_ids=model.eos_token_ids,
        )
    )
    questions = Questions(encoder, vocab_size=engine.vocab_size, watermark_key=config.engine.watermark_key)
    return LoadedReplica(
        *(info, encoder, grammars, questions, config.engine.max_adapters, engine.rules.window, new_driver),
        followers,
    )


def _prompt_encoder(config: ModelConfig, tokenizer: Tokenizer, folder: Path) -> PromptEncoder:
    """Raises ModelLoadError for a chat template that cannot be used."""
    try:
        answers = AnswerFormat.find(
            tokenizer,
            tools=config.tool_format,
            reasoning=config.reasoning_format,
            compact_json=config.compact_json,
        )
        return PromptEncoder.of(tokenizer, answers)
    except Exception as error:  # a template is a program
        where = config.chat_template or folder
        raise ModelLoadError(
            f"the chat template of {where} cannot be used: {error}; mend it, or name a file with a right one "
            "in `chat_template`"
        ) from error


def load_engine(config: ModelConfig, progress: Progress) -> tuple[Engine, LoadedModel]:
    """The token-level half: weights and a warmed-up engine over them. Raises ModelLoadError."""
    engine, model, _, _ = load_halves(config, progress)
    return engine, model


def load_halves(
    config: ModelConfig, progress: Progress, launcher: Launcher | None = None
) -> tuple[Engine, LoadedModel, Tokenizer, Followers | None]:
    """Load both halves at once: the tokenizer in a thread, while the weights are read and packed."""
    folder, _ = locate(config.source, config.revision, progress)
    # Load the folder that was found, without a second look-up.
    config = config.model_copy(update={"source": str(folder), "revision": None})
    followers = start_followers(config, launcher)
    try:
        engine, model, tokenizer = _load_own(config, folder, followers, progress)
        if followers is not None:
            followers.check()
    except BaseException as error:
        refusal = None
        if followers is not None:
            refusal = followers.refusal()
            followers.close()
        if refusal is not None and isinstance(error, Exception):
            raise ModelLoadError(f"{config.name}: {refusal}") from error
        raise
    return engine, model, tokenizer, followers


def _load_own(
    config: ModelConfig, folder: Path, followers: Followers | None, progress: Progress
) -> tuple[Engine, LoadedModel, Tokenizer]:
    """What this process holds of the replica."""
    with ThreadPoolExecutor(1, "tokens") as thread:
        tokenizer = thread.submit(load_tokenizer, config, folder)
        ranks = 1 if followers is None else followers.beside
        model = load_model(config, progress, fast_bfloat16=prepare(config, progress, ranks))
        tokens = thread.submit(lambda: _grammar_tokens(tokenizer.result(), model, model.vocab_size))

        def make_grammars(vocab_size: int) -> GrammarQueue | None:
            """The compiler of grammars over the tokens; None, after a line of progress, if the tokenizer does
            not allow grammars."""
            try:
                if vocab_size == model.vocab_size:
                    return GrammarQueue(tokens.result())
                return GrammarQueue(_grammar_tokens(tokenizer.result(), model, vocab_size))
            except GrammarsUnavailable as error:
                progress(f"{config.name}: no structured output: {error}")
                return None

        try:
            part = None if followers is None else part_of(config, model, followers.join(model.device))
            engine = assemble(
                model.module,
                dtype=model.dtype,
                device=model.device,
                context_window=model.context_window,
                eos_token_ids=model.eos_token_ids,
                make_grammars=make_grammars,
                config=config,
                progress=progress,
                part=part,
                others=followers,
            )
        except (UnsupportedModel, CacheTooSmall, RankRefused, ValueError) as error:
            raise ModelLoadError(f"{config.name}: {error}") from error
    return engine, model, tokenizer.result()


def _grammar_tokens(tokenizer: Tokenizer, model: LoadedModel, vocab_size: int) -> LLTokenizer:
    """The model's tokens for the parser of grammars. Raises GrammarsUnavailable."""
    tokens = grammar_tokenizer(
        tokenizer.to_json(),
        vocab_size=vocab_size,
        own_vocab_size=tokenizer.vocab_size,
        eos_token_ids=model.eos_token_ids,
    )
    if not reads_alike(tokenizer, tokens):
        raise GrammarsUnavailable("the grammar's parser reads the model's tokens differently")
    return tokens


def load_tokenizer(config: ModelConfig, folder: Path) -> Tokenizer:
    """The tokenizer of `folder`, with the operator's own chat template if there is one."""
    template = None
    if config.chat_template is not None:
        try:
            template = config.chat_template.read_text("utf-8")
        except OSError as error:
            raise ModelLoadError(
                f"chat_template: {config.chat_template} cannot be read; check the path"
            ) from error
    try:
        return Tokenizer.load(folder, chat_template=template)
    except Exception as error:
        raise ModelLoadError(f"the tokenizer in {folder} cannot be used: {error}") from error
