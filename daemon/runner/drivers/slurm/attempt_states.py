"""The changes between the stored states of an attempt in a cluster. No I/O.

An attempt may skip states. For example, a wrapper may claim the attempt before the daemon has
received the cluster's answer to the submission.
"""

from daemon.runner.core.state_machine import StateTable, rule
from storage.records.cluster_run import RunStatus

_S = RunStatus

TABLE: StateTable[RunStatus] = {
    _S.SUBMITTING: rule(
        "the cluster's answer to the submission", _S.WAITING, _S.RUNNING, _S.ENDED, _S.VOID
    ),
    _S.WAITING: rule(
        "the claim of a wrapper, or the end of the job",
        *(_S.SUBMITTING, _S.RUNNING, _S.ENDED, _S.VOID),
    ),
    _S.RUNNING: rule("the result, or the end of a job whose wrapper is silent", _S.ENDED, _S.VOID),
    _S.ENDED: rule("the removal of the record", _S.VOID),
    _S.VOID: rule("the cancellation of its jobs"),
}

BEFORE_CLAIM = frozenset({_S.SUBMITTING, _S.WAITING})
OVER = frozenset({_S.ENDED, _S.VOID})
