"""vLLM's field `repetition_detection`, which ends answers that repeat themselves."""

from __future__ import annotations

from typing import Annotated, Final

from serve_app import limits
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Integer
from serve_app.errors import InvalidField
from serve_app.types import LoopRule

FIELD: Final = "repetition_detection"


class RepetitionDetection(WireModel):
    """The length of repeated patterns, and the count that ends an answer. None: the field is absent."""

    max_pattern_size: Annotated[int | None, Integer(0, limits.MAX_LOOP_TOKENS)] = doc(
        "tokens of a pattern at most; 0 is off", default=0
    )
    min_pattern_size: Annotated[int | None, Integer(0, limits.MAX_LOOP_TOKENS)] = doc(
        "tokens of a pattern at least; 0 counts as 1", default=0
    )
    min_count: Annotated[int | None, Integer(0, limits.MAX_LOOP_COUNT)] = doc(
        "so often in a row a pattern ends the answer",
        accepts="; at least 2 where `max_pattern_size` is not 0",
    )

    def rule(self) -> LoopRule | None:
        """The rule; None: answers are not checked for repetition. Raises InvalidField."""
        most, least, count = self.max_pattern_size or 0, self.min_pattern_size or 0, self.min_count or 0
        if least > most:
            raise InvalidField(FIELD, "min_pattern_size must be at most max_pattern_size")
        if not most:
            return None
        if count < 2:
            raise InvalidField(FIELD, "min_count must be at least 2 beside max_pattern_size")
        return LoopRule(least=max(least, 1), most=most, count=count)
