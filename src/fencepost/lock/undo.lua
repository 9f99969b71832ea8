-- undo: end an attempt for ever, whatever became of it: no request of it that comes later takes the lock.
-- KEYS   lock {ns:lock:name}:l, queue {ns:lock:name}:q, alive {ns:lock:name}:a,
--        ended {ns:lock:name}:x:attempt
-- ARGV   attempt, channel, straggler_ms
-- needs: first, call_next
-- flags: allow-oom
-- resend: harmless, it has ended already
-- ->     UNDONE
local lock, queue, alive, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local attempt, channel, straggler_ms = ARGV[1], ARGV[2], ARGV[3]

local ours = redis.pcall('HGET', lock, 'attempt') == attempt
if ours then redis.call('DEL', lock) end
redis.pcall('ZREM', queue, attempt)
redis.pcall('ZREM', alive, attempt)
-- Whoever was woken and gave up hands the call on.
if redis.call('EXISTS', lock) == 0 then call_next(queue, alive, channel) end
-- Last, since a server without memory refuses it (Redis 6.2): what is above must be done all the same.
redis.pcall('SET', ended, '1', 'PX', straggler_ms)
return {'UNDONE'}
