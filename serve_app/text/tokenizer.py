"""One model's tokenizer: bounded, and never in the way of the event loop.

Knows ids and text; not what a prompt is for.

`encode` reads raw prompts, in which the text of a special token *is* that token,
as in transformers and with any raw completions API. Strings that must not reach
control tokens (chat messages, code around a gap) go through `encode_pieces`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from serve_app.errors import InvalidField, PromptTooLong
from serve_app.limits import MAX_PROMPT_CHARS
from serve_app.text.control import ControlTokens, Piece
from serve_app.text.detokenizer import Detokenizer, new_detokenizer
from serve_app.text.files import TokenizerFiles, read_files
from serve_app.text.token_bytes import TokenBytes
from serve_app.types import PositionLogprobs, TextLogprob

# Encoding takes about 0.4 ms per 1,000 characters on a CPU core; a hop to a thread costs about 0.1 ms.
INLINE_CHARS = 2_000
_THREADS = 2

T = TypeVar("T")


class Tokenizer:
    """Text <-> ids of one model.

    >>> tokenizer = Tokenizer.load(Path("models/small"))
    >>> ids = await tokenizer.encode("Hello")
    """

    def __init__(self, files: TokenizerFiles) -> None:
        backend = self._backend = files.backend
        self.table = TokenBytes(backend, files.special_ids)
        self.controls = ControlTokens(backend, files.special_ids)
        self.named_tokens = files.named_tokens
        self.templates = files.templates
        self.special_ids = files.special_ids
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenizer")

    @classmethod
    def load(cls, folder: Path, *, chat_template: str | None = None) -> Tokenizer:
        """Read the tokenizer of a model folder; never runs code from it.

        `chat_template` is the operator's own and replaces all of the model's. Raises
        TokenizerLoadError.
        """
        files = read_files(folder)
        if chat_template is not None:
            files.templates.clear()
            files.templates["default"] = chat_template
        return cls(files)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact vocabulary entry."""
        return self._backend.token_to_id(token)

    # --- text -> ids -----------------------------------------------------------------

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt; `add_special_tokens` adds BOS (and EOS) where the model wants them.

        Long text is encoded in a thread. Raises PromptTooLong beyond MAX_PROMPT_CHARS and
        InvalidField for what is no Unicode text.
        """
        return await self.off_loop(
            len(text), lambda: self.encode_now(text, add_special_tokens=add_special_tokens)
        )

    def encode_now(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """`encode` in the calling thread. Raises the same."""
        check_prompt_chars(len(text), param="prompt")
        try:
            # A batch, even of one, releases the GIL; `encode` holds it throughout.
            [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise InvalidField("prompt: must be valid Unicode text", param="prompt") from error
        return encoding.ids

    def encode_pieces(self, pieces: Sequence[Piece], *, continues: bool = False) -> list[int]:
        """Ids of one text given in pieces, without BOS; plain pieces yield no control token.

        `continues`: the text follows another one directly.
        """
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            opens = number == 0 and not continues
            ids += self._encode_piece(piece) if opens else self._encode_continuing(piece)
        return ids

    async def off_loop(self, num_chars: int, work: Callable[[], T]) -> T:
        """Run tokenising work on `num_chars` characters where it does not delay the event loop."""
        if num_chars <= INLINE_CHARS or num_chars > MAX_PROMPT_CHARS:  # too long is refused at once
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _encode_continuing(self, piece: Piece) -> list[int]:
        """Ids of a piece that follows others.

        SentencePiece opens every text with a space. Behind a line break it does not, so the
        piece is encoded there, and the line break is taken away again.
        """
        anchor = self._encode_piece(Piece("\n", piece.plain))
        ids = self._encode_piece(Piece("\n" + piece.text, piece.plain))
        if anchor and ids[: len(anchor)] == anchor:
            return ids[len(anchor) :]
        return self._encode_piece(piece)

    def _encode_piece(self, piece: Piece) -> list[int]:
        if not piece.plain:
            return self.encode_now(piece.text, add_special_tokens=False)
        return self._encode_plain(piece.text)

    def _encode_plain(self, text: str) -> list[int]:
        """The tokenizer's pipeline without its step that looks for added tokens."""
        backend = self._backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        words = [text]
        if backend.pre_tokenizer is not None:
            words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token_id for word in words for token_id in self._spell(word)]

    def _spell(self, word: str) -> list[int]:
        tokenize = self._backend.model.tokenize
        ids = [token.id for token in tokenize(word)]
        if self.controls.ids.isdisjoint(ids):
            return ids
        # Some vocabularies hold the control token itself as a word; its characters cannot spell it.
        return [t.id for char in word for t in tokenize(char) if t.id not in self.controls.ids]

    # --- ids -> text -----------------------------------------------------------------

    def detokenizer(self, *, skip_special_tokens: bool = True, continues: bool = False) -> Detokenizer:
        """An incremental detokenizer; `continues`: the text follows another one directly."""
        return new_detokenizer(self.table, skip_special_tokens=skip_special_tokens, continues=continues)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`; invalid bytes read U+FFFD, ids that are no token read as nothing."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to a text; perhaps only a part of a character."""
        return self.table[token_id]

    def token_text(self, token_id: int) -> str:
        """A token by itself, with U+FFFD for a part of a character."""
        return self.table[token_id].decode("utf-8", "replace")

    def describe(self, position: PositionLogprobs) -> TextLogprob:
        """The log-probabilities of a position with the tokens' own texts."""
        return TextLogprob(
            position.token_id,
            self.token_text(position.token_id),
            self.token_bytes(position.token_id),
            position.logprob,
            tuple(
                TextLogprob(
                    top.token_id, self.token_text(top.token_id), self.token_bytes(top.token_id), top.logprob
                )
                for top in position.top
            ),
        )

    def _named_id(self, name: str) -> int | None:
        token = self.named_tokens.get(name)
        return None if token is None else self.token_id(token)


def check_prompt_chars(num_chars: int, *, param: str) -> None:
    """Raise PromptTooLong beyond the bound on characters, before anything is made of them."""
    if num_chars > MAX_PROMPT_CHARS:
        raise PromptTooLong(f"{param}: at most {MAX_PROMPT_CHARS} characters", param=param)
