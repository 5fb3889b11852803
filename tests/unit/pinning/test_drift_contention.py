"""Threads that another hand moves again and again are left alone: on real processes."""

from __future__ import annotations

import logging

import drift_steps
import pytest
from drift_steps import contend, log, mask
from strayed import Spinners

from vmpin.domain.contention import ContentionRules, OnContention
from vmpin.domain.model import SandboxId

node = drift_steps.node


def test_contention_is_reported_once_loudly_and_the_thread_is_left_alone(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm, other = node.vm(), node.vm("b")
    for moved_vm in (vm, other):
        assert node.repair(moved_vm) == 0
    assert contend(node, vm, 10) == 3
    assert mask(vm) == node.there
    (record,) = log(caplog, "contention")
    assert record.levelno == logging.ERROR
    assert f"sandbox={vm.sandbox} threads=1: put back 3 times within 60 s" in record.message
    assert "left alone for 300 s" in record.message
    (note,) = node.node_state.pinner.refusals(vm.sandbox)
    assert note == ("1 thread is moved by another program again and again (the last time: nothing known of sets "
                    "such masks here) and is left alone (drift.on_contention=rest)")
    assert node.node_state.pinner.drift_tracker.contended == 1
    assert node.node_state.pinner.drift_tracker.contended_by == {vm.sandbox: 1}
    assert contend(node, other, 1) == 1  # no other program moves that one
    assert node.node_state.pinner.refusals(other.sandbox) == []


def test_no_contention_begins_before_the_reports_that_wait_are_read(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    """What moved the thread once more may have been the runtime."""
    vm = node.vm()
    waiting = set[SandboxId]()
    node.node_state.judge_drift_after(lambda: waiting)
    assert node.repair(vm) == 0
    assert contend(node, vm, 3) == 3
    waiting.add(vm.sandbox)
    node.move(vm, node.there)
    assert node.repair(vm) == 0
    assert log(caplog, "contention") == []
    assert node.node_state.pinner.drift_tracker.contended == 0
    waiting.clear()
    assert node.repair(vm) == 0
    assert len(log(caplog, "contention")) == 1, "the reports explained nothing"


def test_a_thread_that_is_left_alone_follows_a_new_decision(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    assert contend(node, vm, 5) == 3
    both = node.here | node.there
    node.place(vm.sandbox, both)
    assert node.repair(vm) == 1
    assert mask(vm) == both
    assert node.node_state.pinner.refusals(vm.sandbox) == []


def test_after_its_rest_a_thread_is_tried_again_and_contention_goes_on_quietly(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    vm = node.vm()
    drifts = node.node_state.pinner.drift_tracker
    drifts.now = lambda: now
    drifts.contention.rules = ContentionRules(rest=1.0)
    assert node.repair(vm) == 0
    assert contend(node, vm, 4) == 3
    assert node.repair(vm) == 0
    now += 1.1
    assert node.repair(vm) == 1  # nothing else happened: its time has come
    assert node.repair(vm) == 0
    assert contend(node, vm, 2) == 0
    assert mask(vm) == node.there
    assert [record.levelno for record in log(caplog, "contention")] == [logging.ERROR, logging.INFO]
    now += 1.1
    assert node.repair(vm) == 0  # it rests twice as long now
    now += 1.1
    assert node.repair(vm) == 1
    assert drifts.contended == 1


def test_by_hand_it_is_taken_up_again(node: Spinners) -> None:
    vm = node.vm()
    node.node_state.pinner.drift_tracker.contention.rules = ContentionRules(OnContention.LEAVE)
    assert node.repair(vm) == 0
    assert contend(node, vm, 5) == 3
    node.node_state.pinner.retry_now()
    assert node.repair(vm) == 1
    assert mask(vm) == node.here
    assert node.node_state.pinner.refusals(vm.sandbox) == []


def test_a_persistent_writer_is_logged_once_and_repaired(node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm = node.vm()
    node.node_state.pinner.drift_tracker.contention.rules = ContentionRules(OnContention.PERSIST)
    assert node.repair(vm) == 0
    assert contend(node, vm, 12) == 12
    assert mask(vm) == node.here
    first, *later = [record.levelno for record in log(caplog, "contention")]
    assert first == logging.ERROR
    assert set(later) == {logging.INFO}
    pinner = node.node_state.pinner
    assert pinner.refusals(vm.sandbox) == [
        "1 thread is moved by another program again and again (the last time: nothing known of sets such masks "
        "here) "
        "and is put back each time (drift.on_contention=persist)"]
    pinner.retry_now()
    assert pinner.refusals(vm.sandbox) == []


def test_a_thread_that_ended_in_contention_is_forgotten(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    assert contend(node, vm, 5) == 3
    node.end(vm)
    node.node_state.pinner.keep_only([])
    assert not node.node_state.pinner.drift_tracker.contention
    assert node.node_state.pinner.refusals(vm.sandbox) == []
