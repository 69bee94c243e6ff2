"""Scripts are followed as bash would: compared with bash itself, on commands that only print their words."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.config.foreign.shell import follow
from rankloom.config.foreign.shell_values import unknowns, without_marks

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")

SCRIPTS = {
    "quotes": """show a 'b c' "d e" f\\ g "h\\"i" 'j"k' "l'm" ''""",
    "continuation": "show --a 1 \\\n   --b 2 \\\n  --c",
    "comment": "show a # b\nshow c#d '#e' \"# f\"",
    "variables": """A=1; B=two; C="x y"\nshow $A ${B} "$C" $C pre$A.post "${A}-${B}" '$A'""",
    "array": """ARGS=( --a 1  # first\n --b "x y"\n)\nARGS+=( --c )
show "${ARGS[@]}" x "${ARGS[*]}" ${ARGS[@]}""",
    "array in words": """A=(1 2 3)\nshow "pre${A[@]}post" ${A} ${A[1]} ${#A[@]}""",
    "string of options": """O="\n  --a 1 \\\n  --b 2\n"\nshow $O --c "$O" """,
    "appended string": """O="--a 1"\nO+=" --b 2"\nshow $O""",
    "defaults": """show ${X:-8} ${Y:-"a b"} ${Z:=4} $Z ${E:+set} ${Z:+yes}
E=; show "${E:-e}" "${E-kept}" """,
    "arithmetic": """A=4; B=3\nshow $((A*B)) $(($A + ${B} - 1)) $((A / B)) $(( (A+B) % 4 )) $((7/-2))""",
    "nested": """TP=2; ARGS="--tp $TP"; ALL="$ARGS --dp $((8/TP))"\nshow $ALL""",
    "environment in front": """A=1\nA=2 B=3 show $A\nshow $A ${B:-none}""",
    "export": """export A=1 B="x y"\ndeclare -x C=3\nshow $A "$B" $C""",
    "and or": """true && show a; false || show b\nshow c; show d""",
    "redirections": """show a 2>&1 > /dev/stdout\nshow b >/dev/stdout 2>&1\nshow c2 3 2> /dev/null""",
    "pipes": "show a | cat",
    "if": """A=1\nif [ "$A" = 1 ]; then B=x; else B=y; fi
if [[ $A -gt 1 ]]; then B+=1; elif [[ -n $A && $A == 1 ]]
then B+=2
fi
show $B""",
    "numbers": """N=8\nif (( N > 4 )); then show big; else show small; fi""",
    "tests": """A=; B=b\n[ -z "$A" ] && true\nif [ -z "$A" ] && true; then C=1; fi
if [ ! -n "$A" ]; then show n; fi""",
    "joined tests": """A=1
if [ "$A" = 2 ] || [ "$A" = 1 ]; then show one; fi
if [ "$A" = 1 ] && [ -z "$A" ]; then show no; else show two; fi
if [[ $A == 2 || ( $A == 1 && -n $A ) ]]; then show three; fi""",
    "case": """M=8b\ncase "$M" in\n  7b|8b) L=32 ;;\n  70b) L=80;;\n  *) L=0 ;;\nesac\nshow $L""",
    "function": """f() {\n  local T=$1\n  show --x "$T" "$2"\n}\nf 1 "2 3"\nfunction g { show g; }\ng""",
    "heredoc": """cat <<'EOF' > /dev/null\nshow no $A\nEOF\nshow yes""",
    "shell in a shell": """A="1 2"\nbash -c "show $A 'x y'" """,
    "eval": """C="show --a 'b c'"\neval $C\neval "$C --d" """,
    "loop": """for A in one; do show $A; done""",
    "braces": """A=x\nshow ${A}y "${A}"/z $A/w {a}""",
    "dollar": """show a$ "b $" 5$""",
}


