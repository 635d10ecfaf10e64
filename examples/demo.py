"""Convert the bundled dataset through Dagster, in this process: what ``make demo`` runs.

The jobs are those that the UI and its daemon run, on the instance in ``$DAGSTER_HOME``, so that ``make ui`` afterwards
shows these very runs. Running it again converts what changed.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
import warnings
from pathlib import Path

import dagster as dg

PROJECT = Path(__file__).resolve().parents[1]
DATASET = "ahmed_rans"

READ_A_BATCH = """\
import torch; from zarr_core import build_dataset
data = build_dataset({{"kind": "ahmedml", "root": "{store}", "split": "train", {points}}})
batch = next(iter(torch.utils.data.DataLoader(data, batch_size=4)))"""
POINTS = {"num_surface_points": 2048, "num_volume_points": 4096}


def main() -> None:
    """List the source, convert, publish and report; then print where everything is."""
    if not os.environ.get("DAGSTER_HOME"):
        raise SystemExit("error: DAGSTER_HOME is not set; start this with `make demo`")
    os.chdir(PROJECT)
    sys.path.insert(0, str(PROJECT))
    from definitions import defs

    warnings.simplefilter("ignore", dg.BetaWarning)
    definitions = defs()
    with dg.DagsterInstance.get() as instance:
        run_job(definitions, instance, "look")
        run_job(definitions, instance, "convert", all_samples(instance))
        run_job(definitions, instance, "refresh")
        print(summary(instance))


def run_job(
    definitions: dg.Definitions, instance: dg.DagsterInstance, job: str, tags: dict[str, str] | None = None
) -> None:
    """Run one of the dataset's jobs; if it fails, print the errors of its steps and exit."""
    started = time.monotonic()
    result = definitions.resolve_job_def(f"{DATASET}_{job}").execute_in_process(
        instance=instance,
        tags=tags,
        run_config={"loggers": {"console": {"config": {"log_level": "ERROR"}}}},
        raise_on_error=False,
    )
    for event in result.all_events:
        if event.is_step_failure and event.step_failure_data.error:
            print(f"{event.step_key}: {event.step_failure_data.error.message.strip()}", file=sys.stderr)
    if not result.success:
        raise SystemExit(f"error: job {DATASET}_{job} failed; `make ui` shows run {result.run_id}")
    print(f"{DATASET}_{job}: done in {time.monotonic() - started:.1f} s", flush=True)


def all_samples(instance: dg.DagsterInstance) -> dict[str, str]:
    """The tags of a run over every registered sample, as a backfill from the UI sets them."""
    sample_ids = instance.get_dynamic_partitions(f"{DATASET}__samples")
    if not sample_ids:
        raise SystemExit(
            f"error: the source of {DATASET} holds no samples; assets/datasets/{DATASET}/defs.yaml names it"
        )
    from zarr_core.platform.sensors.dagster_internals.tags import partition_range_tags

    return partition_range_tags(sample_ids[0], sample_ids[-1])


def recorded(instance: dg.DagsterInstance, asset: str) -> dict[str, object]:
    """Metadata of an asset's latest materialization."""
    event = instance.get_latest_materialization_event(dg.AssetKey([DATASET, asset]))
    materialization = event.asset_materialization if event else None
    return {name: value.value for name, value in materialization.metadata.items()} if materialization else {}


def summary(instance: dg.DagsterInstance) -> str:
    """Where everything is, three lines that read a batch (and what they gave just now), and how to open the UI."""
    manifest, statistics = recorded(instance, "manifest"), recorded(instance, "statistics")
    report = recorded(instance, "benchmark_report")
    store = shown(str(manifest["store"]))
    code = READ_A_BATCH.format(store=store, points=json.dumps(POINTS)[1:-1])
    names: dict[str, dict[str, object]] = {}
    exec(code, names)  # execute the printed lines
    shapes = "\n  ".join(f"{field} {tuple(values.shape)}" for field, values in names["batch"].items())
    return f"""
{manifest["samples"]} samples in the store, generation {manifest["generation"]}
  store       {store}
  statistics  {shown(str(statistics["file"]))}
  report      {shown(str(report["report"]))}

Read a batch:
{textwrap.indent(code, "  ")}
which gives
  {shapes}

See it in Dagster: make ui, then http://127.0.0.1:3000"""


def shown(path: str) -> str:
    """A path as short as it can be written from here."""
    return str(Path(path).relative_to(PROJECT)) if Path(path).is_relative_to(PROJECT) else path


if __name__ == "__main__":
    main()
