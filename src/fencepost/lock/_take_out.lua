
-- Take one share out; false if it is not in, or what is there is not ours.
local function take_out(shares, ends, attempt)
  local found = redis.pcall('HMGET', shares, attempt, '#used', '#bounds')
  if not found[1] then return false end
  local weight, permits = found[1]:match('^(%d+) (%d+) ')
  local used = tonumber(found[2]) - tonumber(weight)
  if used <= 0 then
    redis.call('DEL', shares, ends)
    return true
  end
  -- First, since a server without memory refuses it (Redis 6.2): then nothing has changed.
  redis.call('HSET', shares, '#used', used, '#bounds', counted(found[3], permits, -1))
  redis.call('HDEL', shares, attempt)
  redis.call('ZREM', ends, attempt)
  return true
end
