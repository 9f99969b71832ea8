-- vote: give this server's vote to an attempt, if it may vote and the lock is free here; draw the next fence.
-- KEYS   lock {ns:lock:name}:l, fences {ns:lock:name}:f, queue {ns:lock:name}:q,
--        alive {ns:lock:name}:a, ended {ns:lock:name}:x:attempt, born {ns}:born
-- ARGV   attempt, owner, ttl_ms, floor, near_us, overtakes, stay_ms, remember_ms, max_ttl_ms, server
-- needs: whole, first, stay, remember, take, newborn
-- ->     TAKEN fence server              greater than every fence that this server knows
-- ->     HELD left_ms owner fence ahead server
-- ->     ENDED                           this attempt was given up before this request came
-- ->     NEWBORN left_ms high since server   it may have forgotten a vote
-- ->     MISMATCH max_ttl_ms             it was born with another one
-- ->     NAMELESS                        it does not say who it is
local lock, fences, queue, alive, ended, born = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local attempt, owner, ttl_ms, floor, near_us = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local overtakes, stay_ms, remember_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local max_ttl_ms, server = ARGV[9], ARGV[10]

if not whole(ttl_ms) or not whole(max_ttl_ms) or tonumber(ttl_ms) > tonumber(max_ttl_ms) then
  return redis.error_reply('ERR ttl_ms is a positive whole number, and no more than max_ttl_ms')
end
local refusal, me, high = newborn(born, server, max_ttl_ms)
if refusal then return refusal end
if redis.call('EXISTS', ended) == 1 then return {'ENDED'} end
local least = string.format('%.0f', math.max(tonumber(floor), high + 1))
local answer = take(lock, fences, queue, alive, attempt, owner, ttl_ms, least, near_us, overtakes, stay_ms, remember_ms)
if answer[1] == 'TAKEN' and tonumber(answer[2]) > high then redis.call('HSET', born, 'high', answer[2]) end
answer[#answer + 1] = me
return answer
