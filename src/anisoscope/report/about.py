"""What was trained on what, in one line."""

from __future__ import annotations

from typing import Any

from anisoscope.report.formatting import counted, listed, visible
from anisoscope.report.reading import Context, Source, Subject

_ENDED = {"running": "still training", "finished": "finished"}


def about(context: Context) -> str:
    """One sentence a run: models, text, steps, seeds, observations, and how it ended."""
    lines = [_of(source, [s for s in context.subjects if s.source is source]) for source in context.sources]
    if not context.compare:
        return lines[0]
    return " ".join(f"{source.label}: {line}" for source, line in zip(context.sources, lines, strict=True))


def _of(source: Source, subjects: list[Subject]) -> str:
    names = [s.label.rpartition(" · ")[2] for s in subjects]
    plain = {"Decoder", "Encoder"}
    said = [f"{_article(name)} {name.lower()}" if name in plain else name for name in names]
    models = listed(said) or "No model"
    text = corpus_of(source)
    on = f" on {text}" if text else ""
    ended = _ENDED.get(source.status, source.status)
    if source.is_profile:
        beside = f"a finished model beside its untrained twin{on}"
        return f"{models[:1].upper()}{models[1:]}{_size(source, subjects)}, {beside}; {ended}."
    if source.is_plan:
        seeds = source.manifest.get("seeds")
        count = f", {counted(len(seeds), 'seed')}" if isinstance(seeds, list) and seeds else ""
        return f"Arms of a plan against their control{on}{count}; {ended}."
    if source.is_ablation:
        removed = f"directions removed from one block at a time{on}"
        return f"{models[:1].upper()}{models[1:]}{_size(source, subjects)}, {removed}; {ended}."
    seeds = counted(max((len(s.seeds) for s in subjects), default=1), "seed")
    seen = len({row["step"] for row in source.rows if row["measure"] == "enrichment"})
    return (
        f"{models[:1].upper()}{models[1:]}{_size(source, subjects)} trained{on} for {counted(source.steps, 'step')}; "
        f"{seeds}, {counted(seen, 'observation')}; {ended}."
    )


def corpus_of(source: Source) -> str | None:
    """The name of the text, as the manifest or the settings have it."""
    found: Any = source.manifest.get("corpus")
    while isinstance(found, dict):
        found = found.get("name") or found.get("corpus")
    if not isinstance(found, str):
        config = source.manifest.get("config")
        found = config.get("corpus") if isinstance(config, dict) else None
    return visible(found, 60) if isinstance(found, str) and found else None


def _size(source: Source, subjects: list[Subject]) -> str:
    """Layers and width, from the settings or else from rows."""
    config = source.manifest.get("config")
    layers = config.get("layers") if isinstance(config, dict) else None
    width = next((s.width for s in subjects if s.width), None)
    parts = [counted(layers, "layer")] if isinstance(layers, int) else []
    parts += [f"width {width}"] if width else []
    return f" ({', '.join(parts)})" if parts else ""


def _article(name: str) -> str:
    return "an" if name[:1] in "AEIOU" else "a"
