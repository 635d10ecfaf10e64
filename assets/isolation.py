"""Loads each declared dataset by itself, so that a wrong declaration does not stop the others."""

import glob
import os
import re
import sys
from collections.abc import Collection
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import count
from pathlib import Path
from types import ModuleType

import dagster as dg
import pydantic
import yaml
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.exports import ExportDeclaration
from zarr_core.platform.assets.shootout import ShootoutDeclaration
from zarr_core.platform.assets.wide_matrix.declaration import MatrixDeclaration
from zarr_core.platform.resources.pools import PoolDeclaration

from zarr_core._util.arguments import did_you_mean
from zarr_core._util.documents import StrictLoader
from zarr_core._util.redaction import redact


def load_datasets(project: Path, declared: Path, shared: dg.Definitions) -> dg.Definitions:
    """The definitions of every ``defs.yaml`` below a folder, merged with those that they share.

    A dataset that cannot be loaded is replaced by an asset and a sensor that show the error. Commands that validate
    definitions (``dg check defs``, ``dagster definitions validate``) raise the error instead.

    Args:
        project: folder that relative paths start from.
        declared: folder of the declarations.
        shared: resources, executor and sensors.
    """
    if not declared.is_dir():
        raise NotADirectoryError(f"{declared}: the folder of the declarations does not exist")
    validating = os.environ.get("DAGSTER_IS_DEFS_VALIDATION_CLI") == "1"
    _package("", declared)  # files beside the declarations may name it
    loaded, replaced = [], set[str]()
    # With symbolic links, and without hidden folders: so Kubernetes mounts a ConfigMap.
    for file in sorted(glob.glob("**/defs.yaml", root_dir=declared, recursive=True)):
        folder = (declared / file).parent
        try:
            with (declared / file).open("rb") as text:
                list(yaml.load_all(text, StrictLoader))  # Dagster takes the last of two equal keys
            # A tree each: Dagster reads every file of a tree before it builds any.
            package = _package("".join(f".{part}" for part in folder.relative_to(declared).parts), folder)
            dataset = dg.ComponentTree.from_module(package, project).build_defs(folder)
            # With those before it, whose names it may repeat.
            dg.Definitions.validate_loadable(dg.Definitions.merge(*loaded, dataset, shared))
        except Exception as error:  # whatever is wrong with this declaration
            if validating:
                for hint in _hints(_cause(error)):
                    print(hint, file=sys.stderr)
                raise
            name = _free_name("/".join(folder.relative_to(declared).parts) or declared.name, replaced)
            replaced.add(name)
            dataset = _not_loaded(name, error)
        loaded.append(dataset)
    return dg.Definitions.merge(*loaded, shared)


def _package(name: str, folder: Path) -> ModuleType:
    """The folder as a package, which Dagster wants; not by its own name, that of another package perhaps."""
    spec = ModuleSpec(f"{__package__}.declared{name}", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    package = module_from_spec(spec)
    sys.modules[spec.name] = package  # a declaration may name a component type in a file beside it: type: .file.Type
    return package


def _free_name(path: str, taken: Collection[str]) -> str:
    """The path as a name in Dagster, with a number if another path has the same name."""
    name = re.sub(r"\W", "_", path)
    names = (f"{name}_{number}" if number > 1 else name for number in count(1))
    return next(each for each in names if each not in taken)


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _hints(error: BaseException) -> list[str]:
    """For each unknown key of a declaration, the setting that it is most like."""
    declared = (DatasetDeclaration, MatrixDeclaration, ExportDeclaration, ShootoutDeclaration, PoolDeclaration)
    known = {name for each in declared for name in each.model_fields}
    hints = []
    for each in error.errors() if isinstance(error, pydantic.ValidationError) else []:
        # "attributes.chunk_pionts at FILE:LINE"
        key = "".join(map(str, each["loc"][-1:])).partition(" at ")[0].rpartition(".")[2]
        if each["type"] != "extra_forbidden":
            continue
        nearest = did_you_mean(key, known)
        if key in known:
            hints.append(f"{key!r} is a setting of another place: look at its indentation, and at the type")
        elif nearest:
            hints.append(f"{key!r} is not a setting{nearest}")
    return hints


def _not_loaded(name: str, error: Exception) -> dg.Definitions:
    """An asset whose description is the error, and a sensor whose ticks fail with it."""
    cause = _cause(error)
    reason = redact("\n".join([f"{type(cause).__name__}: {cause}", *_hints(cause)]))
    # Lines of Markdown, not a block of code: the UI wraps them, so that the line of the file can be read.
    lines = reason.replace("\n", "  \n")
    asset = dg.AssetSpec(
        [name, "not_loaded"],
        group_name=name,
        description=f"The declaration of this dataset cannot be loaded:\n\n{lines}",
    )

    @dg.sensor(
        name=f"{name}_not_loaded",
        minimum_interval_seconds=300,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Fails as long as the declaration of this dataset cannot be loaded: {reason}",
    )
    def not_loaded(context: dg.SensorEvaluationContext) -> None:
        raise dg.Failure(f"the declaration of {name} cannot be loaded: {reason}")

    return dg.Definitions(assets=[asset], sensors=[not_loaded])
