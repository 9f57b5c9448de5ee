"""Completion in bash, zsh and fish: the shell asks `ropewalk --complete` for the words that may
come next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from ropewalk_cli.declare import Argument, Command, Parameter, as_command, parameters
from ropewalk_cli.words import is_option

#: the code that `completion` prints for each shell; where ropewalk has no word to offer, the shell
#: completes names of files
SCRIPTS = {
    "bash": """\
_ropewalk() {
    local IFS=$'\\n'
    COMPREPLY=($(ropewalk --complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _ropewalk ropewalk""",
    "zsh": """\
#compdef ropewalk
_ropewalk() {
    local -a found
    found=("${(@f)$(ropewalk --complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found[1]" ]]; then _describe ropewalk found; else _files; fi
}
compdef _ropewalk ropewalk""",
    "fish": """\
function __ropewalk
    set -l before (commandline -opc)
    set -e before[1]
    set -l word (commandline -ct)
    set -l found (ropewalk --complete fish $before "$word" 2>/dev/null)
    if test -n "$found"
        printf '%s\\n' $found
    else
        __fish_complete_path "$word"
    end
end
complete -c ropewalk -f -a '(__ropewalk)'""",
}


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Argument("Your shell.")],
) -> None:
    """Print what a shell runs to complete commands, options and their values.

    For bash put this line in ~/.bashrc: eval "$(ropewalk completion bash)". For zsh put it in
    ~/.zshrc with zsh, after compinit. For fish: ropewalk completion fish >
    ~/.config/fish/completions/ropewalk.fish
    """
    print(SCRIPTS[shell])


def answer(shell: str, words: Sequence[str], commands: Mapping[str, Command | str]) -> list[str]:
    """Return the lines that a shell reads: each word that may take the place of the last one, for
    zsh and fish with its help.
    """
    found = candidates(words, commands)
    if shell == "bash":
        return list(found)
    if shell == "fish":
        return [f"{word}\t{about}" for word, about in found.items()]
    # zsh takes a colon for the end of the word, unless a backslash, chr(92), comes before it
    return [f"{word.replace(':', chr(92) + ':')}:{about}" for word, about in found.items()]


def candidates(words: Sequence[str], commands: Mapping[str, Command | str]) -> dict[str, str]:
    """Return the words that may take the place of the last one, with their help."""
    *before, last = words or [""]
    while before and before[0] in commands:
        name, *before = before
        target = as_command(commands[name]).load()
        if callable(target):
            return _starting(last, _of_command(before, last, parameters(target)))
        commands = target
    if before:  # a word that is no command
        return {}
    return _starting(last, {name: as_command(entry).help for name, entry in commands.items()})


def _of_command(before: list[str], last: str, taken: Sequence[Parameter]) -> dict[str, str]:
    """Return the values of the option before the last word; else the names of options if the last
    word begins with a dash; else the choices of the arguments.
    """
    options = {name: each for each in taken for name in each.names}
    asked = options.get(before[-1]) if before else None
    if asked is not None and not asked.is_flag:
        return dict.fromkeys(asked.choices, "")
    if is_option(last) or last == "-":
        return {name: each.help for name, each in options.items()} | {"--help": "Show this help."}
    return dict.fromkeys((text for each in taken if each.is_argument for text in each.choices), "")


def _starting(beginning: str, found: dict[str, str]) -> dict[str, str]:
    return {word: about for word, about in found.items() if word.startswith(beginning)}
