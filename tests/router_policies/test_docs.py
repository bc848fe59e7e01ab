import re
from pathlib import Path

from router_policies.checks import run_folder_tests
from router_policies.files import load_folder
from router_policies.presets import CLASSES
from router_policies.schema import TeamFile

DOCS = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
WHOLE, CHILD = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)


def test_the_files_in_the_docs_are_valid_and_pass_their_tests(write):
    """What is copied from there works."""
    folder = write(whole_yaml=WHOLE, child_yaml=CHILD, _company_yaml="budgets: [{name: b, limit_usd: 1}]\n")
    assert set(load_folder(folder).policies) == {"search", "search-eu"}
    assert all(result.passed for result in run_folder_tests(folder))


def test_the_docs_show_every_field():
    """A new field is shown there, or it is not new."""
    assert [name for name in TeamFile.model_fields if f"\n{name}:" not in "\n" + WHOLE and name not in ("extends", "canary")] == []


def test_the_docs_tell_the_built_in_classes():
    """Value and lanes as they are."""
    for name, klass in CLASSES.items():
        row = next(line for line in DOCS.splitlines() if line.startswith(f"| `{name}`"))
        assert ", ".join(map(str, klass.lanes)) in row
        assert ("nothing" if not klass.value_usd_per_hour else f"{klass.value_usd_per_hour:g}") in row.replace("0.10", "0.1")
