"""Training datasets over a point store. Each item is a draw of points, fetched and decoded on demand."""

from __future__ import annotations

import hashlib
import json
import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from zarr_core._util.redaction import redact
from zarr_core._util.repeated import repetition_of
from zarr_core._util.shared_epoch import SharedEpoch
from zarr_core.datasets import config as configs
from zarr_core.datasets.batch import Batch, BatchDataset, BatchItem, Drawn, Slab
from zarr_core.datasets.collation import Collate
from zarr_core.datasets.items import INDEX, SAMPLE_ID, Items
from zarr_core.datasets.normalizers import GEOMETRY_POSITION, GEOMETRY_SOURCE, floating_fields, make_normalizers
from zarr_core.datasets.splits import choose_samples, split_ids, with_all_fields
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.read.selection import SampleDraws
from zarr_core.points.read.slabs import ReadSlab, read_slabs, source_order
from zarr_core.sources import resolve_kind
from zarr_core.storage import Storage

if TYPE_CHECKING:
    from zarr.abc.store import Store

    from zarr_core.storage.byte_ranges import Objects

_GEOMETRY_DOMAIN = "surface"


class ZarrPointDataset(BatchDataset):
    """Samples of any store, as dicts of tensors.

    An item maps canonical field names to CPU tensors, (points, components), or (points,) for scalars: float32, or the
    stored dtype with ``dtype="stored"``. With ``num_geometry_points`` it also has ``geometry_position`` (points, 3). A
    DataLoader with ``batch_size`` gets whole batches, each from one read.

    Until :meth:`set_epoch` is called, each access draws new points with torch's random generator: with equal workers,
    ``torch.manual_seed`` makes them repeatable. After it, sampling seed, epoch and sample id determine the points. Call
    it before each epoch, or once for fixed points, as in validation.

    A subclass that changes items overrides ``__getitem__``. Its batches consist of these items, each read by itself. It
    can override ``__getitems__``, too, and keep the single read per batch.

    Args:
        config: settings; see the config class.
        store_factory, objects_factory: as for ``ZarrChunkReader``.

    Attributes:
        config: the settings.
        reader: reader of the store.
        sample_ids: id of each item, in order.

    Raises:
        ZarrCoreError: the store, or a split, field, domain or statistic named in the config, does not exist.

    Examples:
        >>> dataset = ZarrPointDataset(ZarrPointDatasetConfig(root="store", split="train", num_surface_points=64))
        >>> dataset[0]["surface_pressure"].shape
        torch.Size([64])
    """

    config_class: ClassVar[type[configs.StoreDatasetConfig]] = configs.ZarrPointDatasetConfig
    #: Short name of the dataset kind; None for a class that reads any store.
    description: ClassVar[str | None] = None

    def __init__(
        self,
        config: configs.StoreDatasetConfig,
        *,
        store_factory: Callable[[str], Store] | None = None,
        objects_factory: Callable[[str], Objects] | None = None,
    ) -> None:
        if not isinstance(config, configs.StoreDatasetConfig):
            expected = self.config_class.__name__
            raise ZarrCoreError(
                f"config must be a {expected}, not {reprlib.repr(config)}; build_dataset takes mappings"
            )
        self.config = config
        self.reader = ZarrChunkReader(
            config.root,
            engine=config.engine,
            store_factory=store_factory,
            objects_factory=objects_factory,
            read_concurrency=config.read_concurrency,
            generation=config.generation,
            cache_dir=config.cache_dir,
            cache_limit=config.cache_limit,
            cache_bytes=config.cache_bytes,
        )
        self._check_kind()
        self._fields, self._geometry_points = self._choose_fields()
        coords = None
        if self._geometry_points:
            coords = self.reader.coords(GEOMETRY_POSITION, _GEOMETRY_DOMAIN, self._geometry_points)
        self._selection = self.reader.selection(config.points_by_domain, self._fields, coords)
        for name in config.normalizers:
            if name not in self.reader.fields and name not in config.parameters:
                raise UnknownFieldError(
                    f"{redact(self.reader.root)}: normalizers name {name!r}, which is not a field; fields are "
                    f"{', '.join(self.reader.fields)}. Leave out what this store lacks: "
                    "zarr_core.Normalizers(saved).inverse denormalizes predictions of it. A parameter is also to be "
                    "named in `parameters: [...]`"
                )
        manifest = self.reader.manifest
        storage = Storage(self.reader.root)
        self._normalizers = make_normalizers(storage, manifest, config.normalizers, config.statistics)
        self.sample_ids = choose_samples(
            self._split,
            self._split_ids,
            manifest.samples,
            config.filter_categories,
            redact(self.reader.root),
        )
        read = list(self.reader.fields if self._fields is None else self._fields)
        skip = config.missing_fields == "skip"
        self.sample_ids = with_all_fields(self.sample_ids, manifest, read, skip, redact(self.reader.root))
        read += [GEOMETRY_POSITION] if self._geometry_points else []
        self._items = Items(config, self.reader, read, self._normalizers)
        self._items.prepare(self.sample_ids[:1])
        self._collate = None if config.collate is None else Collate(config.collate, self._items.per_sample)
        self._epoch = SharedEpoch()

    def __getstate__(self) -> dict[str, Any]:
        reader = self.reader.with_samples(self.sample_ids)
        return self.__dict__ | {"reader": reader, "_items": self._items.with_reader(reader)}

    def __repr__(self) -> str:
        fields = ", ".join(self.reader.fields if self._fields is None else self._fields)
        generation = self.reader.manifest.generation
        return (
            f"<{type(self).__name__} {redact(self.reader.root)}, generation {generation}, "
            f"split {self._split}: {len(self):,} samples of {fields}>"
        )

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        item: dict[str, Tensor] = ZarrPointDataset.__getitems__(self, [index])[0]
        if isinstance(item, BatchItem):
            item.sample_id, item.origin, item.domains = self.sample_ids[index], self._items.origin, self._items.domains
        return item

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Read a whole batch at once; DataLoader calls this instead of ``__getitem__``.

        Returns:
            The items. If they have the same shapes, they are views of the batch tensors that :func:`collate` returns.
        """
        places = [range(len(self))[index] for index in indices]
        if not places:
            return Batch()
        repetitions = [repetition_of(index) for index in indices]
        if len(set(zip(places, repetitions, strict=True))) < len(places):
            self._warn_of_equal_draws()
        drawn = self._drawn(places, repetitions)
        self._items.prepare([one.sample_id for one in drawn])
        draws = self._draws(drawn)
        # Samples that are to be collated may differ in size.
        stored = self.reader.read_batch(draws) if self._collate is None else None
        if stored is None:
            items = zip(places, drawn, draws, self.reader.read_items(draws), strict=True)
            return Batch([self._item(*item) for item in items])
        tensors = {field: self._as_values(field, torch.from_numpy(values)) for field, values in stored.items()}
        return self._items.batch(tensors, places, drawn)

    def slabs(self, sample: str | int, points: int, domain: str | None = None) -> Iterator[Slab]:
        """A whole sample in stored order, slab by slab in bounded memory: for inference on samples of any size.

        Each point occurs once. Values are normalized, except with ``dtype="stored"``: ``dataset.normalize(slab)`` does
        it then. Numbers of points in the config do not matter here, and geometry positions are not read.

        Args:
            sample: index or sample id.
            points: of a slab, at most; multiples of the store's ``chunk_points`` read no chunk twice.
            domain: yield this one only; by default one domain after another.

        Raises:
            UnknownFieldError: the sample or a field does not exist, or no field of the domain is read.
            ZarrCoreError: ``points`` is not a positive integer.
            CorruptChunkError: stored bytes are missing or damaged.
        """
        sample_id = self._sample_id(sample)
        return map(self._slab, read_slabs(self.reader, sample_id, points, self._fields, domain))

    def _slab(self, read: ReadSlab) -> Slab:
        return Slab(self._tensors(read.sample, read.values), read.sample.sample_id, read.domain, read.rows)

    def source_order(self, sample: str | int, domain: str) -> np.ndarray:
        """Row in the source of each stored point of a domain, (points,) int64: for predictions in the source's order.

        Raises:
            UnknownFieldError: there is no such sample or domain.
            ZarrCoreError: another program wrote the sample, so that its order is not known.
        """
        return source_order(self.reader, self._sample_id(sample), domain)

    def _sample_id(self, sample: str | int) -> str:
        """The id of a sample, which may be given by its index."""
        return sample if isinstance(sample, str) else self.sample_ids[sample]

    def _item(self, place: int, drawn: Drawn, sample: SampleDraws, stored: Mapping[str, np.ndarray]) -> Any:
        """An item from its stored values."""
        item = self._items.item(self._tensors(sample, stored), place, drawn)
        if isinstance(item, BatchItem):
            item.collate = self._collate
        return item

    def _tensors(self, sample: SampleDraws, stored: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """The tensors of stored values."""
        tensors = {}
        for field, points in stored.items():
            normalizer = self._normalizers.get(field)
            if normalizer is not None and len(normalizer.shift) != points.shape[1]:
                where = self.reader.reads(sample)[field].where
                width = f"the array has {points.shape[1]} components per point"
                raise ZarrCoreError(f"{where}: {width}, its normalizer has {len(normalizer.shift)}")
            tensors[field] = self._as_values(field, torch.from_numpy(points))
        return tensors

    def _choose_fields(self) -> tuple[list[str] | None, int]:
        """The fields to read (None: all), and the number of points of ``geometry_position``."""
        config, fields = self.config, None
        included, excluded = config.included_properties, config.excluded_properties or frozenset()
        geometry_points = config.num_geometry_points or 0
        if GEOMETRY_POSITION in excluded or (included is not None and GEOMETRY_POSITION not in included):
            geometry_points = 0
        if config.fields is not None:
            fields = self.reader.check_fields(config.fields)
        elif included is not None:
            named = self.reader.check_fields(included - {GEOMETRY_POSITION})
            fields = [field for field in self.reader.fields if field in named]
        elif config.item:
            fields = [field for field in self.reader.fields if field in config.item_names]
        if excluded:
            fields = [field for field in (self.reader.fields if fields is None else fields) if field not in excluded]
        if fields == [] and not geometry_points:
            wanted = f"; item names {', '.join(config.item_names)}" if config.item else ""
            raise ZarrCoreError(
                f"no field is left to read{wanted}; fields of the store are {', '.join(self.reader.fields)}; "
                "see included_properties, excluded_properties and item"
            )
        return fields, geometry_points

    def _drawn(self, places: Sequence[int], repetitions: Sequence[int]) -> list[Drawn]:
        """What determines the points of items, which occurred ``repetitions`` times in the epoch before."""
        seed, epoch = self.config.sampling_seed, self.epoch
        return [Drawn(seed, epoch, self.sample_ids[place], n) for place, n in zip(places, repetitions, strict=True)]

    def _draws(self, items: Sequence[Drawn]) -> list[SampleDraws]:
        """The points of items."""
        draws = []
        for seed, epoch, sample_id, repetition in items:
            given: dict[str, Any] = {"seed": seed, "epoch": epoch, "repetition": repetition}
            if seed is None or epoch is None:
                given = {"generator": torch.default_generator}
            draws.append(self.reader.draws(self._selection, sample_id, **given))
        return draws

    def _warn_of_equal_draws(self) -> None:
        """Warn that a batch repeats a sample, if both are the same points."""
        determined = self.epoch is not None and self.config.sampling_seed is not None
        if determined and any(self._selection.num_points.values()):
            warnings.warn(
                "a batch repeats a sample with the same points, which seed, epoch and sample id determine. With "
                "EpochBatchSampler.of(dataset, ...), each repetition has other points",
                stacklevel=3,
            )

    @property
    def fingerprint(self) -> str:
        """Identifies the data by digests of its content: samples in order, fields, and numbers of the normalizers.

        It depends neither on the store's location nor on the numbers of its generations, so a staged copy has the same
        fingerprint. For samples of other programs, which record no digests, only ids and sizes are known.
        """
        manifest = self.reader.manifest
        fields = list(self.reader.fields if self._fields is None else self._fields)
        domains = {domain for domain, layout in manifest.domains.items() if not layout.arrays.keys().isdisjoint(fields)}
        if self._geometry_points:
            fields.append(GEOMETRY_POSITION)
            domains.add(_GEOMETRY_DOMAIN)
        fields += [f"parameter {name}" for name in self.config.parameters]
        samples = []
        for sample_id in self.sample_ids:
            entry = manifest.samples[sample_id]
            grids = []
            for domain in sorted(domains & entry.domains.keys()):
                grid = entry.domains[domain]
                grids.append([domain, grid.n_points, grid.chunk_points])
            content = [entry.content] if entry.content else []
            samples.append([sample_id, entry.fingerprint, entry.settings, grids, *content])
        # As float32, in which normalizers compute: later digits of the statistics depend on the way they were computed.
        numbers = {}
        for field, n in self._normalizers.items():
            numbers[field] = [torch.tensor((n.shift, n.unit), dtype=torch.float32).tolist(), n.logscale]
        return (
            f"{manifest.dataset_name}, split {self._split}: {len(samples)} samples {_digest(samples)}, "
            f"{len(fields)} fields {_digest(sorted(fields))}, {len(numbers)} normalizers {_digest(numbers)}"
        )

    @property
    def draws(self) -> str:
        """What the drawn points depend on besides the data: their numbers by domain, and the seed."""
        numbers = sorted(self._selection.num_points.items(), key=str)
        points = [f"{wanted} points of {domain}" for domain, wanted in numbers if wanted is not None]
        return f"{', '.join(points) or 'all points'}, sampling_seed {self.config.sampling_seed}"

    @property
    def lineage(self) -> dict[str, str]:
        """The data of a training run as tags, for ``mlflow.set_tags`` and the like: place, generation and content.

        With the generation, ``zarr-core log`` and the manifest give the source fingerprint of each sample. A staged
        copy has generations of its own, so ``origin`` and ``origin_generation`` name what it is a copy of.
        """
        manifest = self.reader.manifest
        tags = {
            "store": redact(self.reader.root),
            "dataset": manifest.dataset_name,
            "split": f"{self._split} of {self.config.splits}" if self.config.splits else self._split,
            "generation": manifest.generation,
            "fingerprint": self.fingerprint,
        }
        if manifest.origin:
            tags |= {"origin": manifest.origin["store"], "origin_generation": manifest.origin["generation"]}
        return {f"zarr_core.{name}": str(value) for name, value in tags.items()}

    @property
    def epoch(self) -> int | None:
        """The epoch of the draws; None until :meth:`set_epoch` is called."""
        return self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the draws, in this process and in all DataLoader workers of this dataset.

        Call it between epochs: items that workers have already prefetched keep their epoch.

        Raises:
            ZarrCoreError: the epoch is not a 64-bit integer.
        """
        self._epoch.set(epoch)

    def normalize(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Cast to float32 and normalize a batch that was read with ``dtype="stored"``, after the copy to the device.

        Args:
            batch: item or batch of this dataset, on any device, not yet normalized.

        Raises:
            UnknownFieldError: the store has no such field.
            ZarrCoreError: the batch is not a mapping, or is normalized already, by this method or because the dataset's
                ``dtype`` is "float32".
        """
        if self._normalizers and self.config.dtype == "float32":
            raise ZarrCoreError(
                'batches of dtype "float32" are normalized already: normalize() is for datasets with dtype="stored"'
            )
        # What is not a floating-point number is an index, or added by collating: the lengths of samples and the like.
        self._check_known(floating_fields(batch))
        return self._normalizers._normalized_batch(batch)

    def denormalize(self, field: str, values: Tensor) -> Tensor:
        """Physical values of normalized ones, such as predictions; unchanged for a field without a normalizer.

        For predictions of a trained model, the normalizers must be those of its training run: save
        :attr:`normalizers` with the model.

        Args:
            field: canonical name, "geometry_position", or a parameter.
            values: (..., components), or any shape for scalars; any device. Differentiable.

        Raises:
            UnknownFieldError: the store has no such field.
            ZarrCoreError: the last axis of a vector field's values does not match its components.
        """
        self._check_known([field])
        normalizer = self._normalizers.get(field)
        return values if normalizer is None else normalizer.denormalize(values)

    @property
    def normalizers(self) -> dict[str, dict[str, Any]]:
        """The normalizers as plain numbers, to be saved with a model.

        Pass them as the ``normalizers`` of another dataset's config (inference, a later generation, another store) to
        normalize with the same numbers, or to :class:`~zarr_core.Normalizers` for inference without a store.
        """
        return self._normalizers.state_dict()

    def _check_known(self, fields: Iterable[str]) -> None:
        """Raise UnknownFieldError for a field that is neither the store's nor of this dataset's items."""
        own = {INDEX, SAMPLE_ID, *self.config.parameters}
        names = [GEOMETRY_SOURCE if field == GEOMETRY_POSITION else field for field in fields if field not in own]
        try:
            self.reader.check_fields(names)
        except UnknownFieldError as error:
            keys = {key: named for key, named in self.config.item.items() if key in names}
            meant = [f"{key} is {named if isinstance(named, str) else ', '.join(named)}" for key, named in keys.items()]
            if not meant:
                raise
            raise UnknownFieldError(f"{error}; {'; '.join(meant)} (item)") from None

    def _check_kind(self) -> None:
        """Raise ZarrCoreError for the store of another kind. Stores of other programs do not record their kind."""
        kind = self.reader.manifest.dataset_kind
        if self.description is None or not kind:
            return
        expected = resolve_kind(self.description).name
        if kind != expected:
            raise ZarrCoreError(
                f"{redact(self.reader.root)} is a store of kind {kind!r}, not {expected!r}, which "
                f"{type(self).__name__} reads; kind: point reads stores of any kind"
            )

    def _split_ids(self, split: str) -> list[str]:
        """Ids of a split. If the store records no splits, the rule of this dataset kind assigns them."""
        manifest, config = self.reader.manifest, self.config
        if config.sample_ids is not None:
            manifest.select(sample_ids=config.sample_ids)
            return list(config.sample_ids)
        if self.description is not None and not manifest.splits:
            splits = resolve_kind(self.description).assign_splits(manifest.samples, lambda name: None)
            manifest = replace(manifest, splits=splits)
        return split_ids(manifest, split, config.splits, redact(self.reader.root))

    @property
    def _split(self) -> str:
        """The split, or part of one, as the config names it."""
        return self.config.split or "sample_ids"

    def _as_values(self, field: str, values: Tensor) -> Tensor:
        """Cast, normalise and squeeze stored values (..., points, components) according to the config."""
        if self.config.dtype == "float32":
            values = self._normalizers.normalized(field, values)
        return values.squeeze(-1) if values.shape[-1] == 1 and not self.config.scalar_axis else values


def _digest(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode("ascii"), digest_size=8).hexdigest()
