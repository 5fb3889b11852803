"""A container image of busybox alone, as a tar file in OCI's image layout. Pods are made of it and so are containers:
what it starts sleeps."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

NAME = "docker.io/library/vmpin-busybox:1"
_DIRECTORIES = ("bin", "dev", "etc", "proc", "sys", "tmp")


def write(path: Path, busybox: Path) -> None:
    """:param busybox: a static one."""
    layer = _tar({"bin/busybox": busybox.read_bytes()}, _DIRECTORIES)
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    config = blob("config.v1+json", _json({
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        "config": {"Entrypoint": ["/bin/busybox"], "Cmd": ["sleep", "86400"], "Env": ["PATH=/bin"]}}))
    manifest = blob("manifest.v1+json", _json({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
        "layers": [blob("layer.v1.tar", layer)]}))
    index = {"schemaVersion": 2, "manifests": [{
        **manifest, "platform": {"architecture": "amd64", "os": "linux"},
        "annotations": {"io.containerd.image.name": NAME, "org.opencontainers.image.ref.name": "1"}}]}
    path.write_bytes(_tar({"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs}))


def _json(data: object) -> bytes:
    return json.dumps(data).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _tar(files: dict[str, bytes], directories: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in directories:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
