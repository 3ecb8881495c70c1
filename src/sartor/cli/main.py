"""The command `sartor`: finds the verb, and turns what goes wrong into one sentence and an exit code.

0 done, 1 failed, 2 wrong usage, 3 outputs differ, 4 model or device not supported, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from sartor.errors import SartorError

VERBS = {
    "compile": "Compile a model into a program file.",
    "tune": "Compile a model, measuring which way of computing each layer is fastest here.",
    "run": "Run a model or program on given or random inputs.",
    "bench": "Measure how long a run takes, beside other engines if wanted.",
    "inspect": "Show what a model or program is made of.",
    "check": "List what in a model is not supported, has no native code, or is suspicious.",
    "diff": "Compare a model with the reference layer by layer, and name the first that differs.",
    "devices": "Show what is known of this machine.",
    "demo": "Read a picture of text on ONNX Runtime and on Sartor, and compare.",
}
EXIT_CODES = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 outputs differ, 4 model or device not supported, 130 interrupted."


class Verbs(click.Group):
    """The verbs, each imported when it is called, so that `sartor --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"sartor.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        if args and args[0] not in VERBS and not args[0].startswith("-"):
            close = get_close_matches(args[0], VERBS, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(VERBS)}"
            raise click.UsageError(f"{args[0]} is not a command of sartor; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(package_name="sartor", message="%(prog)s %(version)s")
def group() -> None:
    """Compiles trained neural networks to native code for the machine they run on.

    \b
    Example:
      sartor compile model.onnx -o model.sartor
      sartor bench model.sartor
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments` (the process's own by default) and returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    try:
        code = group.main(args=list(arguments), prog_name="sartor", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as problem:
        click.echo(problem.ctx.get_help() if problem.ctx else "", err=True)
        return 2
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("sartor: interrupted", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read our output has gone; nothing is left to be flushed to it
        return 1
    except SartorError as problem:
        return _failed(problem, str(problem), problem.exit_code, debug)
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        return _failed(problem, f"{where}{problem.strerror or problem}", 1, debug)
    except Exception as problem:  # noqa: BLE001  the last resort: a person gets a sentence, a developer --debug
        text = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return _failed(problem, f"an error inside Sartor, which should not happen ({text}); --debug shows where", 1, debug)


def _failed(problem: Exception, sentence: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(problem)
    click.echo(f"sartor: {sentence}", err=True)
    return code


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run())


if __name__ == "__main__":
    main()
