"""Whether Secure Boot would let a module load: the key that signed it, against the keys that the node trusts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.host import read_secure_boot
from fleetctl.parse.modinfo import ModuleOnDisk
from fleetctl.parse.raw import command_of, file_of, one_line

# X509_print of OpenSSL: a serial number that fits into 64 bits stands on the line itself, in decimal and hexadecimal.
_SERIAL = re.compile(
    r"Serial Number:[ \t]*(?:\d+ \(0x(?P<short>[0-9a-f]+)\)|\n\s*(?P<long>[0-9A-Fa-f:]+)\s*$)", re.MULTILINE
)
_KEY_ID = re.compile(r"Subject Key Identifier:[^\n]*\n\s*([0-9A-Fa-f:]+)\s*$", re.MULTILINE)
# x509_key_preparse (crypto/asymmetric_keys/x509_public_key.c): "subject: key identifier", or the serial number if none.
_KERNEL_KEY = re.compile(r"\sasymmetri\s+(?P<subject>\S.*): (?P<key_id>[0-9a-f]{2,}): ")


@dataclass(frozen=True, slots=True)
class Certificate:
    """Both in lower case without colons and leading zeros; `key_id` is empty where the certificate has none."""

    serial: str
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class KernelKey:
    subject: str
    key_id: str


def read_signature(raw: RawFacts, module: Reading[ModuleOnDisk]) -> Reading[str]:
    """Empty if the module's key is trusted, else why the kernel would reject it. Not applicable: nothing checks it.

    The name of a key proves nothing: each machine may have made one of that name, and may have made it twice. So an
    enrolled certificate is told by its serial number. Only keys built into the kernel, whose certificates nobody can
    read, are told by name.
    """
    secure = read_secure_boot(raw)
    if not secure.is_known:
        return unknown(secure.reason) if secure.kind == "unknown" else not_applicable(secure.reason)
    if not secure.get():
        return not_applicable("Secure Boot is off")
    if not module.is_known:
        return not_applicable("no module was read")
    if not module.get().is_signed:
        return value_of("not signed")
    serial, signer = _plain(module.get().sig_key), module.get().signer
    if not serial:
        return unknown("modinfo does not tell which key signed the module")
    enrolled = read_certificates(raw, "enrolled_keys", "mokutil --list-enrolled")
    if any(certificate.serial == serial for certificate in enrolled.value or ()):
        return value_of("")
    firmware = read_certificates(raw, "firmware_keys", "mokutil --db")
    if any(certificate.serial == serial for certificate in firmware.value or ()):
        return unknown("the module's key is in the firmware's db: whether the kernel takes modules of it is not known")
    built_in = read_kernel_keys(raw)
    for reading in (enrolled, firmware, built_in):
        if not reading.is_known:
            return unknown(reading.reason)
    others = {certificate.key_id or certificate.serial for certificate in (*enrolled.get(), *firmware.get())}
    if any(_is_of(key, signer) for key in built_in.get() if key.key_id not in others):
        return value_of("")
    return value_of(f'signed by "{signer}" ({module.get().sig_key}), a key that is not enrolled')


def read_certificates(raw: RawFacts, name: str, what: str) -> Reading[tuple[Certificate, ...]]:
    ran = command_of(raw, name, what)
    if not ran.is_known:
        return unknown(ran.reason)
    # mokutil ends with 0 also after "Corrupted signature list".
    if ran.get().rc != 0 or ran.get().err.strip():
        return unknown(f"{what}: {ran.get().why}")
    if ran.get().truncated:
        return unknown(f"{what}: too many keys to read them all")
    found = []
    for part in re.split(r"^\[key ", ran.get().out, flags=re.MULTILINE)[1:]:
        serial, key_id = _SERIAL.search(part), _KEY_ID.search(part)
        if serial:  # others are hashes of programs, which sign nothing
            found.append(Certificate(_plain(serial["short"] or serial["long"]), _plain(key_id[1] if key_id else "")))
    return value_of(tuple(found))


def read_kernel_keys(raw: RawFacts) -> Reading[tuple[KernelKey, ...]]:
    """Certificates in the kernel's keyrings. It has some wherever it checks modules: to see none is to see nothing."""
    text = file_of(raw, "/proc/keys")
    if not text.is_known:
        return unknown(text.reason)
    found = tuple(KernelKey(key["subject"], _plain(key["key_id"])) for key in _KERNEL_KEY.finditer(text.get()))
    return value_of(found) if found else unknown("/proc/keys shows no key of the kernel: only root sees them")


def _is_of(key: KernelKey, signer: str) -> bool:
    """The kernel writes "organisation: common name" where the two differ (x509_fabricate_name)."""
    return bool(signer) and (key.subject == signer or key.subject.endswith(f": {signer}"))


def _plain(number: str) -> str:
    return one_line(number).replace(":", "").lower().lstrip("0")
