"""Download third-party files of the web UI and its tests: `packaging/vendor/fetch.py [PACKAGE...]`.

Without arguments, the script downloads all packages. Each package comes from the npm registry, in
the version that `packages.toml` names, and must match the checksum in that file. The script needs
only Python, and executes no downloaded code.
"""

import base64
import hashlib
import io
import sys
import tarfile
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STATIC = "daemon/ui/static"
REGISTRY = "https://registry.npmjs.org"
PATIENCE = 60  # timeout of a download in seconds


def packages() -> list[dict[str, Any]]:
    """Return the packages of `packages.toml`, as its comments describe them."""
    package_list: list[dict[str, Any]] = tomllib.loads((HERE / "packages.toml").read_text())[
        "package"
    ]
    return package_list


def fetched(package: dict[str, Any]) -> bytes:
    """Return the archive of a package. Exit if its checksum does not match."""
    name, version = package["name"], package["version"]
    address = f"{REGISTRY}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:  # noqa: S310  # https only
            archive: bytes = answer.read()
    except OSError as error:
        sys.exit(f"cannot download {address}: {error}")
    checksum = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if checksum != package["integrity"]:
        sys.exit(f"{address}: the checksum {checksum} does not match packages.toml")
    return archive


def main(names: list[str]) -> None:
    """Download the packages, check all checksums, and write the files."""
    for package in packages():
        if names and package["name"] not in names:
            continue
        target = ROOT / package.get("to", STATIC)
        target.mkdir(exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(fetched(package))) as archive:
            for name, source in package["files"].items():
                member = archive.extractfile(source["from"])
                body = member.read() if member else b""
                if (checksum := hashlib.sha256(body).hexdigest()) != source["sha256"]:
                    sys.exit(
                        f"{source['from']} of {package['name']}: the SHA-256 {checksum} does not match "
                        "packages.toml"
                    )
                (target / name).write_bytes(body)
                print(f"{name}: {package['name']} {package['version']}, {package['licence']}")


if __name__ == "__main__":
    main(sys.argv[1:])
