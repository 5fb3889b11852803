"""The completion script for bash, without the package bash-completion. Pure."""

from collections.abc import Iterable, Sequence
from shlex import join, quote

from vmpin.cli.shell.completed import Completed, WordSource, completed, leaves
from vmpin.cli.shell.grammar import Command, Option
from vmpin.cli.shell.names import HIDDEN

_SCRIPT = r"""# bash completion for vmpin: source <(vmpin completion bash)

# What a word of the command line is followed by: sets `source` and `list`. $1: the verb, $2: an option, or the number
# of an argument.
__vmpin_completed() {
    source='' list=''
    case "$1 $2" in
@CASES@
    esac
}

__vmpin_options() {
    case "$1" in
@OPTIONS@
    esac
}

# Completes $3 by the words in $2, or by what $1 names.
__vmpin_reply() {
    local word current=$3
    case "$1" in
    words | keys)
        for word in $2; do
            [[ $word == "$current"* ]] && COMPREPLY+=("$word")
        done
        [[ $1 != keys ]] || compopt -o nospace
        ;;
    files | directories)
        local kind=-f
        [[ $1 != directories ]] || kind=-d
        mapfile -t COMPREPLY < <(compgen "$kind" -- "$current")
        compopt -o filenames
        ;;
    sandboxes | containers | namespaces)
        # Within quotes a name could end them: nothing is offered there.
        [[ $current != *[\'\"\\]* ]] || return 0
        while IFS= read -r word; do
            [[ $word == "$current"* ]] && COMPREPLY+=("$(printf '%q' "$word")")
        done < <(@PROGRAM@ @HIDDEN@ "$1" "$current" "${before[@]}" 2>/dev/null </dev/null)
        ;;
    esac
}

_vmpin() {
    local word words=() glued='' source list verb='' number=0 option='' ended='' before=() current
    COMPREPLY=()
    # bash parts words at = and :, which vmpin does not.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ ${#words[@]} -gt 0 && ( -n $glued || $word == [=:]* ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        glued=''
        [[ $word != [=:] ]] || glued=1
    done
    current=${words[-1]-}
    before=("${words[@]:0:${#words[@]}-1}")
    for word in "${before[@]}"; do
        if [[ -n $option ]]; then
            option=''
        elif [[ $word == -- ]]; then
            ended=1
        elif [[ -z $ended && $word == -?* ]]; then
            __vmpin_completed "$verb" "$word"
            [[ -z $source ]] || option=$word
        else
            case "$verb $word" in
@VERBS@
            *) number=$((number + 1)) ;;
            esac
        fi
    done
    if [[ -n $option ]]; then
        __vmpin_completed "$verb" "$option"
        __vmpin_reply "$source" "$list" "$current"
    elif [[ -z $ended && $current == --*=* ]]; then
        __vmpin_completed "$verb" "${current%%=*}"
        [[ $source == keys ]] || __vmpin_reply "$source" "$list" "${current#*=}"
        return 0
    elif [[ -z $ended && $current == -* ]]; then
        __vmpin_reply words "$(__vmpin_options "$verb")" "$current"
    else
        __vmpin_completed "$verb" "$number"
        [[ -n $source ]] || __vmpin_completed "$verb" 'more'
        __vmpin_reply "$source" "$list" "$current"
    fi
    # What was typed up to the last = or : stays.
    local kept=''
    [[ $current != *[=:]* ]] || kept=${current%"${current##*[=:]}"}
    COMPREPLY=("${COMPREPLY[@]#"$kept"}")
}

complete -F _vmpin vmpin
"""


def script(program: Command, own: Sequence[str]) -> str:
    """Return the completion script. :param own: the command that starts vmpin."""
    commands = [((), program), *leaves(program)]
    verbs = [f"            {quote(' '.join(path[:-1]) + ' ' + path[-1])}) verb={quote(' '.join(path))} number=0 ;;"
             for path, _ in commands if path]
    options = [f"    {quote(' '.join(path))}) echo {quote(' '.join(_option_names(program, each)))} ;;"
               for path, each in commands]
    parts = {"@CASES@": "\n".join(line for path, each in commands for line in _cases(" ".join(path), each)) + "\n"
             + "\n".join(_case(f"*' {name}'", completed(option)) for option in program.options if option.metavar
                         for name in option.names),
             "@OPTIONS@": "\n".join(options), "@VERBS@": "\n".join(verbs), "@HIDDEN@": HIDDEN,
             "@PROGRAM@": join(own)}
    text = _SCRIPT
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text


def _cases(verb: str, command: Command) -> Iterable[str]:
    for option in command.options:
        if option.metavar and option.needs_value:
            yield from (_case(quote(f"{verb} {name}"), completed(option)) for name in option.names)
    if command.commands:
        yield _case(quote(f"{verb} 0"), Completed(WordSource.WORDS, tuple(each.name for each in command.commands)))
    for number, argument in enumerate(command.arguments):
        yield _case(quote(f"{verb} {number}"), completed(argument))
        if argument.many:
            yield _case(quote(f"{verb} more"), completed(argument))


def _case(pattern: str, value: Completed) -> str:
    return f"    {pattern}) source={value.source} list={quote(' '.join(value.words))} ;;"


def _option_names(program: Command, command: Command) -> list[str]:
    """The names of its options and of the program's."""
    own: list[Option] = [*command.options, *(program.options if command is not program else ())]
    return list(dict.fromkeys(name for option in own for name in option.names))
