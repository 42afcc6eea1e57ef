"""Beam search in bodies of OpenAI's protocol, with the field names of vLLM and transformers.

`use_beam_search` turns it on. The width is `best_of`, or `n` if `best_of` is absent, and the `n` best
hypotheses are returned. Without `use_beam_search` the other fields have no meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from serve_app import limits
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Flag, Integer, Number, checked, refusal
from serve_app.errors import InvalidField
from serve_app.types import Beam, EarlyStopping

_EARLY_STOPPING: Final = {False: EarlyStopping.NO, True: EarlyStopping.YES, "never": EarlyStopping.NEVER}


def _early_stopping(value: Any) -> EarlyStopping:
    if type(value) not in (bool, str) or value not in _EARLY_STOPPING:
        raise refusal('must be true, false or "never"')
    return _EARLY_STOPPING[value]


EarlyStoppingField: Final = checked(_early_stopping, bool | Literal["never"])

LengthPenalty: TypeAlias = Annotated[
    float | None, Number(-limits.MAX_LENGTH_PENALTY, limits.MAX_LENGTH_PENALTY)
]
EarlyStop: TypeAlias = Annotated[EarlyStopping | None, EarlyStoppingField]
BeamGroups: TypeAlias = Annotated[int | None, Integer(1, limits.MAX_BEAM_WIDTH)]
DiversityPenalty: TypeAlias = Annotated[float | None, Number(0, limits.MAX_DIVERSITY_PENALTY)]


class BeamFields(WireModel):
    """The fields that turn beam search on and shape it. None: absent."""

    use_beam_search: Flag = doc(
        "the best hypotheses of a search, in order",
        accepts=f"; true needs `n` or `best_of` from 2 to {limits.MAX_BEAM_WIDTH}",
        default=False,
    )
    length_penalty: LengthPenalty = doc(
        "score ÷ length^p, with a search; else ignored and listed", default=1.0
    )
    early_stopping: EarlyStop = doc("default false, with a search; else ignored and listed")
    num_beam_groups: BeamGroups = doc(
        "default 1, with a search; else ignored and listed", accepts=", a divisor of the width"
    )
    diversity_penalty: DiversityPenalty = doc(
        "between groups, with a search; else ignored and listed", default=0
    )

    @property
    def meaningless(self) -> tuple[str, ...]:
        """The fields for a search that are set in a body without `use_beam_search`."""
        if self.use_beam_search:
            return ()
        shape = ("length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty")
        return tuple(name for name in shape if getattr(self, name) is not None)

    def beam(self, n: int | None, best_of: int | None) -> Beam | None:
        """The search that the body asks for. Raises InvalidField."""
        if not self.use_beam_search:
            return None
        groups = self.num_beam_groups or 1
        width = beam_width(n, best_of)
        if width % groups:
            raise InvalidField("num_beam_groups", f"must divide the beam width of {width}")
        return Beam(
            width=width,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            early_stopping=self.early_stopping or EarlyStopping.NO,
            groups=groups,
            diversity_penalty=self.diversity_penalty or 0.0,
        )


def beam_width(n: int | None, best_of: int | None) -> int:
    """`best_of`, else `n`. Raises InvalidField if the number is not a valid width of a search."""
    width = (n or 1) if best_of is None else best_of
    if not 2 <= width <= limits.MAX_BEAM_WIDTH:
        name = beam_names(best_of)["beam_width"]
        raise InvalidField(
            name,
            f"must be an integer from 2 to {limits.MAX_BEAM_WIDTH} with use_beam_search, as it is "
            "the width of the search",
        )
    return width


def beam_names(best_of: int | None) -> dict[str, str]:
    """A replica's names for the fields of a search -> the client's names."""
    return {"beam_width": "n" if best_of is None else "best_of", "beam_groups": "num_beam_groups"}
