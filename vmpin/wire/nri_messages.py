"""The messages of NRI that vmpin uses: containerd/nri pkg/api/api.proto, with its field numbers and names.

They are the same in every version of NRI so far (0.6 to 0.12), which only adds fields. `EventRequest` has the fields
that RunPodSandboxRequest, PostStartContainerRequest, StopContainerRequest and so on have in common. Texts of images
that only guide a choice are bytes here, the same on the wire: one that is no UTF-8 spoils no message."""

from typing import Final

from vmpin.wire.protos import Messages

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
#: The newest version of NRI whose messages these are. A runtime logs it (containerd/nri pkg/adaptation/plugin.go).
NRI_VERSION: Final = "v0.12.0"

MESSAGES: Final = Messages("nri.pkg.api.v1alpha1", """
    Empty
    RegisterPluginRequest       plugin_name=1 plugin_idx=2 NRI_version=3
    ConfigureRequest            config=1 runtime_name=2 runtime_version=3 registration_timeout=4:int64 \
                                request_timeout=5:int64 NRI_version=6
    ConfigureResponse           events=2:int32
    SynchronizeRequest          pods=1:PodSandbox* containers=2:Container* more=3:bool
    SynchronizeResponse         update=1:ContainerUpdate* more=2:bool
    StateChangeEvent            event=1:int32 pod=2:PodSandbox container=3:Container
    EventRequest                pod=1:PodSandbox container=2:Container
    CreateContainerRequest      pod=1:PodSandbox container=2:Container
    CreateContainerResponse     adjust=1:ContainerAdjustment update=2:ContainerUpdate*
    UpdateContainerRequest      pod=1:PodSandbox container=2:Container linux_resources=3:LinuxResources
    UpdateContainerResponse     update=1:ContainerUpdate*
    StopContainerResponse       update=1:ContainerUpdate*
    PodSandbox                  id=1 name=2 uid=3 namespace=4 annotations=6:map runtime_handler=7 \
                                linux=8:LinuxPodSandbox pid=9:uint32
    LinuxPodSandbox             pod_overhead=1:LinuxResources cgroup_parent=3
    Container                   id=1 pod_sandbox_id=2 name=3 state=4:int32 annotations=6:map \
                                env=8:bytes* linux=11:LinuxContainer pid=12:uint32
    LinuxContainer              devices=2:LinuxDevice* resources=3:LinuxResources
    LinuxDevice                 path=1:bytes type=2:bytes major=3:int64 minor=4:int64
    LinuxResources              cpu=2:LinuxCPU
    LinuxCPU                    shares=1:OptionalUInt64 quota=2:OptionalInt64 period=3:OptionalUInt64 cpus=6 mems=7
    OptionalInt64               value=1:int64
    OptionalUInt64              value=1:uint64
    ContainerAdjustment         annotations=2:map env=4:KeyValue* linux=6:LinuxContainerAdjustment
    LinuxContainerAdjustment    resources=2:LinuxResources
    KeyValue                    key=1 value=2
    ContainerUpdate             container_id=1 linux=2:LinuxContainerUpdate ignore_failure=3:bool
    LinuxContainerUpdate        resources=1:LinuxResources
""")
