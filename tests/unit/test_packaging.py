"""The packaging: the version, the links, the targets of make, the checks of hosted CI."""

from __future__ import annotations

import re
from importlib.metadata import entry_points, metadata, version
from pathlib import Path

import pytest
from click.testing import CliRunner

import celery_rabbit_delay
from celery_rabbit_delay.cli import groups

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/celery-rabbit-delay/celery-rabbit-delay"
MAKEFILE = (ROOT / "Makefile").read_text()


def test_the_version_is_that_of_the_metadata() -> None:
    assert celery_rabbit_delay.__version__ == version("celery-rabbit-delay")
    assert f'version = "{celery_rabbit_delay.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert "__version__" in dir(celery_rabbit_delay)
    with pytest.raises(AttributeError, match="has no attribute 'version'"):
        _ = celery_rabbit_delay.version


def test_both_command_lines_tell_the_version() -> None:
    [delay] = [one.load() for one in entry_points(group="celery.commands") if one.name == "delay"]
    told = [CliRunner().invoke(group, ["--version"]).stdout for group in (delay, groups.standalone)]
    assert told == 2 * [f"celery-rabbit-delay, version {version('celery-rabbit-delay')}\n"]


def test_every_link_of_the_readme_works_on_a_package_index_and_leads_into_the_tree() -> None:
    readme = (ROOT / "README.md").read_text()
    defined = dict(re.findall(r"^\[([a-z-]+)\]: (.+)$", readme, re.MULTILINE))
    used = re.findall(r"\]\[([a-z-]+)\]|[ |]\[([a-z-]+)\](?![\[:])", readme)
    assert {one or other for one, other in used} == defined.keys()
    for link in [*re.findall(r"\]\(([^)]+)\)", readme), *defined.values()]:
        if link in (REPOSITORY, f"{REPOSITORY}/issues"):
            continue
        picture = link.replace("https://raw.githubusercontent.com/", "https://github.com/").replace(
            "/main/", "/blob/main/"
        )
        match = re.fullmatch(rf"{REPOSITORY}/(blob|tree)/main/([^#]+)(#.*)?", picture if "raw.g" in link else link)
        assert match, f"{link}: a package index knows no relative links"
        target = ROOT / match[2]
        assert target.is_dir() if match[1] == "tree" else target.is_file(), link


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_every_relative_link_beside_the_readme_leads_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", (ROOT / name).read_text()):
        assert (ROOT / target).exists(), target


def test_the_urls_of_the_project_are_those_of_the_repository() -> None:
    urls = dict(entry.split(", ", 1) for entry in metadata("celery-rabbit-delay").get_all("Project-URL") or [])
    assert urls["Repository"] == REPOSITORY
    assert all(url.startswith(REPOSITORY) for url in urls.values())


def test_each_target_of_make_that_is_named_somewhere_exists_and_is_explained() -> None:
    [phony] = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    explained = re.findall(r"^# make ([a-z-]+) ", MAKEFILE, re.MULTILINE)
    assert set(explained) == set(phony.split()) - {"broker", "browser", "clean", "core-is-covered"}
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / ".github" / "workflows" / "ci.yml"):
        named = set(re.findall(r"(?:^|`|run: )make ([a-z-]+)", path.read_text(), re.MULTILINE))
        assert named, path
        assert named <= set(explained), path


def test_hosted_ci_runs_all_tests_on_each_release_with_an_image() -> None:
    releases = re.findall(r"docker:([\d.]+)", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert {*releases} == {"3.10", "3.13", "4.0", "4.1", "4.2", "4.3", "4.4"}
