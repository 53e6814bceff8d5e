"""``anisoscope reproduce``: a paper's claims run again, published beside measured."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.cli.early_checks import require_corpus, require_paths
from anisoscope.cli.model_command import display, shown_size
from anisoscope.cli.output import print_table
from anisoscope.cpu_cores import usable_cores
from anisoscope.errors import broken
from anisoscope.escape_text import tell
from anisoscope.study.device import Device, require_device
from anisoscope.study.setting_fields import RunOptions, Words

if TYPE_CHECKING:
    from anisoscope.study.reproduce.recipe import RecipeRun


class ReproduceCommand(RunOptions):
    """Every option of `reproduce`."""

    scale: Literal["tiny", "small", "full"] = Field(
        default="tiny",
        description="tiny (minutes on two cores), small (an hour or more; models of the hub), full (GPUs).",
    )
    model: Words = Field(default=(), description="NAME=PATH: use this model for that study of the recipe.")
    text: str | None = Field(default=None, description="Another corpus for all studies, as --text of `profile`.")
    device: Device | None = Field(
        default=None, description="For all studies, instead of the recipe's: auto, cpu, cuda, cuda:1 … or mps."
    )
    threads: int = Field(
        default_factory=usable_cores, ge=1, description="Threads of torch; by default all cores it may use."
    )
    dry_run: Annotated[bool, Parameter(negative=())] = Field(
        default=False, description="Show what would be done, with estimates of memory, disk and time, and stop."
    )


def reproduce(
    name: str,
    /,
    *,
    options: Annotated[ReproduceCommand, Parameter(name="*")] = ReproduceCommand(),  # noqa: B008
) -> None:
    """Repeat the study of a paper, as far as it is known, and compare its claims with what is measured.

    Recipes: tangent (proxies against gradients during training), shape (anisotropy and dimension by layer), phases
    (spectral phases of pretraining), settle (the referee's test), or your own TOML file. Every study becomes a run of
    its own in one folder; to resume a recipe that was stopped, start it again with the same --out.

    For example:

    * `anisoscope reproduce tangent`
    * `anisoscope reproduce shape --dry-run`
    * `anisoscope reproduce shape --model decoder=./my-gpt --model encoder=./my-bert --out runs/shape`
    * `anisoscope reproduce my-recipe.toml --scale small`

    Parameters
    ----------
    name
        tangent, shape, phases, settle, or a TOML file.

    """
    require_device(options.device or "auto")
    if options.text is not None:
        require_corpus(options.text)
    models = _models(options.model)
    require_paths(list(models.values()))
    from anisoscope.study.reproduce.recipe import load_recipe

    recipe = load_recipe(name)
    console = Console(highlight=False, soft_wrap=True)
    tell(console, f"{recipe.title} ({recipe.paper})")
    from anisoscope.study.reproduce.recipe_run import carry_out, resolved

    runs = resolved(
        recipe, options.scale, models=models, text=options.text, device=options.device, reach=not options.dry_run
    )
    _plan(console, runs, Path(options.out or "."))
    if options.dry_run:
        return
    from anisoscope.study.pair.training_display import Lines

    short = Path(name).stem
    with display() as board:
        result = carry_out(
            recipe,
            runs,
            name=short,
            scale=options.scale,
            threads=options.threads,
            displays=(Lines(console), board),
            out=options.out,
        )
    _answers(result)
    if options.report:
        from anisoscope.report.make import write_whole
        from anisoscope.report.sections.recipe_page import make_reproduction

        page = Path(result["folder"]) / "report.html"
        write_whole(page, make_reproduction(result).encode())
        tell(console, f"report: {page}")


def _models(given: Words) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or not name or not path:
            raise broken("--model must be NAME=PATH", one, "such as --model decoder=./my-gpt")
        found[name] = path
    return found


def _plan(console: Console, runs: list[RecipeRun], folder: Path) -> None:
    """What each study would take: from its model where that is on this disk, else from what the recipe says of it."""
    downloads: dict[str, int] = {}
    for run in runs:
        tell(console, f"{run.name}: {run.study}{'' if run.model is None else f' of {run.model}'}")
        here, estimated = _sizes(run)
        for size in here:
            tell(console, f"  {shown_size(size)}")
        if estimated is not None:
            of = f" (all {estimated.times} of them)" if estimated.times > 1 else ""
            tell(console, f"  {shown_size(estimated.size)}{of}")
            downloads[run.model or run.name] = max(downloads.get(run.model or run.name, 0), estimated.download)
        if not here and estimated is None:
            tell(console, "  no estimate: the model is not on this disk, and the recipe does not say how large it is")
    download = sum(downloads.values())
    there = next(part for part in (folder, *folder.resolve().parents) if part.exists())
    free = shutil.disk_usage(there).free
    fetched = f"; up to {download / (1 << 30):.1f} GiB of weights are downloaded" if download else ""
    tell(console, f"disk: {free / (1 << 30):.1f} GiB free; rows and pages of a study take some tens of MiB{fetched}")


def _sizes(run: RecipeRun) -> tuple[list[Any], Any]:
    """Sizes by the models that are here, or else the estimate without them."""
    from anisoscope.study.reproduce.recipe_run import settings_for
    from anisoscope.study.reproduce.recipe_sizes import study_size

    given = settings_for(run)
    named = [] if run.model is None else [run.model, *run.held_out]
    if run.study == "profile" and all(Path(name).exists() for name in named):
        from anisoscope.study.profile.profile_study import planned

        return [planned(named[0], given)[1]], None
    if run.study == "verify" and all(Path(name).exists() for name in named):
        from anisoscope.study.verify.verify_study import planned as planned_checks

        return [size for _, size in planned_checks(named, given)], None
    return [], study_size(run, given)


def _answers(result: dict[str, Any]) -> None:
    rows = [
        [claim["name"], line["model"], line["outcome"], line["measured"] if not line["why"] else line["why"]]
        for claim in result["claims"]
        for line in claim["measured"]
    ]
    print_table(["claim", "model", "outcome", "measured, or why not"], rows)
