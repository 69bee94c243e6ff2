"""Scripts are followed as bash would: compared with bash itself, on commands that only print their words."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.config.foreign.shell import follow
from rankloom.config.foreign.shell_marks import unknowns, without_marks
from rankloom.errors import UserError

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

# Of what earlier releases read wrongly without a word.
EXACT = {
    "heredoc indented end": "TP=2\ncat <<EOF >/dev/null\n  EOF\nTP=8\nEOF\nshow $TP",
    "heredoc tabs": "TP=2\ncat <<-EOF >/dev/null\n\tx\n\tEOF\nTP=8\nshow $TP",
    "heredoc quoted blank": "cat <<'E F' >/dev/null\nTP=8\nE F\nshow a",
    "subshell": "TP=2\n(TP=8; show $TP)\nshow $TP",
    "while false": "TP=2; while [ $TP -gt 8 ]; do TP=$((TP*2)); done; show $TP",
    "until": "TP=2; until [ $TP = 2 ]; do TP=4; done; show $TP",
    "unset": "TP=2; unset TP; show ${TP:-1}",
    "andor": "TP=2; false && TP=4 || TP=8; show $TP",
    "andor2": "TP=2; true && TP=4 || TP=8; show $TP",
    "andor3": '[ -n "$X" ] && A=1; show ${A:-none}',
    "andor4": "TP=2; [ $TP = 2 ] && { TP=4; X=1; }; show $TP $X",
    "declare -i": "declare -i TP; TP=4; TP+=2; show $TP",
    "declare -i2": "declare -i TP=2*4; show $TP; TP=TP+1; show $TP",
    "set --": 'set -- --a 1 --b; show "$@" $1 $#',
    "set shift": 'set -- a b c; shift; show "$@" $1 $#; shift 2; show x$#',
    "subst quotes": 'X=$(echo "a)b"); show x --c; show d',
    "subst case": "X=$(case a in a) echo b;; esac); show d",
    "subst comment": "X=$(echo a # it's\n); show d",
    "default brace": 'X=${Y:-"}"}; show $X',
    "default brace2": 'show "${Y:-"}"}" ${Y:-{}} ${Z:=\'}\'}',
    "elem idx": "A=(1 2 3); i=2; show ${A[i]} ${A[$i]} ${A[-1]} ${A[$((i-1))]}",
    "pipe read": "TP=2; echo 4 | read TP; show $TP",
    "local": "TP=2; f() { local TP=8; show $TP; }; f; show $TP",
    "func env": "TP=2; f() { show $TP; }; TP=8 f; show $TP",
    "bang": "A=1; if ! [ $A = 1 ]; then show no; else show yes; fi",
    "bang2": "A=1; if ! [ $A = 2 ] && [ $A = 1 ]; then show yes; fi",
    "for exact": "TP=1; for i in 1 2 3; do TP=$((TP*2)); done; show $TP $i",
    "for append": 'A=; for i in x y; do A+=" --f $i"; done; show $A',
    "arith default": "show $((${X:-8}*2)) $((${X:-8} * (2+1)))",
    "arith trunc": "show $((-7/2)) $((7/-2)) $((-7%3)) $((7%-3)) $((-8>>1))",
    "nested subshell": "TP=1; ((TP=3); show $TP); show $TP",
    "glob test": "M=7b; if [[ $M == 7* ]]; then show yes; else show no; fi",
    "test lt": "if [[ 3 > 2 ]]; then show yes; else show no; fi",
    "proc subst2": "show a > >(cat) --b c",
    "dollar quote": "show $'a b' $\"c d\" \"e$'f'\"",
    "blank other": 'X="a\xa0b"; show $X',
    "function paren": "f() ( TP=9; show $TP )\nTP=1; f; show $TP",
    "eval": "eval TP=4; show $TP",
    "bash -c": "export TP=2; bash -c 'TP=8; show $TP'; show $TP",
    "cond assign": "if X=5; then show $X; fi",
    "cond train": "if show a b; then show c; fi",
    "group redirect": "{ show a; show b; } > /dev/null; show c",
    "declare elsewhere": "f() { declare TP=3; }; TP=2; f; show $TP",
    "case": "case x in a|b) show 1;; x) show 2;; *) show 3;; esac",
    "or default": ": ${TP:=4}; show $TP",
    "or default2": "[ -z $TP ] && TP=4; show $TP",
    "array in append": "A=(1); A+=(2 3); show ${A[@]}",
    "array str append": "A=(1 2); A+=x; show ${A[@]}",
    "exit": "TP=2; show $TP; exit; show no",
    "positional fn": 'f() { shift; show "$@"; }; f a b c',
    "return": "f() { TP=4; return; TP=8; }; f; show $TP",
    "alias set": "set -euo pipefail; show a",
    "export fn env": "A=1 B=$A show ${B:-none}",
    "nested default": "show ${A:-${B:-${C:-x}}}",
    "unset func arg": "f() { show ${1:-d}; }; f; f x",
    "heredoc in subst": "X=$(cat <<EOF\nit's\nEOF\n)\nshow a",
    "readonly": "readonly TP=4; show $TP",
    "multi": "A=1; B=$A C=$B; show $B $C",
    "escaped nl in dq": 'show "a\\\nb"',
}

# What bash computes and this reader does not: it must say so.
UNKNOWN = {
    "let": "TP=2; let TP=8; show $TP",
    "let2": "TP=2; let 'TP*=2'; show $TP",
    "arith cmd": "TP=2; ((TP*=2)); show $TP",
    "arith inc": "TP=2; X=$((TP++)); show $TP $X",
    "while": "TP=2; while [ $TP -lt 8 ]; do TP=$((TP*2)); done; show $TP",
    "dq single": "show \"${Y:-'a}'}\"",
    "assoc": "declare -A M=([tp]=2 [pp]=1); show ${M[tp]}",
    "elem": "A=(1 2 3); A[1]=9; show ${A[@]}",
    "read": "read -r TP <<< 4; show $TP",
    "for break": "TP=1; for i in 1 2 3; do TP=$((TP*2)); break; done; show $TP",
    "for c": "TP=1; for ((i=0;i<3;i++)); do TP=$((TP*2)); done; show $TP",
    "for seq": "TP=1; for i in $(seq 3); do TP=$((TP*2)); done; show $TP",
    "for brace": "TP=1; for i in {1..3}; do TP=$((TP*2)); done; show $TP",
    "arith base": "show $((16#ff)) $((0x10)) $((010)) $((2**3))",
    "arith wrap": "show $((1<<63)) $((1<<64)) $((9223372036854775807+1))",
    "proc subst": "while read l; do X=$l; done < <(echo a); show y$X",
    "ansi": "show $'a\\nb'",
    "brace exp": "show {1,2} x{a,b}",
    "printf -v": "printf -v TP %d 4; show $TP",
    "mapfile": "mapfile -t A <<< x; show ${A[@]}",
    "nameref": "X=1; declare -n R=X; R=5; show $X $R",
    "let quoted": 'let "a = 5"; show $a',
    "ifs": "IFS=,; X=1,2; show $X",
    "ternary": "N=4; show $((N>2?1:0))",
    "comma": "((A=1, B=2)); show $A $B",
    "select str": "S=abcdef; show ${S:1:2} ${S^^}",
    "indirect": "A=B; B=3; show ${!A}",
    "while args": (
        "TP=2; set -- --tp 4 --x\nwhile [[ $# -gt 0 ]]; do "
        "case $1 in --tp) TP=$2; shift 2;; *) shift;; esac; done; "
        " show $TP"
    ),
    "backtick": "X=`echo a b`; show $X",
    "operators of a variable": "N=128; show ${N/8/16} ${N%8} ${#N}",
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


@needs_bash
@pytest.mark.parametrize("name", EXACT)
def test_what_changes_variables_is_followed(name: str) -> None:
    assert ours(EXACT[name]) == bash(EXACT[name])


@needs_bash
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_followed_is_not_known(name: str) -> None:
    """A word that is not bash's has a mark in it."""
    expected = [word for words in bash(UNKNOWN[name]) for word in words]
    found = [word for words in ours(UNKNOWN[name]) for word in words]
    assert any(unknowns(word) for word in found)
    assert all(unknowns(word) or word in expected for word in found)


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


