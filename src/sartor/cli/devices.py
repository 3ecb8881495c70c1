"""`sartor devices`: what is known of this machine."""

from __future__ import annotations

import click

from sartor.cli.common import bytes_text, print_json, print_table, rate_text, status, verb


@click.command("devices")
@click.option("--refresh", is_flag=True, help="Measure anew, although figures are kept.")
@click.option("--quick", is_flag=True, help="Only ask the system; measure nothing.")
@verb
def command(refresh: bool, quick: bool, as_json: bool) -> int:
    """Show this machine's processor, instruction sets, caches and measured rates.

    Rates are measured once (a few seconds) and kept in the cache folder, which SARTOR_CACHE names.

    \b
    Example:
      sartor devices
      sartor devices --refresh --json
    """
    from sartor.devices.probe import host_device, measure
    from sartor.devices.processor import host_isas

    device = host_device()
    if not quick:
        with status("measuring"):
            device = measure(device, refresh)
    if as_json:
        print_json(
            {
                "name": device.name,
                "isa": device.target.isa,
                "isas": host_isas(),
                "cores": device.cores,
                "l1_bytes": device.l1_bytes,
                "l2_bytes": device.l2_bytes,
                "l3_bytes": device.l3_bytes,
                "fingerprint": device.fingerprint,
                "measured": dict(device.measured),
            }
        )
        return 0
    rows = [
        ("processor", device.name),
        ("instruction sets", ", ".join(host_isas())),
        ("cores", device.cores),
        (
            "caches",
            ", ".join(f"L{i} {bytes_text(n)}" for i, n in enumerate((device.l1_bytes, device.l2_bytes, device.l3_bytes), 1)),
        ),
    ]
    rows += [(key, _rate(key, value)) for key, value in device.measured.items()]
    print_table(("what", "found"), rows)
    return 0


def _rate(key: str, value: float) -> str:
    if key == "task_seconds":
        return f"{value * 1e6:.2f} µs"
    return rate_text(2 * value, "FLOP/s") if key.startswith("multiply_adds") else rate_text(value, "B/s")
