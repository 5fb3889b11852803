"""Messages of Kata's agent, as far as they are used: kata-containers src/libs/protocols/protos/agent.proto, oci.proto,
health.proto; the field numbers are those of Kata 2.0 and of every later version.
"""

from __future__ import annotations

from typing import Final

from vmpin.wire.protos import Messages

AGENT_SERVICE: Final = "grpc.AgentService"
HEALTH_SERVICE: Final = "grpc.Health"

#: gRPC's numbers for what the agent answers.
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED = 3, 5, 7

MESSAGES: Final = Messages("grpc", """
    UpdateContainerRequest      container_id=1 resources=2:LinuxResources
    LinuxResources              CPU=3:LinuxCPU
    LinuxCPU                    Cpus=6 Mems=7
    GetMetricsRequest
    Metrics                     metrics=1
    CheckRequest                service=1
    HealthCheckResponse         status=1:int32
    VersionCheckResponse        grpc_version=1 agent_version=2
""")
