"""What the system says of a machine, as files made for the purpose and as this machine's own."""

import math
import os

import pytest

from sartor.devices import probe, processor
from sartor.errors import OptionError, UnsupportedError

V2 = "sse4_1 sse4_2 ssse3 popcnt cx16 lahf_lm"
V3 = V2 + " abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"


def write(folder, **contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_host_is_described():
    device = probe.host_device()
    assert device.target.isa == processor.host_isas()[-1]
    assert 1 <= device.cores <= len(os.sched_getaffinity(0))
    assert 1024 <= device.l1_bytes <= device.l2_bytes <= device.l3_bytes
    assert device.name in device.fingerprint
    assert device.target.isa in device.fingerprint
    assert not device.measured


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (V2, ("sse4",)),
        (V2 + " avx avx2 fma", ("sse4",)),
        (V3, ("sse4", "avx2")),
        (V3 + " avx512f avx512cd", ("sse4", "avx2")),
        (V3 + " avx512f avx512bw avx512cd avx512dq avx512vl", ("sse4", "avx2", "avx512")),
    ],
)
def test_levels_follow_from_flags(monkeypatch, flags, levels):
    monkeypatch.setattr(processor, "cpuinfo", lambda key: flags)
    monkeypatch.setattr(processor, "machine", lambda: "x86_64")
    monkeypatch.delenv("SARTOR_ISA", raising=False)
    processor._host_levels.cache_clear()
    try:
        assert processor.host_isas() == levels
    finally:
        processor._host_levels.cache_clear()


def test_a_processor_without_any_level_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(processor, "_host_levels", tuple)
    with pytest.raises(UnsupportedError, match="none of the instruction sets"):
        processor.host_isas()


def test_a_lesser_machine_can_be_simulated(monkeypatch):
    lowest = processor.host_isas()[0]
    monkeypatch.setenv("SARTOR_ISA", lowest)
    assert processor.host_isas() == (lowest,)
    assert probe.host_device().target.isa == lowest
    monkeypatch.setenv("SARTOR_ISA", "sse9")
    with pytest.raises(OptionError, match="sse9"):
        processor.host_isas()


def test_devices_for_other_machines(monkeypatch):
    monkeypatch.delenv("SARTOR_ISA", raising=False)
    lower = probe.device_for(processor.host_isas()[0])
    assert lower.l2_bytes == probe.host_device().l2_bytes
    foreign = probe.device_for("neon" if "neon" not in processor.host_isas() else "avx2", cores=4)
    assert foreign.cores == 4
    assert foreign.target.isa not in processor.host_isas()
    with pytest.raises(OptionError):
        probe.device_for("mmx")


def test_caches_as_the_system_lists_them(tmp_path):
    write(tmp_path / "index0", type="Data\n", level="1\n", size="48K\n")
    write(tmp_path / "index1", type="Instruction\n", level="1\n", size="32K\n")
    write(tmp_path / "index2", type="Unified\n", level="2\n", size="2M\n")
    assert probe.cache_sizes(tmp_path) == {1: 48 << 10, 2: 2 << 20, 3: 2 << 20}
    write(tmp_path / "index3", type="Unified\n", level="3\n", size="32768K\n")
    assert probe.cache_sizes(tmp_path)[3] == 32 << 20
    assert probe.cache_sizes(tmp_path / "nowhere") == probe._CACHES


@pytest.mark.parametrize(
    ("files", "membership", "quota"),
    [
        ({"cpu.max": "max 100000"}, "0::/", float("inf")),
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"a/cpu.max": "max 100000", "a/b/cpu.max": "300000 100000", "cpu.max": "400000 100000"}, "0::/a/b", 3),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, "0::/a/b", 0.5),
        ({"cpu.max": "200000 100000"}, "0::/a/group/of/the/host", 2),
        (
            {"cpu,cpuacct/cpu.cfs_quota_us": "250000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            "3:cpu,cpuacct:/\n2:memory:/",
            2.5,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/x", float("inf")),
        ({"cpu/x/cpu.cfs_quota_us": "100000", "cpu/x/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/x", 1),
        ({}, "0::/", float("inf")),
        ({"cpu.max": "nonsense"}, "0::/", float("inf")),
    ],
)
def test_quota_of_the_control_group(tmp_path, files, membership, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "membership").write_text(membership + "\n")
    assert processor.cgroup_quota(str(tmp_path / "membership"), str(tmp_path)) == quota
    assert processor.cgroup_quota(str(tmp_path / "absent"), str(tmp_path)) == float("inf")


@pytest.mark.parametrize(("quota", "cores"), [(math.inf, 8), (0.3, 1), (2.0, 2), (1.5, 2), (64.0, 8)])
def test_cores_are_bounded_by_the_quota(monkeypatch, quota, cores):
    monkeypatch.setattr(processor, "cgroup_quota", lambda: quota)
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert processor.usable_cores() == cores
