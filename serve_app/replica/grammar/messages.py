"""Messages between a replica and its grammar sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types import Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSetup:
    """The tokens of the model whose grammars the sandbox compiles."""

    tokenizer_json: str
    vocab_size: int  # of the model
    own_vocab_size: int  # of the tokenizer
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCommand:
    """Parent -> child: first the setup, then one grammar at a time."""

    setup: SandboxSetup | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReply:
    """Child -> parent, one reply to each command; the reply to a correct setup is empty."""

    compiled: str | None = None  # the grammar in llguidance's notation, after its trial
    refused: str | None = None  # the reason of an InvalidField
    unavailable: str | None = None  # why this tokenizer allows no grammars
