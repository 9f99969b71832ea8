-- prolong: prolong a vote that is still ours; one that is missing is given, but counts from the next time on.
-- KEYS   lock {ns:lock:name}:l, ended {ns:lock:name}:x:attempt, born {ns}:born
-- ARGV   attempt, owner, ttl_ms, fence, joins, max_ttl_ms, server
-- needs: whole, newborn
-- resend: harmless, it is prolonged from now
-- ->     KEPT server
-- ->     JOINED                          it was free
-- ->     LOST
-- ->     NEWBORN left_ms high since server
-- ->     MISMATCH max_ttl_ms
-- ->     NAMELESS
local lock, ended, born = KEYS[1], KEYS[2], KEYS[3]
local attempt, owner, ttl_ms, fence, joins = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local max_ttl_ms, server = ARGV[6], ARGV[7]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
-- A newborn does not prolong either: what it holds may be older than what it has forgotten.
local refusal, me, high = newborn(born, server, max_ttl_ms)
if refusal then return refusal end
local holder = redis.pcall('HGET', lock, 'attempt')
if holder == attempt then
  if redis.call('PTTL', lock) < tonumber(ttl_ms) then redis.call('PEXPIRE', lock, ttl_ms) end
  return {'KEPT', me}
end
if holder or joins ~= '1' or redis.call('EXISTS', ended) == 1 then return {'LOST'} end
local time = redis.call('TIME')
local since = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
redis.call('HSET', lock, 'attempt', attempt, 'owner', owner, 'fence', fence, 'since', since)
redis.call('PEXPIRE', lock, ttl_ms)
if tonumber(fence) > high then redis.call('HSET', born, 'high', fence) end
return {'JOINED'}
