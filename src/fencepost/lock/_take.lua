
-- Take the lock if it is free and nobody's turn comes first, and draw the next fence: greater than the
-- last one, at least ``floor`` and at least ``near_us`` (nil: this server's clock).
local function take(lock, fences, queue, alive, attempt, owner, ttl_ms, floor, near_us, overtakes, stay_ms, remember_ms)
  local held = redis.call('HMGET', lock, 'attempt', 'owner', 'fence')
  if held[1] == attempt then -- the same attempt is the same request
    redis.call('PEXPIRE', lock, ttl_ms)
    return {'TAKEN', held[3]}
  end
  local head, silent_ms, now_ms = first(queue, alive)
  local mark = redis.call('HMGET', fences, 'last', 'overtaken', 'kept')
  local passes = head and head ~= attempt
  local overtaken = passes and tonumber(mark[2] or '0') + 1 or 0
  if not held[1] and overtaken <= overtakes then
    -- The clock carries the fence over a server that comes back empty, the counter over a clock that steps back.
    local fence = math.max(tonumber(mark[1] or '0') + 1, near_us or now_ms * 1000, tonumber(floor))
    local text = string.format('%.0f', fence)
    redis.call('HSET', lock, 'attempt', attempt, 'owner', owner, 'fence', text, 'since', now_ms)
    redis.call('PEXPIRE', lock, ttl_ms)
    remember(fences, text, overtaken, mark[3], now_ms, remember_ms)
    if head then
      redis.call('ZREM', queue, attempt)
      redis.call('ZREM', alive, attempt)
    end
    return {'TAKEN', text}
  end
  if stay_ms > 0 then stay(queue, alive, attempt, now_ms, stay_ms, 0) end
  local ahead = redis.call('ZRANK', queue, attempt) or redis.call('ZCARD', queue)
  if held[1] then return {'HELD', redis.call('PTTL', lock), held[2], held[3], ahead} end
  return {'HELD', silent_ms, '', '0', ahead}
end
