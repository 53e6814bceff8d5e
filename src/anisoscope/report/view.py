"""Runs as a view tree: the sections of the report in their order."""

from __future__ import annotations

from dataclasses import replace

from anisoscope.errors import broken
from anisoscope.report.about import about
from anisoscope.report.choice_followers import Follower
from anisoscope.report.choices import by_seed, combinations, page_controls
from anisoscope.report.formatting import listed
from anisoscope.report.multiples import by_run
from anisoscope.report.reading import Context
from anisoscope.report.sections.ablations import ablations_section
from anisoscope.report.sections.answer_figure import answer_figure
from anisoscope.report.sections.claim_lines import claims_section
from anisoscope.report.sections.concepts import concepts_section
from anisoscope.report.sections.drift_section import drift_section
from anisoscope.report.sections.emergence import emergence_section
from anisoscope.report.sections.first_screen import fronts
from anisoscope.report.sections.frequency_section import frequency_section
from anisoscope.report.sections.interventions import interventions_sections
from anisoscope.report.sections.isotropy_profiles import profiles_section
from anisoscope.report.sections.layer_profile import enrichment_section, layer_profile_section
from anisoscope.report.sections.phases import phases_section
from anisoscope.report.sections.provenance_section import integrity_section, provenance_section, status
from anisoscope.report.sections.removals import removals_section
from anisoscope.report.sections.run_comparison import comparison_section
from anisoscope.report.sections.small_scale import local_section
from anisoscope.report.sections.summary_tables import numbers_section
from anisoscope.report.sections.theory.theory_page import subtitle as theory_subtitle
from anisoscope.report.sections.theory.theory_page import theory_sections
from anisoscope.report.sections.update_enrichment import updates_section
from anisoscope.report.sections.verdict_section import verdict_section
from anisoscope.report.sections.verify_page import subtitle as verification_subtitle
from anisoscope.report.sections.verify_page import verification_sections
from anisoscope.report.sections.views import views_section
from anisoscope.report.tree import Front, Report, Section


def view(context: Context, at_most: int | None = None, made: list[Front] | None = None) -> Report:
    """Everything a page says; ``at_most`` observations a curve, if it must be kept small.

    ``made`` are first screens of an earlier view of the same runs, which do not depend on how many are shown.
    """
    context = replace(context, at_most=at_most)
    if any(source.is_theory for source in context.sources):
        if context.compare:
            raise broken("a theory run must have a report of its own", f"{len(context.sources)} runs", "name it alone")
        return Report(_title(context), theory_subtitle(context), status(context), theory_sections(context, at_most))
    if any(source.is_verification for source in context.sources):
        if context.compare:
            raise broken(
                "a run of verify must have a report of its own", f"{len(context.sources)} runs", "name it alone"
            )
        sections = [*verification_sections(context), provenance_section(context, at_most)]
        return Report(_title(context), verification_subtitle(context), status(context), sections)
    if context.of_profiles:
        return _report(context, _of_profiles(context, at_most), made)
    if all(source.is_ablation for source in context.sources):
        sections = [removals_section(context), provenance_section(context, at_most)]
        there = [replace(s, open=s.id == "removals") for s in sections if s is not None]
        return Report(_title(context), about(context), status(context), by_run(context, there))
    if all(source.is_plan for source in context.sources):
        effects = [section for source in context.sources for section in interventions_sections(source)]
        sections = [*effects, provenance_section(context, at_most)]
        return Report(_title(context), about(context), status(context), sections)
    sections = [
        claims_section(context),
        comparison_section(context),
        verdict_section(context),
        numbers_section(context),
        emergence_section(context),
        views_section(context),
        profiles_section(context),
        phases_section(context),
        drift_section(context),
        updates_section(context),
        frequency_section(context),
        local_section(context),
        concepts_section(context),
        ablations_section(context),
        integrity_section(context),
        provenance_section(context, at_most),
    ]
    return _report(context, [section for section in sections if section is not None], made)


def _report(context: Context, sections: list[Section], made: list[Front] | None) -> Report:
    """With its first screen."""
    chosen = combinations(context)
    seeded = [*chosen, *by_seed(context, chosen)]
    return Report(
        _title(context),
        about(context),
        status(context),
        by_run(context, sections),
        fronts(seeded, Follower(of_profiles=context.of_profiles).words) if made is None else made,
        answer_figure(context, seeded),
        page_controls(context, seeded),
    )


def _of_profiles(context: Context, at_most: int | None) -> list[Section]:
    """A finished model has no course of training: layers take its place."""
    claims = claims_section(context)
    return [
        *([claims] if claims is not None else []),
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
