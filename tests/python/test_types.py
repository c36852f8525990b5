"""Types and docstrings of the package: those that an editor shows, and that a user's own mypy reads."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys

import pytest

import tapetum

PYTHON = pathlib.Path(__file__).parents[2] / "python"
#: Modules that users import. What they need may not be installed, so they are read, not imported.
MODULES = ["__init__", "nodes", "polars", "ray", "remote", "tensorflow", "torch", "training", "typing"]


def checked(tmp_path, *words, folder=PYTHON):
    """What a module of mypy says, run in a folder; it must have nothing to say against."""
    environment = {**os.environ, "MYPY_CACHE_DIR": str(tmp_path / "cache"), "MYPYPATH": str(PYTHON)}
    ended = subprocess.run([sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_package_its_examples_and_a_program_have_types(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import tapetum

store = tapetum.open("data", capacity="1GiB")
reveal_type(store)
reveal_type(store.get("key"))
reveal_type(store.cas("key", b"value", store.gets("key")[1]))
reveal_type(store.increment("visits"))
for pictures, labels in tapetum.Loader(store.images(), "decode | resize 8x8", 4):
    reveal_type(pictures)
reveal_type(tapetum.connect("grpc://127.0.0.1:8815").keyspace("papers").multi_get(["a"]))
with store as same:
    reveal_type(same.freeze().stats())
""")
    told = checked(tmp_path, "mypy", "tapetum", "examples", program)
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in told.splitlines() if "Revealed type" in line]
    wanted = ["Store", "bytes | None", "bool", "int", "ndarray", "list[bytes | None]", "dict[str, Any]"]
    assert len(revealed) == len(wanted) and all(kind in found for kind, found in zip(wanted, revealed, strict=True)), told


def test_the_native_module_is_as_its_stub_says(tmp_path):
    allowed = tmp_path / "allowed"
    # The module makes it itself.
    allowed.write_text("tapetum._tapetum.__all__\n")
    options = ["--mypy-config-file", PYTHON / "pyproject.toml", "--allowlist", allowed]
    # Elsewhere, as the sources have no native module.
    assert "Success" in checked(tmp_path, "mypy.stubtest", "tapetum._tapetum", *options, folder=tmp_path)


def undocumented(name, value):
    """Public names of a class that have no docstring, and its own."""
    if not inspect.getdoc(value):
        yield name
    if inspect.isclass(value) and not issubclass(value, BaseException):
        for member, of in vars(value).items():
            is_public = not member.startswith("_") and (callable(of) or isinstance(of, property | staticmethod | classmethod))
            is_public |= not member.startswith("_") and inspect.isgetsetdescriptor(of)
            if is_public and not inspect.getdoc(getattr(value, member)):
                yield f"{name}.{member}"


@pytest.mark.parametrize("name", sorted(set(tapetum.__all__) - {"__version__"}))
def test_public_names_have_docstrings(name):
    assert not list(undocumented(name, getattr(tapetum, name)))


def test_help_tells_shapes_types_and_errors():
    assert "uint8" in tapetum.Batch.__doc__ + inspect.getsource(tapetum.Batch) and "PipelineError" in tapetum.run.__doc__
    for value, words in [
        (tapetum.Store.open, ["capacity", "Error", "ValueError"]),
        (tapetum.Keyspace.cas, ["gets", "Returns whether"]),
        (tapetum.Keyspace.increment, ["KeyError", "ValueError"]),
        (tapetum.Pipeline.decode, ["uint8", "JPEG, PNG and WebP"]),
        (tapetum.Pipeline.normalize, ["float32"]),
    ]:
        assert all(word in value.__doc__ for word in words), value


@pytest.mark.parametrize("module", MODULES)
def test_modules_have_docstrings(module):
    tree = ast.parse((PYTHON / "tapetum" / f"{module}.py").read_text())
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            is_overload = isinstance(node, ast.FunctionDef) and any(ast.unparse(of) == "overload" for of in node.decorator_list)
            assert is_overload or ast.get_docstring(node), f"{module}.{node.name}"
            for inner in node.body if isinstance(node, ast.ClassDef) else []:
                is_setter = isinstance(inner, ast.FunctionDef) and any("setter" in ast.unparse(of) for of in inner.decorator_list)
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_") and not is_setter:
                    assert ast.get_docstring(inner), f"{module}.{node.name}.{inner.name}"
