"""The messages of Kata's agent that vmpin uses: kata-containers src/libs/protocols/protos/agent.proto, oci.proto,
health.proto. The field numbers are the same in Kata 2.0 and every later version."""

from typing import Final

from vmpin.wire.protos import Messages

MESSAGES: Final = Messages("grpc", """
    UpdateContainerRequest      container_id=1 resources=2:LinuxResources
    LinuxResources              CPU=3:LinuxCPU
    LinuxCPU                    Cpus=6 Mems=7
    GetMetricsRequest
    Metrics                     metrics=1
    CheckRequest                service=1
    VersionCheckResponse        grpc_version=1 agent_version=2
""")
