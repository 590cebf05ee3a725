"""The demo's project: sites that take part in what it plays, and limits of their own elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.deploy.demo import demo_project
from fedtailor.federation.site.inspection import inspect_plan
from fedtailor.federation.site.settings import read_settings


@pytest.mark.parametrize(("method", "least"), [("fedproto", 1), ("fedavg", 16)])
def test_its_sites_take_part_and_keep_their_limits_where_they_can(
    tmp_path: Path, method: str, least: int
) -> None:
    project = demo_project(tmp_path / "demo", method, 1, 3, True)
    plan = read_federation(project.file).plan
    for i in range(3):
        site = read_settings(project.folder / "sites" / f"site-{i}" / "site.toml")
        assert site.min_rows == least
        assert not inspect_plan(plan, site).refused
