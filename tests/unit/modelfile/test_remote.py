"""Headers across a network: few requests, no byte too many, a token for the hub alone, and one sentence for every trouble."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from moewatch.clock import SystemClock
from moewatch.errors import ForbiddenError, MoewatchError, ParseError, UnusableFileError, UsageError
from moewatch.modelfile import remote
from moewatch.modelfile.fetcher import MAX_REDIRECTS, Fetcher, with_file_name
from moewatch.modelfile.hub import DEFAULT_ENDPOINT, Repository, download_url, list_models, parse_short, repository_of
from moewatch.modelfile.layout import derive_layout, read_layout
from moewatch.modelfile.remote import MAX_FETCH_BYTES, RemoteSource, read_remote_shard, read_remote_shards
from tests.support.gguf_models import ARCHITECTURES, qwen3moe, write_model
from tests.support.range_server import RangeServer, Request
from tests.unit.modelfile.test_hostile import CONTENTS

CLOCK = SystemClock()
TOKEN = "secret"  # noqa: S105 - of a server that this test runs


class QuickClock(SystemClock):
    """Does not wait between attempts."""

    def sleep_until(self, mono_ns: int, stop: object = None) -> bool:  # noqa: ARG002 - the protocol's
        return False


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with RangeServer() as running:
        yield running


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    with Fetcher(QuickClock()) as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    (path,) = write_model(qwen3moe(), tmp_path_factory.mktemp("remote") / "model.gguf")
    return path.read_bytes()


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_the_same_as_the_local_file(name: str, tmp_path: Path, server: RangeServer, fetcher: Fetcher) -> None:
    (path,) = write_model(ARCHITECTURES[name](), tmp_path / f"{name}.gguf")
    server.files[path.name] = path.read_bytes()
    here, there = read_layout(path), derive_layout(read_remote_shards(fetcher, server.url(path.name), CLOCK))
    assert there.tensors == here.tensors
    assert there.summary.total_bytes == here.summary.total_bytes
    assert len(server.seen) == 1
    assert all("Range" in headers for _, headers in server.seen)


@pytest.mark.parametrize("given", [0, 1, 2])
def test_all_shards_from_any(given: int, tmp_path: Path, server: RangeServer, fetcher: Fetcher) -> None:
    paths = write_model(qwen3moe(n_layer=4), tmp_path / "m.gguf", split_tensors=20)
    assert len(paths) == 3
    server.files.update({path.name: path.read_bytes() for path in paths})
    counted: list[tuple[int, int]] = []
    url = server.url(paths[given].name) + "?download=true"
    shards = read_remote_shards(fetcher, url, CLOCK, lambda done, count: counted.append((done, count)))
    assert derive_layout(shards).tensors == read_layout(paths[0]).tensors
    assert counted == [(1, 3), (2, 3), (3, 3)]
    assert len(server.seen) == 3
    assert all(path.endswith("?download=true") for path, _ in server.seen)


def test_a_shard_that_is_not_there(tmp_path: Path, server: RangeServer, fetcher: Fetcher) -> None:
    paths = write_model(qwen3moe(n_layer=4), tmp_path / "m.gguf", split_tensors=20)
    server.files.update({path.name: path.read_bytes() for path in paths[:2]})
    with pytest.raises(UnusableFileError, match=r"m-00003-of-00003.gguf \(404\)"):
        read_remote_shards(fetcher, server.url(paths[0].name), CLOCK)


def test_a_large_header_takes_two_requests_and_never_a_weight(
    tmp_path: Path, server: RangeServer, fetcher: Fetcher
) -> None:
    tokens = [f"token{number}" for number in range(150_000)]
    (path,) = write_model(qwen3moe().with_keys(**{"tokenizer.ggml.tokens": tokens}), tmp_path / "large.gguf")
    server.files[path.name] = path.read_bytes() + bytes(30 << 20)
    shard = read_remote_shard(fetcher, server.url(path.name), CLOCK)
    assert len(shard.header.tensors) == len(read_layout(path).tensors)
    assert len(server.seen) == 2
    assert server.sent_bytes == fetcher.fetched_bytes <= 8 << 20


def test_no_more_than_the_cap_is_fetched(server: RangeServer, fetcher: Fetcher) -> None:
    head = b"GGUF\x03\0\0\0" + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    key = (1).to_bytes(8, "little") + b"k" + (9).to_bytes(4, "little") + (8).to_bytes(4, "little")
    strings = (4_000_000).to_bytes(8, "little") + ((1).to_bytes(8, "little") + b"x") * 4_000_000
    server.files["huge.gguf"] = head + key + strings
    with pytest.raises(ParseError, match=r"huge\.gguf has a header of more than 16 MiB, which is not fetched"):
        read_remote_shard(fetcher, server.url("huge.gguf"), CLOCK)
    assert server.sent_bytes == MAX_FETCH_BYTES


@pytest.mark.parametrize("name", sorted(name for name, (content, _) in CONTENTS.items() if content))
def test_hostile_headers_end_in_one_sentence(name: str, server: RangeServer, fetcher: Fetcher) -> None:
    server.files["hostile.gguf"] = CONTENTS[name][0]
    with pytest.raises(MoewatchError) as caught:
        derive_layout(read_remote_shards(fetcher, server.url("hostile.gguf"), CLOCK))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert caught.value.exit_code == 5


def test_a_model_cut_off_anywhere(model: bytes, server: RangeServer, fetcher: Fetcher) -> None:
    for size in range(1, 4000, 97):
        server.files["cut.gguf"] = model[:size]
        with pytest.raises(UnusableFileError):
            read_remote_shards(fetcher, server.url("cut.gguf"), CLOCK)


class TestServers:
    """What a server may do wrong."""

    def read(self, fetcher: Fetcher, server: RangeServer, name: str = "m.gguf") -> None:
        read_remote_shards(fetcher, server.url(name), QuickClock())

    def test_no_ranges(self, model: bytes, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/m.gguf"] = lambda request: request.reply(200, model)
        with pytest.raises(UnusableFileError, match=r"sends files only whole \(no ranges\)"):
            self.read(fetcher, server)
        assert len(server.seen) == 1

    @pytest.mark.parametrize(
        ("body", "kind"), [(b"\n<!DOCTYPE html><p>", "text/plain"), (b"Sign in", "text/html; charset=utf-8")]
    )
    def test_a_web_page(self, body: bytes, kind: str, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/m.gguf"] = lambda request: request.reply(200, body, Content_Type=kind)
        with pytest.raises(UnusableFileError, match=r"m\.gguf is a web page and no model"):
            self.read(fetcher, server)

    @pytest.mark.parametrize(
        ("status", "error", "words"),
        [
            (401, ForbiddenError, "HF_TOKEN"),
            (403, ForbiddenError, "HF_TOKEN"),
            (404, UnusableFileError, "has no m.gguf"),
            (416, UnusableFileError, "empty or shorter"),
            (418, UnusableFileError, "answers 418"),
        ],
    )
    def test_refusals(
        self, status: int, error: type[MoewatchError], words: str, server: RangeServer, fetcher: Fetcher
    ) -> None:
        server.routes["/m.gguf"] = lambda request: request.reply(status, b"no")
        with pytest.raises(error, match=words):
            self.read(fetcher, server)
        assert len(server.seen) == 1

    @pytest.mark.parametrize(
        "said",
        [
            "",
            "bytes 1-100/4096",
            "bytes 0-9999999/99999999",
            "bytes 0-100/50",
            "bytes 0-99/*",
            "bytes 0-99/9999999999999999999",
            "pages 0-99/4096",
            "0",
        ],
    )
    def test_another_part_than_asked_for(self, said: str, model: bytes, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/m.gguf"] = lambda request: request.reply(206, model[:100], Content_Range=said)
        with pytest.raises(UnusableFileError, match=r"cannot be trusted|another part|more than 1 PiB"):
            self.read(fetcher, server)

    def test_more_than_asked_for_is_not_taken(self, model: bytes, server: RangeServer, fetcher: Fetcher) -> None:
        def answer(request: Request) -> None:
            request.send_response(206)
            request.send_header("Content-Range", f"bytes 0-{len(model) - 1}/{len(model)}")
            request.send_header("Connection", "close")
            request.end_headers()
            request.send(model + bytes(40 << 20))

        server.routes["/m.gguf"] = answer
        if len(model) <= remote.FIRST_SHARD_BYTES[0]:
            self.read(fetcher, server)
        assert fetcher.fetched_bytes < len(model) + (1 << 17)

    def test_compressed_parts(self, model: bytes, server: RangeServer, fetcher: Fetcher) -> None:
        said = f"bytes 0-{len(model) - 1}/{len(model)}"
        server.routes["/m.gguf"] = lambda request: request.reply(
            206, model, Content_Range=said, Content_Encoding="gzip"
        )
        with pytest.raises(UnusableFileError, match="compresses parts"):
            self.read(fetcher, server)

    def test_a_reply_that_is_cut_off_goes_on_where_it_ended(
        self, model: bytes, server: RangeServer, fetcher: Fetcher
    ) -> None:
        server.routes["/m.gguf"] = lambda request: request.send_range(
            model, cut_bytes=len(model) // 2 if request.count == 1 else 0
        )
        self.read(fetcher, server)
        assert [headers["Range"].startswith("bytes=0-") for _, headers in server.seen] == [True, False]

    def test_replies_that_are_always_cut_off(self, model: bytes, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/m.gguf"] = lambda request: request.send_range(model, cut_bytes=1)
        with pytest.raises(UnusableFileError, match="3 times"):
            self.read(fetcher, server)
        assert len(server.seen) == 3

    def test_a_busy_server_is_asked_again(self, model: bytes, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/m.gguf"] = lambda request: (
            request.reply(503, b"") if request.count < 3 else request.send_range(model)
        )
        self.read(fetcher, server)
        assert len(server.seen) == 3

    def test_a_server_that_stays_busy(self, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/m.gguf"] = lambda request: request.reply(429, b"")
        with pytest.raises(UnusableFileError, match="answers 429, 3 times"):
            self.read(fetcher, server)
        assert len(server.seen) == 3

    def test_nobody_listens(self, fetcher: Fetcher) -> None:
        with RangeServer() as gone:
            url = gone.url("m.gguf")
        with pytest.raises(UnusableFileError, match="no connection to the server, 3 times"):
            read_remote_shards(fetcher, url, QuickClock())

    def test_a_file_that_changes_meanwhile(self, tmp_path: Path, server: RangeServer, fetcher: Fetcher) -> None:
        tokens = [f"token{number}" for number in range(150_000)]
        (path,) = write_model(qwen3moe().with_keys(**{"tokenizer.ggml.tokens": tokens}), tmp_path / "m.gguf")
        content = path.read_bytes()
        server.routes["/m.gguf"] = lambda request: request.send_range(content + bytes(request.count))
        with pytest.raises(UnusableFileError, match="changed while it was read"):
            self.read(fetcher, server)

    @pytest.mark.parametrize("url", ["ftp://x/m.gguf", "http://", "http:///m.gguf", "http://[::1/m.gguf", "https://"])
    def test_no_web_address(self, url: str, fetcher: Fetcher) -> None:
        with pytest.raises(UnusableFileError, match="is no web address"):
            read_remote_shards(fetcher, url, CLOCK)


class TestEnvironment:
    """What is taken from it may be of no use."""

    @pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "ftp://127.0.0.1", "http://[::1"])
    def test_a_proxy_that_is_none(self, proxy: str, monkeypatch: pytest.MonkeyPatch, server: RangeServer) -> None:
        for name in ("NO_PROXY", "no_proxy", "all_proxy", "http_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("ALL_PROXY", proxy)
        with Fetcher(QuickClock()) as fetcher, pytest.raises(UsageError, match="The proxy that the environment names"):
            read_remote_shards(fetcher, server.url("m.gguf"), CLOCK)
        assert not server.seen

    def test_certificates_that_are_not_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        with Fetcher(QuickClock()) as fetcher, pytest.raises(UsageError, match="SSL_CERT_FILE"):
            read_remote_shards(fetcher, "https://127.0.0.1:1/m.gguf", CLOCK)

    @pytest.mark.parametrize("token", ["se\ncret", "sécret", "\x1b"])
    def test_a_token_that_is_none(self, token: str) -> None:
        with pytest.raises(UsageError, match="HF_TOKEN has characters"):
            Fetcher(CLOCK, token=token, token_origin=DEFAULT_ENDPOINT)

    @pytest.mark.parametrize("token", ["secret\n", " secret\r\n"])
    def test_the_line_feed_of_a_token_from_a_file(self, token: str, model: bytes, server: RangeServer) -> None:
        server.files["m.gguf"] = model
        with Fetcher(CLOCK, token=token, token_origin=server.origin) as fetcher:
            read_remote_shards(fetcher, server.url("m.gguf"), CLOCK)
        assert [headers.get("Authorization") for _, headers in server.seen] == ["Bearer secret"]


class TestRedirects:
    """Download hosts redirect; the token stays at home."""

    def test_followed_to_another_host_without_the_token(self, model: bytes, server: RangeServer) -> None:
        with RangeServer(files={"blob": model}) as store:
            server.routes["/m.gguf"] = lambda request: request.reply(302, b"", Location=store.url("blob?signed=1"))
            with Fetcher(CLOCK, token=TOKEN, token_origin=server.origin) as fetcher:
                read_remote_shards(fetcher, server.url("m.gguf"), CLOCK)
        assert [headers.get("Authorization") for _, headers in server.seen] == ["Bearer secret"]
        assert store.seen
        assert not any("secret" in str(seen) for seen in store.seen)

    def test_followed_within_the_hub_with_the_token(self, model: bytes, server: RangeServer) -> None:
        server.files["real.gguf"] = model
        server.routes["/m.gguf"] = lambda request: request.reply(307, b"", Location="/real.gguf")
        with Fetcher(CLOCK, token=TOKEN, token_origin=server.origin) as fetcher:
            read_remote_shards(fetcher, server.url("m.gguf"), CLOCK)
        assert [headers.get("Authorization") for _, headers in server.seen] == ["Bearer secret"] * 2

    def test_a_host_that_is_not_the_hub_never_sees_the_token(self, model: bytes, server: RangeServer) -> None:
        server.files["m.gguf"] = model
        for origin in ("https://huggingface.co", server.origin.replace("http:", "https:"), ""):
            with Fetcher(CLOCK, token=TOKEN, token_origin=origin) as fetcher:
                read_remote_shards(fetcher, server.url("m.gguf"), CLOCK)
        assert not any("Authorization" in headers for _, headers in server.seen)

    def test_later_parts_come_from_where_the_first_came(self, tmp_path: Path, server: RangeServer) -> None:
        tokens = [f"token{number}" for number in range(150_000)]
        (path,) = write_model(qwen3moe().with_keys(**{"tokenizer.ggml.tokens": tokens}), tmp_path / "m.gguf")
        with RangeServer(files={"blob": path.read_bytes()}) as store, Fetcher(CLOCK) as fetcher:
            server.routes["/m.gguf"] = lambda request: request.reply(302, b"", Location=store.url("blob"))
            read_remote_shards(fetcher, server.url("m.gguf"), CLOCK)
        assert (len(server.seen), len(store.seen)) == (1, 2)

    def test_a_circle(self, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/m.gguf"] = lambda request: request.reply(302, b"", Location="/m.gguf")
        with pytest.raises(UnusableFileError, match="more than 8 times"):
            read_remote_shards(fetcher, server.url("m.gguf"), CLOCK)
        assert len(server.seen) == MAX_REDIRECTS + 1

    @pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://x/y", "gopher://x"])
    def test_to_something_else(self, to: str, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/m.gguf"] = lambda request: request.reply(302, b"", Location=to)
        with pytest.raises(UnusableFileError, match="redirected to no web address"):
            read_remote_shards(fetcher, server.url("m.gguf"), CLOCK)

    @pytest.mark.parametrize("to", ["javascript:alert(1)", "http://a..b/x", f"http://{'a' * 70}/x", "mailto:a@b"])
    def test_to_a_host_that_has_no_name(self, to: str, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/m.gguf"] = lambda request: request.reply(302, b"", Location=to)
        with pytest.raises(UnusableFileError, match=r"m\.gguf (leads|is redirected) to no web address"):
            read_remote_shards(fetcher, server.url("m.gguf"), CLOCK)


class TestHub:
    """Short names and lists."""

    def serve(self, server: RangeServer, entries: object) -> Repository:
        listed = json.dumps(entries).encode()
        server.routes["/api/models/o/r/tree/main"] = lambda request: request.reply(200, listed)
        return parse_short("hf:o/r", server.origin)

    def test_models_of_a_repository(self, server: RangeServer, fetcher: Fetcher) -> None:
        names = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf", "m-Q4_K_M.gguf", "README.md",
                 "mmproj-F16.gguf", "m-IQ2_M-00001-of-00003.gguf"]  # fmt: skip
        entries = [{"type": "file", "path": name, "size": 10 + i} for i, name in enumerate(names)]
        repository = self.serve(server, [*entries, {"type": "directory", "path": "Q8_0", "size": 0}, 7, {}])
        found = list_models(fetcher, repository)
        assert [(choice.quantisation, choice.size_bytes, len(choice.paths)) for choice in found] == [
            ("Q4_K_M", 12, 1),
            ("Q8_0", 21, 2),
        ]
        assert repository.download_url(found[1].path) == server.url("o/r/resolve/main/Q8_0/m-Q8_0-00001-of-00002.gguf")

    def test_further_pages_of_the_hub_alone(self, server: RangeServer, fetcher: Fetcher) -> None:
        def page(request: Request) -> None:
            is_first = "cursor" not in request.path
            link = "</api/models/o/r/tree/main?cursor=2>" if is_first else "<http://127.0.0.1:1/elsewhere>"
            body = json.dumps([{"type": "file", "path": f"{is_first}.gguf", "size": 1}]).encode()
            request.reply(200, body, Link=f'{link}; rel="next"')

        server.routes["/api/models/o/r/tree/main"] = page
        assert len(list_models(fetcher, parse_short("hf:o/r", server.origin))) == 2
        assert len(server.seen) == 2

    @pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[" * 10_000, b"\xff"])
    def test_no_list(self, body: bytes, server: RangeServer, fetcher: Fetcher) -> None:
        server.routes["/api/models/o/r/tree/main"] = lambda request: request.reply(200, body)
        with pytest.raises(ParseError, match="The list of o/r is"):
            list_models(fetcher, parse_short("hf:o/r", server.origin))

    def test_a_list_that_cannot_be_had_is_named_after_its_repository(self, fetcher: Fetcher) -> None:
        with RangeServer() as gone:
            repository = parse_short("hf:o/r", gone.origin)
            with pytest.raises(UnusableFileError, match=r"The server has no o/r \(404\)"):
                list_models(fetcher, repository)
        with pytest.raises(UnusableFileError, match="o/r cannot be read: no connection"):
            list_models(fetcher, repository)

    @pytest.mark.parametrize("text", ["hf:", "hf:o", "hf:o/r/x", "hf:../r", "hf:o/r:", "hf:o/r:a b", "hf:o\x1b/r"])
    def test_no_short_name(self, text: str) -> None:
        with pytest.raises(MoewatchError, match="write hf:owner/repo") as caught:
            parse_short(text, "http://x")
        assert caught.value.exit_code == 2
        assert "\x1b" not in str(caught.value)

    def test_the_page_about_a_file_leads_to_its_download(self) -> None:
        hub = "https://huggingface.co"
        page = f"{hub}/o/r/blob/main/Q4/m.gguf"
        assert download_url(page, hub) == f"{hub}/o/r/resolve/main/Q4/m.gguf"
        assert download_url("https://elsewhere.org/o/r/blob/main/m.gguf", hub).endswith("/blob/main/m.gguf")
        assert repository_of(page, hub) == Repository(endpoint=hub, owner="o", name="r")
        assert repository_of("https://huggingface.co.evil.org/o/r/resolve/main/m.gguf", hub) is None


def test_another_file_name_in_an_address() -> None:
    assert with_file_name("http://h/a%20b/x.gguf?sig=a/b#f", "y z.gguf") == "http://h/a%20b/y%20z.gguf?sig=a/b#f"


def test_reads_beyond_the_first_chunk_ask_for_what_is_left(server: RangeServer, fetcher: Fetcher) -> None:
    content = bytes(range(256)) * (3 << 12)
    server.files["m.gguf"] = content
    source = RemoteSource(fetcher, server.url("m.gguf"), CLOCK)
    assert source.size_bytes == len(content)
    assert source.read(0, 100) == content[:100]
    assert source.read(2 << 20, 100) == content[2 << 20 : (2 << 20) + 100]
    assert source.read((2 << 20) + 50, 50) == content[(2 << 20) + 50 : (2 << 20) + 100]
    assert len(server.seen) == 2
