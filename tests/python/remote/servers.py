"""Servers of objects for the tests of remote frames, on loopback, each a context manager that ends what it started.

`SERVERS` has one class for each. Most are what others wrote (`need_servers` of scripts/lib.sh installs them); those of web.py are variants of
a web server that no program of others offers. A server has secrets of its own, new at each start, so that a test can look for them where they
must not be. What is not installed says so with `Unavailable`, which a test counts as skipped; what is and does not start is a failure.

    with SERVERS["moto"]() as server:
        server.copy_in(frame, "path/a.b2frame")
        server.url("path/a.b2frame"), server.environment()    # for b2fuse
"""

import base64
import functools
import importlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mounts import ROOT

TOOLS = Path(os.environ.get("B2FUSE_TOOLS") or ROOT / "target" / "tools")
BUCKET = "bucket"
# How long a server may take to listen. Most take a second.
START = 60
# How many objects are copied at the same time.
COPIES = 8


class Unavailable(Exception):
    """A server that is not installed here."""


def free_port():
    """A port that the system gives, for programs that cannot ask for one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def need(module):
    """A package of Python's, of a server or of its client."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{module} is not installed: {error}") from error


def without_proxies(environment):
    return {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}


class Server:
    """What all have in common: a process, a port, and objects by key."""

    name = None
    # What its URLs are: s3, azure or http.
    kind = None
    # Of the answers: strong, weak, modified (Last-Modified alone) or nothing.
    validator = "strong"
    ranges = True
    # Whether a GET with If-Match of another object is refused, so that a client need not look itself.
    holds_conditions = True

    def __init__(self):
        self.process = self.port = self.directory = None
        self.output = []

    # ---- Its life

    def __enter__(self):
        self.directory = Path(tempfile.mkdtemp(prefix=f"b2fuse-{self.name}-"))
        # Of servers that others wrote, some run as another user.
        self.directory.chmod(0o755)
        try:
            self.start()
            self.prepare()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, error, trace):
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self):
        raise NotImplementedError

    def prepare(self):
        """What is to be done before the first object."""

    def run(self, command, said, port=None, **options):
        """Starts a program, and waits until it says that it listens, with its port as the pattern's group if the port is not given."""
        if shutil.which(str(command[0])) is None:
            raise Unavailable(f"{command[0]} is not installed")
        environment = without_proxies(os.environ) | options.pop("environment", {})
        # It does not outlive the test, not even one that is killed.
        bound = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        self.process = subprocess.Popen(
            [str(word) for word in [*bound, *command]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=environment, text=True, errors="replace", **options,
        )  # fmt: skip
        found, ready = [], threading.Event()

        def read():
            # Until it ends: a pipe that is full would stop it.
            with self.process.stdout as pipe:
                for line in pipe:
                    self.output = [*self.output[-50:], line]
                    match = re.search(said, line)
                    if match and not found:
                        found.append(port or int(match.group(1)))
                        ready.set()
            ready.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        if not ready.wait(START) or not found:
            raise RuntimeError(f"{command[0]} does not start: {''.join(self.output).strip() or 'it says nothing'}")
        self.port = found[0]

    @property
    def address(self):
        return ("127.0.0.1", self.port)

    # ---- Its objects

    def url(self, key, via=None):
        """What b2fuse is given, with another address in front of this server's where it has one."""
        raise NotImplementedError

    def environment(self, via=None):
        """What b2fuse is given besides."""
        return {}

    def secrets(self):
        """Texts that must not be seen."""
        return []

    def put(self, key, content):
        raise NotImplementedError

    def get(self, key):
        raise NotImplementedError

    def delete(self, key):
        raise NotImplementedError

    def keys(self, prefix=""):
        raise NotImplementedError

    def copy_in(self, frame, key):
        """A frame of either layout, as anybody would upload it; the index of a sparse one comes last."""
        frame = Path(frame)
        if not frame.is_dir():
            self.put(key, frame.read_bytes())
            return
        files = sorted(file for file in frame.iterdir() if file.name != "chunks.b2frame")
        with ThreadPoolExecutor(COPIES) as pool:
            list(pool.map(lambda file: self.put(f"{key}/{file.name}", file.read_bytes()), files))
        self.put(f"{key}/chunks.b2frame", (frame / "chunks.b2frame").read_bytes())


class S3(Server):
    """With the client of Amazon's."""

    kind = "s3"

    def __init__(self):
        super().__init__()
        self.key_id, self.secret = f"AKIA{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30)
        self.clients = threading.local()

    @property
    def client(self):
        if not hasattr(self.clients, "client"):
            import boto3
            from botocore.config import Config

            self.clients.client = boto3.session.Session().client(
                "s3", endpoint_url=f"http://127.0.0.1:{self.port}", region_name="us-east-1", aws_access_key_id=self.key_id,
                aws_secret_access_key=self.secret, config=Config(s3={"addressing_style": "path"}, proxies={}, retries={"max_attempts": 1}),
            )  # fmt: skip
        return self.clients.client

    def prepare(self):
        self.client.create_bucket(Bucket=BUCKET)

    def url(self, key, via=None):
        return f"s3://{BUCKET}/{key}"

    def environment(self, via=None):
        host, port = via or self.address
        return {
            "AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true", "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    def secrets(self):
        return [self.secret]

    def presigned(self, key, via=None):
        """A URL that anybody can GET for some time; its signature is of the address in it."""
        import boto3
        from botocore.config import Config

        host, port = via or self.address
        client = boto3.session.Session().client(
            "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", aws_access_key_id=self.key_id,
            aws_secret_access_key=self.secret, config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
        )  # fmt: skip
        return client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=3600)

    def put(self, key, content):
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def get(self, key):
        return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def delete(self, key):
        self.client.delete_object(Bucket=BUCKET, Key=key)

    def keys(self, prefix=""):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))


