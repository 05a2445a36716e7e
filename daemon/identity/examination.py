"""What was looked at while somebody logged in, rule by rule.

A login goes on until a rule is broken. The same record that the daemon's log gets of a refusal is
what `explain` shows, so both cannot differ.
"""

from collections.abc import Iterable
from types import TracebackType

from daemon.identity.bindings import Verdict
from storage.errors import Refused, StewardError


class Examination:
    """The verdicts so far."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []

    def require(self, verdicts: Iterable[Verdict]) -> None:
        """Note all of these verdicts. Raises `Refused` for the first rule that is broken."""
        found = list(verdicts)
        self.verdicts += found
        if broken := next((one for one in found if one.refusal), None):
            raise Refused(broken.refusal)

    def rule(self, rule: str, looked_at: str, seen: str = "") -> "_Rule":
        """Note the verdict on what the block checks: whether it raises."""
        return _Rule(self, rule, looked_at, seen)

    def broken(self) -> str:
        """Return which rule was broken, and what it looked at; empty when none was."""
        return next(
            (f"{one.rule} ({one.looked_at}: {one.seen})" for one in self.verdicts if one.refusal),
            "",
        )


class _Rule:
    """A block that checks one rule."""

    def __init__(self, examination: Examination, rule: str, looked_at: str, seen: str) -> None:
        self._examination, self._rule = examination, rule
        self._looked_at, self._seen = looked_at, seen

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        refusal = ""
        if isinstance(error, StewardError):
            refusal = str(error) or type(error).__name__
        self._examination.verdicts.append(
            Verdict(rule=self._rule, looked_at=self._looked_at, seen=self._seen, refusal=refusal)
        )
