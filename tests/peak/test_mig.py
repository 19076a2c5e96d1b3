"""How many multiprocessors a slice can have."""

from __future__ import annotations

import pytest

from mfu_torch.peak.mig import why_not_of
from mfu_torch.peak.table import peak_for
from mfu_torch.records import Device, UnknownPeak

GIB = 2**30


@pytest.mark.parametrize(
    ("profile", "sms", "of", "gib"),
    [
        # NVIDIA's MIG user guide, and nvidia-smi mig -lgip and -lcip
        ("1g.5gb", 14, 108, 40),
        ("1g.5gb+me", 14, 108, 40),
        ("3g.20gb", 42, 108, 40),
        ("1c.3g.20gb", 14, 108, 40),
        ("2c.3g.20gb", 28, 108, 40),
        ("7g.40gb", 98, 108, 40),
        ("1g.20gb", 26, 132, 80),
        ("3g.40gb", 60, 132, 80),
        ("1c.3g.40gb", 16, 132, 80),
        ("1g.6gb", 14, 56, 24),
        ("4g.24gb", 56, 56, 24),
        ("1g.24gb", 46, 188, 96),
        ("1g.12gb", 16, 132, None),
    ],
)
def test_profiles_as_drivers_cut_them_pass(
    profile: str, sms: int, of: int, gib: int | None
) -> None:
    assert why_not_of(profile, sms, of, None if gib is None else gib * GIB, "it") == ""


@pytest.mark.parametrize(
    ("profile", "sms", "of", "gib"),
    [
        ("1g.5gb", 28, 108, 40),
        ("1c.3g.20gb", 42, 108, 40),
        ("1c.3g.20gb", 28, 108, 40),
        ("2c.7g.40gb", 98, 108, 40),
        ("3g.20gb", 98, 108, 40),
        ("1g.10gb", 32, 132, 80),
        ("1g.12gb", 132, 132, None),
    ],
)
def test_too_many_for_the_profile_are_refused(
    profile: str, sms: int, of: int, gib: int | None
) -> None:
    why = why_not_of(profile, sms, of, None if gib is None else gib * GIB, "the 132 SMs")
    assert why == f"it reports {sms} of the 132 SMs, which is too many for the MIG slice {profile}"


@pytest.mark.parametrize("profile", ["half", "0g.0gb", "1", "g.5gb"])
def test_a_profile_of_unknown_form_is_of_unknown_size(profile: str) -> None:
    device = Device(name="NVIDIA A100-SXM4-40GB", kind="cuda", sm_count=14, mig=profile)
    with pytest.raises(UnknownPeak, match=f"slice {profile}, and how large .* is not known"):
        peak_for(device, "bf16")
