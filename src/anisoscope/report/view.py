"""Runs as a view tree: the sections of the report in their order."""

from __future__ import annotations

from dataclasses import replace

from anisoscope.errors import broken
from anisoscope.report.ablations import ablations_section
from anisoscope.report.claims import verdict_section
from anisoscope.report.concepts import concepts_section
from anisoscope.report.drift import drift_section
from anisoscope.report.frequency import frequency_section
from anisoscope.report.interventions import interventions_section
from anisoscope.report.layer_profile import enrichment_section, layer_profile_section
from anisoscope.report.local import local_section
from anisoscope.report.numbers import numbers_section
from anisoscope.report.phases import phases_section
from anisoscope.report.profiles import profiles_section
from anisoscope.report.provenance import integrity_section, provenance_section, status
from anisoscope.report.reading import Context
from anisoscope.report.removals import removals_section
from anisoscope.report.theory import subtitle as theory_subtitle
from anisoscope.report.theory import theory_sections
from anisoscope.report.training import emergence_section
from anisoscope.report.tree import Report, Section
from anisoscope.report.views import views_section
from anisoscope.report.words import counted, listed


def view(context: Context, at_most: int | None = None) -> Report:
    """Everything a page says; ``at_most`` observations a curve, if it must be kept small."""
    context = replace(context, at_most=at_most)
    if any(source.is_theory for source in context.sources):
        if context.compare:
            raise broken("a theory run must have a report of its own", f"{len(context.sources)} runs", "name it alone")
        return Report(_title(context), theory_subtitle(context), status(context), theory_sections(context, at_most))
    if context.of_profiles:
        return Report(_title(context), _subtitle(context), status(context), _of_profiles(context, at_most))
    if all(source.is_ablation for source in context.sources):
        sections = [removals_section(context), provenance_section(context, at_most)]
        there = [section for section in sections if section is not None]
        return Report(_title(context), _subtitle(context), status(context), there)
    if all(source.is_plan for source in context.sources):
        made = [interventions_section(source) for source in context.sources]
        return Report(
            _title(context), _subtitle(context), status(context), [*made, provenance_section(context, at_most)]
        )
    sections = [
        verdict_section(context),
        numbers_section(context),
        emergence_section(context),
        views_section(context),
        profiles_section(context),
        phases_section(context),
        drift_section(context),
        frequency_section(context),
        local_section(context),
        concepts_section(context),
        ablations_section(context),
        integrity_section(context),
        provenance_section(context, at_most),
    ]
    there = [section for section in sections if section is not None]
    return Report(_title(context), _subtitle(context), status(context), there)


def _of_profiles(context: Context, at_most: int | None) -> list[Section]:
    """A finished model has no course of training: layers take its place."""
    return [
        verdict_section(context),
        layer_profile_section(context),
        enrichment_section(context),
        *(section for section in (removals_section(context),) if section is not None),
        numbers_section(context),
        *(section for section in (frequency_section(context), local_section(context)) if section is not None),
        concepts_section(context),
        ablations_section(context),
        provenance_section(context, at_most),
    ]


def _title(context: Context) -> str:
    names = [source.label for source in context.sources]
    return names[0] if len(names) == 1 else f"Comparison of {listed(names)}"


def _subtitle(context: Context) -> str:
    parts = []
    for source in context.sources:
        mine = [s for s in context.subjects if s.source is source]
        models = listed([s.model if s.model and s.model != s.label else s.label for s in mine]) or "no model"
        seeds = counted(max((len(s.seeds) for s in mine), default=1), "seed")
        steps = len({row["step"] for row in source.rows if row["measure"] == "enrichment"})
        if source.is_profile:
            parts.append(f"{models}, a finished model beside its untrained twin; {source.status}")
            continue
        if source.is_plan:
            seeds = source.manifest.get("seeds")
            parts.append(f"arms against a control, {counted(len(seeds), 'seed') if seeds else ''}; {source.status}")
            continue
        if source.is_ablation:
            parts.append(f"{models}, directions removed from one block at a time; {source.status}")
            continue
        said = (
            f"{models}; {seeds}, {counted(steps, 'observation')} over {counted(source.steps, 'step')}; {source.status}"
        )
        parts.append(f"{source.label}: {said}" if context.compare else said)
    return ". ".join(parts)
