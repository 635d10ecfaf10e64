"""The packages of the wheel: the platform's folders at the top of the checkout lie in ``zarr_core.platform`` there."""

from setuptools import find_packages, setup

PLATFORM = "zarr_core.platform"
folders = find_packages(include=["assets", "assets.wide_matrix", "resources", "sensors", "sensors.*"])
places = {f"{PLATFORM}.{name}": name.replace(".", "/") for name in folders}
# Not a package of code: the settings of an instance, which a new project copies.
places[f"{PLATFORM}.deploy.local"] = "deploy/local"

setup(packages=[*find_packages(include=["zarr_core", "zarr_core.*"]), *places], package_dir={"": ".", **places})
