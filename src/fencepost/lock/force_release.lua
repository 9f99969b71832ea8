-- force_release: take the lock from whoever holds it; an operator's verb.
-- KEYS   lock {ns:lock:name}:l, queue {ns:lock:name}:q, alive {ns:lock:name}:a
-- ARGV   channel
-- needs: first, call_next
-- ->     HOLDER owner fence since_ms left_ms waiters    who held it
-- ->     NOBODY waiters
local lock, queue, alive = KEYS[1], KEYS[2], KEYS[3]
local channel = ARGV[1]

local held = redis.call('HMGET', lock, 'owner', 'fence', 'since')
local left_ms, waiters = redis.call('PTTL', lock), redis.call('ZCARD', queue)
if not held[1] then return {'NOBODY', waiters} end
redis.call('DEL', lock)
call_next(queue, alive, channel)
return {'HOLDER', held[1], held[2], held[3], left_ms, waiters}
