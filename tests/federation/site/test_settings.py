"""A site's file: what it may say."""

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.federation.site.settings import read_settings

GOOD = 'client = 1\ndata = "rows.npz"\n'


def test_paths_are_relative_to_the_file(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(GOOD + 'allow = ["fedala"]\nshare = []\n')
    found = read_settings(path)
    assert found.data["data"] == str(tmp_path / "rows.npz") and found.folder == tmp_path / "site"
    assert found.allow == ("fedala",) and found.share == () and found.name == "site-1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "client is missing"),
        ("client = 1", "names no data"),
        ("client = -1\ndata = 'x'", "client is -1"),
        ("client = true\ndata = 'x'", "client is True"),
        (GOOD + "colour = 1", "unknown setting 'colour'"),
        (GOOD + "test = 7", "option 'test' is 7"),
        (GOOD + "allow = 'fedala'", "allow is 'fedala'"),
        (GOOD + "share = ['rows']", "unknown share 'rows'"),
        (GOOD + "idle = 0", "idle is 0"),
        (GOOD + "begin_again = 1", "begin_again is 1"),
        (GOOD + "folder = ''", "folder is ''"),
        ("client = ", "not valid TOML"),
    ],
)
def test_slips_are_named(tmp_path, text, said):
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        read_settings(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        read_settings(tmp_path / "no.toml")
