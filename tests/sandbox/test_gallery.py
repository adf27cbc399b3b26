import gallery
import pytest

ENTRIES = gallery.read("cheats") + gallery.read("honest")


@pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])
def test_every_cheat_and_every_honest_twin_gets_its_verdict(entry, verdicts):
    if entry.name not in verdicts:
        pytest.skip("this machine's isolation level does not keep it out")
    verdict = verdicts[entry.name]
    assert entry.accepts(verdict), (
        f"wanted {entry.wanted}, got {verdict.status.value}/{verdict.rule}: {verdict.reason}\n{verdict.log[-1500:]}"
    )
    if entry.min_ms:
        assert verdict.times_ms["candidate"] > entry.min_ms
    if verdict.speedup is not None:
        assert verdict.speedup["eager"][0] <= entry.max_speedup
