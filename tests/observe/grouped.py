"""Options of a scope, given flat and sorted into their groups."""

from dataclasses import fields

from anisoscope import CaptureOptions, EvidenceOptions, SessionOptions

GROUPS = {"evidence": EvidenceOptions, "capture": CaptureOptions, "session": SessionOptions}


def grouped(**flat):
    """The same options as ``Scope`` takes them."""
    found = dict(flat)
    for name, kind in GROUPS.items():
        own = {f.name: found.pop(f.name) for f in fields(kind) if f.name in found}
        if own:
            found[name] = kind(**own)
    return found
