-- look: who holds the lock, and how many wait.
-- KEYS   lock {ns:lock:name}:l, queue {ns:lock:name}:q
-- ARGV
-- resend: harmless, it changes nothing
-- ->     HOLDER owner fence since_ms left_ms waiters
-- ->     NOBODY waiters
local lock, queue = KEYS[1], KEYS[2]

local held = redis.call('HMGET', lock, 'owner', 'fence', 'since')
local waiters = redis.call('ZCARD', queue)
if not held[1] then return {'NOBODY', waiters} end
return {'HOLDER', held[1], held[2], held[3], redis.call('PTTL', lock), waiters}
