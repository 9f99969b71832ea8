-- acquire: take the lock if it is free and nobody's turn comes first, and draw the next fence.
-- KEYS   lock {ns:lock:name}:l, fences {ns:lock:name}:f, queue {ns:lock:name}:q,
--        alive {ns:lock:name}:a, ended {ns:lock:name}:x:attempt
-- ARGV   attempt, owner, ttl_ms, floor, overtakes, stay_ms, remember_ms
-- needs: whole, first, stay, remember, take
-- ->     TAKEN fence                     greater than every fence drawn before; again for a repeat
-- ->     HELD left_ms owner fence ahead  by somebody else, or kept free for who waits longer
-- ->     ENDED                           this attempt was given up before this request came
local lock, fences, queue, alive, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local attempt, owner, ttl_ms, floor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local overtakes, stay_ms, remember_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
-- A duplicate that was long on its way would take the lock for nobody.
if redis.call('EXISTS', ended) == 1 then return {'ENDED'} end
return take(lock, fences, queue, alive, attempt, owner, ttl_ms, floor, nil, overtakes, stay_ms, remember_ms)
