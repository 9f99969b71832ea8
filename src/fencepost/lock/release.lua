-- release: give the lock back if it is still ours, and wake who waits longest.
-- KEYS   lock {ns:lock:name}:l, queue {ns:lock:name}:q, alive {ns:lock:name}:a
-- ARGV   attempt, channel
-- needs: first, call_next
-- ->     RELEASED
-- ->     LOST
local lock, queue, alive = KEYS[1], KEYS[2], KEYS[3]
local attempt, channel = ARGV[1], ARGV[2]

if redis.pcall('HGET', lock, 'attempt') ~= attempt then return {'LOST'} end
redis.call('DEL', lock)
call_next(queue, alive, channel)
return {'RELEASED'}
