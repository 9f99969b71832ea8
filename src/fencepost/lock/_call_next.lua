
-- Wake whoever waits longest and lives: only that one, so that a release sends no crowd to the server.
local function call_next(queue, alive, channel)
  local head = first(queue, alive)
  if head then redis.call('PUBLISH', channel, head) end
end
