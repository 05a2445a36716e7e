"""Recorded checks of a login, rule by rule.

A login stops at the first broken rule. The log of a rejection and `explain` use the same record, so
they cannot differ.
"""

from collections.abc import Iterable
from types import TracebackType

from daemon.identity.bindings import BindingCheck
from storage.errors import Refused, StewardError


class LoginTrace:
    """The recorded verdicts of one login, in order."""

    def __init__(self) -> None:
        self.verdicts: list[BindingCheck] = []

    def require(self, binding_checks: Iterable[BindingCheck]) -> None:
        """Record all of these verdicts. Raises `Refused` for the first rule that is broken."""
        new_verdicts = list(binding_checks)
        self.verdicts += new_verdicts
        if broken := next((verdict for verdict in new_verdicts if verdict.refusal), None):
            raise Refused(broken.refusal)

    def rule(self, rule: str, looked_at: str, seen: str = "") -> "_Rule":
        """Return a context manager for one rule. The rule is broken if its block raises an error.

        `looked_at` is the part of the login that the rule checks, and `seen` is its value.
        """
        return _Rule(self, rule, looked_at, seen)

    def broken(self) -> str:
        """Return the broken rule and the checked value; empty if no rule is broken."""
        return next(
            (
                f"{verdict.rule} ({verdict.looked_at}: {verdict.seen})"
                for verdict in self.verdicts
                if verdict.refusal
            ),
            "",
        )


class _Rule:
    """The context of a block that checks one rule."""

    def __init__(self, examination: LoginTrace, rule: str, looked_at: str, seen: str) -> None:
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
            BindingCheck(
                rule=self._rule, looked_at=self._looked_at, seen=self._seen, refusal=refusal
            )
        )
