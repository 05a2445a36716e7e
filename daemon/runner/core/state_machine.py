"""Declared state machines: a table names the states that may follow each state.

The table also has the event that each state waits for. Only `StateMachine.enter` changes the
state. It checks the table and logs the change, so a forbidden change fails where it happens.
"""

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

import msgspec

_log = logging.getLogger("steward.runner")

S = TypeVar("S", bound=Enum)


class IllegalTransition(RuntimeError):
    """A defect of the program: the table does not allow this change."""


class StateRule(msgspec.Struct, Generic[S], frozen=True):
    """The event that a state waits for, and the states that may follow it."""

    waits_for: str
    then: frozenset[S]


StateTable = Mapping[S, StateRule[S]]


def rule(waits_for: str, *then: S) -> StateRule[S]:
    """Return the rule of a state: the event it waits for, and the states that may follow."""
    return StateRule(waits_for, frozenset(then))


class StateMachine(Generic[S]):
    """The state of one object. `subject` names the object in the log."""

    def __init__(self, subject: str, table: StateTable[S], state: S) -> None:
        self._subject, self._table, self._state = subject, table, state

    @property
    def state(self) -> S:
        """Return the current state."""
        return self._state

    def allows(self, state: S) -> bool:
        """Return whether the state can be entered now."""
        return state is self._state or state in self._table[self._state].then

    def enter(self, state: S) -> None:
        """Change the state, unless it is the current state. Raises `IllegalTransition`."""
        if state is self._state:
            return
        if not self.allows(state):
            raise IllegalTransition(
                f"{self._subject}: {self._state.name} cannot be followed by {state.name}"
            )
        _log.debug("%s: changed from %s to %s", self._subject, self._state.name, state.name)
        self._state = state
