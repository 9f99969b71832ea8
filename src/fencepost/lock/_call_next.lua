
-- Wake whoever waits longest and lives: only that one, so that a release sends no crowd to the server.
local function call_next(queue, alive, channel)
  if redis.call('EXISTS', queue) == 0 then return end
  local head = first(queue, alive)
  -- Not ``call``: an ACL may forbid the channel, and a lock must be given back all the same.
  if head then redis.pcall('PUBLISH', channel, head) end
end
