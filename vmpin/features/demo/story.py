"""The story of `vmpin demo`, step by step; each claim is checked against /proc before it is printed."""

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.demo.stage import Stage, same, wait_until


def play(stage: Stage) -> None:
    """Run the whole story. :raises VmpinError: at the first claim that does not hold."""
    cpus = stage.tools.cpus
    pool, last = CpuSet((cpus.first,)), CpuSet((list(cpus)[-1],))
    vm, containers = stage.vm, stage.containers

    stage.step("a QEMU starts: the VM of a Kata pod, with 3 vCPUs and an iothread")
    vm.start()
    stage.print(f"process {vm.pid}, by KVM" if vm.kvm else f"process {vm.pid}, by TCG: {vm.why}")
    before = vm.masks()
    stage.print(f"/proc shows: {before}")
    stage.print("nothing confines it: its threads run on CPUs that belong to other pods")
    stage.vmpin("status", "-o", "wide")

    stage.step(f"the watcher starts; the node's shared pool is CPU {pool}")
    stage.start_watcher(pool)
    stage.expect("the pod has no container yet, so its VM is kept on the pool", EMPTY, pool)

    stage.step(f"crun creates two containers, the hook reports them: web owns CPU {last}, logs shares CPU {pool}")
    containers.run("web", last)
    containers.run("logs", pool)
    stage.expect(f"one vCPU alone on CPU {last}, the others on CPU {pool}", last, pool)
    stage.vmpin("status", "-o", "wide")
    stage.explain(last)

    if len(cpus) > 2:
        more, now = CpuSet(list(cpus)[-2:]), "web gets a second CPU"
        owned = more
    else:
        more, now = pool, "web has to return its CPU, and shares the pool"
        owned = EMPTY
    stage.step(f"{now}: crun update --cpuset-cpus {more} (no hook reports that)")
    containers.update("web", more)
    stage.expect("the watcher has read it from the container's cgroup", owned, pool)
    stage.vmpin("status", "-o", "wide")

    stage.step("is every thread on its CPUs?")
    stage.vmpin("verify")
    stage.expect("and /proc agrees", owned, pool)

    stage.step("the containers end")
    containers.stop("web")
    containers.stop("logs")
    stage.expect("the VM is back on the pool", EMPTY, pool)

    stage.step("vmpin leaves, and restores the masks")
    stage.vmpin("unpin", "--every", shown_output=False)
    wait_until(lambda: same(vm.masks(), before, cpus), lambda: f"not the original masks: {vm.masks()}")
    stage.print(f"/proc shows: {vm.masks()}, as before")
    stage.stop_watcher()
    print("\nEvery thread was where it should be, at every step.")
