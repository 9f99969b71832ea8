-- admit: let a newborn vote that has waited long enough and is told the greatest fence of the others.
-- KEYS   born {ns}:born
-- ARGV   since, floor, by_clock, durable, max_ttl_ms, server
-- needs: newborn
-- ->     OPEN high server
-- ->     NEWBORN left_ms high since server   not yet, or it was born anew meanwhile
-- ->     MISMATCH max_ttl_ms
-- ->     NAMELESS
local born = KEYS[1]
local since, floor, by_clock, durable = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local max_ttl_ms, server = ARGV[5], ARGV[6]

local refusal, me, high = newborn(born, server, max_ttl_ms)
if not refusal then return {'OPEN', string.format('%.0f', high), me} end
-- The others were asked for this birth: after another one they may have voted on.
if refusal[1] ~= 'NEWBORN' or refusal[2] > 0 or refusal[4] ~= tonumber(since) then return refusal end
if by_clock == '1' then
  local time = redis.call('TIME')
  floor = math.max(floor, tonumber(time[1]) * 1000000 + tonumber(time[2]))
end
local text = string.format('%.0f', math.max(floor, tonumber(refusal[3])))
redis.call('HSET', born, 'open', '1', 'high', text, 'durable', durable)
return {'OPEN', text, refusal[5]}
