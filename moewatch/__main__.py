"""`python -m moewatch`, and the `moewatch` command."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from moewatch.cli.main import run  # noqa: PLC0415 - nothing eager: --version must not wait for imports

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
