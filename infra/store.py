"""Start SeaweedFS as an S3 store in which only the S3 port can be used: `python -m infra.store
--data DIR`, here and in containers.

SeaweedFS is four servers, of which only S3 asks for a key; master, volume and filer would let
anybody read, replace and delete every object. So each of their ports, HTTP and gRPC, demands a
certificate. Each start creates an authority, signs one certificate, kept in a private folder, and
discards the authority's key. `--bind` opens S3 to other machines; the others stay on loopback.
"""

import datetime
import ipaddress
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = "127.0.0.1"
# Each has a port of its own, counted from the S3 port, and another one 10,000 above.
PARTS = ("s3", "master", "volume", "filer")
KEY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
CERTIFICATES = ".certificates"
_VALID = datetime.timedelta(days=36_500)


def command(
    data: Annotated[Path, typer.Option(help="folder of the objects")],
    port: Annotated[
        int, typer.Option(help="port of S3; other servers use the next 3, and gRPC all + 10,000")
    ] = 8333,
    bind: Annotated[str, typer.Option(help="address on which S3 listens")] = LOOPBACK,
) -> None:
    """Become `weed server`; its S3 user comes from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."""
    if lacking := [name for name in KEY if not os.environ.get(name, "").strip()]:
        raise typer.BadParameter(
            f"{lacking[0]} is empty or not set, and without a key SeaweedFS serves everybody; set"
            f" {' and '.join(KEY)}"
        )
    os.umask(0o077)
    weed = Path(sys.executable).with_name("weed")
    folder = data.resolve()
    variables = draw_certificates(folder / CERTIFICATES)
    os.chdir(folder)
    command = [str(weed), *arguments(folder, port=port, bind=bind)]
    os.execve(weed, command, {**os.environ, **variables})


def arguments(folder: Path, *, port: int, bind: str) -> list[str]:
    ports = [f"-{part}.port={port + number}" for number, part in enumerate(PARTS)]
    # Relative to the folder in which it runs, because a socket's path has at most 107 bytes.
    sockets = [f"-{part}.localSocket={CERTIFICATES}/{part}" for part in ("s3", "filer")]
    closed = [
        f"-s3.allowedOrigins=http://{LOOPBACK}:{port}",
        "-s3.iam=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-master.electionTimeout=1s",
    ]
    # As many volumes as fit on the disk; one bucket would take all of the default eight.
    sizes = ["-master.volumeSizeLimitMB=1024", "-volume.max=0"]
    addresses = [f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", f"-s3.ip.bind={bind}"]
    server = ["server", f"-dir={folder}", "-s3", "-volume.preStopSeconds=1"]
    return [*server, *addresses, *ports, *sockets, *closed, *sizes]


def draw_certificates(folder: Path) -> dict[str, str]:
    """Create an authority and a certificate; return variables that make the servers demand it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _sign("authority", authority_key.public_key(), authority_key, is_authority=True)
    certificate = _sign("store", key.public_key(), authority_key, is_authority=False)
    files = {"ca": folder / "ca.pem", "cert": folder / "cert.pem", "key": folder / "key.pem"}
    files["ca"].write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files["cert"].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files["key"].touch(mode=0o600)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files["key"].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    settings = {"WEED_GRPC_CA": str(files["ca"]), "WEED_HTTPS_CLIENT_ENABLED": "true"}
    for name, file in files.items():
        https = [f"HTTPS_{part}" for part in ("MASTER", "VOLUME", "FILER", "CLIENT")]
        grpc = [f"GRPC_{part}" for part in ("MASTER", "VOLUME", "FILER", "S3", "CLIENT")]
        parts = https if name == "ca" else [*https, *grpc]
        settings |= {f"WEED_{part}_{name.upper()}": str(file) for part in parts}
    return settings


def _sign(
    name: str,
    public_key: ec.EllipticCurvePublicKey,
    authority_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named("authority"))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if not is_authority:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        address = x509.IPAddress(ipaddress.ip_address(LOOPBACK))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"throughline {name}")])


if __name__ == "__main__":
    typer.run(command)
