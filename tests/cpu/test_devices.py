"""Rates of this machine, and proofs of instruction sets by running code."""

import json

import pytest

from sartor.devices import rates
from sartor.devices.probe import device_for, host_device, measure, prove
from sartor.devices.processor import host_isas
from sartor.errors import UnsupportedError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SARTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rates, "_SECONDS", 0.002)
    monkeypatch.setattr(rates, "_TASKS", 20)
    monkeypatch.setattr(rates, "_working_sets", lambda device, threads: {"l1": 16 << 10})
    return tmp_path / "cache"


def test_rates_are_measured_once_and_kept(cache, monkeypatch):
    device = measure(host_device())
    assert device.measured["multiply_adds_f32_1"] > device.measured["multiply_adds_f64_1"] > 1e8
    assert device.measured["bytes_l1_1"] > 1e8
    assert device.fingerprint == host_device().fingerprint
    monkeypatch.setattr(rates, "_measure", lambda device: pytest.fail("measured twice"))
    assert measure(host_device()).measured == device.measured


def test_damaged_kept_figures_are_measured_anew(cache):
    cache.mkdir()
    (cache / "devices.json").write_text("{")
    assert measure(host_device()).measured
    json.loads((cache / "devices.json").read_text())


def test_a_cache_folder_that_cannot_be_written_costs_nothing_but_time(cache, monkeypatch):
    cache.parent.joinpath("file").write_text("")
    monkeypatch.setenv("SARTOR_CACHE", str(cache.parent / "file" / "cache"))
    assert measure(host_device()).measured


def test_every_level_of_this_machine_is_proved_and_remembered(cache, monkeypatch):
    prove(host_isas()[-1])
    monkeypatch.setattr(rates.subprocess, "run", lambda *a, **k: pytest.fail("proved twice"))
    prove(host_isas()[-1])


def test_a_level_whose_code_fails_is_refused_with_the_reason(cache, monkeypatch):
    done = rates.subprocess.CompletedProcess([], -4, "", "")
    monkeypatch.setattr(rates.subprocess, "run", lambda *a, **k: done)
    with pytest.raises(UnsupportedError, match="SIGILL"):
        prove(host_isas()[0])
    with pytest.raises(UnsupportedError, match="SIGILL"):  # from what is kept
        prove(host_isas()[0])


def test_foreign_devices_are_not_measured(cache):
    with pytest.raises(UnsupportedError, match="cannot be measured here"):
        measure(device_for("neon" if "neon" not in host_isas() else "avx2"))


def test_the_best_level_that_runs_is_compiled_for(cache, monkeypatch, caplog):
    levels = host_isas()

    def fail_best(isa):
        if isa == levels[-1] and len(levels) > 1:
            raise UnsupportedError(f"code for {isa} does not run")

    monkeypatch.setattr(rates, "prove_isa", fail_best)
    expected = levels[-2] if len(levels) > 1 else levels[-1]
    assert host_device(proved=True).target.isa == expected
    assert ("does not run" in caplog.text) == (len(levels) > 1)
    assert host_device().target.isa == levels[-1]