def test_what_is_set_in_a_loop_or_by_a_command_that_may_fail_is_told() -> None:
    script = follow("TP=2\nwhile read -r l; do TP=4; done\nmkdir x || TP=8\nshow $TP")
    assert [(choice.line, choice.text) for choice in script.choices] == [
        (2, "of the while loop, one round was read, and what it sets is not known after it"),
        (
            3,
            "mkdir x ||: whether it holds cannot be known here; no branch was taken: TP=$(while ...) "
            "(another branch: TP=8)",
        ),
    ]


def test_a_mark_is_one_word() -> None:
    [invocation] = follow("N=$(nvidia-smi -L | wc -l)\nshow --n $N").invocations
    assert [without_marks(w.text) for w in invocation.words] == ["show", "--n", "$(nvidia-smi -L | wc -l)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# x\n" * 600_000,
         "the script has 2,400,000 characters, and at most 1,000,000 are read; "
         "name the training command itself"),
        ("if true; then\n" * 3000, "the script is nested too deeply to be read"),
        ("show " + "${a:-" * 3000, "the script is nested too deeply to be read"),
        ("f() { f; f; f; f; f; f; f; f; f; f; }\nf\n",
         "the script is too large to be followed; name the training command itself"),
        ("a0=x\n" + "".join(f"a{i + 1}=$a{i}\n" for i in range(9000)),
         "the script is too large to be followed; name the training command itself"),
        ("((x) " * 2000, "the script is nested too deeply to be read"),
    ],
    ids=["large", "ifs", "defaults", "functions", "names", "brackets"],
)  # fmt: skip
def test_scripts_that_would_take_forever_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        follow(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("doubled", ["x=$x$x$x$x\n", "x=(${x[@]} ${x[@]} ${x[@]})\n"])
def test_values_that_grow_without_end_are_not_known(doubled: str) -> None:
    [invocation] = follow("x=(aaaa bbbb)\n" + doubled * 40 + "show ${x[@]}").invocations
    assert all(word.text == "show" or unknowns(word.text) for word in invocation.words)
    assert len(invocation.words) < 10


@pytest.mark.parametrize(
    "expression",
    ["1<<99999999999999", "9**9**9", "1/0", "9" * 400, "-" * 100_000 + "1", "(" * 5000, "1_0 + a.b"],
)
def test_arithmetic_that_is_refused_is_not_known(expression: str) -> None:
    [invocation] = follow(f"a=1\nshow $(({expression}))").invocations
    assert unknowns(invocation.words[1].text)


def test_a_long_script_is_read() -> None:
    text = "echo hello world\n" * 5000 + "N=8\nshow $N"
    assert [w.text for w in follow(text).invocations[-1].words] == ["show", "8"]


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
