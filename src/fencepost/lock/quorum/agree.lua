-- agree: let this server know the fence that its vote will go by, if it still stands by the vote.
-- KEYS   lock {ns:lock:name}:l, born {ns}:born
-- ARGV   attempt, fence, max_ttl_ms, server
-- needs: newborn
-- resend: harmless, it is the same fence
-- ->     AGREED
-- ->     LOST
-- ->     NEWBORN left_ms high since server
-- ->     MISMATCH max_ttl_ms
-- ->     NAMELESS
local lock, born = KEYS[1], KEYS[2]
local attempt, fence, max_ttl_ms, server = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local refusal, me, high = newborn(born, server, max_ttl_ms)
if refusal then return refusal end
if redis.pcall('HGET', lock, 'attempt') ~= attempt then return {'LOST'} end
-- Never to a lower one: a request of an earlier round may come late.
if tonumber(fence) > tonumber(redis.call('HGET', lock, 'fence')) then redis.call('HSET', lock, 'fence', fence) end
if tonumber(fence) > high then redis.call('HSET', born, 'high', fence) end
return {'AGREED'}
