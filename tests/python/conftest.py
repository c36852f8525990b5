import pytest
from served import Served, command


@pytest.fixture(scope="session")
def papers(tmp_path_factory):
    """A served store with the database of papers. Its keyspaces are read only; tests write into "items" and "ordered"."""
    served = Served(tmp_path_factory.mktemp("papers"))
    command("generate", "papers", "--scale", "0.005", "--into", served.folder / "data")
    served.command("keyspace", "create", "items")
    served.command("keyspace", "create", "ordered", "--index", "ordered")
    yield served
    served.stop()
