"""Print a software bill of materials of the Python packages in this environment (CycloneDX 1.6).

python3 deploy/sbom.py > sbom.json
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distributions


def component(package: Distribution) -> dict[str, object]:
    """Return one package as a component: name, version, address (purl) and licence."""
    name, version = package.metadata["Name"], package.version
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    found: dict[str, object] = {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
    }  # fmt: skip
    if licence := package.metadata.get("License-Expression"):
        found["licenses"] = [{"expression": licence}]
    elif len(licence := (package.metadata.get("License") or "").strip()) in range(1, 80):
        found["licenses"] = [{"license": {"name": licence}}]
    return found


def main() -> None:
    """Print the list, sorted by name: equal environments have equal lists."""
    components = {str(each["bom-ref"]): each for each in map(component, distributions())}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [components[key] for key in sorted(components)],
    }
    sys.stdout.write(json.dumps(bill, indent=1) + "\n")


if __name__ == "__main__":
    main()
