"""What goes wrong on the machine of a story, and how it all comes right again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess

from real_node import talk

from soak import machines
from soak.oracle import Cpus
from soak.world import Guest, World, listed


class TroubledWorld(World):
    """A world in which anything happens."""

    processes_in_a_storm = 2000

    def kill_watcher(self) -> None:
        self.kill()
        self.frozen = False

    def end_watcher(self) -> None:
        if self.watcher is not None:
            code = self.stop()
            assert code == 0, f"the watcher ended with {code}\n{self.last_log()}"

    def start_watcher(self) -> None:
        if self.watcher is not None and self.watcher.poll() is not None:
            raise AssertionError(f"the watcher has ended with {self.watcher.returncode}\n{self.last_log()}")
        if self.watcher is None:
            self.start()

    def freeze(self, frozen: bool) -> None:
        if self.watcher is not None:
            self.watcher.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)
            self.frozen = frozen

    def reload(self) -> None:
        if self.watcher is not None:
            self.watcher.send_signal(signal.SIGHUP)

    def kill_vmm(self, guest: Guest) -> None:
        """No source reports it: its containers are there until the pod is removed."""
        self.end(guest)

    def turn_agent(self) -> bool:
        """Kill the agent in some guest, or start it again."""
        found = [guest.inside for guest in self.running() if guest.inside is not None]
        if found:
            self.agents.toggle(self.rng.choice(found))
        return bool(found)

    def write_masks(self, guest: Guest) -> None:
        """Another hand, over some threads."""
        assert guest.machine is not None
        guest.tainted |= guest.expected.held or not guest.settled
        found = machines.tids(guest.machine)
        rng = random.Random(self.rng.random())  # how many threads there are is not the seed's alone
        for tid in rng.sample(found, rng.randint(1, len(found))):
            cpus = rng.sample(sorted(self.everything), rng.randint(1, len(self.everything)))
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(tid, cpus)

    def work(self, guest: Guest, command: str) -> bool:
        """What the VM does of its own accord (vmm.c). :returns: whether it could; so do those below."""
        assert guest.machine is not None
        if command == "v":
            if guest.machine.vcpus >= guest.machine.most:
                return False
            guest.machine.add_vcpu()
            return True
        guest.tainted |= command == "m" and (guest.expected.held or not guest.settled)
        guest.machine.command(command)
        return True

    def storm(self) -> None:
        """`processes_in_a_storm`, one after the other."""
        script = f"n=0; while [ $n -lt {self.processes_in_a_storm} ]; do /bin/true; n=$((n+1)); done"
        self.storms.append(subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL))

    def fill(self) -> None:
        with contextlib.suppress(OSError), self.filling.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    def free_disk(self) -> None:
        self.filling.unlink(missing_ok=True)

    def plug(self, online: Cpus) -> bool:
        """CPUs go off or come back, as /sys has it; the last of the shared pool stays."""
        path = self.sys / "devices/system/cpu/online"
        if path.read_text().strip() == listed(online):
            return False
        new = path.with_name("online.new")
        new.write_text(listed(online) + "\n")
        new.rename(path)
        return True

    def hold(self, guest: Guest) -> bool:
        """`vmpin unpin SANDBOX`, or `vmpin repin SANDBOX`."""
        verb = "repin" if guest.expected.held else "unpin"
        done = self.cli(verb, guest.id).returncode == 0
        if done:
            guest.expected.held = not guest.expected.held
        return done

    def talk_nonsense(self) -> bool:
        connected = False
        for name in () if self.frozen else ("hook.sock", "vmpin.sock", "metrics.sock"):
            with contextlib.suppress(OSError):
                talk(self.run / name, self.rng.randbytes(self.rng.randint(1, 20000)))
                connected = True
        return connected

    def calm(self) -> None:
        """End everything that is wrong, so that all comes right."""
        for guest in self.running():
            if guest.inside is not None and guest.inside.agent is None:
                self.agents.toggle(guest.inside)
        for storm in self.storms:
            storm.wait()
        self.storms.clear()
        self.free_disk()
        self.plug(self.everything)
        self.freeze(False)
        if self.nri and not self.runtime.up:
            self.runtime.start()
        for guest in [guest for guest in self.guests.values() if guest.ended]:
            self.remove(guest)
        self.start_watcher()
        for guest in self.running():
            # By name: otherwise all that are unpinned would be taken back. One that has not been found yet is refused,
            # and its agent is connected to soon after it has been.
            if guest.inside is not None and guest.inside.given_up and not guest.expected.held:
                self.cli("repin", guest.id)
