-- Lets a request wait until a backend has a server, or until this process is told to end: then another one has them.

local LOOK_MS = 50 -- between two looks

local function is_ending(txn)
  local stopping = txn.f:stopping()
  return stopping == true or stopping == 1 -- a number until HAProxy 3.0
end

core.register_action("wait_for_server", { "http-req" }, function(txn, backend, wait_ms)
  local waited = 0
  while waited < tonumber(wait_ms) and core.backends[backend]:get_srv_act() == 0 and not is_ending(txn) do
    core.msleep(LOOK_MS)
    waited = waited + LOOK_MS
  end
end, 2)
