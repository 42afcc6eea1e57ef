"""One model's tokenizer: bounded, and never blocking the event loop.

Handles ids and text, not requests.

`encode` reads raw prompts, in which the text of a special token *is* that token,
as in transformers and with any raw completions API. Strings that must not reach
control tokens (chat messages, code around a gap) go through `encode_pieces`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from serve_app.errors import InvalidField, PromptTooLong
from serve_app.limits import MAX_PROMPT_CHARS
from serve_app.text.tokens.control_tokens import ControlTokens, PromptPiece
from serve_app.text.tokens.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from serve_app.text.tokens.files import TokenizerFiles, read_files
from serve_app.text.tokens.lower_bound import bytes_per_token
from serve_app.text.tokens.token_bytes import TokenBytes
from serve_app.text.tokens.workers import Workers
from serve_app.types import PositionLogprobs, TextLogprob

_PIECES_AT_ONCE = 1_024  # bounds the memory of the library's results
_ANCHOR = "\n"
_PROBE = "a"  # a text that every tokenizer knows

T = TypeVar("T")


class Tokenizer:
    """Text <-> ids of one model.

    >>> tokenizer = Tokenizer.load(Path("models/small"))
    >>> ids = await tokenizer.encode("Hello")
    """

    def __init__(self, files: TokenizerFiles) -> None:
        backend = self._backend = files.backend
        self.table = TokenBytes(backend)
        self.controls = ControlTokens(backend, files.special_ids)
        self.named_tokens = files.named_tokens
        self.templates = files.templates
        self.special_ids = files.special_ids
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self.pad_token_id = self._named_id("pad_token")
        self._plain: dict[str, list[int]] = {}  # control tokens as plain text: at most as many as there are
        self._bytes_per_token = bytes_per_token(self.to_json())
        self._workers = Workers()

    @classmethod
    def load(cls, folder: Path, *, chat_template: str | None = None) -> Tokenizer:
        """Read the tokenizer of a model folder; never runs code from it.

        `chat_template` is the operator's own and replaces all templates of the model. Raises
        TokenizerLoadError.
        """
        files = read_files(folder)
        if chat_template is not None:
            files.templates.clear()
            files.templates["default"] = chat_template
        return cls(files)

    def to_json(self) -> str:
        """The tokenizer as tokenizer.json would describe it, including the tokens from its other files."""
        return self._json

    @cached_property
    def _json(self) -> str:
        return self._backend.to_str()  # takes seconds if tens of thousands of tokens were added

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact vocabulary entry."""
        return self._backend.token_to_id(token)

    # --- text -> ids -----------------------------------------------------------------

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt; `add_special_tokens` adds BOS (and EOS) where the model wants them.

        Long text is encoded in a thread. Raises PromptTooLong beyond MAX_PROMPT_CHARS and InvalidField for
        text that is not valid Unicode.
        """
        return await self.off_loop(
            len(text), lambda: self.encode_now(text, add_special_tokens=add_special_tokens)
        )

    def fewest(self, num_chars: int) -> int:
        """The fewest tokens that `num_chars` characters can have; 0 if there is no bound."""
        if self._bytes_per_token is None:
            return 0
        return -(-num_chars // self._bytes_per_token)  # a character has at least one byte

    def encode_now(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """`encode` in the calling thread. Raises what `encode` raises."""
        check_prompt_chars(len(text), param="prompt")
        return self._encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def cut(self, ids: Sequence[int], longest: int) -> list[int]:
        """The ids of a text, cut to `longest`; the ids that close every text stay at the end."""
        if len(ids) <= longest:
            return [*ids]
        closing = self._closing_ids
        ends_so = len(closing) < longest and tuple(ids[len(ids) - len(closing) :]) == closing
        return [*ids[: longest - len(closing)], *closing] if ends_so else [*ids[:longest]]

    @cached_property
    def _closing_ids(self) -> tuple[int, ...]:
        """The ids that the tokenizer appends to every text."""
        whole = self.encode_now(_PROBE)
        bare = self.encode_now(_PROBE, add_special_tokens=False)
        behind = [
            start + len(bare) for start in range(len(whole)) if whole[start : start + len(bare)] == bare
        ]
        return tuple(whole[behind[0] :]) if bare and behind else ()

    def encode_pieces(self, pieces: Sequence[PromptPiece], *, continues: bool = False) -> list[int]:
        """Ids of one text given in pieces, without BOS; plain pieces yield no control token.

        `continues`: the text directly follows another one. The caller limits the length of the text. Raises
        InvalidField for text that is not valid Unicode.
        """
        ids: list[int] = []
        for start in range(0, len(pieces), _PIECES_AT_ONCE):
            ids += self._encode_some(pieces[start : start + _PIECES_AT_ONCE], continues or start > 0)
        return ids

    async def off_loop(self, num_chars: int, work: Callable[[], T]) -> T:
        """Run tokenising work on `num_chars` characters without delaying the event loop.

        Raises Overloaded when too much such work is waiting.
        """
        if num_chars > MAX_PROMPT_CHARS:  # a text that is too long is refused at once
            return work()
        return await self._workers.run(num_chars, work)

    def _encode_some(self, pieces: Sequence[PromptPiece], continues: bool) -> list[int]:
        """SentencePiece puts a space before every text, unless the text follows a line break.

        So a piece that follows others is encoded after a line break, which is then removed.
        """
        opens = None if continues else pieces[0]
        texts = [p.text if p is opens else _ANCHOR + p.text for p in pieces if not p.plain]
        encoded = iter(self._encode_batch(texts, add_special_tokens=False))
        ids: list[int] = []
        for piece in pieces:
            if piece.plain:
                ids += (
                    self._encode_plain(piece.text) if piece is opens else self._plain_continuing(piece.text)
                )
                continue
            found = next(encoded)
            if piece is not opens:
                anchor = self._anchor_ids
                if anchor and found[: len(anchor)] == anchor:
                    found = found[len(anchor) :]
                else:
                    [found] = self._encode_batch([piece.text], add_special_tokens=False)
            ids += found
        return ids

    @cached_property
    def _anchor_ids(self) -> list[int]:
        return self._encode_batch([_ANCHOR], add_special_tokens=False)[0]

    def _plain_continuing(self, text: str) -> list[int]:
        ids = self._plain.get(text)
        if ids is None:
            anchor, ids = self._encode_plain(_ANCHOR), self._encode_plain(_ANCHOR + text)
            ids = ids[len(anchor) :] if anchor and ids[: len(anchor)] == anchor else self._encode_plain(text)
            self._plain[text] = ids
        return ids

    def _encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
        try:
            # A batch, even of one text, releases the GIL; `encode` holds it throughout.
            found = self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise InvalidField("prompt", "must be valid Unicode text") from error
        return [encoding.ids for encoding in found]

    def _encode_plain(self, text: str) -> list[int]:
        """The tokenizer's pipeline, minus the step that looks for added tokens."""
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

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        continues: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """A detokenizer for one text. If special tokens are skipped, those in `shown_ids` are still shown.

        `continues`: the text follows another one, so its opening space belongs to it. SentencePiece
        tokenizers drop that space at the start of a text.
        """
        skipped = self.special_ids - shown_ids if skip_special_tokens else frozenset()
        if self.table.exact:
            return ByteDetokenizer(self.table, skipped, continues=continues)
        return WindowDetokenizer(self.table, skipped)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`; invalid bytes become U+FFFD, unknown ids are skipped."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to a text; perhaps only a part of a character."""
        return self.table[token_id]

    def token_text(self, token_id: int) -> str:
        """The text of a token by itself, with U+FFFD for a part of a character."""
        return self.table[token_id].decode("utf-8", "replace")

    def describe(self, position: PositionLogprobs) -> TextLogprob:
        """The log-probabilities of one position, each token with its own text."""
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
            position.rank,
        )

    def _named_id(self, name: str) -> int | None:
        token = self.named_tokens.get(name)
        return None if token is None else self.token_id(token)


def check_prompt_chars(num_chars: int, *, param: str) -> None:
    """Raise PromptTooLong if the text has too many characters, before any work on it."""
    if num_chars > MAX_PROMPT_CHARS:
        raise PromptTooLong.of_chars(param, MAX_PROMPT_CHARS)
