"""Certificates for tests, made by the program openssl: an authority, and what it signs."""

import subprocess

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
SETTINGS = """[ca]
default_ca = here
[here]
dir = {folder}
database = {folder}/index
new_certs_dir = {folder}
serial = {folder}/serial
certificate = {folder}/ca.pem
private_key = {folder}/ca.key
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
"""


def openssl(*words, **options):
    done = subprocess.run(("openssl", *map(str, words)), capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"openssl {words[0]}: {done.stderr}")
    return done.stdout


class Authority:
    """Its files are in `folder`: `ca.pem`, and of each name a `.pem` and a `.key`."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        (folder / "index").touch()
        (folder / "serial").write_text("01\n")
        (folder / "settings").write_text(SETTINGS.format(folder=folder))
        self.certificate = folder / "ca.pem"
        openssl("req", "-x509", *CURVE, "-keyout", folder / "ca.key", "-out", self.certificate, "-days", 30, "-subj", "/CN=authority")

    def issue(self, name, alternatives="IP:127.0.0.1,DNS:localhost", begin="20200101000000Z", end="20700101000000Z"):
        """The certificate and the key of a name."""
        chain, key, request = (self.folder / f"{name}.{ending}" for ending in ("pem", "key", "request"))
        openssl("req", "-new", *CURVE, "-keyout", key, "-out", request, "-subj", f"/CN={name}", "-addext", f"subjectAltName={alternatives}")
        times = ("-startdate", begin, "-enddate", end)
        openssl("ca", "-batch", "-notext", "-config", self.folder / "settings", *times, "-in", request, "-out", chain)
        key.chmod(0o600)
        return chain, key
