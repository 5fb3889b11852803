"""."""

from __future__ import annotations

from vmpin.features.network.vm_network import VmNetDevice, workers_of_queues


def device(vhost: int, plugged: bool = False) -> VmNetDevice:
    return VmNetDevice("tap", "", vhost, vhost, plugged=plugged)


def test_workers_serve_queues_in_the_order_of_both() -> None:
    assert workers_of_queues([device(2), device(1)], 0, [11, 12, 13]) == [(11, 12), (13,)]


def test_vsocks_worker_comes_after_every_netdev_of_the_command_line() -> None:
    assert workers_of_queues([device(2), device(1)], 1, [11, 12, 13, 14]) == [(11, 12), (13,)]


def test_a_plugged_device_comes_after_vsock() -> None:
    assert workers_of_queues([device(1), device(2, plugged=True)], 1, [11, 12, 13, 14]) == [
        (11,), (13, 14)]


def test_nothing_is_inferred_where_the_numbers_do_not_fit() -> None:
    assert workers_of_queues([device(2)], 0, [11]) == [()]
    assert workers_of_queues([device(1)], 0, [11, 12]) == [()]


def test_a_device_without_vhost_has_no_worker() -> None:
    assert workers_of_queues([device(0), device(1)], 0, [11]) == [(), (11,)]
    assert workers_of_queues([], 0, []) == []
