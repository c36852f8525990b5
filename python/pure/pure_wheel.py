"""Builds the package without its native module, as a wheel for any system: the modules of ../tapetum as they are.

A build backend by PEP 517, which pip calls. It needs Python alone, so that it works offline.
"""

import base64
import hashlib
import pathlib
import tomllib
import zipfile

_HERE = pathlib.Path(__file__).resolve().parent
_PACKAGE = _HERE.parent / "tapetum"
_TAG = "py3-none-any"
# The earliest time that a zip has, so that the same sources make the same wheel.
_TIME = (1980, 1, 1, 0, 0, 0)


def _project():
    project = tomllib.loads((_HERE.parent / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((_HERE.parents[1] / "Cargo.toml").read_text())["workspace"]["package"]
    return project | {"version": workspace["version"]}


def _metadata(project):
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
    ]
    # The native half needs the project's dependencies; without it only the extras need anything.
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {need}; extra == '{extra}'" for need in needs]
    return "\n".join(lines) + "\n"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project = _project()
    stem = f"{project['name']}-{project['version']}"
    info = f"{stem}.dist-info"
    modules = [path for path in sorted(_PACKAGE.iterdir()) if path.suffix in (".py", ".pyi", ".typed") or path.name == "py.typed"]
    files = {f"tapetum/{path.name}": path.read_bytes() for path in modules}
    files[f"{info}/METADATA"] = _metadata(project).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tapetum\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode()
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    name = f"{stem}-{_TAG}.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            wheel.writestr(entry, data)
    return name


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("this makes wheels alone: pip wheel ./python/pure; the sources are the repository")


def _digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
