"""Which folders make the package `tfm`; everything else about the build stands in pyproject.toml.

The root of the repository is the package, and pyproject.toml's own package finder cannot give what it finds another
name (`presets` would be installed as `presets`, not `tfm.presets`). The choice was between a list kept by hand and
these few lines, which pick up every sub-package and every folder of YAML below the four folders, and nothing else: not
tests, benchmarks, docs, examples, nor a virtual environment lying in the checkout.
"""

import tempfile

from setuptools import find_namespace_packages, setup

FOLDERS = ("presets", "estimators", "kernels", "cli")
found = find_namespace_packages(include=[pattern for folder in FOLDERS for pattern in (folder, f"{folder}.*")], exclude=["*__pycache__*"])

# Built in a scratch folder: a `build/` left in the checkout would put modules that were deleted since into the next wheel.
with tempfile.TemporaryDirectory() as scratch:
    setup(
        script_name="setup.py",  # so that setuptools knows this file and leaves it out of the package
        packages=["tfm", *(f"tfm.{name}" for name in found)],
        options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
    )
