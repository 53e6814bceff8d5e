"""What folds say under other choices: their lines, sentences and tables, made when the page is; drawings stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anisoscope.report.choices import Chosen
from anisoscope.report.reading import Context
from anisoscope.report.sections.ablations import ablations_section
from anisoscope.report.sections.claim_lines import claims_section
from anisoscope.report.sections.drift_section import drift_section
from anisoscope.report.sections.emergence import emergence_section
from anisoscope.report.sections.frequency_section import frequency_section
from anisoscope.report.sections.isotropy_profiles import profiles_section
from anisoscope.report.sections.layer_profile import enrichment_section
from anisoscope.report.sections.phases import phases_section
from anisoscope.report.sections.run_comparison import comparison_section
from anisoscope.report.sections.small_scale import local_section
from anisoscope.report.sections.summary_tables import numbers_section
from anisoscope.report.sections.update_enrichment import updates_section
from anisoscope.report.sections.verdict_section import verdict_section
from anisoscope.report.sections.views import views_section
from anisoscope.report.tree import Section

Sections = list[Section]
_OF_VIEW: tuple[Callable[[Context, str], Section | None], ...] = (
    claims_section,
    comparison_section,
    verdict_section,
    numbers_section,
)
_OF_PROFILE = (*_OF_VIEW, enrichment_section)
_OF_TRAINING = (*_OF_VIEW, emergence_section, drift_section, updates_section, ablations_section)
_OF_MODEL: tuple[Callable[[Context], Section | None], ...] = (frequency_section, local_section)
_OF_CLOUDS = (*_OF_MODEL, profiles_section, phases_section)


class Follower:
    """Words of folds, choice by choice; what does not depend on proxy, timing, tokens or view is made once a model."""

    def __init__(self, *, of_profiles: bool) -> None:
        self._of_view = _OF_PROFILE if of_profiles else _OF_TRAINING
        self._of_model = _OF_MODEL if of_profiles else _OF_CLOUDS
        self._with_views = not of_profiles
        self._kept: dict[tuple[str | None, str], Sections] = {}

    def words(self, one: Chosen, model: str) -> Sections:
        """The folds of one combination, with gaps for drawings."""
        context = replace(one.context, drawn=False)
        found = [section(context, one.view) for section in self._of_view]
        if self._with_views:
            found.append(views_section(context))
        key = (one.tags.get("seed"), model)
        if key not in self._kept:
            self._kept[key] = [made for section in self._of_model if (made := section(context)) is not None]
        return [*(section for section in found if section is not None), *self._kept[key]]
