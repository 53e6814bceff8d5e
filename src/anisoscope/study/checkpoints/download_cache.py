"""Downloaded revisions on this disk: no more than asked for, and never those of somebody else."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.models.model_hub import forget, is_here
from anisoscope.study.checkpoints.histories import Origin


class Keeping:
    """Lets go of downloaded revisions beyond so many; what was on the disk before is never touched."""

    def __init__(self, origins: Sequence[Origin], keep: int | None, allow_pickle: bool) -> None:
        self._keep, self._held = keep, list[Origin]()
        hub = [one for one in origins if one.name is not None] if keep is not None else []
        self._ours = {
            one for one in hub if one.name is not None and not is_here(one.name, one.label, allow_pickle=allow_pickle)
        }

    def used(self, origin: Origin) -> None:
        """A revision was read; the oldest ones go."""
        if self._keep is None or origin not in self._ours:
            return
        self._held = [one for one in self._held if one != origin] + [origin]
        while len(self._held) > self._keep:
            gone = self._held.pop(0)
            assert gone.name is not None, "only revisions of the hub are ours"
            forget(gone.name, gone.label)
