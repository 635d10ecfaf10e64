"""The signatures of Noether's writer and converters, called as its documentation and its tests call them."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from zarr_core import ZarrChunkReader, ZarrStoreWriter, calculate_store_statistics
from zarr_core.convert import convert_aero_dataset, convert_fsspec_source
from zarr_core.errors import SampleError, SourceError, StoreError, ZarrCoreError

FILES = {
    "surface_position": "surface_points.pt",
    "surface_pressure": "surface_pressure.pt",
    "surface_normals": "surface_normals.pt",
    "volume_position": "volume_points.pt",
    "volume_velocity": "volume_velocity.pt",
    "volume_distance_to_surface": "volume_sdf.pt",
}
FILEMAP = SimpleNamespace(**FILES, surface_friction=None)  # an attribute that is None: no such field
NS, NV = 300, 700


def make_sample(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    widths = {"surface_position": (NS, 3), "surface_pressure": (NS,), "surface_normals": (NS, 3)}
    widths |= {"volume_position": (NV, 3), "volume_velocity": (NV, 3), "volume_sdf": (NV,)}
    return {name: rng.standard_normal(shape).astype("float32") for name, shape in widths.items()}


class Stub:
    """A dataset object as in Noether's tests."""

    filemap = FILEMAP
    split = "train"

    def __init__(self, samples: list[dict[str, np.ndarray]]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def sample_info(self, idx: int) -> dict[str, str]:
        return {"run_name": f"run_{idx}"}

    def _load(self, idx: int, filename: str) -> torch.Tensor:
        names = {file: name.replace("distance_to_surface", "sdf") for name, file in FILES.items()}
        return torch.from_numpy(self._samples[idx][names[filename]])


def assert_same_points(root: Path, sample_id: str, sample: dict[str, np.ndarray]) -> None:
    found = ZarrChunkReader(root).read_sample(sample_id)
    assert set(found) == set(sample)
    np.testing.assert_array_equal(np.sort(found["volume_position"], axis=0), np.sort(sample["volume_position"], axis=0))


def test_a_writer_of_arrays(tmp_path: Path) -> None:
    writer = ZarrStoreWriter(tmp_path, FILEMAP, "test", shuffle_seed=0, chunk_points=512, shard_points=100)
    assert not writer.manifest.samples
    with pytest.raises(StoreError, match="no sample was written"):
        writer.save_manifest()
    writer.write_sample("param0/sample", make_sample())
    assert writer.save_manifest() == str(tmp_path / "manifest.json")
    grid = writer.manifest.samples["param0/sample"].domains["volume"]
    assert (grid.n_points, grid.chunk_points, grid.shard_points) == (NV, 512, 512)
    assert writer.manifest.dataset_name == "test"
    assert_same_points(tmp_path, "param0/sample", make_sample())
    without = {name: values for name, values in make_sample(1).items() if name != "volume_sdf"}
    with pytest.raises(SampleError, match="volume_sdf: is missing"):
        writer.write_sample("other", without)


def test_the_settings_of_a_writer(tmp_path: Path) -> None:
    sample = make_sample()
    sample["volume_velocity"] *= 1e6
    with pytest.raises(SampleError, match="volume_velocity"):
        ZarrStoreWriter(tmp_path / "a", FILEMAP, "wide").write_sample("s", sample)
    dtypes = {"volume_velocity": "float32"}
    writer = ZarrStoreWriter(
        tmp_path / "b", FILEMAP, "wide", 3, 256, None, "float32", "float16", dtypes, compression_level=7
    )
    writer.write_sample("s", sample)
    found = ZarrChunkReader(tmp_path / "b")
    np.testing.assert_array_equal(
        np.sort(found.read_sample("s")["volume_velocity"], axis=0), np.sort(sample["volume_velocity"], axis=0)
    )
    assert (writer.manifest.shuffle_seed, writer.manifest.compressor) == (3, "blosc-zstd:7")
    with pytest.raises(SourceError, match="coords_dtype must be float32"):
        ZarrStoreWriter(tmp_path, FILEMAP, coords_dtype="float16")


def test_a_dataset_object(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    samples = [make_sample(seed) for seed in range(3)]
    samples[1]["surface_pressure"] = np.zeros(NS + 100, "float32")
    writer = ZarrStoreWriter(tmp_path, FILEMAP, "stub", chunk_points=256)
    report = convert_aero_dataset(Stub(samples), writer, max_workers=1)
    writer.save_manifest()
    assert set(writer.manifest.samples) == {"run_0", "run_2"}
    assert [result.sample_id for result in report.having("quarantined")] == ["run_1"]
    assert "sample run_1 is left out: surface_pressure" in caplog.text
    assert_same_points(tmp_path, "run_2", samples[2])
    broken = ZarrStoreWriter(tmp_path / "broken", FILEMAP, "stub")
    with pytest.raises(SourceError, match="all 1 samples failed; the first, run_0: surface_pressure"):
        convert_aero_dataset(Stub(samples[1:2]), broken)
    swapped: Any = writer
    with pytest.raises(SourceError, match=r"the arguments are \(dataset, writer\)"):
        convert_aero_dataset(swapped, Stub(samples))  # type: ignore[arg-type]


def test_a_limit_and_processes(tmp_path: Path) -> None:
    samples = [make_sample(seed) for seed in range(3)]
    one, two = (ZarrStoreWriter(tmp_path / name, FILEMAP, "stub", chunk_points=256) for name in ("one", "two"))
    convert_aero_dataset(Stub(samples), one, limit=2)
    assert set(one.manifest.samples) == {"run_0", "run_1"}
    convert_aero_dataset(Stub(samples), one)
    convert_aero_dataset(Stub(samples), two, max_workers=2)
    assert one.manifest.samples == two.manifest.samples


@pytest.mark.parametrize("filemap", [FILEMAP, FILES], ids=["object", "mapping"])
def test_a_tree_with_a_file_map(
    tmp_path: Path, memory_root: str, caplog: pytest.LogCaptureFixture, filemap: object
) -> None:
    filesystem, base = fsspec.url_to_fs(memory_root)
    samples = [make_sample(seed) for seed in range(2)]
    for number, sample in enumerate(samples):
        for name, file in FILES.items():
            buffer = io.BytesIO()
            torch.save(torch.from_numpy(sample[name.replace("distance_to_surface", "sdf")]), buffer)
            filesystem.pipe_file(f"{base}/param{number}/run_{number}/{file}", buffer.getvalue())
    filesystem.pipe_file(f"{base}/half/surface_points.pt", b"")
    writer = ZarrStoreWriter(tmp_path, filemap, "stream", chunk_points=256)
    convert_fsspec_source(memory_root, filemap, writer, max_workers=1)
    writer.save_manifest()
    assert set(writer.manifest.samples) == {"param0/run_0", "param1/run_1"}
    assert_same_points(tmp_path, "param0/run_0", samples[0])
    assert "half" in caplog.text
    with pytest.raises(SourceError, match="no sample to convert"):
        convert_fsspec_source(f"{memory_root}/half", filemap, ZarrStoreWriter(tmp_path / "none"))


def test_statistics_skip_unknown_ids_with_a_warning(tmp_path: Path) -> None:
    writer = ZarrStoreWriter(tmp_path, FILEMAP, "stats")
    for number in range(2):
        writer.write_sample(f"s{number}", make_sample(number))
    with pytest.warns(UserWarning, match=r"sample_ids: 2 of 3 listed samples are not in the store .*\(s8, s9\)"):
        some = calculate_store_statistics(tmp_path, fields={"surface_pressure"}, sample_ids=["s9", "s1", "s8"])
    assert some["surface_pressure_count"] == NS
    assert some == calculate_store_statistics(tmp_path, fields={"surface_pressure"}, sample_ids=["s1"])
    with (
        pytest.warns(UserWarning, match="1 of 1 listed"),
        pytest.raises(ZarrCoreError, match="none of the requested samples"),
    ):
        calculate_store_statistics(tmp_path, sample_ids=["s9"])
