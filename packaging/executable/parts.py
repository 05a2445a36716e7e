"""Print the bill of materials (CycloneDX 1.5) of the single-file program.

The interpreter of the build must run this script, because the program contains its packages.
"""

import json
import platform
import sys
from importlib import metadata

OF_THE_BUILD = {"pip", "setuptools", "pyinstaller", "pyinstaller-hooks-contrib", "altgraph"}


def component(name: str, version: str, licence: str) -> dict[str, object]:
    """Return the component of a package, with the licence from its metadata."""
    fields: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
    }
    if licence and len(licence) < 100:  # some packages have the full licence text
        fields["licenses"] = [{"license": {"name": licence}}]
    return fields


def bill() -> dict[str, object]:
    """Return the bill of materials: Steward, Python and the installed packages."""
    packages = sorted(metadata.distributions(), key=lambda distribution: distribution.name.lower())
    components = [
        component(
            package.name,
            package.version,
            package.metadata.get("License-Expression") or package.metadata.get("License") or "",
        )
        for package in packages
        if package.name.lower() not in OF_THE_BUILD | {"steward"}
    ]
    python = {"type": "platform", "name": "python", "version": platform.python_version()}
    steward = {"type": "application", "name": "steward", "version": metadata.version("steward")}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": steward},
        "components": [python, *components],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
