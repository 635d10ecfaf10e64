"""A new Dagster project: ``zarr-core platform new FOLDER``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from zarr_core._util import command_line as cli
from zarr_core.errors import ZarrCoreError
from zarr_core.platform import ROOT

_TEMPLATE = Path(__file__).with_name("template")
_SUFFIX = ".template"
# Samples of the example, and points of each.
_SAMPLES, _POINTS = 4, 2_000

app = cli.verb("platform", "zarr-core platform new my_data", usage="new FOLDER")


@app.command(name="new", help="Create a Dagster project with an example that converts what arrives in a folder.")
@cli.command(quiet=False)
def _new(
    folder: Annotated[Path, Parameter(help="Folder to create.")],
) -> cli.Result:
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ZarrCoreError(f"{folder} is not empty; name a folder that does not exist yet")
    files = _files(folder)
    for place, text in files.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    _write_samples(folder / "incoming" / "example")
    text = f"{folder} watches incoming/example and converts its samples to stores/example. Start it with:\n\n"
    text += f"  cd {shlex.quote(str(folder))}\n  dagster dev"
    return cli.Result(text, {"folder": str(folder), "files": [str(place) for place in files]})


def _files(folder: Path) -> dict[Path, str]:
    """Content of each file of the project."""
    files = {folder / "instance" / "dagster.yaml": (ROOT / "deploy" / "local" / "dagster.yaml").read_text()}
    for source in sorted(_TEMPLATE.rglob(f"*{_SUFFIX}")):
        place = folder / str(source.relative_to(_TEMPLATE)).removesuffix(_SUFFIX)
        files[place] = source.read_text().replace("{folder}", str(folder)).replace("{name}", folder.name)
    return files


def _write_samples(folder: Path) -> None:
    """Samples of the example: random positions, and a pressure that depends on them and on the sample."""
    random = np.random.default_rng(0)
    for number in range(_SAMPLES):
        sample = folder / f"case_{number}"
        sample.mkdir(parents=True)
        position = random.uniform(-1, 1, (_POINTS, 3)).astype(np.float32)
        pressure = np.sin(3 * position[:, 0] + number) * position[:, 1]
        np.save(sample / "points.npy", position)
        np.save(sample / "pressure.npy", pressure.astype(np.float32))
    ids = [f"case_{number}\n" for number in range(_SAMPLES)]
    (folder / "train.txt").write_text("".join(ids[:-1]))
    (folder / "val.txt").write_text(ids[-1])


main = cli.program(app, __name__)