class Moto(S3):
    """S3 in Python, which most programs for S3 are tested against. It checks no signatures."""

    name = "moto"

    def start(self):
        need("moto.server")
        self.run([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], r"Running on http://127\.0\.0\.1:(\d+)")


class S3sFs(S3):
    """S3 in Rust, over a directory. It checks signatures, and knows no If-Match."""

    name, holds_conditions = "s3s-fs", False

    def start(self):
        need("boto3")
        root = self.directory / "root"
        root.mkdir()
        port = free_port()
        self.run(
            [TOOLS / "bin" / "s3s-fs", "--host", "127.0.0.1", "--port", port, "--access-key", self.key_id, "--secret-key", self.secret, root],
            r"server is running at http://127\.0\.0\.1:(\d+)", environment={"RUST_LOG": "s3s_fs=info", "NO_COLOR": "1"},
        )  # fmt: skip


class Azurite(Server):
    """Azure's own emulator."""

    name, kind = "azurite", "azure"
    account = "b2fuse"

    def __init__(self):
        super().__init__()
        self.secret = base64.b64encode(secrets.token_bytes(64)).decode()

    def start(self):
        need("azure.storage.blob")
        self.run(
            [TOOLS / "npm" / "node_modules" / ".bin" / "azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", "0",
             "--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"],
            r"successfully listens on http://127\.0\.0\.1:(\d+)",
            environment={"AZURITE_ACCOUNTS": f"{self.account}:{self.secret}"}, cwd=self.directory,
        )  # fmt: skip

    @functools.cached_property
    def container(self):
        from azure.storage.blob import ContainerClient

        return ContainerClient(f"http://127.0.0.1:{self.port}/{self.account}", BUCKET, credential=self.secret)

    def prepare(self):
        self.container.create_container()

    def url(self, key, via=None):
        return f"az://{BUCKET}/{key}"

    def environment(self, via=None):
        host, port = via or self.address
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account, "AZURE_STORAGE_ACCOUNT_KEY": self.secret,
            "AZURE_ENDPOINT": f"http://{host}:{port}/{self.account}", "AZURE_STORAGE_ENDPOINT": f"http://{host}:{port}/{self.account}",
            "AZURE_ALLOW_HTTP": "true",
        }  # fmt: skip

    def secrets(self):
        return [self.secret]

    def put(self, key, content):
        self.container.upload_blob(key, content, overwrite=True)

    def get(self, key):
        return self.container.download_blob(key).readall()

    def delete(self, key):
        self.container.delete_blob(key)

    def keys(self, prefix=""):
        return sorted(self.container.list_blob_names(name_starts_with=prefix))


