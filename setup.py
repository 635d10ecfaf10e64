"""What pyproject.toml cannot say: the packages of the wheel, and the addresses of what the README links to.

The platform's folders at the top of the checkout lie in ``zarr_core.platform`` in the wheel. ``$REPOSITORY_URL`` is the
address of the repository, such as https://github.com/owner/zarr_core, which a release sets.
"""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

PLATFORM = "zarr_core.platform"
folders = find_packages(include=["assets", "assets.wide_matrix", "resources", "sensors", "sensors.*"])
places = {f"{PLATFORM}.{name}": name.replace(".", "/") for name in folders}
# Not a package of code: the settings of an instance, which a new project copies.
places[f"{PLATFORM}.deploy.local"] = "deploy/local"


def with_addresses(text: str, repository: str) -> str:
    """The README as a package index shows it, where a link to a file needs the address of the repository, if known."""
    if not repository:
        return text
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{repository}/raw/main/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{repository}/blob/main/", text)


if __name__ == "__main__":
    repository = os.environ.get("REPOSITORY_URL", "")
    setup(
        packages=[*find_packages(include=["zarr_core", "zarr_core.*"]), *places],
        package_dir={"": ".", **places},
        long_description=with_addresses((Path(__file__).parent / "README.md").read_text(), repository),
        long_description_content_type="text/markdown",
        project_urls={"Repository": repository} if repository else {},
    )
