-- init: let a server vote at once, on an operator's word that no lease stands; an open one stays as it is.
-- KEYS   born {ns}:born
-- ARGV   floor, durable, anew, max_ttl_ms, server
-- needs: newborn
-- ->     OPEN high server
-- ->     MISMATCH max_ttl_ms
-- ->     NAMELESS
local born = KEYS[1]
local floor, durable, anew, max_ttl_ms, server = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if anew == '1' then redis.call('HDEL', born, 'max_ttl', 'id', 'open') end
local refusal, me, high = newborn(born, server, max_ttl_ms)
if not refusal then return {'OPEN', string.format('%.0f', high), me} end
if refusal[1] ~= 'NEWBORN' then return refusal end
local text = string.format('%.0f', math.max(tonumber(floor), tonumber(refusal[3])))
redis.call('HSET', born, 'open', '1', 'high', text, 'durable', durable)
return {'OPEN', text, refusal[5]}