def bash(script: str) -> list[list[str]]:
    """The words of each `show` in a script, one list a call; bash has to be willing to export a function."""
    # Words are printed to descriptor 9, so that a script may do with its output what it likes.
    prelude = 'show() { { printf "%s\\x1f" "$@"; printf "\\x1e"; } >&9; }\nexport -f show\n'
    run = subprocess.run(
        [BASH or "bash", "-c", f"exec 9>&1 1>/dev/null\n{prelude}{script}"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    return [call.split("\x1f")[:-1] for call in run.stdout.split("\x1e")[:-1]]


def ours(script: str) -> list[list[str]]:
    calls = [[w.text for w in i.words] for i in follow(script).invocations]
    return [words[1:] for words in calls if words[0] == "show"]


@needs_bash
@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_of_bash(name: str) -> None:
    expected = bash(SCRIPTS[name])
    assert expected
    if name == "and or":  # both sides of && and || are looked at
        expected = [["a"], ["b"], ["c"], ["d"]]
    assert ours(SCRIPTS[name]) == expected


TEXT = st.text(st.sampled_from("ab0-=._/ '\"\\$#;&|(){}[]*\t"), max_size=8)


@needs_bash
@given(words=st.lists(TEXT, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_quoted_words_come_out_as_they_were(words: list[str]) -> None:
    line = " ".join(shlex.quote(w) for w in words)
    assert ours(f"show {line}") == [words]
    assert ours(f'A=( {line} )\nshow "${{A[@]}}"') == [words]


@given(text=st.text(st.sampled_from("ab \n\"'`\\$(){}[]#;&|<>=+-:$if then fi case esac done"), max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_to_its_end(text: str) -> None:
    follow(text)


def test_what_is_not_known_keeps_its_name() -> None:
    script = follow('N=$(nproc)\nA="$N-$HOST"\nshow $A $1 ${X%/*} $((N * 2)) "$UNSET" $(( GPUS * 8 ))')
    words = script.invocations[0].words[1:]
    assert [unknowns(w.text) for w in words] == [
        ("$(nproc)", "HOST"),
        ("$1",),
        ("${X%/*}",),
        ("$(nproc)",),
        ("UNSET",),
        ("GPUS",),
    ]
    assert without_marks(words[0].text) == "$(nproc)-$HOST"


def test_words_know_their_lines() -> None:
    script = follow("A=(\n  --a 1\n  --b 2\n)\n\nshow \\\n  --c 3 \\\n  ${A[@]}")
    assert [(w.text, w.line) for w in script.invocations[0].words] == [
        ("show", 6),
        ("--c", 7),
        ("3", 7),
        ("--a", 2),
        ("1", 2),
        ("--b", 3),
        ("2", 3),
    ]


def test_branches_that_differ_are_told() -> None:
    script = follow('if [ "$MODEL" = large ]; then\n  L=80\nelse\n  L=32\nfi\nshow $L')
    assert [w.text for w in script.invocations[0].words] == ["show", "32"]
    [choice] = script.choices
    assert (choice.line, choice.names) == (1, frozenset({"L"}))
    assert choice.text == (
        """if [ "$MODEL" = large ]: MODEL is not set, so the branch 'else' was taken: L=32 """
        """(another branch: L=80)"""
    )


def test_a_condition_that_cannot_be_known_takes_the_first_branch() -> None:
    script = follow("if command -v nvidia-smi; then N=8; else N=1; fi\nshow $N")
    assert [w.text for w in script.invocations[-1].words] == ["show", "8"]
    assert script.choices[0].text == (
        "if command -v nvidia-smi: whether it holds cannot be known here; that was taken: N=8 "
        "(another branch: N=1)"
    )


def test_branches_that_agree_are_not_told() -> None:
    assert not follow("if [ -f x ]; then A=1; else A=1; fi").choices


def test_files_that_are_sourced_are_named() -> None:
    assert follow("source env.sh\n. $HOME/more.sh").sourced == ("env.sh", "$HOME/more.sh")
