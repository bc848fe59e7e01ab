"""No secret is kept in the repository: every file that git knows is searched for the forms of keys, offline."""
from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gateway.access.keys import key_id, mint

ROOT = Path(__file__).parent.parent
FORMS = re.compile(
    "|".join([
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
        r"\bsk-(?:ant-[a-z0-9]+-|proj-|svcacct-)?[A-Za-z0-9_-]{40,}", r"\bsk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}",   # OpenAI, Anthropic and their kin
        r"\bAIza[0-9A-Za-z_-]{35}", r"\bya29\.[0-9A-Za-z_-]{20,}",                                                      # Google
        r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",                                                                               # Amazon
        r"\bgh[pousr]_[A-Za-z0-9]{36}", r"\bgithub_pat_[A-Za-z0-9_]{50,}", r"\bglpat-[A-Za-z0-9_-]{20}",                # GitHub, GitLab
        r"\bxox[abprs]-[A-Za-z0-9-]{10,}", r"hooks\.slack\.com/services/T[A-Z0-9]{8,}/B[A-Z0-9]{8,}/[A-Za-z0-9]{20,}",  # Slack
        r"\bhf_[A-Za-z0-9]{34}", r"\bpypi-[A-Za-z0-9_-]{50,}", r"\bnpm_[A-Za-z0-9]{36}",                                # registries
        r"\b[rs]k_live_[A-Za-z0-9]{20,}", r"\beyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{20,}",        # Stripe, signed tokens
        r"\btw_[a-z2-7]{10}_[A-Za-z0-9_-]{49}",                                                                         # our own
    ])
)  # fmt: skip
MADE_UP = re.compile(r"canary|example|fake|0123456789|abcdef|(.)\1{7}", re.IGNORECASE)
"""What stands in keys that tests and documents make up."""
KEY = next(key for _ in range(1_000) if MADE_UP.search(key := mint()[1].reveal()) is None)


def found(text: str) -> list[str]:
    hits = [hit[0] for hit in FORMS.finditer(text) if MADE_UP.search(hit[0]) is None]
    return [hit for hit in hits if not hit.startswith("tw_") or key_id(hit)]


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("this is no clone: what git knows cannot be told")
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name]


def test_the_repository_keeps_no_secret() -> None:
    hits = {}
    for path in tracked():
        if path.is_file() and (lines := found(path.read_bytes().decode("utf-8", "replace"))):
            hits[str(path.relative_to(ROOT))] = [line[:12] for line in lines]
    assert hits == {}


@pytest.mark.parametrize("secret", [
    "sk-" + "Zq8" * 16, "sk-ant-api03-" + "Zq8" * 20, "AKIA" + "Q7Z3" * 4, "ghp_" + "Zq8x" * 9, "AIza" + "Zq8xQ" * 7,
    "-----BEGIN " + "RSA PRIVATE KEY-----", "hf_" + "Zq" * 17, "eyJ" + "Zq8" * 6 + ".eyJ" + "Zq8" * 6 + "." + "Zq8" * 9, KEY,
])  # fmt: skip
def test_a_secret_would_be_found(secret: str) -> None:
    """In the middle of a line of any file."""
    assert found(f'key: "{secret}"  # in a comment') == [secret]
    assert found(secret + "\n") == [secret]
