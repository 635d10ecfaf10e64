"""Samples to convert, and a declared dataset with its jobs on a Dagster instance of the test's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import torch
from zarr_core.platform.assets.component import dataset_definitions
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.declaration import Declaration
from zarr_core.platform.resources.pools import ConversionPool
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.dagster_internals.tags import partition_range_tags

from zarr_core.sources import resolve_kind

PROJECT = Path(__file__).resolve().parents[2]


class Threads(ConversionPool):
    """Converts in threads: worker processes would only cost the tests their start."""

    @contextmanager
    def executor(self, workers: int, *_: object) -> Iterator[Executor]:
        with ThreadPoolExecutor(workers) as pool:
            yield pool


class Recorded:
    """What an instance of Dagster has recorded of a declared dataset."""

    instance: dg.DagsterInstance
    dataset: Declaration

    def materialization(self, asset: str, partition: str | None = None) -> dg.AssetMaterialization:
        """The latest of an asset, or of one of its samples or batches."""
        partitions = None if partition is None else [partition]
        wanted = dg.AssetRecordsFilter(self.dataset.key(asset), asset_partitions=partitions)
        records = self.instance.fetch_materializations(wanted, limit=1).records
        assert records, f"{asset} {partition or ''} was never materialized"
        found = records[0].asset_materialization
        assert found is not None
        return found


def write_run(source: Path, number: int, points: int = 300, shift: float = 0.0) -> Path:
    """A sample in the AhmedML layout; ``shift`` makes another version of it."""
    folder = source / f"run_{number}"
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(number)
    for file in resolve_kind("ahmedml").required_fields.values():
        count = points if file.domain == "surface" else 2 * points
        shape = (count,) if file.field.dim == 1 else (count, 3)
        torch.save(torch.randn(shape, generator=random) + shift, folder / file.filename)
    return folder


def corrupt(folder: Path) -> None:
    """Cut a file short, as a broken transfer does."""
    path = folder / "surface_pressure.pt"
    path.write_bytes(path.read_bytes()[:200])


def definitions_of(dataset: DatasetDeclaration, pool: ConversionPool | None = None) -> dg.Definitions:
    """The dataset's definitions with their resources."""
    return dg.Definitions.merge(
        dataset_definitions(dataset),
        dg.Definitions(
            resources={"stores": StoreAccess(), "conversion_pool": pool or Threads()}, executor=dg.in_process_executor
        ),
    )


class Trial(Recorded):
    """A dataset, and its jobs run in this process."""

    def __init__(self, dataset: DatasetDeclaration, instance: dg.DagsterInstance) -> None:
        self.dataset, self.instance = dataset, instance
        self.source = Path(dataset.source)
        self.definitions = definitions_of(dataset)

    def run(
        self, job: str, *sample_ids: str, pool: ConversionPool | None = None, tags: Mapping[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        """Run ``look``, ``convert`` (the samples from the first to the last named) or ``refresh``."""
        tags = {**(tags or {}), **(partition_range_tags(sample_ids[0], sample_ids[-1]) if sample_ids else {})}
        definitions = definitions_of(self.dataset, pool) if pool else self.definitions
        found = definitions.resolve_job_def(f"{self.dataset.name}_{job}")
        return found.execute_in_process(instance=self.instance, tags=tags, raise_on_error=False)

    def convert_all(self) -> dg.ExecuteInProcessResult:
        """Look, and convert every registered sample."""
        assert self.run("look").success
        sample_ids = self.samples()
        return self.run("convert", sample_ids[0], sample_ids[-1])

    def publish(self) -> dg.ExecuteInProcessResult:
        """Materialize the manifest and its checks alone, as a person may do."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        keys = [self.dataset.key("manifest")]
        return job.execute_in_process(instance=self.instance, asset_selection=keys, raise_on_error=False)

    def samples(self) -> list[str]:
        """Registered samples."""
        return list(self.instance.get_dynamic_partitions(self.dataset.partitions_name))

    def converted(self) -> set[str]:
        """Samples with a materialization."""
        return set(self.instance.get_materialized_partitions(self.dataset.key("zarr_samples")))
