"""The decoder of a model with transformers' own layers, as a `Decode` of embedded rows.

It takes the place of the decoder's forward: the embedding stays outside, and so does all work on the
decoder's output. So graphs of steps serve these models in the same way as fused ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from serve_app.engine.cuda.watch import NotRecordable, watched
from serve_app.engine.fused.forward import Decode
from serve_app.engine.model.forward import takes_positions


class OwnLayers:
    """A decoder whose `decode` another one may replace."""

    def __init__(self, module: PreTrainedModel) -> None:
        """Nothing changes yet."""
        decoder: Any = module.get_decoder()
        self._module, self._decoder, self._own = module, decoder, decoder.forward
        self._embedding: Any = module.get_input_embeddings()
        self._arguments = inspect.signature(decoder.forward)
        self._takes_positions = takes_positions(decoder)
        self._output: Any = None
        self.width, self.dtype = 0, module.dtype  # of embedded rows
        self.decode: Decode = self._run

    def take_over(self, logits: Callable[[], torch.Tensor]) -> None:
        """Take the place of the decoder's forward. `logits` runs the module on some rows.

        Raises NotRecordable if the decoder computes something else from embedded rows and positions alone, or
        if the host must wait for the device in it.
        """
        name = type(self._module).__name__
        if "inputs_embeds" not in self._arguments.parameters or self._module is self._decoder:
            raise NotRecordable(f"the decoder of {name} takes no embedded rows")
        want = logits()
        self._decoder.forward = self
        try:
            watched(logits)
            same = torch.equal(logits(), want)
        except NotRecordable:
            self.give_back()
            raise
        except Exception as error:  # of transformers: it misses an argument
            self.give_back()
            raise NotRecordable(f"the decoder of {name} takes more than embedded rows: {error}") from error
        if not same or not self.width:
            self.give_back()
            raise NotRecordable(f"the decoder of {name} needs more than embedded rows and their positions")

    def give_back(self) -> None:
        """Undo `take_over`."""
        self._decoder.forward = self._own

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As the decoder's forward."""
        given = self._arguments.bind(*args, **options).arguments
        rows, positions = given.get("inputs_embeds"), given.get("position_ids")
        rows = self._embedding(given["input_ids"]) if rows is None else rows
        if positions is None:  # layers with states alone know none
            positions = rows.new_zeros(rows.shape[1], dtype=torch.int64)
        self.width, self.dtype = rows.shape[-1], rows.dtype
        states = self.decode(rows[0], positions.view(rows.shape[1]), None)
        return self._output(last_hidden_state=states[None])

    def _run(self, states: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """As `Decode`, but computes all rows."""
        places = {"position_ids": positions[None]} if self._takes_positions else {}
        out = self._own(inputs_embeds=states[None], use_cache=False, **places)
        self._output = type(out)
        found: torch.Tensor = out.last_hidden_state[0]
        return found
