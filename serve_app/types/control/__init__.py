"""Messages between gateways and the control plane: commands with one reply each, and snapshots.

Plain frozen dataclasses, as everywhere in `types`. A gateway sends a `Command` for the caller of its API, and
the control plane answers with the command's reply or refuses with an error. A `Snapshot` contains all that a
gateway needs to serve without the control plane: endpoints, keys and exhausted budgets.
"""

from __future__ import annotations

from serve_app.types.control.command import Change, Command, Done, ReplyT
from serve_app.types.control.endpoints import (
    ConfigShown,
    ConfigWanted,
    CreateEndpoint,
    DeleteEndpoint,
    EndpointList,
    EndpointShown,
    EntityShown,
    EntityState,
    EntityWanted,
    GetEndpoint,
    GetPermissions,
    Grant,
    ListEndpoints,
    Logs,
    PatchTags,
    Permissions,
    PutAiGateway,
    PutPermissions,
    PutStored,
    ReadLogs,
    UpdateConfig,
    UpdateState,
)
from serve_app.types.control.keys import (
    CreatedKey,
    CreateKey,
    KeyList,
    KeyShown,
    ListKeys,
    RevokeKey,
    RotateKey,
    UpdateKey,
)
from serve_app.types.control.live import (
    EntityCounts,
    LiveSlot,
    LiveSlots,
    LiveTold,
    ReadLive,
    ReplicaLoad,
    TellLive,
)
from serve_app.types.control.responses import (
    ForgetResponse,
    Forgotten,
    KeepResponse,
    KeptResponse,
    KeptResponses,
    RecallResponses,
    owner_of,
)
from serve_app.types.control.rollouts import (
    CompareEntities,
    ComparisonReport,
    EntityReport,
    Estimate,
    GetRollout,
    GiveFeedback,
    Guards,
    MetricTest,
    PutShadow,
    RolloutShown,
    RolloutState,
    StartRollout,
    StopRollout,
)
from serve_app.types.control.snapshot import (
    AwaitChanges,
    Followed,
    GatewayReport,
    KnownKey,
    Snapshot,
    WatchSnapshot,
)
from serve_app.types.control.usage import ReportUsage, SettledPart, Shipped, ShipUsage, UsageReport, UsageRow