class Web(Server):
    """Files of a directory, by HTTP. What is put is there whole or not at all, with a time that no other object has."""

    kind = "http"

    def __init__(self):
        super().__init__()
        self.began, self.puts = int(time.time()) - 1_000_000, 0

    @property
    def files(self):
        return self.directory / "files"

    def start(self):
        self.files.mkdir()
        self.serve()

    def serve(self):
        raise NotImplementedError

    def url(self, key, via=None):
        host, port = via or self.address
        return f"http://{host}:{port}/{key}"

    def put(self, key, content):
        path = self.files / key
        path.parent.mkdir(parents=True, exist_ok=True)
        new = self.directory / f"new-{secrets.token_hex(8)}"
        new.write_bytes(content)
        new.chmod(0o644)
        # Times are shown in seconds: each object has one of its own.
        self.puts += 1
        os.utime(new, (self.began + self.puts, self.began + self.puts))
        new.rename(path)

    def get(self, key):
        return (self.files / key).read_bytes()

    def delete(self, key):
        (self.files / key).unlink()

    def keys(self, prefix=""):
        keys = (str(path.relative_to(self.files)) for path in self.files.rglob("*") if path.is_file())
        return sorted(key for key in keys if key.startswith(prefix))


class Nginx(Web):
    """Which makes strong ETags of time and length."""

    name = "nginx"

    def serve(self):
        port, top = free_port(), self.directory
        (top / "nginx.conf").write_text(f"""
            daemon off; master_process off; worker_processes 1; pid {top}/pid; error_log stderr notice;
            events {{ worker_connections 512; }}
            http {{
                access_log off; client_body_temp_path {top}/body; proxy_temp_path {top}/proxy; fastcgi_temp_path {top}/fastcgi;
                uwsgi_temp_path {top}/uwsgi; scgi_temp_path {top}/scgi;
                server {{ listen 127.0.0.1:{port}; root {self.files}; }}
            }}
        """)
        program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if program is None:
            raise Unavailable("nginx is not installed")
        # It listens before it says so.
        self.run([program, "-c", top / "nginx.conf", "-e", "stderr"], "using the .* event method", port)


class RangeHttpServer(Web):
    """HTTP 1.0 of Python's, a connection for each request, with Last-Modified alone."""

    name, validator, holds_conditions = "rangehttpserver", "modified", False

    def serve(self):
        need("RangeHTTPServer")
        self.run(
            [sys.executable, "-u", "-m", "RangeHTTPServer", "--bind", "127.0.0.1", "0"], r"Serving HTTP on 127\.0\.0\.1 port (\d+)", cwd=self.files
        )


class OwnWeb(Web):
    """The variants of web.py."""

    words = []

    def serve(self):
        self.run([sys.executable, "-u", Path(__file__).with_name("web.py"), *self.words, self.files], r"listening on (\d+)")


class StrongWeb(OwnWeb):
    name, words = "web-strong", ["--validator", "strong"]


class WeakWeb(OwnWeb):
    name, words, validator, holds_conditions = "web-weak", ["--validator", "weak"], "weak", False


class ModifiedWeb(OwnWeb):
    name, words, validator, holds_conditions = "web-modified", ["--validator", "modified"], "modified", False


class BareWeb(OwnWeb):
    name, words, validator, holds_conditions = "web-bare", ["--validator", "none"], "none", False


class WholeWeb(OwnWeb):
    """Which knows no ranges: each answer is the whole object."""

    name, words, ranges = "web-whole", ["--validator", "strong", "--whole"], False


ALL = [Moto, S3sFs, Azurite, Nginx, RangeHttpServer, StrongWeb, WeakWeb, ModifiedWeb, BareWeb, WholeWeb]
SERVERS = {server.name: server for server in ALL}


class RuleServer(Server):
    """The frames of rules.py, by S3 without signatures, and by HTTP."""

    name = "rules"

    def __init__(self, *rules):
        super().__init__()
        self.rules = rules

    def start(self):
        self.run([sys.executable, "-u", Path(__file__).with_name("rules.py"), *self.rules], r"listening on (\d+)")

    def url(self, key, via=None, kind="s3"):
        host, port = via or self.address
        return f"s3://{BUCKET}/{key}" if kind == "s3" else f"http://{host}:{port}/{BUCKET}/{key}"

    def environment(self, via=None):
        host, port = via or self.address
        return {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", "AWS_SKIP_SIGNATURE": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip
