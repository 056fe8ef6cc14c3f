"""`headway completion`: what a shell with its script proposes."""

import subprocess

import pytest

from headway import cli, completion

PROPOSE = """
{script}
COMP_WORDS=({words} "$0")
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
complete -p headway >/dev/null || exit 1
function=$(complete -p headway | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" headway "$0" "${{COMP_WORDS[COMP_CWORD-1]}}" 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts():
    return {shell: completion.script(cli._parser(), shell) for shell in completion.SHELLS}


@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "some", "none"),
    [
        ("headway ", {"up", "status", "render", "completion"}, {"--check"}),
        ("headway st", {"status"}, {"up"}),
        ("headway status --", {"--json", "--watch", "--name"}, {"--check", "--version"}),
        ("headway up --", {"--dry-run", "--json"}, {"--force"}),
        ("headway route --slo", {"--slo-ttft-s", "--slo-tpot-s"}, {"--config"}),
        ("headway serve --policy ", {"slo", "sequential", "vllm"}, {"up"}),
        ("headway render ", {"kubernetes"}, {"up"}),
        ("headway completion ", {"bash", "zsh", "fish"}, {"up"}),
        ("headway up ", {"a.toml"}, {"status"}),
        ("headway route --config ", {"a.toml"}, set()),
    ],
)
def test_bash_proposes_what_can_follow(scripts, tmp_path, typed, some, none):
    (tmp_path / "a.toml").touch()
    *words, last = typed.split(" ")
    text = PROPOSE.format(script=scripts["bash"], words=" ".join(words))
    asked = ["bash", "--norc", "-c", text, last]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, check=True, text=True)
    proposed = set(done.stdout.split())
    assert some <= proposed
    assert not none & proposed


def test_every_script_has_every_command(scripts):
    from headway.fleet.cli import names

    for script in scripts.values():
        for name in ("serve", "route", "completion", *names()):
            assert name in script


def test_nothing_but_the_script_is_printed(scripts, capsys):
    for shell in completion.SHELLS:
        assert cli.main(["completion", shell]) == 0
        assert capsys.readouterr() == (scripts[shell] + "\n", "")


def test_without_it_one_line_says_how_to_get_it(monkeypatch, capfd):
    monkeypatch.setattr(completion.importlib.util, "find_spec", lambda _: None)
    assert cli.main(["completion", "bash"]) == 1
    assert capfd.readouterr() == ("", "headway: error: shtab isn't installed; pip install shtab\n")
