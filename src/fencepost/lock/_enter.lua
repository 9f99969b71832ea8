
-- Who is in waits no more; while there is room left, whoever waits longest now is called.
local function enter(queue, alive, attempt, channel, room_left)
  redis.call('ZREM', queue, attempt)
  redis.call('ZREM', alive, attempt)
  if room_left then call_next(queue, alive, channel) end
end
