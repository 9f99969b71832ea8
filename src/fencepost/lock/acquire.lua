-- acquire: take the lock if it is free and nobody's turn comes first, and draw the next fence.
-- KEYS   lock {ns:lock:name}:l, fences {ns:lock:name}:f, queue {ns:lock:name}:q,
--        alive {ns:lock:name}:a, ended {ns:lock:name}:x:attempt
-- ARGV   attempt, owner, ttl_ms, floor, overtakes, stay_ms, remember_ms
-- needs: whole, first, stay
-- ->     TAKEN fence                     greater than every fence drawn before; again for a repeat
-- ->     HELD left_ms owner fence ahead  by somebody else, or kept free for who waits longer
-- ->     ENDED                           this attempt was given up before this request came
local lock, fences, queue, alive, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local attempt, owner, ttl_ms, floor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local overtakes, stay_ms, remember_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
-- A duplicate that was long on its way would take the lock for nobody.
if redis.call('EXISTS', ended) == 1 then return {'ENDED'} end
local held = redis.call('HMGET', lock, 'attempt', 'owner', 'fence')
if held[1] == attempt then -- the same attempt is the same request
  redis.call('PEXPIRE', lock, ttl_ms)
  return {'TAKEN', held[3]}
end
local head, silent_ms, now_ms = first(queue, alive)
local mark = redis.call('HMGET', fences, 'last', 'overtaken')
local passes = head and head ~= attempt
local overtaken = passes and tonumber(mark[2] or '0') + 1 or 0
if not held[1] and overtaken <= overtakes then
  -- The clock carries the fence over a server that comes back empty, the counter over a clock that steps back.
  local fence = math.max(tonumber(mark[1] or '0') + 1, now_ms * 1000, tonumber(floor))
  local text = string.format('%.0f', fence)
  redis.call('HSET', lock, 'attempt', attempt, 'owner', owner, 'fence', text, 'since', now_ms)
  redis.call('PEXPIRE', lock, ttl_ms)
  redis.call('HSET', fences, 'last', text, 'overtaken', overtaken)
  redis.call('PEXPIRE', fences, remember_ms)
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
