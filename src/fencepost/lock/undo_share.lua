-- undo_share: end an attempt for ever, whatever became of it: no request of it that comes later takes a share.
-- KEYS   shares {ns:kind:name}:l, queue {ns:kind:name}:q, alive {ns:kind:name}:a,
--        ended {ns:kind:name}:x:attempt, ends {ns:kind:name}:e
-- ARGV   attempt, channel, straggler_ms
-- needs: first, call_next, counted, take_out
-- flags: allow-oom
-- resend: harmless, it has ended already
-- ->     UNDONE
local shares, queue, alive, ended, ends = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local attempt, channel, straggler_ms = ARGV[1], ARGV[2], ARGV[3]

take_out(shares, ends, attempt)
redis.call('ZREM', queue, attempt)
redis.call('ZREM', alive, attempt)
-- Whoever was woken and gave up hands the call on; and who waited behind this one may have room.
call_next(queue, alive, channel)
-- Last, since a server without memory refuses it (Redis 6.2): what is above must be done all the same.
redis.pcall('SET', ended, '1', 'PX', straggler_ms)
return {'UNDONE'}
