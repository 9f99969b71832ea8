
-- The server's clock in milliseconds: every time in a shard is told by it alone.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
