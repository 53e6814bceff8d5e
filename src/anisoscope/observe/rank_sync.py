"""Ranks that observe together: all at the same step, none has failed, and all know when the next look is."""

from __future__ import annotations

from dataclasses import dataclass

from anisoscope.errors import AnisoscopeError
from anisoscope.observe.statistics import SkippedSteps
from anisoscope.stats.reduce import RankGroup


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What each rank tells the others at an observation; ``plan`` is what its clock has measured."""

    step: int
    error: str | None
    plan: tuple[float | None, float, float]
    tokens: int
    between: SkippedSteps


@dataclass(frozen=True, slots=True)
class SyncedStep:
    """What all ranks make of it: the plan of rank 0, and the tokens of all since the last observation."""

    plan: tuple[float | None, float, float]
    tokens: int
    trouble: str | None

    def require_no_trouble(self) -> None:
        """Raise on every rank if one has failed."""
        if self.trouble is not None:
            raise AnisoscopeError(self.trouble)


def sync_step(rank_group: RankGroup, said: RankStatus) -> SyncedStep:
    """Tell and hear; raises if the ranks are at different steps, or one has closed its scope."""
    told = rank_group.all_gather((said.step, said.error, said.plan, said.tokens, said.between))
    if any(one[0] == "closed" for one in told):
        raise AnisoscopeError(f"step {said.step} must be observed on all ranks, and one has closed its scope")
    steps = sorted({step for step, *_ in told})
    if len(steps) > 1:
        raise AnisoscopeError(
            f"all ranks must observe the same step, got {steps}; wrap the same steps in scope.step() on all ranks"
        )
    tokens = sum(own + (own * b.steps if b.tokens is None else b.tokens) for *_, own, b in told)
    trouble = next((f"rank {rank}: {why}" for rank, (_, why, *_) in enumerate(told) if why is not None), None)
    return SyncedStep(told[0][2], tokens, trouble)


def sync_close(rank_group: RankGroup, step: int) -> None:
    """Say goodbye to the other ranks; raises if they have not taken the same number of steps."""
    told = rank_group.all_gather(("closed", step))
    if len(set(told)) > 1:
        at = [said[1] if said[0] == "closed" else said[0] for said in told]
        apart = [f"rank {rank} is at step {step}" for rank, step in enumerate(at)]
        raise AnisoscopeError(f"all ranks must take the same steps and then close, but {' and '.join(apart)}")
