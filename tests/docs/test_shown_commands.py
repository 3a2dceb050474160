"""What README and docs show exists, and does what they say."""

import re
import shutil

import pytest
import typer

from harness.cli.main import build_app, main
from harness.cli.record_metrics import record_metrics
from harness.run.store import open_run
from tests.docs.shown_commands import ROOT, Shown, shown_commands
from tests.reports.sample_run import ENVIRONMENT, RUN_ID, green_records, write_run
from tiny_checkpoints.generator import generate

SHOWN = shown_commands()
OURS = [one for one in SHOWN if one.program == "neuron-harness"]


def runnable(speed):
    """Each command once, however many pages show it."""
    chosen = {one.words: one for one in reversed(OURS) if one.speed == speed}.values()
    return [pytest.param(one, id=f"{one.place} {' '.join(one.words[1:3])}") for one in chosen]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return generate("tiny-A", tmp_path_factory.mktemp("docs") / "tiny-A")


@pytest.fixture
def workplace(tmp_path, checkpoint, monkeypatch):
    """A directory like the checkout's, with runs to read and the tiny checkpoint."""
    (tmp_path / "checkpoints").mkdir()
    shutil.copytree(checkpoint, tmp_path / "checkpoints" / "tiny-A")
    for name in ("RUN", "A", "B", "C"):
        run = write_run(tmp_path / "runs" / name, green_records())
        for file in run.iterdir():
            file.write_text(file.read_text("utf-8").replace(RUN_ID, name), "utf-8")
        with open_run(run, environment=ENVIRONMENT) as store:
            record_metrics(store)
    (tmp_path / "kernels").symlink_to(ROOT / "kernels")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return tmp_path


def ending(words):
    """Exit code; 0 where the command just returned."""
    try:
        main(list(words))
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize("shown", runnable("fast"))
def test_a_command_does_what_its_page_says(shown, workplace):
    assert ending(shown.words[1:]) == shown.exit_code


@pytest.mark.slow
@pytest.mark.parametrize("shown", runnable("slow"))
def test_a_command_that_takes_minutes_does_what_its_page_says(shown, workplace):
    if "../changed" in shown.words:
        (workplace.parent / "changed").symlink_to(ROOT)
    assert ending(shown.words[1:]) == shown.exit_code


@pytest.mark.parametrize("shown", OURS, ids=[one.place for one in OURS])
def test_every_command_and_option_that_is_shown_exists(shown):
    command, words = typer.main.get_command(build_app()), list(shown.words[1:])
    while hasattr(command, "commands"):
        assert words, f"{shown.place}: a command is missing"
        assert words[0] in command.commands, f"{shown.place}: there is no command {words[0]}"
        command = command.commands[words.pop(0)]
    context = command.context_class(command, info_name=command.name)
    command.make_parser(context).parse_args(words)


def test_a_page_with_an_option_that_does_not_exist_is_caught():
    wrong = Shown("page:1", ("neuron-harness", "tokens", "--mutations"), 0, "fast")
    with pytest.raises(Exception, match="No such option"):
        test_every_command_and_option_that_is_shown_exists(wrong)


@pytest.mark.parametrize("shown", [one for one in SHOWN if one not in OURS], ids=str)
def test_other_programs_that_are_shown_exist(shown):
    if shown.program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(shown.words[1:]) <= set(targets)
    elif shown.program.startswith("scripts/"):
        assert (ROOT / shown.program).is_file()
    else:
        assert shown.speed == "host", f"{shown.place}: nobody checks {shown.program}"


def test_the_pages_cover_every_command():
    listed = re.findall(r"`([a-z-]+)`", (ROOT / "docs" / "commands.md").read_text())
    group = typer.main.get_command(build_app())
    missing = {name for name, one in group.commands.items() if not one.hidden} - set(listed)
    assert not missing, f"docs/commands.md says nothing of {sorted(missing)}: give each a row"


def test_links_between_pages_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_enough_is_shown_to_be_worth_a_test():
    assert len([one for one in OURS if one.speed == "fast"]) >= 20
