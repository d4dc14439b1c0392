"""`moewatch estimate`: before the download, will it run here, how fast, and with which flags?"""

import argparse

from moewatch.analysis.kvcache import DEFAULT_KV_TYPE, KV_TYPES, MAX_CONTEXT
from moewatch.cli import output
from moewatch.cli.options import add_output, new_parser, typed
from moewatch.clock import SystemClock
from moewatch.domain.estimate import Estimate
from moewatch.errors import ExitCode
from moewatch.units import parse_size


def _tokens(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) <= MAX_CONTEXT):
        raise ValueError(f"{text!r} is no number of tokens; write for instance 8192")
    return int(text)


def _rate(text: str) -> int:
    rate = parse_size(text.removesuffix("/s"))
    if rate <= 0:
        raise ValueError(f"{text!r} is no rate; write for instance 3G or 500MB")
    return rate


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "estimate",
        "Before you download: what a model is made of, whether it runs here, how fast, and with which flags.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL-OR-URL",
        help="a file, any shard, a folder, an http(s) address (only its header is read), or hf:owner/repo[:quantisation]",
    )
    group = parser.add_argument_group("the machine (this one where nothing is said)")
    group.add_argument("--ram", type=typed(parse_size), metavar="SIZE", help="memory, e.g. 32G")
    group.add_argument("--vram", type=typed(parse_size), metavar="SIZE", help="memory of all GPUs, e.g. 12G; 0: none")
    group.add_argument(
        "--disk-rate", type=typed(_rate), metavar="R", help="random reads of 128 KiB, bytes a second, e.g. 3G"
    )
    group.add_argument(
        "--measure",
        action="store_true",
        help="measure disk and memory for three seconds (without a model file: writes 256 MiB)",
    )
    group.add_argument("--dir", metavar="DIR", help="where the model will lie, if not where it is or here")
    group.add_argument("--server", metavar="PROGRAM", help="the llama-server to ask for its flags and devices")
    group = parser.add_argument_group("what it shall do")
    group.add_argument(
        "--ctx", type=typed(_tokens), metavar="N", help="context in tokens (default 8192, or less if trained for less)"
    )
    group.add_argument(
        "--kv-type",
        choices=tuple(KV_TYPES),
        default=DEFAULT_KV_TYPE,
        metavar="T",
        help=f"type of the context's cache: {', '.join(KV_TYPES)}",
    )
    group.add_argument(
        "--prompt", type=typed(_tokens), default=512, metavar="N", help="tokens of the prompt (default 512)"
    )
    group.add_argument(
        "--compare", action="store_true", help="all quantisations in the same folder or repository, and the best fit"
    )
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Read the headers, look at the machine, and say what is to be expected."""
    # late: `moewatch --help` and a command line that makes no sense need none of it
    from moewatch.analysis.estimate import best_fit, derive_estimate  # noqa: PLC0415 - as said
    from moewatch.cli.machine import read_machine  # noqa: PLC0415 - as said
    from moewatch.cli.modelarg import NamedModel, read_models  # noqa: PLC0415 - as said
    from moewatch.export import estimate as words  # noqa: PLC0415 - as said
    from moewatch.server.installed import find_server  # noqa: PLC0415 - as said

    clock = SystemClock()
    server = find_server(options.server)
    models = read_models(options.model, clock, compare=options.compare)
    machine = read_machine(options, server, models[0].local_path, clock)

    def derive(model: NamedModel) -> Estimate:
        return derive_estimate(
            model.parts,
            machine,
            context=options.ctx,
            kv_type=options.kv_type,
            prompt_tokens=options.prompt,
            knows=server.knows,
        )

    estimates = [derive(model) for model in models]
    if options.ram is None and options.vram is None:  # of this machine, which `moewatch` may see it run on
        for each in estimates:
            _keep(each)
    best = best_fit(estimates) if options.compare else None
    shown = best or 0
    rows = [(model.label, estimate) for model, estimate in zip(models, estimates, strict=True)]
    if options.json:
        record = words.estimate_json(estimates[shown], models[shown].words)
        output.json_line(record | (words.comparison_json(rows, best) if options.compare else {}))
        return int(ExitCode.OK)
    lines = words.format_estimate(estimates[shown], models[shown].words)
    if options.compare:
        lines = [*words.format_comparison(rows, best), "", *lines]
    for line in lines:
        output.line(line)
    return int(ExitCode.OK)


def _keep(estimate: Estimate) -> None:
    """To be held against what is measured later; nothing is lost where it cannot be kept."""
    from moewatch.sources.estimates import KeptEstimate, keep_estimate  # noqa: PLC0415 - as late as the rest

    expected = estimate.expectation.tokens_per_s
    if estimate.parts.digest and expected.low > 0:
        kept = KeptEstimate(
            low_tokens_per_s=expected.low, high_tokens_per_s=expected.high, ram_bytes=estimate.machine.ram_bytes
        )
        keep_estimate(estimate.parts.digest, kept)
