
-- The fence that stands in the way of this holder, or nil: then its own stands there from now on.
-- An equal fence counts only for who drew it: a server that lost its data may draw one twice.
local function refused(gate, fence, token, remember_ms)
  local seen = redis.call('HMGET', gate, 'fence', 'token')
  local last, mine = tonumber(seen[1] or '0'), tonumber(fence)
  if last > mine or (last == mine and seen[2] ~= token) then return seen[1] end
  redis.call('HSET', gate, 'fence', fence, 'token', token)
  if remember_ms ~= '0' then redis.call('PEXPIRE', gate, remember_ms) else redis.call('PERSIST', gate) end
  return nil
end
